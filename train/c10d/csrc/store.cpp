// c10d::TCPStore and c10d::PrefixStore.
#include "guard.h"
#include "handles.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

using gristmill::guarded;
using gristmill::StoreHandle;
using gristmill::store_of;

namespace {

std::vector<std::string> strings(const char* const* texts, size_t n) {
  return std::vector<std::string>(texts, texts + n);
}

} // namespace

void gm_string_free(char* text) {
  std::free(text);
}

int32_t gm_tcp_store(
    const char* host,
    uint16_t port,
    bool is_server,
    bool multi_tenant,
    uint64_t world_size,
    int64_t timeout_ms,
    void** store,
    uint16_t* bound_port,
    char** error) {
  return guarded(error, [&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    options.multiTenant = multi_tenant;
    options.numWorkers = world_size;
    // The server must be able to say which port it picked before anyone can join it.
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    auto tcp = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
    *bound_port = tcp->getPort();
    *store = new StoreHandle{std::move(tcp)};
  });
}

int32_t gm_prefix_store(const char* prefix, const void* store, void** out, char** error) {
  return guarded(error, [&] {
    *out = new StoreHandle{c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store_of(store))};
  });
}

int32_t gm_store_clone(const void* store, void** out, char** error) {
  return guarded(error, [&] { *out = new StoreHandle{store_of(store)->clone()}; });
}

int32_t gm_store_set(const void* store, const char* key, const uint8_t* value, size_t len, char** error) {
  return guarded(error, [&] { store_of(store)->set(std::string(key), std::vector<uint8_t>(value, value + len)); });
}

int32_t gm_store_get(
    const void* store,
    const char* key,
    void (*sink)(void*, const uint8_t*, size_t),
    void* context,
    char** error) {
  return guarded(error, [&] {
    const std::vector<uint8_t> value = store_of(store)->get(std::string(key));
    sink(context, value.data(), value.size());
  });
}

int32_t gm_store_wait(const void* store, const char* const* keys, size_t n, int64_t timeout_ms, char** error) {
  return guarded(error, [&] { store_of(store)->wait(strings(keys, n), std::chrono::milliseconds(timeout_ms)); });
}

int32_t gm_store_check(const void* store, const char* const* keys, size_t n, bool* present, char** error) {
  return guarded(error, [&] { *present = store_of(store)->check(strings(keys, n)); });
}

int32_t gm_store_add(const void* store, const char* key, int64_t amount, int64_t* sum, char** error) {
  return guarded(error, [&] { *sum = store_of(store)->add(std::string(key), amount); });
}

int32_t gm_store_delete(const void* store, const char* key, bool* deleted, char** error) {
  return guarded(error, [&] { *deleted = store_of(store)->deleteKey(std::string(key)); });
}

void gm_store_free(void* store) {
  gristmill::quietly([&] { delete static_cast<StoreHandle*>(store); });
}
