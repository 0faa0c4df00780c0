#!/usr/bin/env bash
# Every check, cheapest first: formatting, licences, lints, unit and cross-crate tests, doc tests.
# nextest and deny are used where installed. One profile (release), so that heavy crates are compiled once.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step cargo fmt --check
cargo fmt --all --check

if cargo deny --version >/dev/null 2>&1; then
  step cargo deny check
  cargo deny check bans licenses sources
else
  echo "cargo deny is not installed: licences and sources are not checked"
fi

step cargo clippy
cargo clippy --release --workspace --all-targets -- --deny warnings

step cargo clippy, without libtorch
cargo clippy --release --workspace --no-default-features -- --deny warnings

step cargo build
cargo build --release --workspace

# The tests on S3 fail without it, instead of being skipped.
step S3 server of the tests
GRISTMILL_WEED=$(scripts/s3-server.sh)
export GRISTMILL_WEED
echo "$GRISTMILL_WEED"

step tests
if cargo nextest --version >/dev/null 2>&1; then
  cargo nextest run --release --workspace
else
  cargo test --release --workspace --lib --bins --tests
fi

step doc tests
cargo test --release --workspace --doc

step "all green"
