"""Writes one Parquet file of rows as shards with one method of one peer, and prints one JSON object: rows, seconds, CPU
seconds, files, bytes.

The clock starts after the imports and stops when the last file is closed; reading the input is in it, except for
Mosaic Streaming and LitData, which take rows as Python values: those are made before the clock starts. Nothing is
fsynced inside the clock; how long it takes to fsync the files afterwards is reported apart (fsync_s). Parquet is
compressed with zstd at level 1, the level that gristmill writes with.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import importlib.metadata
import json
import os
import resource
import shutil
import sys
import time

KEYS = ["origin", "late"]
ZSTD_LEVEL = 1


def rows_of_stratum_in_turn(parts):
    """The part of each row: the rows of a stratum in turn, from a part on that a hash of the stratum says."""
    import polars as pl

    start = pl.struct(KEYS).hash(seed=0) % parts
    return ((pl.int_range(pl.len(), dtype=pl.UInt64).over(KEYS) + start) % parts).alias("lane")


def polars_files(frames, out, threads):
    """Writes each (part, function that makes its frame)."""

    def write(item):
        part, frame = item
        frame().write_parquet(f"{out}/lane-{part:04}.parquet", compression="zstd", compression_level=ZSTD_LEVEL)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, frames))


def polars_window(source, out, parts, threads, like_gristmill=False):
    import polars as pl

    frame = pl.read_parquet(source)
    if like_gristmill:
        frame = frame.with_row_index("_row_id").with_columns(pl.col("_row_id").cast(pl.Int64))
    frame = frame.with_columns(rows_of_stratum_in_turn(parts))
    by_part = frame.partition_by("lane", as_dict=True, maintain_order=False)

    def rows_of(part, rows):
        rows = rows.drop("lane")
        return rows.sample(fraction=1.0, shuffle=True, seed=part) if like_gristmill else rows

    frames = [(part, functools.partial(rows_of, part, rows)) for (part,), rows in by_part.items()]
    polars_files(frames, out, threads)


def polars_shuffled_ids(source, out, parts, threads):
    """As `polars_window`, and each row has a number (i64) and the rows of each file are shuffled, as gristmill's."""
    polars_window(source, out, parts, threads, like_gristmill=True)


def polars_sink(source, out, parts, threads):
    import polars as pl

    def path(file):
        return f"lane-{file.partition_keys.item(0, 0):04}-{file.index_in_partition}.parquet"

    target = pl.PartitionBy(
        out, key="lane", include_key=False, file_path_provider=path, approximate_bytes_per_file=1 << 40
    )
    pl.scan_parquet(source).with_columns(rows_of_stratum_in_turn(parts)).sink_parquet(
        target, compression="zstd", compression_level=ZSTD_LEVEL
    )


def polars_sorted(source, out, parts, threads):
    """Sorted by stratum, then every parts-th row: exact class and size bounds, but each file lies sorted by stratum."""
    import polars as pl

    frame = pl.read_parquet(source).sort(KEYS, maintain_order=True)
    polars_files([(i, functools.partial(frame.gather_every, parts, i)) for i in range(parts)], out, threads)


def duckdb_copy(source, out, parts, threads, lane):
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(f"SET partitioned_write_max_open_files = {max(parts, 100)}")
    shutil.rmtree(out)
    connection.execute(
        f"COPY (SELECT *, ({lane}) % {parts} AS lane FROM read_parquet('{source}')) TO '{out}' "
        f"(FORMAT parquet, PARTITION_BY (lane), COMPRESSION zstd, COMPRESSION_LEVEL {ZSTD_LEVEL})"
    )


def duckdb_window(source, out, parts, threads):
    lane = f"row_number() OVER (PARTITION BY origin, late) + hash(origin, late) % {parts}"
    duckdb_copy(source, out, parts, threads, lane)


def duckdb_sorted(source, out, parts, threads):
    duckdb_copy(source, out, parts, threads, "row_number() OVER (ORDER BY origin, late)")


