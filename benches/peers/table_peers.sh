#!/usr/bin/env bash
# Prints the path of a Python interpreter that has polars, DuckDB, pyarrow, scikit-learn and iterative-stratification,
# which it installs once, for the comparisons in this folder only, in ${XDG_CACHE_HOME:-~/.cache}/gristmill/table-peers
# (0.7 GB).
set -euo pipefail
fail() {
  echo "table_peers: $1" >&2
  exit 2
}
peers=${XDG_CACHE_HOME:-$HOME/.cache}/gristmill/table-peers
wanted='polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1 numpy==2.4.6 scikit-learn==1.9.1 iterative-stratification==0.1.9'
if [ "$(cat "$peers/complete" 2>/dev/null)" != "$wanted" ]; then
  echo "table_peers: installing $wanted in $peers" >&2
  python3 -m venv "$peers" || fail "python3 -m venv failed (Debian: apt-get install python3-venv)"
  # Split on purpose: one package a word.
  # shellcheck disable=SC2086
  "$peers/bin/python" -m pip install --quiet --disable-pip-version-check $wanted >&2 ||
    fail "pip could not install $wanted"
  printf '%s\n' "$wanted" >"$peers/complete"
fi
echo "$peers/bin/python"
