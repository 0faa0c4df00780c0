// The few Gloo declarations that ProcessGroupGloo.hpp needs. The PyPI wheel of torch ships Gloo's code inside
// libtorch_cpu.so but none of its headers. Everything here is either only named (Device, UnboundBuffer) or an
// interface whose vtable order must equal Gloo's (rendezvous::Store). Nothing of ours calls into these classes.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds getTimeout() const;
};

namespace transport {
class Device;
class UnboundBuffer;
class Context;
} // namespace transport

namespace rendezvous {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& /*timeout*/) {
    wait(keys);
  }
  virtual bool has_v2_support() {
    return false;
  }
  virtual std::vector<std::vector<char>> multi_get(
      const std::vector<std::string>& /*keys*/) {
    return {};
  }
  virtual void multi_set(
      const std::vector<std::string>& /*keys*/,
      const std::vector<std::vector<char>>& /*values*/) {}
  virtual void append(
      const std::string& /*key*/,
      const std::vector<char>& /*data*/) {}
  virtual int64_t add(const std::string& /*key*/, int64_t /*value*/) {
    return 0;
  }
};

} // namespace rendezvous
} // namespace gloo
