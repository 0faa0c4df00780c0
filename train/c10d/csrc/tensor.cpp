// A tensor over memory that Rust owns.
#include "guard.h"

#include <ATen/ATen.h>
#include <ATen/ops/from_blob.h>

int32_t gm_tensor_from_owned(
    void* data,
    const int64_t* shape,
    size_t n_dims,
    int32_t scalar_type,
    void* owner,
    void (*drop)(void*),
    void** tensor,
    char** error) {
  return gristmill::guarded(error, [&] {
    // The owner rides in the deleter's captures rather than in its body: it is then let go exactly once, whether
    // from_blob fails before, after, or never. shared_ptr's constructor runs `drop` itself if it can't allocate.
    std::shared_ptr<void> held(owner, drop);
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type)).device(at::kCPU);
    auto made = std::make_unique<at::Tensor>(
        at::from_blob(data, at::IntArrayRef(shape, n_dims), [held](void*) {}, options));
    *tensor = made.release();
  });
}
