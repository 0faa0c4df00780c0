#!/usr/bin/env bash
# Rows a second of `gristmill load` and of PyTorch's DataLoader over a TensorDataset, on this machine, one after the
# other in one run: same number of rows, columns and types, same batch size, shuffled, data in memory.
#
# usage: benches/peers/compare.sh SHARDS [GRISTMILL]
#   SHARDS     a shard set, as `gristmill shard` writes it
#   GRISTMILL  the binary (default: target/release/gristmill, below CARGO_TARGET_DIR when that is set)
# environment: BATCH (4096), EPOCHS (5 measured), SPLIT (train), NUMBERS and CATEGORIES (columns of the demo's flights: 7
#   and 2), PEER_ROWS (at most so many rows for PyTorch, 500000: its rate does not depend on it, its patience does),
#   LEAST (exit 1 below this ratio, 50)
#
# PyTorch 2.11.0 is installed once, for this only, in ${XDG_CACHE_HOME:-~/.cache}/gristmill/peers (2.5 GB: the wheel's
# Python module needs the CUDA libraries that it was linked to, also to run on a CPU).
# The outcome is printed and kept in benches/runs/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

fail() { # exit status, message
  echo "compare: $2" >&2
  exit "$1"
}
[ $# -ge 1 ] || fail 2 "usage: benches/peers/compare.sh SHARDS [GRISTMILL]"
shards=$1
gristmill=${2:-${CARGO_TARGET_DIR:-$root/target}/release/gristmill}
[ -x "$gristmill" ] || fail 2 "$gristmill is not there: cargo build --release --workspace"
command -v python3 >/dev/null || fail 2 "python3 is not installed"

batch=${BATCH:-4096} epochs=${EPOCHS:-5} split=${SPLIT:-train} least=${LEAST:-50}
numbers=${NUMBERS:-7} categories=${CATEGORIES:-2} peer_rows=${PEER_ROWS:-500000}

peers=${XDG_CACHE_HOME:-$HOME/.cache}/gristmill/peers
python=$peers/bin/python
if ! "$python" -c 'import torch; assert torch.__version__.startswith("2.11.0")' 2>/dev/null; then
  echo "compare: installing torch 2.11.0 in $peers" >&2
  python3 -m venv "$peers" || fail 2 "python3 -m venv failed (Debian: apt-get install python3-venv)"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps torch==2.11.0
  "$python" -m pip install --quiet --disable-pip-version-check \
    typing_extensions sympy networkx jinja2 fsspec filelock numpy setuptools \
    "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusparse]==13.0.2" nvidia-cudnn-cu13==9.19.0.56 \
    nvidia-cusparselt-cu13==0.8.0 nvidia-nccl-cu13==2.28.9 nvidia-nvshmem-cu13==3.4.5 >&2 ||
    fail 2 "pip could not install what torch needs"
  "$python" -c 'import torch' || fail 2 "torch was installed and does not load"
fi

runs=$root/benches/runs
mkdir -p "$runs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$gristmill" load "$shards" --bench --json --split "$split" --global-batch "$batch" --epochs "$epochs" >"$work/ours.json"
rows=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["epochs"][0]["rows"])' "$work/ours.json")
[ "$rows" -le "$peer_rows" ] && peer_rows=$rows
"$python" "$here/torch_dataloader.py" --rows "$peer_rows" --batch "$batch" --numbers "$numbers" \
  --categories "$categories" --epochs 2 >"$work/peer.json"

report=$runs/$(date -u +%Y-%m-%d)-loader.txt
status=0
"$python" - "$work/ours.json" "$work/peer.json" "$least" <<'PYTHON' >"$work/report" || status=$?
import json, platform, sys

ours, peer = (json.load(open(path)) for path in sys.argv[1:3])
least = float(sys.argv[3])
model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
cold, warm = ours["epochs"][0], ours["epochs"][1:]
rows, seconds = sum(e["rows"] for e in warm), sum(e["seconds"] for e in warm)
rate = rows / seconds
print(f"machine               {model}, {peer['cpus']} CPUs, Linux {platform.release()}")
print(f"rows                  {cold['rows']:,} (PyTorch: {peer['rows']:,}), batches of {peer['batch']:,}, shuffled")
print(f"PyTorch DataLoader    {peer['rows_per_s']:>14,.0f} rows/s (torch {peer['torch']}, best with {peer['workers']} workers of "
      + ", ".join(f"{w}: {r:,.0f}" for w, r in peer["rows_per_s_by_workers"].items()) + ")")
print(f"gristmill, warm       {rate:>14,.0f} rows/s over {len(warm)} epochs ({rate / peer['rows_per_s']:,.0f} times)")
print(f"gristmill, first      {cold['rows_per_s']:>14,.0f} rows/s, reading, checking and decoding included ({cold['rows_per_s'] / peer['rows_per_s']:,.0f} times)")
print(f"gristmill waited      {ours['wait_s']:.3f} s of {ours['seconds']:.3f} s; first batch after {ours['first_batch_s']:.3f} s")
print(f"ratio                 {rate / peer['rows_per_s']:,.1f} (at least {least:g} wanted)")
sys.exit(0 if rate >= least * peer["rows_per_s"] else 1)
PYTHON
{
  date -u +"# %Y-%m-%dT%H:%M:%SZ"
  cat "$work/report"
} >>"$report"
cat "$work/report"
echo "kept in ${report#"$root/"}" >&2
exit "$status"
