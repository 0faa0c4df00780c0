// Process-wide switches and facts of libtorch that tch does not expose.
#include "guard.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <string>

using gristmill::guarded;

namespace {

void give(void (*sink)(void*, const uint8_t*, size_t), void* context, const std::string& text) {
  sink(context, reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

} // namespace

int32_t gm_set_deterministic_algorithms(bool on, char** error) {
  return guarded(error, [&] { at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false); });
}

int32_t gm_deterministic_algorithms(bool* on, char** error) {
  return guarded(error, [&] { *on = at::globalContext().deterministicAlgorithms(); });
}

int32_t gm_cpu_capability(void (*sink)(void*, const uint8_t*, size_t), void* context, char** error) {
  return guarded(error, [&] { give(sink, context, at::get_cpu_capability()); });
}

int32_t gm_build_config(void (*sink)(void*, const uint8_t*, size_t), void* context, char** error) {
  return guarded(error, [&] { give(sink, context, at::show_config()); });
}

int32_t gm_num_threads(int32_t* n, char** error) {
  return guarded(error, [&] { *n = at::get_num_threads(); });
}

int32_t gm_set_num_threads(int32_t n, char** error) {
  return guarded(error, [&] { at::set_num_threads(n); });
}

int32_t gm_rng_state(void (*sink)(void*, const uint8_t*, size_t), void* context, char** error) {
  return guarded(error, [&] {
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    const at::Tensor state = generator.get_state().contiguous();
    sink(context, state.const_data_ptr<uint8_t>(), state.numel());
  });
}

int32_t gm_set_rng_state(const uint8_t* state, size_t len, char** error) {
  return guarded(error, [&] {
    at::Tensor tensor = at::empty({static_cast<int64_t>(len)}, at::kByte);
    std::memcpy(tensor.mutable_data_ptr<uint8_t>(), state, len);
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(tensor);
  });
}
