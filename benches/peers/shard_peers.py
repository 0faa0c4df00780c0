"""Times the writing of stratified shards: gristmill, polars and DuckDB on all rows, Mosaic Streaming and LitData on a
sample (one process, a figure for one core). Each run is a process of its own, into an empty folder; the methods
take turns, so that whatever else the machine does hits all of them. Called by shard_peers.sh; see write_shards.py for
what lies inside the clock of a peer. gristmill's is the whole process, from its start to its end.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import shard_sets

HERE = pathlib.Path(__file__).resolve().parent
TABLE_PEERS = [
    "polars_sink",
    "polars_window",
    "polars_shuffled_ids",
    "polars_sorted",
    "duckdb_window",
    "duckdb_sorted",
]
SAMPLED_PEERS = ["mosaic_mds", "litdata_optimize"]
STRATUM = pa.schema([("origin", pa.string()), ("late", pa.bool_())])


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path, help="a folder with one Parquet file")
    parser.add_argument("work", type=pathlib.Path, help="a folder for what is written; emptied")
    parser.add_argument("--gristmill", help="the binary; left out without it")
    parser.add_argument("--torch-python", help="an interpreter that has streaming and litdata; left out without it")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--lanes", type=int, nargs="*", default=[80, 10], help="numbers of files, multiples of nodes")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sample-rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="where the figures go")
    return parser.parse_args()


def run(command, log, env=None):
    """Runs a command to its end: (stdout, wall seconds, its resource usage)."""
    with open(log, "w+b") as errors, open(f"{log}.out", "w+b") as output:
        start = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=errors, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            sys.stderr.write(errors.read().decode(errors="replace")[-4000:])
            raise SystemExit(f"failed: {' '.join(map(str, command))}")
        output.seek(0)
        return output.read(), seconds, usage


def strata_evenness(out):
    """How even the files' strata are; classes are (origin, late)."""
    lanes = shard_sets.lanes(out, ["origin", "late"])
    rows = pa.concat_tables(table.cast(STRATUM) for table in lanes.values())
    strata = pc.binary_join_element_wise(rows["origin"], rows["late"].cast(pa.string()), "|")
    strata = strata.combine_chunks().dictionary_encode()
    part = np.repeat(np.arange(len(lanes)), [table.num_rows for table in lanes.values()])
    return shard_sets.evenness(shard_sets.counts_by_part(strata.indices, part, len(lanes), len(strata.dictionary)))


def gristmill(args, lanes, out):
    command = [args.gristmill, "shard", args.source, "--out", out, "--nodes", args.nodes, "--lanes", lanes]
    command += ["--stratify", "origin,late", "--threads", args.threads, "--quiet"]
    _, seconds, usage = run(command, args.work / "log")
    files = [p for p in out.rglob("*") if p.is_file()]
    shards = [p for p in files if p.match("lane-*/part-*.parquet")]
    version, _, _ = run([args.gristmill, "--version"], args.work / "log")
    return {
        "method": "gristmill",
        "version": version.decode().strip(),
        "rows": sum(pq.ParquetFile(p).metadata.num_rows for p in shards),
        "seconds": seconds,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024,
        "files": len(shards),
        "bytes": sum(p.stat().st_size for p in files),
        "fsync_s": None,
    }


def peer(args, python, method, lanes, out):
    source = next(args.source.glob("*.parquet"))
    command = [python, HERE / "write_shards.py", method, source, out, "--parts", lanes]
    command += ["--threads", args.threads, "--rows", args.sample_rows]
    # LitData empties folders of its own in the temporary folder.
    temporary = args.work / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    output, seconds, _ = run(command, args.work / "log", {**os.environ, "TMPDIR": str(temporary)})
    return {**json.loads(output), "process_s": seconds}


def measure(args):
    plans = []
    for lanes in args.lanes:
        if args.gristmill:
            plans.append(("gristmill", lanes, lambda out, lanes=lanes: gristmill(args, lanes, out)))
        for method in TABLE_PEERS:
            plans.append((method, lanes, lambda out, m=method, n=lanes: peer(args, sys.executable, m, n, out)))
    if args.torch_python:
        for method in SAMPLED_PEERS:
            plans.append((method, None, lambda out, m=method: peer(args, args.torch_python, m, 1, out)))
    runs = {}
    out = args.work / "out"
    for repeat in range(args.repeats):
        for method, lanes, work in plans:
            shutil.rmtree(out, ignore_errors=True)
            if method != "gristmill":
                out.mkdir()
            load = os.getloadavg()[0]
            result = {**work(out), "lanes": lanes, "load_before": load}
            if repeat == 0 and lanes:
                result.update(strata_evenness(out))
            print(f"{repeat + 1} of {args.repeats}: {method} {lanes or ''} {result['seconds']:.3f} s", file=sys.stderr)
            runs.setdefault((method, lanes), []).append(result)
    shutil.rmtree(out, ignore_errors=True)
    return [summary(results) for results in runs.values()]


