"""How evenly 100,000 rows whose groups must stay whole fall on 8 parts: scikit-learn's StratifiedGroupKFold and
gristmill's nodes, for two data sets: `even`, 5000 groups of 20 rows, and `giant`, one group of 44 % of the rows and
5000 groups that share the rest at random.

usage: groups_vs_sklearn.py write FOLDER     the rows as FOLDER/{even,giant}/part-00000.parquet (user i64, label i32)
       groups_vs_sklearn.py peers            the figures of scikit-learn
       groups_vs_sklearn.py shards {even,giant} SHARDS [--split NAME]
                    the figures of a shard set, from the rows in its files:
           gristmill shard FOLDER/even --out SHARDS --nodes 8 --stratify label and the option for groups
Each is a table, or with --json one JSON document. `straddling` groups are in more than one part. `least_class` and
`least_sizes` are what the largest group forces on any assignment that keeps groups whole: the worst class deviation and
the size range can't be below. The rows are the same in each call: they come from a seed.
"""

import argparse
import pathlib
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shard_sets

ROWS, PARTS, SEED = 100_000, 8, 0
GROUPS, GIANT_ROWS = 5000, 44_000
CLASS_SHARES = [0.5, 0.3, 0.2]
DATA = ("even", "giant")


def rows(data):
    """(user, label) of each row, in random order."""
    rng = np.random.default_rng([SEED, DATA.index(data)])
    label = rng.choice(len(CLASS_SHARES), ROWS, p=CLASS_SHARES).astype(np.int32)
    if data == "even":
        user = np.repeat(np.arange(GROUPS), ROWS // GROUPS)
    else:
        user = np.concatenate([np.zeros(GIANT_ROWS, dtype=np.int64), rng.integers(1, GROUPS + 1, ROWS - GIANT_ROWS)])
    return rng.permutation(user).astype(np.int64), label


def write(folder):
    for data in DATA:
        user, label = rows(data)
        (folder / data).mkdir(parents=True, exist_ok=True)
        path = folder / data / "part-00000.parquet"
        pq.write_table(pa.table({"user": user, "label": label}), path, compression="zstd")


def figures(user, label, part, seconds=None):
    classes = len(CLASS_SHARES)
    total = np.bincount(label, minlength=classes)
    users, code = np.unique(user, return_inverse=True)
    of_user = shard_sets.counts_by_part(label, code, len(users), classes)
    sizes = of_user.sum(axis=1)
    largest = int(sizes.max())
    pairs = np.unique(code.astype(np.int64) * PARTS + part)
    return {
        **shard_sets.evenness(shard_sets.counts_by_part(label, part, PARTS, classes)),
        "straddling": int((np.bincount(pairs // PARTS) > 1).sum()),
        # The part with a group has at least the group's rows of each class, and all the group's rows; the smallest
        # part at most the mean of what the other parts share.
        "least_class": max(0.0, float((PARTS * of_user - total).max()) / PARTS),
        "least_sizes": max(0, largest - (len(user) - largest) // (PARTS - 1)),
        "seconds": seconds,
    }


def peers():
    from sklearn.model_selection import StratifiedGroupKFold

    for data in DATA:
        user, label = rows(data)
        for shuffle in (False, True):
            start = time.perf_counter()
            folds = StratifiedGroupKFold(PARTS, shuffle=shuffle, random_state=SEED if shuffle else None)
            part = np.empty(len(label), dtype=np.int64)
            for i, (_, of_part) in enumerate(folds.split(np.zeros((len(label), 1)), label, user)):
                part[of_part] = i
            seconds = time.perf_counter() - start
            yield f"{data}: StratifiedGroupKFold, shuffle={shuffle}", figures(user, label, part, seconds)


def shards(data, folder, split=None):
    """The figures of a shard set, from its files."""
    nodes = shard_sets.nodes(folder, PARTS, ["user", "label"], split)
    user, label = (np.concatenate([t[column].to_numpy() for t in nodes]) for column in ("user", "label"))
    part = np.repeat(np.arange(PARTS), [t.num_rows for t in nodes])
    if split is None:
        given, found = (np.sort(u * len(CLASS_SHARES) + y) for u, y in (rows(data), (user, label)))
        if not np.array_equal(given, found):
            raise SystemExit(f"{folder} does not hold the rows that `write` writes for {data}")
    return figures(user, label, part)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("folder", type=pathlib.Path)
    commands.add_parser("peers")
    ours = commands.add_parser("shards")
    ours.add_argument("data", choices=DATA)
    ours.add_argument("folder", type=pathlib.Path)
    ours.add_argument("--split", help="where there are several")
    args = parser.parse_args()
    if args.command == "write":
        return write(args.folder)
    if args.command == "peers":
        results = list(peers())
    else:
        results = [(f"{args.data}: gristmill shard", shards(args.data, args.folder, args.split))]
    extra = ["straddling", "least_class", "least_sizes"]
    shard_sets.show(f"{ROWS:,} rows in groups, {PARTS} parts", results, args.json, extra)


if __name__ == "__main__":
    main()
