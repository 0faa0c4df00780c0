#!/usr/bin/env bash
# The figures of docs/plan.md: how well each shuffle mixes sorted rows, and what token budgets and packing make of mails.
# usage: plan_figures.sh SETS
#   SETS  a folder that plan_sets.sh made
# GRISTMILL and MIXING_QUALITY name the programs; without them they are built (the second is an example of the loader).
set -euo pipefail
[ $# -eq 1 ] || {
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
}
sets=$1
build=(cargo build --release --quiet)
target=${CARGO_TARGET_DIR:-target}/release
if [ -z "${GRISTMILL:-}" ]; then
  "${build[@]}" --package gristmill
  GRISTMILL=$target/gristmill
fi
if [ -z "${MIXING_QUALITY:-}" ]; then
  "${build[@]}" --package gristmill-loader --example mixing_quality
  MIXING_QUALITY=$target/examples/mixing_quality
fi

cd "$sets"
for set in by_class_appended by_time_appended by_class by_time by_class_stratified; do
  "$MIXING_QUALITY" "$set"
  echo
done

# what, shard set, then flags of plan: steps, padding of all tokens, imbalance between 8 ranks.
mails() {
  local what=$1 set=$2
  shift 2
  "$GRISTMILL" plan "$set" --world-size 8 --lengths words --json "$@" | python3 -c '
import json, sys
replay = json.load(sys.stdin)["replay"]
tokens = replay["tokens"]
assert replay["missing"] == replay["repeated"] == 0
print("%-34s %5d steps  padding %7.2f %%  imbalance mean %6.2f %%  worst %7.2f %%  read amplification %.3f" % (
    sys.argv[1], replay["steps_per_rank"], 100 * tokens["padding"], 100 * tokens["imbalance_mean"],
    100 * tokens["imbalance_worst"], replay["worlds"][0]["read_amplification"]))' "$what"
}
budget() {
  printf 'kind="budget", lengths="words", budget={max_tokens=%s, micro_batches=%s}%s' "$1" "$2" "${3:-}"
}
packed() {
  printf 'kind="packed", lengths="words", packing={capacity=%s, method="%s"}' "$1" "$2"
}
echo "6,046 mails, 8 ranks; 17,172 tokens are 32 mails of the mean length, and hold the longest one"
mails 'shuffled, 32 mails a rank' shards --global-batch 256
mails 'budget, all rows a window' shards --batching "$(budget 17172 8)"
mails 'budget, windows of 512' shards --batching "$(budget 17172 8 ', window_rows=512')"
mails 'budget, windows of 2048' shards --batching "$(budget 17172 8 ', window_rows=2048')"
mails 'budget, 64 micro-batches a step' shards --batching "$(budget 17172 64)"
mails 'budget, windows of each of 8 nodes' shards8 --batching "$(budget 17172 8 ', scope="node"')"
for capacity in 2048 4096; do
  for method in best-fit first-fit concat-and-split; do
    mails "packed, bins of $capacity, $method" shards --global-batch 64 --batching "$(packed $capacity $method)"
  done
done
