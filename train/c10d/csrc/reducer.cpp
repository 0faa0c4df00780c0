// c10d::Reducer: DistributedDataParallel's buckets, autograd hooks and overlap.
#include "guard.h"
#include "handles.h"

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>

using gristmill::group_of;
using gristmill::guarded;
using gristmill::tensor_of;

namespace {

// The handle is the Reducer itself: its destructor may throw, which a smart pointer inside a struct would turn into
// std::terminate.
c10d::Reducer& reducer_of(void* handle) {
  return *static_cast<c10d::Reducer*>(handle);
}

std::vector<at::Tensor> tensors_of(const void* const* tensors, size_t n) {
  std::vector<at::Tensor> list;
  list.reserve(n);
  for (size_t i = 0; i < n; i++) {
    list.push_back(tensor_of(tensors[i]));
  }
  return list;
}

} // namespace

int32_t gm_reducer(
    const void* group,
    const void* const* params,
    size_t n,
    int64_t first_bucket_bytes,
    int64_t bucket_cap_bytes,
    bool find_unused,
    void** reducer,
    size_t* n_buckets,
    char** error) {
  return guarded(error, [&] {
    // Gradients become ready roughly in the reverse of the order in which the parameters were made, so the
    // Reducer is given them in that order: bucket 0 is then the one that fills first.
    std::vector<at::Tensor> list = tensors_of(params, n);
    std::reverse(list.begin(), list.end());
    const std::vector<bool> expect_sparse(n, false);
    auto assignment = c10d::compute_bucket_assignment_by_size(
        list,
        {static_cast<size_t>(first_bucket_bytes), static_cast<size_t>(bucket_cap_bytes)},
        expect_sparse);
    *n_buckets = std::get<0>(assignment).size();
    auto made = std::make_unique<c10d::Reducer>(
        list,
        std::get<0>(assignment),
        group_of(group),
        expect_sparse,
        bucket_cap_bytes,
        find_unused,
        /*gradient_as_bucket_view=*/false,
        std::unordered_map<size_t, std::string>{},
        first_bucket_bytes,
        /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false,
        std::vector<int64_t>{});
    // torch lays the buckets out anew after the first step, in the order in which gradients arrived. The place of
    // a gradient in its bucket decides in which order Gloo's ring adds the ranks' parts, so a resumed run, whose
    // first step would use the first layout again, would round differently. Spending that one rebuild here, on the
    // order of the parameters, makes the layout a function of the parameters alone. (Without it the Reducer would
    // also go on recording arrivals at every step.)
    made->push_rebuilt_params_for_all_indices();
    made->rebuild_buckets();
    *reducer = made.release();
  });
}

int32_t gm_reducer_prepare_forward(void* reducer, char** error) {
  return guarded(error, [&] { reducer_of(reducer).prepare_for_forward(); });
}

int32_t gm_reducer_prepare_backward(void* reducer, const void* const* outputs, size_t n, char** error) {
  return guarded(error, [&] { reducer_of(reducer).prepare_for_backward(tensors_of(outputs, n)); });
}

int32_t gm_reducer_check_finalized(void* reducer, char** error) {
  return guarded(error, [&] { reducer_of(reducer).check_finalized(); });
}

void gm_reducer_free(void* reducer) {
  gristmill::quietly([&] { delete static_cast<c10d::Reducer*>(reducer); });
}