def summary(results):
    best = min(results, key=lambda r: r["seconds"])
    first = results[0]
    return {
        **{k: first[k] for k in ("method", "version", "lanes", "rows", "files")},
        "rows_per_s": best["rows"] / best["seconds"],
        "seconds": best["seconds"],
        "median_s": statistics.median(r["seconds"] for r in results),
        "cpu_s": best["cpu_s"],
        "rows_per_cpu_s": best["rows"] / best["cpu_s"],
        "fsync_s": best["fsync_s"],
        "bytes": best["bytes"],
        "bytes_per_row": best["bytes"] / best["rows"],
        "peak_rss_bytes": best["peak_rss_bytes"],
        **{k: first.get(k) for k in ("worst_deviation", "size_range")},
        "runs": results,
    }


def table(host, results):
    yield f"machine  {host['cpu']}, {host['cpus']} CPUs, Linux {host['kernel']}; {host['threads']} threads each"
    yield f"input    {host['input']}, best and median of {host['repeats']} runs; one-minute load {host['load']}"
    yield "fsync    gristmill fsyncs each file and folder inside its time, the peers fsync nothing: column fsync is"
    yield "         what it takes to fsync their files afterwards"
    yield "clock    gristmill: its whole process; with row numbers, shuffled files, digests, statistics, resumable;"
    yield "         a peer: from after its imports; polars_shuffled_ids has row numbers and shuffled files, the others"
    yield "         none of these"
    yield "sampled  mosaic_mds and litdata_optimize: one process, unstratified, rows ready as Python values"
    yield ""
    head = ["method", "files", "rows", "rows/s", "best s", "median", "CPU s", "rows/CPU s", "fsync", "bytes", "B/row"]
    yield "{:<24}{:>6}{:>11}{:>12}{:>8}{:>8}{:>8}{:>12}{:>8}{:>13}{:>7}{:>8}{:>11}{:>11}".format(
        *head, "RSS MB", "class dev", "size range"
    )
    for r in results:
        fsync = "inside" if r["fsync_s"] is None else f"{r['fsync_s']:.3f}"
        even = ("-", "-") if r["worst_deviation"] is None else (f"{r['worst_deviation']:.4f}", f"{r['size_range']:,}")
        yield (
            f"{r['method']:<24}{r['files']:>6}{r['rows']:>11,}{r['rows_per_s']:>12,.0f}{r['seconds']:>8.3f}"
            f"{r['median_s']:>8.3f}{r['cpu_s']:>8.2f}{r['rows_per_cpu_s']:>12,.0f}{fsync:>8}{r['bytes']:>13,}"
            f"{r['bytes_per_row']:>7.2f}{r['peak_rss_bytes'] / 1e6:>8.0f}{even[0]:>11}{even[1]:>11}"
        )
    yield ""
    yield "versions " + ", ".join(sorted({r["version"] for r in results}))


def main():
    args = parse()
    sources = list(args.source.glob("*.parquet"))
    if len(sources) != 1:
        raise SystemExit(f"{args.source} has {len(sources)} Parquet files, not one")
    args.work.mkdir(parents=True, exist_ok=True)
    sources[0].read_bytes()  # into the page cache, for all of them
    results = measure(args)
    loads = [r["load_before"] for result in results for r in result["runs"]]
    cpus = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    host = {
        "cpu": cpus[0] if cpus else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "threads": args.threads,
        "repeats": args.repeats,
        "load": f"{min(loads):.2f} to {max(loads):.2f}",
        "input": f"{pq.ParquetFile(sources[0]).metadata.num_rows:,} rows, {sources[0].stat().st_size:,} bytes",
    }
    if args.json:
        args.json.write_text(json.dumps({"host": host, "results": results}, indent=1) + "\n")
    print("\n".join(table(host, results)))


if __name__ == "__main__":
    main()
