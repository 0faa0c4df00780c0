#!/usr/bin/env bash
# Runs the pipeline on the 3,000,000 flights, or on the committed extract where they could not be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

config=examples/flights.toml
if [ ! -f data/flights-3m.parquet ]; then
  config=examples/flights-extract.toml
  echo "data/flights-3m.parquet is not there: this run uses the extract of 20,000 flights ($config)." >&2
fi
exec "${CARGO_TARGET_DIR:-target}/release/gristmill" run "$config"
