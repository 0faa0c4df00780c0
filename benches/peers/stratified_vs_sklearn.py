"""How evenly 1,000,000 rows of 1000 classes ~ Zipf(1.3) fall on 8 parts: scikit-learn's StratifiedKFold, a random
permutation cut evenly, a hash of the row's number, round robin, and gristmill's nodes.

usage: stratified_vs_sklearn.py write FOLDER     the rows as FOLDER/part-00000.parquet (label i32, x f32)
       stratified_vs_sklearn.py peers            the figures of the others
       stratified_vs_sklearn.py shards FOLDER [--split NAME]
                                                 the figures of a shard set, from the rows in its files:
           gristmill shard ROWS --out FOLDER --nodes 8 --stratify label
Each is a table, or with --json one JSON document. The rows are the same in each call: they come from a seed.
"""

import argparse
import pathlib
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shard_sets

ROWS, CLASSES, EXPONENT, PARTS, SEED = 1_000_000, 1000, 1.3, 8, 0


def labels():
    """Class of each row, 0..CLASSES-1, class k with a probability in proportion to (k + 1)^-EXPONENT."""
    weights = np.arange(1, CLASSES + 1, dtype=np.float64) ** -EXPONENT
    return np.random.default_rng(SEED).choice(CLASSES, ROWS, p=weights / weights.sum()).astype(np.int32)


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(SEED + 1).standard_normal(ROWS, dtype=np.float32)
    table = pa.table({"label": labels(), "x": x})
    pq.write_table(table, folder / "part-00000.parquet", compression="zstd", row_group_size=131_072)


def stratified_k_fold(y):
    from sklearn.model_selection import StratifiedKFold

    part = np.empty(len(y), dtype=np.int64)
    folds = StratifiedKFold(PARTS, shuffle=True, random_state=SEED)
    for i, (_, rows) in enumerate(folds.split(np.zeros((len(y), 1)), y)):
        part[rows] = i
    return part


def random_permutation(y):
    order = np.random.default_rng(SEED + 2).permutation(len(y))
    part = np.empty(len(y), dtype=np.int64)
    # Cut as numpy.array_split cuts: sizes at most one apart.
    for i, rows in enumerate(np.array_split(order, PARTS)):
        part[rows] = i
    return part


def hash_modulo(y):
    """SplitMix64's finalizer of the row's number, mod PARTS."""
    z = np.arange(len(y), dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(PARTS)).astype(np.int64)


def round_robin(y):
    return np.arange(len(y)) % PARTS


METHODS = {
    "StratifiedKFold": stratified_k_fold,
    "random permutation, equal cut": random_permutation,
    "hash(row) mod 8": hash_modulo,
    "round robin": round_robin,
}


def peers():
    y = labels()
    import sklearn.model_selection  # noqa: F401  (its import is not timed)

    for name, method in METHODS.items():
        start = time.perf_counter()
        part = method(y)
        seconds = time.perf_counter() - start
        yield name, {**shard_sets.evenness(shard_sets.counts_by_part(y, part, PARTS, CLASSES)), "seconds": seconds}


def shards(folder, split=None):
    """The figures of a shard set: counts of each class on each node, from its files."""
    nodes = shard_sets.nodes(folder, PARTS, ["label"], split)
    found = np.stack([np.bincount(t["label"].to_numpy(), minlength=CLASSES) for t in nodes])
    if split is None and not (found.sum(axis=0) == np.bincount(labels(), minlength=CLASSES)).all():
        raise SystemExit(f"{folder} does not hold the rows that `write` writes")
    return {**shard_sets.evenness(found), "seconds": None}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("folder", type=pathlib.Path)
    commands.add_parser("peers")
    ours = commands.add_parser("shards")
    ours.add_argument("folder", type=pathlib.Path)
    ours.add_argument("--split", help="where there are several; its own counts are what is compared then")
    args = parser.parse_args()
    if args.command == "write":
        return write(args.folder)
    results = list(peers()) if args.command == "peers" else [("gristmill shard", shards(args.folder, args.split))]
    shard_sets.show(f"{ROWS:,} rows, {CLASSES} classes ~ Zipf({EXPONENT}), {PARTS} parts", results, args.json)


if __name__ == "__main__":
    main()
