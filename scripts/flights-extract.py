#!/usr/bin/env python3
"""Makes examples/data/flights-20k.csv: every 150th row of flights-3m.parquet, in the file's order.

usage: scripts/flights-extract.py data/flights-3m.parquet examples/data/flights-20k.csv   (needs pyarrow)
"""

import sys

import pyarrow.parquet as pq

STRIDE = 150


def main(source: str, target: str) -> None:
    table = pq.read_table(source, columns=["date", "delay", "distance", "origin", "destination"])
    rows = table.take(list(range(0, table.num_rows, STRIDE))).to_pylist()
    with open(target, "w", encoding="utf-8", newline="\n") as out:
        out.write("date,delay,distance,origin,destination\n")
        for row in rows:
            date = row["date"].strftime("%Y-%m-%d %H:%M:%S")
            out.write(f"{date},{row['delay']},{row['distance']},{row['origin']},{row['destination']}\n")
    print(f"{len(rows)} rows of {table.num_rows} to {target}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
