"""Reads sets of shards, a peer's or gristmill's, and says how evenly their parts are filled."""

import json
import pathlib
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LANE = re.compile(r"lane[-=](\d+)")


def lanes(root, columns=None, split=None):
    """The rows of each lane in order of lanes: {lane: table}.

    `root` is a folder with gristmill's `<split>/lane-0003/part-*.parquet` (`split` says which, where there are
    several), or with a peer's `lane-0003*.parquet` or `lane=3/*.parquet`. Without `columns`, all are read.
    """
    root = pathlib.Path(root)
    if split is None:
        splits = sorted({p.parent.parent.name for p in root.glob("*/lane-*/part-*.parquet")})
        if len(splits) > 1:
            raise SystemExit(f"{root} has the splits {', '.join(splits)}: say which")
        split = splits[0] if splits else None
    files = {}
    for path in sorted((root / split if split else root).rglob("*.parquet")):
        found = LANE.search(str(path.relative_to(root)))
        if found:
            files.setdefault(int(found.group(1)), []).append(path)
    if not files:
        raise SystemExit(f"{root} holds no lane-*/*.parquet")
    # Not by folder: pyarrow would add the folder's name as a column.
    return {
        lane: pa.concat_tables([pq.ParquetFile(p).read(columns=columns) for p in paths])
        for lane, paths in sorted(files.items())
    }


def nodes(root, node_count, columns=None, split=None):
    """The rows of each node, a list of tables: lane v is node v mod N's."""
    by_node = [[] for _ in range(node_count)]
    for lane, table in lanes(root, columns, split).items():
        by_node[lane % node_count].append(table)
    if not all(by_node):
        raise SystemExit(f"{root} has lanes for fewer than {node_count} nodes")
    return [pa.concat_tables(tables) for tables in by_node]


def counts_by_part(codes, part, parts, classes):
    """Rows [parts, classes] from each row's class code and part."""
    flat = np.asarray(part, dtype=np.int64) * classes + np.asarray(codes, dtype=np.int64)
    return np.bincount(flat, minlength=parts * classes).reshape(parts, classes)


def evenness(counts, sizes=None):
    """How even `counts`, rows [parts, classes], are.

    `worst_deviation` is the largest |count - n_c/parts| over parts and classes, in rows; `size_range` the rows of the
    largest part less those of the smallest; `absent` the classes with at least as many rows as there are parts of which
    some part has none. `sizes` are the rows of each part where a row may be in several classes or none.
    """
    parts = len(counts)
    total = counts.sum(axis=0)
    sizes = counts.sum(axis=1) if sizes is None else np.asarray(sizes)
    # Exact until the last division: parts * count - n_c is whole.
    worst = int(np.abs(parts * counts.astype(np.int64) - total).max()) / parts
    absent = int(((total >= parts) & (counts == 0).any(axis=0)).sum())
    return {"worst_deviation": worst, "size_range": int(sizes.max() - sizes.min()), "absent": absent}


def show(title, results, as_json=False, extra=()):
    """Prints (name, figures) pairs as a table or as one JSON document; `extra` are further figures to show."""
    if as_json:
        print(json.dumps({"data": title, "results": [{"method": name, **figures} for name, figures in results]}))
        return
    shown = lambda value: value if isinstance(value, str) else f"{value:,}"  # noqa: E731
    print(title)
    heads = "".join(f"{head:>13}" for head in extra)
    print(f"{'method':<42}{'worst class':>13}{'size range':>12}{'absent':>8}{heads}{'seconds':>9}")
    for name, figures in results:
        seconds = figures.get("seconds")
        took = "-" if seconds is None else f"{seconds:.2f}"
        worst, sizes, absent = (figures[k] for k in ("worst_deviation", "size_range", "absent"))
        more = "".join(f"{shown(figures[head]):>13}" for head in extra)
        print(f"{name:<42}{worst:>13,.3f}{sizes:>12,}{absent:>8}{more}{took:>9}")
