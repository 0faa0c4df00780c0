// Turns every C++ exception into a code and a text, so that none crosses into Rust.
#pragma once
#include "shim.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <cstring>
#include <exception>
#include <string>

namespace gristmill {

inline int32_t fail(char** error, int32_t code, const char* text) noexcept {
  if (error != nullptr) {
    *error = ::strdup(text);
  }
  return code;
}

template <class F>
int32_t guarded(char** error, F&& body) noexcept {
  // Derived classes come first. what_without_backtrace(): a C++ stack is no help to who reads a Rust error.
  try {
    body();
    return GM_OK;
  } catch (const c10d::TimeoutError& e) {
    return fail(error, GM_TIMEOUT, e.what_without_backtrace());
  } catch (const c10::DistNetworkError& e) {
    return fail(error, GM_NETWORK, e.what_without_backtrace());
  } catch (const c10::DistStoreError& e) {
    return fail(error, GM_STORE, e.what_without_backtrace());
  } catch (const c10::DistError& e) {
    return fail(error, GM_BACKEND, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return fail(error, GM_TORCH, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return fail(error, GM_OTHER, e.what());
  } catch (...) {
    return fail(error, GM_OTHER, "an exception that is not a std::exception");
  }
}

// Runs a destructor that might throw (c10d::Reducer's may) from a context that can't report.
template <class F>
void quietly(F&& body) noexcept {
  try {
    body();
  } catch (...) {
    // A failed teardown leaves nothing that the caller could still act on.
  }
}

} // namespace gristmill
