#!/usr/bin/env bash
# Rows a second of `gristmill shard` and of its peers, on this machine, in one run: the 3,000,000 flights, stratified
# by (origin, late), into 80 files (10 nodes of 8 lanes) and into 10, Parquet with zstd level 1. polars and DuckDB write
# all rows with all CPUs; Mosaic Streaming and LitData a sample with one process, as they take a long time.
#
# usage: benches/peers/shard_peers.sh [GRISTMILL]
#   GRISTMILL  the binary (default: target/release/gristmill, below CARGO_TARGET_DIR when that is set); "-": peers only
# environment: REPEATS (3), SAMPLE_ROWS (200000), WORK (a folder for what is written; default: a temporary one),
#   RUNS (where the outcome is kept; default: benches/runs), SKIP_TORCH=1 leaves out Mosaic Streaming and LitData, which
#   import torch
#
# The peers are installed once, for this only, in ${XDG_CACHE_HOME:-~/.cache}/gristmill: table-peers (0.7 GB) and peers
# (4 GB: torch 2.11.0, as in compare.sh, and the CUDA libraries that its Python module is linked to).
# The outcome is printed and kept in benches/runs/<time>-shard.txt and .json.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

fail() { # exit status, message
  echo "shard_peers: $2" >&2
  exit "$1"
}
gristmill=${1:-${CARGO_TARGET_DIR:-$root/target}/release/gristmill}
[ "$gristmill" = - ] || [ -x "$gristmill" ] || fail 2 "$gristmill is not there: cargo build --release --workspace"
command -v python3 >/dev/null || fail 2 "python3 is not installed"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gristmill
python=$("$here/table_peers.sh")

torch=()
if [ -z "${SKIP_TORCH-}" ]; then
  peers=$cache/peers
  if ! "$peers/bin/python" -c 'import streaming, litdata' 2>/dev/null; then
    echo "shard_peers: installing torch 2.11.0, mosaicml-streaming and litdata in $peers" >&2
    [ -x "$peers/bin/python" ] || python3 -m venv "$peers" ||
      fail 2 "python3 -m venv failed (Debian: apt-get install python3-venv)"
    install() { "$peers/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2; }
    # What the three import, not all that they name: object stores of clouds are not used here.
    install --no-deps torch==2.11.0 torchvision==0.26.0 mosaicml-streaming==0.13.0 litdata==0.2.76
    install typing_extensions sympy networkx jinja2 fsspec filelock 'numpy<2.2' setuptools pillow pyarrow==26.0.1 \
      "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusparse]==13.0.2" nvidia-cudnn-cu13==9.19.0.56 \
      nvidia-cusparselt-cu13==0.8.0 nvidia-nccl-cu13==2.28.9 nvidia-nvshmem-cu13==3.4.5 Brotli python-snappy zstd \
      'xxhash<4' tqdm catalogue requests lightning-utilities boto3 obstore tifffile 'transformers<5' matplotlib ||
      fail 2 "pip could not install what the peers need"
    "$peers/bin/python" -c 'import streaming, litdata' || fail 2 "the peers were installed and do not load"
  fi
  torch=(--torch-python "$peers/bin/python")
fi

work=${WORK-}
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
flights=$work/flights
if [ ! -f "$flights/part-00000.parquet" ]; then
  "$root/scripts/sample-data.sh" >&2 || fail 3 "the flights could not be fetched"
  "$python" "$here/make_flights.py" 3000000 "$flights" --no-id >&2
fi

ours=()
[ "$gristmill" = - ] || ours=(--gristmill "$gristmill")
runs=${RUNS:-$root/benches/runs}
mkdir -p "$runs"
report=$runs/$(date -u +%Y-%m-%dT%H%M%SZ)-shard
"$python" "$here/shard_peers.py" "$flights" "$work/measured" "${ours[@]}" "${torch[@]}" --repeats "${REPEATS:-3}" \
  --sample-rows "${SAMPLE_ROWS:-200000}" --json "$work/report.json" >"$work/report.txt"
cp "$work/report.json" "$report.json"
{
  date -u +"# %Y-%m-%dT%H:%M:%SZ"
  cat "$work/report.txt"
} >"$report.txt"
cat "$work/report.txt"
echo "kept in ${report#"$root/"}.txt and .json" >&2