def sample(source, rows):
    """`rows` rows as Python dictionaries, dates as microseconds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.ParquetFile(source).read().slice(0, rows)
    table = table.set_column(0, "date", table.column("date").cast(pa.int64()))
    return table.set_column(table.num_columns - 1, "late", table.column("late").cast(pa.uint8())).to_pylist()


def mosaic_mds(rows, out):
    from streaming import MDSWriter

    columns = {
        "date": "int64", "delay": "int64", "distance": "int64", "origin": "str", "destination": "str", "late": "uint8"
    }
    with MDSWriter(out=out, columns=columns, compression=f"zstd:{ZSTD_LEVEL}", progress_bar=False) as writer:
        for row in rows:
            writer.write(row)


LITDATA_ROWS = []


def litdata_rows(piece):
    start, end = piece
    yield from LITDATA_ROWS[start:end]


def litdata_optimize(rows, out):
    import litdata

    # The worker is forked, so it finds the rows in its memory: nothing is pickled.
    LITDATA_ROWS[:] = rows
    pieces = [(start, min(start + 10_000, len(rows))) for start in range(0, len(rows), 10_000)]
    litdata.optimize(
        fn=litdata_rows, inputs=pieces, output_dir=out, chunk_bytes="64MB",
        compression=f"zstd:{ZSTD_LEVEL}", num_workers=1, start_method="fork", verbose=False,
    )


WHOLE = {
    f.__name__: f
    for f in (polars_window, polars_shuffled_ids, polars_sink, polars_sorted, duckdb_window, duckdb_sorted)
}
SAMPLED = {"mosaic_mds": mosaic_mds, "litdata_optimize": litdata_optimize}


# Method up to its first underscore: (package, module).
PACKAGES = {
    "polars": ("polars", "polars"),
    "duckdb": ("duckdb", "duckdb"),
    "mosaic": ("mosaicml-streaming", "streaming"),
    "litdata": ("litdata", "litdata"),
}


def rows_in(files):
    """Rows that the written files say they hold."""
    rows = 0
    for path in files:
        if path.endswith(".parquet"):
            import pyarrow.parquet as pq

            rows += pq.ParquetFile(path).metadata.num_rows
        elif path.endswith("index.json"):
            index = json.load(open(path))
            rows += sum(s["samples"] for s in index.get("shards", []))
            rows += sum(c["chunk_size"] for c in index.get("chunks", []))
    return rows


def cpu_seconds():
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


def files_below(folder):
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]


def fsync_all(paths):
    start = time.perf_counter()
    for path in [*paths, *{os.path.dirname(p) for p in paths}]:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=[*WHOLE, *SAMPLED])
    parser.add_argument("source", help="a Parquet file")
    parser.add_argument("out", help="an empty folder")
    parser.add_argument("--parts", type=int, default=80, help="files (not for mosaic_mds and litdata_optimize)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=200_000, help="rows for mosaic_mds and litdata_optimize")
    args = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = str(args.threads)

    package, module = PACKAGES[args.method.split("_")[0]]
    importlib.import_module(module)
    if args.method in SAMPLED:
        sampled = sample(args.source, args.rows)
        rows = len(sampled)
        work = functools.partial(SAMPLED[args.method], sampled, args.out)
    else:
        rows = rows_in([args.source])
        work = functools.partial(WHOLE[args.method], args.source, args.out, args.parts, args.threads)
    cpu, start = cpu_seconds(), time.perf_counter()
    # What a peer prints belongs to no JSON.
    with contextlib.redirect_stdout(sys.stderr):
        work()
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    files = files_below(args.out)
    if rows_in(files) != rows:
        raise SystemExit(f"{args.method} wrote {rows_in(files)} rows of {rows}")
    print(
        json.dumps(
            {
                "method": args.method,
                "version": f"{package} {importlib.metadata.version(package)}",
                "rows": rows,
                "seconds": seconds,
                "cpu_s": cpu,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "files": len(files),
                "bytes": sum(map(os.path.getsize, files)),
                "fsync_s": fsync_all(files),
            }
        )
    )


if __name__ == "__main__":
    main()
