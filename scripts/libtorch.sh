#!/usr/bin/env bash
# Lays out libtorch 2.11.0 in .libtorch (0.6 GB fetched, 1.1 GB on disk): the torch wheel and the two CUDA runtime wheels
# that libtorch_cpu.so names, side by side, so that libtorch's own rpath finds them. Killed at any point, run it again.
#
# A LIBTORCH in the environment is used instead, if it is that version. The wheel's libtorch_cuda.so is kept though
# nothing links it: work on a GPU loads it at run time, and needs the NVIDIA libraries of a full torch installation too.
set -euo pipefail
cd "$(dirname "$0")/.."

version=2.11.0
packages=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
checksums='7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a  torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl
7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548  nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8  nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl'

fail() { # exit status, message
  echo "libtorch: $2" >&2
  exit "$1"
}
version_of() { # torch folder
  if [ -f "$1/build-version" ]; then
    head -n 1 "$1/build-version"
  elif [ -f "$1/version.py" ]; then
    sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py"
  fi
}

if [ -n "${LIBTORCH-}" ] && [ "$(realpath -m "$LIBTORCH")" != "$(realpath -m .libtorch/torch)" ]; then
  found=$(version_of "$LIBTORCH")
  [ -n "$found" ] || fail 2 "LIBTORCH=$LIBTORCH is no torch folder (neither version.py nor build-version in it): unset it, and this script fetches $version"
  [ "${found%%+*}" = "$version" ] || fail 2 "LIBTORCH=$LIBTORCH is torch $found, but tch 0.24 and the C++ shim need $version: unset it, and this script fetches that"
  [ -f "$LIBTORCH/include/torch/csrc/distributed/c10d/reducer.hpp" ] || fail 2 "LIBTORCH=$LIBTORCH has no C++ headers: unset it, and this script fetches a libtorch that has"
  echo "libtorch: $found in $LIBTORCH (from the environment)"
  exit 0
fi

root=.libtorch
stamp=$root/complete
mkdir -p "$root"
# Two runs at once: the second waits, and then finds the work done.
if command -v flock >/dev/null 2>&1; then
  exec 9>"$root/lock"
  flock 9
fi
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksums" ] && [ -f "$root/torch/lib/libtorch_cpu.so" ]; then
  echo "libtorch: $version in $root (already there)"
  exit 0
fi

# Everything happens in one folder, which a killed run leaves behind and the next one removes. Wheels whose digest is
# right are kept from a killed run.
partial=$root/partial
wheels=$partial/wheels
rm -rf "$partial/unpacked" "$partial/old" "$stamp"
mkdir -p "$wheels" "$partial/unpacked" "$partial/old"

good() { (cd "$wheels" && printf '%s\n' "$checksums" | sha256sum --check --status 2>/dev/null); }

attempt=1
until good; do
  if [ "$attempt" -gt 4 ]; then
    fail 2 "the wheels could not be fetched: is the Python package index reachable (python3 -m pip download ${packages[*]})?"
  fi
  if [ "$attempt" -gt 1 ]; then
    echo "libtorch: trying again ($attempt of 4)" >&2
    sleep $((attempt * 3))
  fi
  echo "libtorch: fetching ${packages[*]} (0.6 GB)"
  rm -rf "$wheels"
  mkdir -p "$wheels"
  # Independent of this machine's Python: these are C++ libraries, and any CPython's wheel has the same.
  python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
    --python-version 3.11 --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$wheels" "${packages[@]}" || true
  if ! good && [ "$(find "$wheels" -name '*.whl' | wc -l)" -eq 3 ]; then
    (cd "$wheels" && printf '%s\n' "$checksums" | sha256sum --check 2>&1 | grep -v ': OK$' >&2) || true
    fail 1 "a fetched wheel is not the one that is pinned; nothing was unpacked. Remove $partial and try again; if it stays so, do not trust the package index in use"
  fi
  attempt=$((attempt + 1))
done

echo "libtorch: unpacking"
python3 - "$wheels" "$partial/unpacked" <<'PYTHON'
import pathlib
import sys
import zipfile

wheels, target = map(pathlib.Path, sys.argv[1:])
# The libraries, the headers, and who made them; nothing of torch's Python.
wanted = ("torch/lib/", "torch/include/", "torch/share/", "torch/version.py", "nvidia/", "torch-", "nvidia_")
unwanted = ("torch/lib/libtorch_python.so", "torch/lib/libshm")
for wheel in sorted(wheels.glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(wanted) and not name.startswith(unwanted):
                archive.extract(name, target)
PYTHON

header=$partial/unpacked/torch/include/torch/csrc/distributed/c10d/reducer.hpp
[ -f "$header" ] && [ -f "$partial/unpacked/torch/lib/libtorch_cpu.so" ] ||
  fail 1 "the unpacked wheel lacks libtorch_cpu.so or the c10d headers"
for entry in "$partial"/unpacked/*; do
  name=$(basename "$entry")
  if [ -e "$root/$name" ]; then mv "$root/$name" "$partial/old/$name"; fi
  mv "$entry" "$root/$name"
done
printf '%s\n' "$checksums" >"$partial/stamp"
sync -f "$root" 2>/dev/null || true
mv "$partial/stamp" "$stamp"
rm -rf "$partial"
echo "libtorch: $version in $root"
