// What the opaque pointers of shim.h point to.
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace gristmill {

struct StoreHandle {
  c10::intrusive_ptr<c10d::Store> store;
};

struct GroupHandle {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

inline const c10::intrusive_ptr<c10d::Store>& store_of(const void* handle) {
  return static_cast<const StoreHandle*>(handle)->store;
}

inline const c10::intrusive_ptr<c10d::ProcessGroup>& group_of(const void* handle) {
  return static_cast<const GroupHandle*>(handle)->group;
}

inline const at::Tensor& tensor_of(const void* tensor) {
  return *static_cast<const at::Tensor*>(tensor);
}

} // namespace gristmill
