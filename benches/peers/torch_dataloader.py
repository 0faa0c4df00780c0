"""Measures PyTorch's DataLoader over a TensorDataset, with default collation, and prints one JSON object.

Values are drawn at random: they do not change how long a DataLoader takes; rows, columns, types and tensors do, and
those are as in the batches that gristmill delivers: numbers [n, F] float32, categories [n, C] int64, row ids [n] int64
and, in place of gristmill's mask, labels [n] float32. No worker, one, and one for each CPU are tried; the fastest counts.
"""

import argparse
import json
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True, help="rows of the split")
    parser.add_argument("--numbers", type=int, default=1, help="number columns, one float32 tensor [n, F]")
    parser.add_argument("--categories", type=int, default=5, help="category columns, one int64 tensor [n, C]")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=2, help="epochs measured for each number of workers")
    parser.add_argument("--workers", type=int, nargs="*", help="numbers of worker processes to try")
    return parser.parse_args()


def dataset(args):
    generator = torch.Generator().manual_seed(0)
    tensors = []
    if args.numbers:
        tensors.append(torch.randn(args.rows, args.numbers, generator=generator))
    if args.categories:
        tensors.append(torch.randint(0, 100, (args.rows, args.categories), generator=generator))
    tensors.append(torch.randint(0, 2, (args.rows,), generator=generator).float())
    tensors.append(torch.arange(args.rows))
    return TensorDataset(*tensors)


def measure(data, args, workers):
    loader = DataLoader(
        data, batch_size=args.batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    best = 0.0
    for _ in range(args.epochs):
        start, rows = time.perf_counter(), 0
        for batch in loader:
            rows += len(batch[-1])
        seconds = time.perf_counter() - start
        if rows != args.rows:
            raise SystemExit(f"{rows} rows came out of {args.rows}")
        best = max(best, rows / seconds)
    return best


def main():
    args = parse()
    cpus = len(os.sched_getaffinity(0))
    tries = args.workers if args.workers else sorted({0, 1, cpus})
    data = dataset(args)
    rates = {workers: measure(data, args, workers) for workers in tries}
    workers = max(rates, key=rates.get)
    print(
        json.dumps(
            {
                "loader": "torch.utils.data.DataLoader(TensorDataset)",
                "torch": torch.__version__,
                "rows": args.rows,
                "batch": args.batch,
                "cpus": cpus,
                "rows_per_s": rates[workers],
                "workers": workers,
                "rows_per_s_by_workers": rates,
            }
        )
    )


if __name__ == "__main__":
    main()
