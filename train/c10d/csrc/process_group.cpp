// c10d::ProcessGroup over c10d::ProcessGroupGloo, and the collectives that training needs.
#include "guard.h"
#include "handles.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>

using gristmill::group_of;
using gristmill::GroupHandle;
using gristmill::guarded;
using gristmill::store_of;
using gristmill::tensor_of;

namespace {

c10d::ReduceOp reduce_op(int32_t op) {
  switch (op) {
    case GM_SUM:
      return c10d::ReduceOp::SUM;
    case GM_PRODUCT:
      return c10d::ReduceOp::PRODUCT;
    case GM_MIN:
      return c10d::ReduceOp::MIN;
    case GM_MAX:
      return c10d::ReduceOp::MAX;
    default:
      TORCH_CHECK(false, "unknown reduction ", op);
  }
}

// Gloo's own timeout bounds each send and receive of an operation; this bounds the operation.
void finish(const c10::intrusive_ptr<c10d::Work>& work, std::chrono::milliseconds timeout) {
  TORCH_CHECK(work->wait(timeout), "the operation was aborted");
}

} // namespace

int32_t gm_gloo_group(
    const void* store,
    int32_t rank,
    int32_t size,
    int64_t timeout_ms,
    int32_t threads,
    int32_t address_kind,
    const char* const* addresses,
    size_t n_addresses,
    void** group,
    char** error) {
  return guarded(error, [&] {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    options->threads = threads;
    if (address_kind == GM_ADDRESS_DEFAULT) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    }
    for (size_t i = 0; i < n_addresses; i++) {
      options->devices.push_back(
          address_kind == GM_ADDRESS_HOST ? c10d::ProcessGroupGloo::createDeviceForHostname(addresses[i])
                                          : c10d::ProcessGroupGloo::createDeviceForInterface(addresses[i]));
    }
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store_of(store), rank, size, options);
    auto wrapped = c10::make_intrusive<c10d::ProcessGroup>(store_of(store), rank, size);
    wrapped->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    wrapped->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    *group = new GroupHandle{std::move(wrapped)};
  });
}

int32_t gm_all_reduce(const void* group, const void* tensor, int32_t op, int64_t timeout_ms, char** error) {
  return guarded(error, [&] {
    // detach(): the same storage, and no autograd graph of a communication.
    std::vector<at::Tensor> tensors{tensor_of(tensor).detach()};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(op);
    options.timeout = std::chrono::milliseconds(timeout_ms);
    finish(group_of(group)->allreduce(tensors, options), options.timeout);
  });
}

int32_t gm_broadcast(const void* group, const void* tensor, int32_t root, int64_t timeout_ms, char** error) {
  return guarded(error, [&] {
    std::vector<at::Tensor> tensors{tensor_of(tensor).detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.rootTensor = 0;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    finish(group_of(group)->broadcast(tensors, options), options.timeout);
  });
}

int32_t gm_all_gather(const void* group, const void* tensor, int64_t timeout_ms, void** out, char** error) {
  return guarded(error, [&] {
    std::vector<at::Tensor> inputs{tensor_of(tensor).detach().contiguous()};
    std::vector<std::vector<at::Tensor>> outputs(1);
    const int size = group_of(group)->getSize();
    for (int i = 0; i < size; i++) {
      outputs[0].push_back(at::empty_like(inputs[0]));
    }
    c10d::AllgatherOptions options;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    finish(group_of(group)->allgather(outputs, inputs, options), options.timeout);
    std::vector<std::unique_ptr<at::Tensor>> owned;
    for (auto& tensor_out : outputs[0]) {
      owned.push_back(std::make_unique<at::Tensor>(tensor_out));
    }
    for (size_t i = 0; i < owned.size(); i++) {
      out[i] = owned[i].release();
    }
  });
}

int32_t gm_broadcast_coalesced(
    const void* group,
    const void* const* tensors,
    size_t n,
    size_t buffer_bytes,
    int32_t root,
    char** error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> list;
    list.reserve(n);
    for (size_t i = 0; i < n; i++) {
      list.push_back(tensor_of(tensors[i]).detach());
    }
    c10d::broadcast_coalesced(group_of(group), list, buffer_bytes, root);
  });
}

void gm_group_free(void* group) {
  gristmill::quietly([&] { delete static_cast<GroupHandle*>(group); });
}
