"""Writes N rows of ten classes as Parquet files, sorted by class or by time: the order that a shuffle has to undo.

`n` (i64, 0..N-1, the row's place), `label` (i32, 0..9; class c has a share of 1/(c+1) beside the others, so 34.1 % down to
3.4 %), `time` (i64, seconds since 1970, within 2001), `x` (f64, uniform noise in [0, 1)). `--by class` sorts by label, then
time; `--by time` by time, then label. Both hold the same rows but for `n`.

The class mix drifts: half the rows of a class are spread over the year, half lie around the class's own time, which is
(c + 0.5)/10 of the year, at most a quarter of a year away (triangular; what would leave the year is reflected).

The same N and seed give the same rows: the numbers are those of the Philox bit generator, whose stream numpy keeps, and
become values by additions, products and comparisons. All rows are in memory at once, about 70 bytes each.

usage: make_sorted.py OUT [--rows 1000000] [--by class|time] [--files 4] [--row-group-rows 100000] [--seed 0]
OUT is an empty or new folder; its files are part-00000.parquet, part-00001.parquet, and so on (zstd level 1).
"""

import argparse
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CLASSES = 10
YEAR_START = 978_307_200
YEAR_SECONDS = 365 * 86_400
HALF_WIDTH = 0.25


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--by", choices=["class", "time"], default="class")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--row-group-rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.rows < 1 or args.files < 1 or args.row_group_rows < 1:
        parser.error("numbers of rows and files are 1 or more")
    if args.files > args.rows:
        parser.error(f"{args.rows} rows do not fill {args.files} files")
    if args.seed < 0:
        parser.error("--seed is 0 or more")
    if args.out.exists() and any(args.out.iterdir()):
        parser.error(f"{args.out} is not empty")
    return args


def class_rows(rows):
    """Rows of each class: shares 1/(c+1), rounded so that they sum to `rows` (largest remainders first)."""
    unit = 2_520  # the least common multiple of 1..10, so that the shares are whole numbers
    weights = [unit // (c + 1) for c in range(CLASSES)]
    counts = [rows * w // sum(weights) for w in weights]
    by_remainder = sorted(range(CLASSES), key=lambda c: (-(rows * weights[c] % sum(weights)), c))
    for c in by_remainder[: rows - sum(counts)]:
        counts[c] += 1
    return counts


def uniform(bits, rows):
    """Multiples of 2^-53 in [0, 1)."""
    return (bits.random_raw(rows) >> np.uint64(11)) * 2.0**-53


def draw(rows, seed):
    """Columns label, time and x, by class."""
    bits = np.random.Philox(key=seed)
    label = np.repeat(np.arange(CLASSES, dtype=np.int32), class_rows(rows))
    everywhere, coin, first, second, x = (uniform(bits, rows) for _ in range(5))
    near = np.abs((label + 0.5) / CLASSES + HALF_WIDTH * (first + second - 1.0))
    near = np.where(near > 1.0, 2.0 - near, near)
    year = np.where(coin < 0.5, everywhere, near)
    time = YEAR_START + np.minimum((year * YEAR_SECONDS).astype(np.int64), YEAR_SECONDS - 1)
    return label, time, x


def main():
    args = parse()
    label, time, x = draw(args.rows, args.seed)
    # lexsort is stable and its last key is the first to count.
    order = np.lexsort((time, label) if args.by == "class" else (label, time))
    n = np.arange(args.rows, dtype=np.int64)
    table = pa.table({"n": n, "label": label[order], "time": time[order], "x": x[order]})
    args.out.mkdir(parents=True, exist_ok=True)
    for file in range(args.files):
        first, end = args.rows * file // args.files, args.rows * (file + 1) // args.files
        path = args.out / f"part-{file:05}.parquet"
        piece = table.slice(first, end - first)
        pq.write_table(piece, path, row_group_size=args.row_group_rows, compression="zstd", compression_level=1)
    size = sum(p.stat().st_size for p in args.out.iterdir())
    print(f"{args.out}: {args.rows:,} rows in {args.files} files, {size:,} bytes")
    print("rows of each class:", ", ".join(f"{count:,}" for count in class_rows(args.rows)))


if __name__ == "__main__":
    main()
