"""Writes N flights as Parquet files: the 3,000,000 of data/flights-3m.parquet (scripts/sample-data.sh fetches it) over
and over, with `id` (i64, 0..N-1, the row's number) in front and `late` (bool, delay above 15 minutes) at the end.

Memory stays the same whatever N is: one batch is in memory at a time, and the source is read again for each round.

usage: make_flights.py N OUT [--source FILE] [--rows-per-file 3000000] [--row-group-rows 131072] [--no-id]
OUT is an empty or new folder; its files are part-00000.parquet, part-00001.parquet, and so on (zstd level 1).
"""

import argparse
import pathlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "data" / "flights-3m.parquet"
LATE_MINUTES = 15


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("rows", type=int)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, default=SOURCE)
    parser.add_argument("--rows-per-file", type=int, default=3_000_000)
    parser.add_argument("--row-group-rows", type=int, default=131_072, help="65,536 to 262,144 suit gristmill")
    parser.add_argument("--no-id", action="store_true", help="without the column id")
    args = parser.parse_args()
    if args.rows < 1 or args.rows_per_file < 1 or args.row_group_rows < 1:
        parser.error("numbers of rows are 1 or more")
    if not args.source.is_file():
        parser.error(f"{args.source} is not there: scripts/sample-data.sh fetches it")
    if args.out.exists() and any(args.out.iterdir()):
        parser.error(f"{args.out} is not empty")
    return args


def source_batches(source, rows):
    """Record batches of the source, the whole of it as often as needed, `rows` rows in all but for the last batch."""
    given = 0
    while given < rows:
        for batch in pq.ParquetFile(source).iter_batches(batch_size=65_536):
            yield batch
            given += batch.num_rows
            if given >= rows:
                return


def pieces(args):
    """Tables that never straddle a row group or file, as (row number of the first, table)."""
    row = 0
    for batch in source_batches(args.source, args.rows):
        offset = 0
        while offset < batch.num_rows and row < args.rows:
            in_file = row % args.rows_per_file
            until_group = args.row_group_rows - in_file % args.row_group_rows
            take = min(batch.num_rows - offset, args.rows - row, args.rows_per_file - in_file, until_group)
            yield row, pa.Table.from_batches([batch.slice(offset, take)])
            row, offset = row + take, offset + take


def with_columns(table, first, id_column):
    late = pc.greater(table.column("delay"), LATE_MINUTES)
    table = table.replace_schema_metadata(None).append_column("late", late)
    if id_column:
        table = table.add_column(0, "id", pa.array(range(first, first + table.num_rows), pa.int64()))
    return table


def main():
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    writer, group, grouped, files = None, [], 0, 0

    def flush():
        nonlocal group, grouped
        if group:
            writer.write_table(pa.concat_tables(group), row_group_size=grouped)
        group, grouped = [], 0

    for row, piece in pieces(args):
        table = with_columns(piece, row, not args.no_id)
        if row % args.rows_per_file == 0:
            if writer:
                flush()
                writer.close()
            path = args.out / f"part-{files:05}.parquet"
            writer = pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=1)
            files += 1
        group.append(table)
        grouped += table.num_rows
        if (row % args.rows_per_file + table.num_rows) % args.row_group_rows == 0:
            flush()
    flush()
    writer.close()
    size = sum(p.stat().st_size for p in args.out.iterdir())
    print(f"{args.out}: {args.rows:,} rows in {files} files, {size:,} bytes")


if __name__ == "__main__":
    main()
