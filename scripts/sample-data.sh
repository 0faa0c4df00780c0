#!/usr/bin/env bash
# Fetches the 3,000,000 flights that the demo trains on into data/flights-3m.parquet (13 MB; see
# examples/data/README.md for where they come from).
# exit 0: they are there; 3: they could not be fetched, and the demo will use the committed extract
set -euo pipefail
cd "$(dirname "$0")/.."

package=vega-datasets@3.2.1
checksum=dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0
target=data/flights-3m.parquet

good() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$checksum" ]; }
without() {
  echo "sample data: $1; the demo will use the committed extract, examples/data/flights-20k.csv" >&2
  exit 3
}

if good "$target"; then
  echo "sample data: $target (already there)"
  exit 0
fi
command -v npm >/dev/null 2>&1 || without "npm is not installed (sudo apt-get install -y npm)"

mkdir -p data
partial=$(mktemp -d data/partial.XXXXXX)
trap 'rm -rf "$partial"' EXIT
echo "sample data: fetching $package (npm)"
npm pack --silent --pack-destination "$partial" "$package" >/dev/null || without "$package could not be fetched"
tarball=$(find "$partial" -name '*.tgz' | head -n 1)
[ -n "$tarball" ] || without "npm fetched no package"
tar -xzf "$tarball" -C "$partial" package/data/flights-3m.parquet || without "$package has no data/flights-3m.parquet"
good "$partial/package/data/flights-3m.parquet" || without "the fetched flights-3m.parquet is not the one that is pinned"
mv "$partial/package/data/flights-3m.parquet" "$target"
echo "sample data: $target, 3,000,000 flights"
