// The plain C surface between Rust and torch's C++ core.
//
// Rules of the surface:
// - every fallible function returns a code of gm_code and, when it is not GM_OK, writes a NUL-terminated message to
//   *error, to be freed with gm_string_free (NULL if there was no memory for it); no exception crosses;
// - a tensor is an at::Tensor*, as tch holds it; one that is returned is owned by the caller;
// - opaque handles are freed once, by the gm_*_free of their kind, which may be given NULL.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

enum gm_code : int32_t {
  GM_OK = 0,
  GM_TIMEOUT = 1, // c10d::TimeoutError
  GM_NETWORK = 2, // c10::DistNetworkError
  GM_STORE = 3,   // c10::DistStoreError
  GM_BACKEND = 4, // c10::DistBackendError and its siblings
  GM_TORCH = 5,   // any other c10::Error
  GM_OTHER = 6,   // std::exception; Gloo's own exceptions are among them
};

void gm_string_free(char* text);

// store.cpp
int32_t gm_tcp_store(
    const char* host,
    uint16_t port,
    bool is_server,
    bool multi_tenant,
    uint64_t world_size,
    int64_t timeout_ms,
    void** store,
    uint16_t* bound_port,
    char** error);
int32_t gm_prefix_store(const char* prefix, const void* store, void** out, char** error);
int32_t gm_store_clone(const void* store, void** out, char** error);
int32_t gm_store_set(const void* store, const char* key, const uint8_t* value, size_t len, char** error);
// The value is handed to `sink(context, bytes, len)` before the call returns.
int32_t gm_store_get(
    const void* store,
    const char* key,
    void (*sink)(void*, const uint8_t*, size_t),
    void* context,
    char** error);
int32_t gm_store_wait(const void* store, const char* const* keys, size_t n, int64_t timeout_ms, char** error);
int32_t gm_store_check(const void* store, const char* const* keys, size_t n, bool* present, char** error);
int32_t gm_store_add(const void* store, const char* key, int64_t amount, int64_t* sum, char** error);
int32_t gm_store_delete(const void* store, const char* key, bool* deleted, char** error);
void gm_store_free(void* store);

// process_group.cpp
enum gm_address : int32_t { GM_ADDRESS_DEFAULT = 0, GM_ADDRESS_HOST = 1, GM_ADDRESS_INTERFACE = 2 };
enum gm_reduce : int32_t { GM_SUM = 0, GM_PRODUCT = 1, GM_MIN = 2, GM_MAX = 3 };
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
    char** error);
int32_t gm_all_reduce(const void* group, const void* tensor, int32_t op, int64_t timeout_ms, char** error);
int32_t gm_broadcast(const void* group, const void* tensor, int32_t root, int64_t timeout_ms, char** error);
// `out` has room for as many tensors as the group has ranks.
int32_t gm_all_gather(const void* group, const void* tensor, int64_t timeout_ms, void** out, char** error);
int32_t gm_broadcast_coalesced(
    const void* group,
    const void* const* tensors,
    size_t n,
    size_t buffer_bytes,
    int32_t root,
    char** error);
void gm_group_free(void* group);

// reducer.cpp
int32_t gm_reducer(
    const void* group,
    const void* const* params,
    size_t n,
    int64_t first_bucket_bytes,
    int64_t bucket_cap_bytes,
    bool find_unused,
    void** reducer,
    size_t* n_buckets,
    char** error);
int32_t gm_reducer_prepare_forward(void* reducer, char** error);
int32_t gm_reducer_prepare_backward(void* reducer, const void* const* outputs, size_t n, char** error);
int32_t gm_reducer_check_finalized(void* reducer, char** error);
void gm_reducer_free(void* reducer);

// tensor.cpp
// Takes over `owner` whatever happens: `drop(owner)` runs exactly once, at once when the call fails, else when
// libtorch lets go of the storage.
int32_t gm_tensor_from_owned(
    void* data,
    const int64_t* shape,
    size_t n_dims,
    int32_t scalar_type,
    void* owner,
    void (*drop)(void*),
    void** tensor,
    char** error);

// runtime.cpp
int32_t gm_set_deterministic_algorithms(bool on, char** error);
int32_t gm_deterministic_algorithms(bool* on, char** error);
int32_t gm_cpu_capability(void (*sink)(void*, const uint8_t*, size_t), void* context, char** error);
int32_t gm_build_config(void (*sink)(void*, const uint8_t*, size_t), void* context, char** error);
int32_t gm_num_threads(int32_t* n, char** error);
int32_t gm_set_num_threads(int32_t n, char** error);
int32_t gm_rng_state(void (*sink)(void*, const uint8_t*, size_t), void* context, char** error);
int32_t gm_set_rng_state(const uint8_t* state, size_t len, char** error);

} // extern "C"
