"""Which guarantees the order of data loaders holds: each reads the same 1,009 rows (a prime) on 1 to 16 ranks, every
rank of them, and the row ids that came out are counted. Nothing is taken from documentation.

usage: plan_peers.py [--gristmill PATH] [--loaders NAME ...] [--json FILE]
       plan_peers.py --show FILE
  --gristmill  the binary; without it gristmill's column is left out
  --loaders    columns to run, by parts of their names (default: all whose packages are installed)
  --show       print the table of a file that --json wrote

Counted over all ranks of an epoch: rows missing, rows repeated, the steps of each rank, and the rows of each global
batch. A change stops an epoch after 5 steps and goes on, with the state that the loader saves, on another number of
ranks. The global batch is 96 where the loader takes that, else the nearest multiple of the ranks. Each loader is used
as its documentation says: see the comment at each. gristmill's changes and its mix are what `gristmill plan` replays,
as `gristmill load` starts at no step and reads no mix; the changes are held against the ids that `load` delivers.

Packages: grain, mosaicml-streaming (and torch), torchdata, pyarrow; those that are not there are left out. Mosaic
Streaming runs with one process a rank, on one machine; its order for one rank a machine is from its own partitioning.
On two cores that column takes 5 to 9 minutes, the others together 2 to 5.
"""

import argparse
import collections
import csv
import functools
import importlib.metadata
import importlib.util
import io
import json
import math
import multiprocessing
import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROWS = 1009
# One row more, and one row less, than a whole number of batches of 96.
TAILS = (961, 1055)
BATCH = 96
WORLDS = range(1, 17)
STEP = 5
# Of the changes of world size: the sizes before and after. The first ones divide the batch.
BEFORE = (1, 2, 3, 4, 6, 8, 12, 16)
AFTER = (1, 2, 3, 4, 5, 7, 8, 16)
SEED = 0
WEIGHTS = (0.7, 0.3)
# Mosaic Streaming on several machines: canonical nodes that every world size of BEFORE divides.
CANONICAL_NODES = 48
PACKAGES = ("grain", "mosaicml-streaming", "torch", "torchdata", "numpy", "pyarrow")


class Unsupported(Exception):
    """The loader has no such feature."""


class NoWholeBatch(Exception):
    """The loader is told a rank's batch only, and the global one does not divide evenly."""


class NotRun(Exception):
    """Not measured."""


def kept(row):
    return row % 7 != 0


def sources(rows):
    """First rows of the two sources of a mix, as many of the first as its weight says, so that a mix that reads every
    row once exists."""
    return math.floor(rows * WEIGHTS[0])


def expected(kind, rows):
    return [row for row in range(rows) if kind != "filter" or kept(row)]


def refusal(error):
    """The first line of an error, short."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:160]}"


def nearest(world):
    return world * max(1, round(BATCH / world))


def per_rank(batch, world):
    """A rank's batch, where the loader takes only that."""
    if batch % world:
        raise NoWholeBatch(f"a rank's batch is a whole number, and {batch} / {world} is none (said by this script)")
    return batch // world


class Grain:
    """What Grain's three ways have in common."""

    package = "grain"

    def dataset(self, kind, rows, epochs=1):
        import grain

        if kind == "mix":
            dataset = self.mix(rows, WEIGHTS)
        else:
            dataset = grain.MapDataset.range(rows).shuffle(seed=SEED)
            if kind == "filter":
                dataset = dataset.filter(kept)
        return dataset if epochs == 1 else dataset.repeat(epochs)

    def mix(self, rows, weights):
        import grain

        first = sources(rows)
        parts = [grain.MapDataset.range(0, first), grain.MapDataset.range(first, rows)]
        return grain.MapDataset.mix([part.shuffle(seed=SEED) for part in parts], weights=list(weights))

    def epoch(self, kind, rows, world, batch, epochs=1):
        return [
            [[int(i) for i in ids] for ids in self.iterator(kind, rows, world, batch, rank, epochs)]
            for rank in range(world)
        ]

    def change(self, kind, rows, world, batch, step, world2, batch2):
        before, states = [], []
        for rank in range(world):
            iterator = self.iterator(kind, rows, world, batch, rank)
            before.append([[int(i) for i in next(iterator)] for _ in range(step)])
            states.append(iterator.get_state())
        after = []
        for rank in range(world2):
            iterator = self.iterator(kind, rows, world2, batch2, rank)
            # A rank's own state where there is one; new ranks take the first's.
            iterator.set_state(states[rank] if rank < world else states[0])
            after.append([[int(i) for i in ids] for ids in iterator])
        return before, after


class GrainElastic(Grain):
    name = "Grain ElasticIterator"
    api = "grain.experimental.ElasticIterator(MapDataset.range(n).shuffle(seed), 96, ShardOptions(rank, world))"

    def iterator(self, kind, rows, world, batch, rank, epochs=1):
        import grain

        options = grain.sharding.ShardOptions(rank, world)
        dataset = self.dataset(kind, rows, epochs)
        return iter(grain.experimental.ElasticIterator(dataset, batch, options, read_options=reading()))


class GrainSlice(Grain):
    # The basic tutorial: dataset[shard_index::shard_count].
    name = "Grain ds[rank::world]"
    api = "MapDataset.range(n).shuffle(seed)[rank::world].batch(96 / world).to_iter_dataset()"

    def iterator(self, kind, rows, world, batch, rank, epochs=1):
        size = per_rank(batch, world)
        dataset = self.dataset(kind, rows, epochs)[rank::world]
        if kind == "filter":  # leaves holes in a MapDataset: batch after them
            return iter(dataset.to_iter_dataset(reading()).batch(size))
        return iter(dataset.batch(size).to_iter_dataset(reading()))

    def mix_of(self, rows, weights):
        """An epoch of the mix before it is sliced for ranks."""
        dataset = self.mix(rows, weights)
        return {"missing": rows - len({int(i) for i in dataset}), "delivered": len(dataset)}


class GrainLoader(Grain):
    # The data loader tutorial: ShardOptions(..., drop_remainder=True).
    name = "Grain DataLoader"
    api = "grain.DataLoader(sampler=IndexSampler(n, ShardOptions(rank, world, drop_remainder=True), shuffle=True, ...))"

    def iterator(self, kind, rows, world, batch, rank, epochs=1):
        import grain

        if kind == "mix":
            raise Unsupported("no mix: that is in grain.MapDataset")
        size = per_rank(batch, world)
        options = grain.sharding.ShardOptions(rank, world, drop_remainder=True)
        sampler = grain.samplers.IndexSampler(
            rows, shard_options=options, shuffle=True, num_epochs=epochs, seed=SEED
        )
        operations = [grain.transforms.Batch(size)]
        if kind == "filter":
            operations.insert(0, grain_filter())
        source = grain.sources.RangeDataSource(0, rows, 1)
        return iter(
            grain.DataLoader(
                data_source=source, sampler=sampler, operations=operations, worker_count=0, read_options=reading()
            )
        )


def reading():
    import absl.logging
    import grain

    # Not a line for each rank that says what it drops.
    absl.logging.set_verbosity(absl.logging.ERROR)
    # In the caller's thread. The order does not depend on it.
    return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def grain_filter():
    import grain

    class Kept(grain.transforms.Filter):
        def filter(self, element):
            return kept(int(element))

    return Kept()


class Mosaic:
    """StreamingDataset and StreamingDataLoader over a local MDS data set, one process a rank, all on one machine."""

    name = "Mosaic, one machine"
    package = "streaming"
    api = "StreamingDataset(shuffle=True, batch_size=96 / world, num_canonical_nodes=1), StreamingDataLoader"

    def __init__(self, folder):
        self.folder = folder
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["streaming"])

    def epoch(self, kind, rows, world, batch):
        return self.run(kind, rows, world, batch)[0]

    def change(self, kind, rows, world, batch, step, world2, batch2):
        before, state = self.stopped(kind, rows, world, batch, step)
        return before, self.run(kind, rows, world2, batch2, state=state)[0]

    @functools.lru_cache  # noqa: B019
    def stopped(self, kind, rows, world, batch, step):
        return self.run(kind, rows, world, batch, stop=step)

    def run(self, kind, rows, world, batch, stop=None, state=None):
        """The batches of each rank, and the state that rank 0 saves at `stop`."""
        streams = mosaic_streams(self.folder, kind, rows)
        size = per_rank(batch, world)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ends, processes = [], []
        for rank in range(world):
            parent, child = self.context.Pipe(duplex=False)
            args = (child, streams, rank, world, port, size, stop, state)
            processes.append(self.context.Process(target=mosaic_rank, args=args, daemon=True))
            processes[-1].start()
            child.close()
            ends.append(parent)
        try:
            out = [end.recv() if end.poll(120) else ("error", "no answer in 120 s") for end in ends]
        except EOFError:
            out = [("error", "a rank died")]
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        for result in out:
            if result[0] == "error":
                raise RuntimeError(result[1])
        return [batches for batches, _ in out], out[0][1]


def mosaic_streams(folder, kind, rows):
    """(folder, proportion) of each MDS data set, which is written if it is not there."""
    from streaming import MDSWriter

    if kind == "filter":
        raise Unsupported("no filter")
    first = sources(rows)
    parts = [(0, rows, None)] if kind == "plain" else [(0, first, WEIGHTS[0]), (first, rows, WEIGHTS[1])]
    streams = []
    for start, end, proportion in parts:
        out = pathlib.Path(folder) / f"{start}-{end}"
        if not out.exists():
            with MDSWriter(out=str(out), columns={"id": "int64"}, size_limit=1 << 10) as writer:
                for row in range(start, end):
                    writer.write({"id": row})
        streams.append((str(out), proportion))
    return streams


def mosaic_dataset(streams, size, canonical_nodes):
    from streaming import Stream, StreamingDataset

    options = {"shuffle": True, "batch_size": size, "num_canonical_nodes": canonical_nodes}
    if len(streams) == 1:
        return StreamingDataset(local=streams[0][0], **options)
    return StreamingDataset(streams=[Stream(local=f, proportion=p) for f, p in streams], **options)


def mosaic_rank(pipe, streams, rank, world, port, size, stop, state):
    """A rank's process: sends its batches and its state."""
    import atexit

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        import torch
        from streaming import StreamingDataLoader

        torch.set_num_threads(1)
        # As a training job has it; the loader would only make a group for its start.
        if world > 1:
            torch.distributed.init_process_group("gloo")
        loader = StreamingDataLoader(mosaic_dataset(streams, size, 1), batch_size=size)
        if state is not None:
            loader.load_state_dict(state)
        batches, saved = [], None
        for batch in loader:
            batches.append(batch["id"].tolist())
            if stop is not None and len(batches) == stop:
                saved = loader.state_dict()
                # Its threads use the shared memory that is removed below.
                loader.dataset._iterator.exit()
                break
        if world > 1:
            torch.distributed.barrier()
        pipe.send((batches, saved))
    except Exception as error:  # noqa: BLE001
        pipe.send(("error", refusal(error)))
    if world > 1 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    # Removes the loader's shared memory, as at the end of a program: a process made by multiprocessing skips this.
    atexit._run_exitfuncs()
    os._exit(0)


class MosaicMachines:
    """The order that Mosaic Streaming makes for as many machines as ranks, from the function its data set calls."""

    name = "Mosaic, a machine a rank"
    package = "streaming"
    api = f"StreamingDataset(..., num_canonical_nodes={CANONICAL_NODES}), streaming.base.batching.generate_work"

    def __init__(self, folder):
        self.folder = folder

    def epoch(self, kind, rows, world, batch):
        return self.work(kind, rows, world, batch, 0, None)

    def change(self, kind, rows, world, batch, step, world2, batch2):
        before = [batches[:step] for batches in self.work(kind, rows, world, batch, 0, None)]
        # What its state_dict holds: samples so far, canonical nodes, and the machines at the start.
        return before, self.work(kind, rows, world2, batch2, step * batch, world)

    @functools.lru_cache  # noqa: B019
    def dataset(self, kind, rows):
        return mosaic_dataset(mosaic_streams(self.folder, kind, rows), 1, CANONICAL_NODES)

    def work(self, kind, rows, world, batch, sample, initial):
        from streaming.base.batching import generate_work
        from streaming.base.world import World

        dataset = self.dataset(kind, rows)
        dataset.batch_size = per_rank(batch, world)
        dataset.initial_physical_nodes = initial
        layout = World(num_nodes=world, ranks_per_node=1, workers_per_rank=1, worker=0)
        dataset._set_shuffle_block_size(layout)
        work = generate_work("random", dataset, layout, 0, sample)
        ids = [[[int(i) for i in batch if i >= 0] for batch in work[node, 0, 0]] for node in range(world)]
        return [[batch for batch in batches if batch] for batches in ids]


class Torch:
    """DistributedSampler, with torchdata's StatefulDataLoader for the state."""

    package = "torch"

    def __init__(self, drop_last):
        self.drop_last = drop_last
        self.name = "PyTorch sampler, " + ("drop_last" if drop_last else "padding")
        self.api = (
            f"DistributedSampler(shuffle=True, drop_last={drop_last}), DataLoader; "
            "for changes torchdata's StatefulDistributedSampler and StatefulDataLoader"
        )

    def sampler(self, kind, cls, rows, world, rank):
        if kind != "plain":
            raise Unsupported("a sampler has no " + kind)
        sampler = cls(range(rows), num_replicas=world, rank=rank, shuffle=True, seed=SEED, drop_last=self.drop_last)
        sampler.set_epoch(0)
        return sampler

    def epoch(self, kind, rows, world, batch):
        from torch.utils.data import DataLoader, DistributedSampler

        out = []
        for rank in range(world):
            sampler = self.sampler(kind, DistributedSampler, rows, world, rank)
            out.append([b.tolist() for b in DataLoader(range(rows), per_rank(batch, world), sampler=sampler)])
        return out

    def change(self, kind, rows, world, batch, step, world2, batch2):
        if importlib.util.find_spec("torchdata") is None:
            raise NotRun("torchdata is not installed; a DistributedSampler alone has no state")
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        def loader(ranks, size, rank):
            sampler = self.sampler(kind, StatefulDistributedSampler, rows, ranks, rank)
            return StatefulDataLoader(range(rows), per_rank(size, ranks), sampler=sampler)

        before, states = [], []
        for rank in range(world):
            loading = loader(world, batch, rank)
            iterator = iter(loading)
            before.append([next(iterator).tolist() for _ in range(step)])
            states.append(loading.state_dict())
        after = []
        for rank in range(world2):
            loading = loader(world2, batch2, rank)
            loading.load_state_dict(states[rank] if rank < world else states[0])
            after.append([b.tolist() for b in loading])
        return before, after


class Gristmill:
    """`gristmill load`, once for each rank, and `gristmill plan`, over shard sets for two nodes."""

    name = "gristmill"
    package = None
    api = (
        "gristmill shard --nodes 2 --sidecar keep; gristmill load --ids and --json --rank R --world-size W"
        " --global-batch 96 [--filter keep=1]; gristmill plan --json --change STEP:RANKS, --mix SHARDS#train=WEIGHT"
    )

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, pathlib.Path(folder)

    def run(self, *command):
        """Standard output; an error is the binary's own."""
        done = subprocess.run([self.binary, *map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode:
            try:
                problem = json.loads(done.stderr.splitlines()[-1])["error"]["message"]
            except (IndexError, KeyError, ValueError):
                problem = done.stderr.strip()[-200:]
            raise RuntimeError(problem or f"exit status {done.returncode}")
        return done.stdout

    @functools.lru_cache  # noqa: B019
    def shards(self, start, end):
        """A shard set of the rows from `start` to `end`; a row's place in it is its id less `start`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        data, shards = self.folder / f"rows-{start}-{end}", self.folder / f"shards-{start}-{end}"
        data.mkdir(parents=True)
        ids = range(start, end)
        keep = pa.array([int(kept(i)) for i in ids], pa.int32())
        table = pa.table({"id": pa.array(ids, pa.int64()), "keep": keep})
        pq.write_table(table, data / "part-00000.parquet")
        self.run("shard", data, "--out", shards, "--nodes", 2, "--sidecar", "keep", "--quiet")
        return shards

    def epoch(self, kind, rows, world, batch):
        """The batches of each rank; of a mix the figures of a replay, which has no ids."""
        if kind == "mix":
            replay = self.replay(kind, rows, world, batch)
            return {**mixed(replay), "steps": [replay["steps_per_rank"]]}
        return self.delivered(kind, rows, world, batch)

    @functools.lru_cache  # noqa: B019
    def delivered(self, kind, rows, world, batch):
        out = []
        condition = ["--filter", "keep=1"] if kind == "filter" else []
        for rank in range(world):
            common = ["load", self.shards(0, rows), "--rank", rank, "--world-size", world, "--global-batch", batch]
            common += ["--quiet", *condition]
            batches = [[] for _ in range(json.loads(self.run(*common, "--json"))["batches"])]
            for line in csv.DictReader(io.StringIO(self.run(*common, "--ids"))):
                batches[int(line["step"])].append(int(line["row_id"]))
            out.append(batches)
        return out

    def change(self, kind, rows, world, batch, step, world2, batch2):
        """A replay: other ranks go on at `step` from the state that the first would save there. Where `load` delivers
        ids, the steps before of the one world and those after of the other have to come to the same."""
        replay = self.replay(kind, rows, world, batch, "--change", f"{step}:{world2}")
        if kind == "mix":
            return {**mixed(replay), "steps": [replay["worlds"][-1]["steps"]]}
        first = [batches[:step] for batches in self.delivered(kind, rows, world, batch)]
        second = [batches[step:] for batches in self.delivered(kind, rows, world2, batch2)]
        figures = counted([*first, *second], expected(kind, rows))
        same = all(replay[key] == figures[key] for key in ("missing", "repeated"))
        if not same or replay["delivered"] != sum(len(ids) for of_rank in [*first, *second] for ids in of_rank):
            raise SystemExit(f"plan_peers: {kind}, {world} ranks, then {world2}: replay and ids differ: {figures}")
        return {**figures, "steps": steps(second)}

    def replay(self, kind, rows, world, batch, *more, weights=WEIGHTS):
        """What `gristmill plan` says of an epoch."""
        command = ["plan", self.shards(0, rows), "--world-size", world, "--global-batch", batch, *more]
        if kind == "filter":
            command += ["--filter", "keep=1"]
        if kind == "mix":
            first = sources(rows)
            for shards, weight in zip((self.shards(0, first), self.shards(first, rows)), weights):
                command += ["--mix", f"{shards}#train={weight}"]
            command += ["--stop", "first-exhausted"]
        return json.loads(self.run(*command, "--json", "--quiet"))["replay"]

    def mix_of(self, rows, weights):
        """An epoch of the mix on one rank, and whole passes of each source at its end and that of the next."""
        both = [self.replay("mix", rows, 1, BATCH, "--epoch", epoch, weights=weights) for epoch in range(2)]
        return {
            "missing": mixed(both[0])["missing"],
            "delivered": both[0]["delivered"],
            "passes": [[source["passes"] for source in replay["sources"]] for replay in both],
            # In the passes that the next epoch goes on with and begins.
            "next_missing_or_repeated": both[1]["missing"] + both[1]["repeated"],
        }


def mixed(replay):
    """Rows of the sources that the first epoch of a mix lacks, and deliveries beyond a row's first. The replay counts
    in each pass of a source: a second pass repeats rows that it does not call repeated, and a pass that has no end yet
    lacks rows that it does not call missing."""
    again = sum(max(0, source["draws"] - source["rows"]) for source in replay["sources"])
    repeated = replay["repeated"] + again
    return {"missing": replay["rows"] - (replay["delivered"] - repeated), "repeated": repeated}


def counted(batches, wanted):
    """Figures of one epoch: `batches` are lists of ids, by rank and step."""
    seen = collections.Counter(i for of_rank in batches for ids in of_rank for i in ids)
    wanted = set(wanted)
    unwanted = len(seen.keys() - wanted)
    return {
        "missing": len(wanted - seen.keys()),
        "repeated": sum(n - 1 for n in seen.values()),
        **({"unwanted": unwanted} if unwanted else {}),
        "steps": steps(batches),
    }


def steps(batches):
    """Steps of each rank; one number where all have the same."""
    of_ranks = [len(of_rank) for of_rank in batches]
    return of_ranks if len(set(of_ranks)) > 1 else of_ranks[:1]


def global_batches(batches):
    """The sorted ids of each step, over all ranks."""
    most = max(map(len, batches))
    return [sorted(i for of_rank in batches for i in (of_rank[s] if s < len(of_rank) else [])) for s in range(most)]


def attempt(measure):
    """What `measure` gives, or {"refused" | "unsupported" | "not_run": why}."""
    try:
        return measure()
    except Unsupported as error:
        return {"unsupported": str(error)}
    except NotRun as error:
        return {"not_run": str(error)}
    except Exception as error:  # noqa: BLE001
        return {"refused": refusal(error)}


def instead(refused, figures):
    """What came of the nearest batch, with why 96 was refused."""
    return {**figures, "refused_96": refused["refused"]} if done(figures) else figures


def done(figures):
    return "missing" in figures


def epochs(loader, kind, rows):
    """Every world size, with a global batch of 96 and, where that is refused, the nearest."""
    results, reference = [], None
    for world in WORLDS:

        def measure(batch, world=world):
            batches = loader.epoch(kind, rows, world, batch)
            if isinstance(batches, dict):
                return {"world": world, "batch": batch, **batches}
            sets = global_batches(batches)
            return {"world": world, "batch": batch, **counted(batches, expected(kind, rows)), "sets": sets}

        figures = attempt(lambda: measure(BATCH))
        if "refused" in figures and nearest(world) != BATCH:
            figures = instead(figures, attempt(lambda: measure(nearest(world))))
        figures.setdefault("world", world)
        sets = figures.pop("sets", None)
        if sets and figures["batch"] == BATCH:
            reference = reference or sets
            pairs = [(a, b) for a, b in zip(sets, reference)]
            differing = sum(a != b for a, b in pairs) + abs(len(sets) - len(reference))
            figures["batches"] = len(sets)
            figures["differing_batches"] = differing
        results.append(figures)
        if "unsupported" in figures or "not_run" in figures:
            break
    return results


def changes(loader, kind, rows):
    """Every change of world size, and each world size stopped and gone on with itself."""
    results = []
    for before in BEFORE:
        for after in sorted({*AFTER, before}):

            def measure(batch, before=before, after=after):
                changed = loader.change(kind, rows, before, BATCH, STEP, after, batch)
                if isinstance(changed, dict):
                    return {"batch": batch, **changed}
                first, second = changed
                figures = counted([*first, *second], expected(kind, rows))
                return {"batch": batch, **figures, "steps": steps(second)}

            figures = attempt(lambda: measure(BATCH))
            if "refused" in figures and nearest(after) != BATCH:
                figures = instead(figures, attempt(lambda: measure(nearest(after))))
            results.append({"before": before, "after": after, **figures})
            if "unsupported" in figures or "not_run" in figures:
                return results
    return results


def several(loader, rows, count=3):
    """Grain's documentation repeats a data set before it is batched, so that batches cross epochs: rows of `count`
    epochs in one stream that came out fewer than `count` times."""
    results = []
    for world in BEFORE:
        seen = collections.Counter(
            i for of_rank in loader.epoch("plain", rows, world, BATCH, count) for ids in of_rank for i in ids
        )
        results.append({"world": world, "epochs": count, "missing": sum(count - seen[i] for i in range(rows))})
    return results


def mixes(loader):
    """Rows that an epoch of the mix lacks, by its weights and by weights that are the sources' rows."""
    results = []
    for rows in sorted((ROWS, *TAILS)):
        first = sources(rows)
        for weights in (WEIGHTS, (first, rows - first)):
            results.append({"rows": rows, "weights": weights, **loader.mix_of(rows, weights)})
    return results


def measure(loader):
    result = {"loader": loader.name, "api": loader.api, "seconds": None}
    start = time.perf_counter()
    for kind in ("plain", "filter", "mix"):
        result[kind] = {"epochs": epochs(loader, kind, ROWS)}
        if any(done(f) for f in result[kind]["epochs"]):
            result[kind]["changes"] = changes(loader, kind, ROWS)
        else:
            result[kind]["changes"] = result[kind]["epochs"][:1]
    for rows in TAILS:
        result[f"rows_{rows}"] = {"epochs": epochs(loader, "plain", rows)}
    if isinstance(loader, Grain):
        result["repeat"] = several(loader, ROWS)
    if hasattr(loader, "mix_of"):
        result["mixes"] = mixes(loader)
    result["seconds"] = round(time.perf_counter() - start, 1)
    return result


def none_of(figures):
    """The cell of a feature that is not there."""
    for word, key in (("unsupported", "unsupported"), ("not run", "not_run")):
        if any(key in f for f in figures):
            return word
    return "all refused" if figures and not any(done(f) for f in figures) else None


def count(figures, holds, worst=None):
    """ "3 of 16", and the least and the largest value of a figure where it holds."""
    if not figures:
        return "-"
    hits = [f for f in figures if holds(f)]
    text = f"{len(hits)} of {len(figures)}"
    if worst and hits:
        values = [f[worst] for f in hits]
        text += f" ({min(values)})" if min(values) == max(values) else f" ({min(values)}-{max(values)})"
    return text


def at(f, same_batch):
    """Whether it ran, at a global batch of 96 or at another."""
    return done(f) and (f["batch"] == BATCH) == same_batch


def unequal(f):
    return len(set(f["steps"])) > 1


def epoch_cells(figures):
    missing = none_of(figures)
    ran = [f for f in figures if done(f)]
    at_batch = [f for f in ran if f["batch"] == BATCH]
    return missing, ran, at_batch


def table(results):
    """Rows of (title, cells)."""
    rows = []

    def row(title, cell):
        rows.append((title, [cell(r) for r in results]))

    def section(title):
        rows.append((title, None))

    def of_epochs(key, cell):
        def make(result):
            missing, ran, at_batch = epoch_cells(result[key]["epochs"])
            return missing or cell(ran, at_batch, result[key]["epochs"])

        return make

    def of_changes(key, which, cell):
        def make(result):
            figures = result[key]["changes"]
            missing = none_of(figures)
            if missing:
                return missing
            # Of the changes proper: `before` = `after` is the control.
            same = [f for f in figures if f["before"] == f["after"]]
            proper = [f for f in figures if f["before"] != f["after"]]
            return cell(same, proper) if which == "all" else cell([f for f in proper if done(f)])

        return make

    def three(key, title):
        row(f"{title}: ids missing", of_epochs(key, lambda r, b, e: count(r, lambda f: f["missing"], "missing")))
        row("  ids repeated", of_epochs(key, lambda r, b, e: count(r, lambda f: f["repeated"], "repeated")))
        row("  unequal steps", of_epochs(key, lambda r, b, e: count(r, unequal)))

    def elastic(key):
        row(
            "  batches unlike one rank's",
            of_epochs(
                key,
                lambda r, b, e: count(
                    [f for f in b if f["world"] > 1 and "differing_batches" in f],
                    lambda f: f["differing_batches"],
                    "differing_batches",
                ),
            ),
        )

    def with_change(key):
        row("refuse batch 96", of_changes(key, "all", lambda s, p: count(p, lambda f: not at(f, True))))
        for same_batch, prefix in ((True, "  at 96: "), (False, "  at the nearest: ")):
            cells = {
                "ids missing": (lambda f: f["missing"], "missing"),
                "ids repeated": (lambda f: f["repeated"], "repeated"),
                "unequal steps": (unequal, None),
            }
            if not same_batch:
                row(
                    prefix + "refused too",
                    of_changes(
                        key,
                        "all",
                        lambda s, p: count([f for f in p if not at(f, True)], lambda f: not done(f)),
                    ),
                )
            for title, (holds, worst) in cells.items():
                row(
                    prefix + title,
                    of_changes(
                        key,
                        "ran",
                        lambda p, x=same_batch, holds=holds, worst=worst: count(
                            [f for f in p if at(f, x)], holds, worst
                        ),
                    ),
                )

    section(f"an epoch of {ROWS:,} rows, world sizes")
    row("refuse batch 96", of_epochs("plain", lambda r, b, e: count(e, lambda f: "refused_96" in f or not done(f))))
    three("plain", "epoch")
    elastic("plain")
    for rows_of_tail in TAILS:
        section(f"an epoch of {rows_of_tail:,} rows, world sizes")
        three(f"rows_{rows_of_tail}", "epoch")
    section(f"stopped after step {STEP}, same world size")
    for title, key in (("ids missing", "missing"), ("ids repeated", "repeated")):
        row(
            f"  {title}",
            of_changes(
                "plain", "all", lambda s, p, key=key: count([f for f in s if done(f)], lambda f: f[key], key)
            ),
        )
    section(f"stopped after step {STEP}, other world size")
    with_change("plain")
    for kind, title in (("filter", "filter (id % 7 != 0)"), ("mix", "mix of two sources, 0.7 / 0.3")):
        section(f"{title}, world sizes")
        three(kind, "epoch")
        elastic(kind)
        section(f"{title}, other world size after step {STEP}")
        with_change(kind)
    return rows


def show(results):
    rows = table(results)
    print("a of b: of so many world sizes, or changes of one; in brackets how many ids, or batches, least and most\n")
    width = max(len(title) for title, cells in rows if cells is not None) + 2
    widths = [
        max(len(word) for word in [*names(r["loader"]), *(cells[i] for _, cells in rows if cells)]) + 2
        for i, r in enumerate(results)
    ]
    heads = [names(r["loader"]) for r in results]
    for line in range(max(map(len, heads))):
        cells = [head[line] if line < len(head) else "" for head in heads]
        print("".join([" " * width, *(f"{c:>{w}}" for c, w in zip(cells, widths))]).rstrip())
    for title, cells in rows:
        if cells is None:
            print(f"-- {title} --")
        else:
            print("".join([f"{title:<{width}}", *(f"{c:>{w}}" for c, w in zip(cells, widths))]))
    print()
    for result in results:
        reasons = collections.Counter()
        for kind in ("plain", "filter", "mix"):
            for part in ("epochs", "changes"):
                for f in result[kind][part]:
                    for key in ("refused", "refused_96", "unsupported", "not_run"):
                        if key in f:
                            # Numbers and paths would make each its own.
                            text = re.sub(r"\d+", "N", f[key])[:120]
                            reasons[f"{kind}, {part}: {key.replace('_', ' ')}: {text}"] += 1
        for reason, times in reasons.items():
            print(f"{result['loader']}: {times}x {reason}")
        unwanted = [f for kind in ("plain", "filter", "mix") for f in delivering(result[kind]) if "unwanted" in f]
        if unwanted:
            print(f"{result['loader']}: {len(unwanted)}x rows that do not belong to the epoch")
        if result["loader"] == Gristmill.name:
            print(GRISTMILL_NOTE)
        if result["loader"] == MosaicMachines.name:
            print(
                f"{result['loader']}: {CANONICAL_NODES} canonical nodes, more than any number of machines here, as its"
                " documentation suggests; each is filled up to the same number of rows"
            )
        if "repeat" in result:
            lost = sorted({f["missing"] for f in result["repeat"]})
            print(
                f"{result['loader']}: 3 epochs in one stream (repeat before batch, which lets batches cross epochs):"
                f" {' or '.join(map(str, lost))} of {3 * ROWS:,} rows missing"
            )
        for by_rows, title in ((False, "0.7 / 0.3"), (True, "as the sources' rows")):
            cases = [f for f in result.get("mixes", []) if (list(f["weights"]) != list(WEIGHTS)) == by_rows]
            if cases:
                print(f"{result['loader']}: an epoch of the mix, weights {title}: " + "; ".join(map(mix_words, cases)))


def delivering(of_kind):
    return [f for part in ("epochs", "changes") for f in of_kind[part] if done(f)]


def mix_words(f):
    """One mix, in words."""
    words = f"{f['missing']} of {f['rows']:,} rows missing"
    if f["missing"] and "passes" in f:
        then = [" and ".join(map(str, passes)) for passes in f["passes"]]
        words += f" (whole passes of the sources: {then[0]}; after the next epoch {then[1]}, with"
        words += f" {f['next_missing_or_repeated']} rows missing or repeated in a pass)"
    return words


GRISTMILL_NOTE = """\
gristmill: plain and filter, epochs: the ids that `load` delivers
gristmill: plain and filter, changes: the replay of `plan --change`, in which the other ranks go on from the state that
  the first would save and each row that a rank gets is marked, without reading data; the same figures come from the ids
  that `load` delivers, steps before the change with one world size, those after with the other
gristmill: mix: only the replay of `plan --mix --stop first-exhausted`, as `load` delivers no mixes; it has no ids, so
  that batches can't be compared, and one number of steps for all ranks; the next epoch goes on in each source where
  this one stopped"""


def names(loader):
    """A column's head, on two lines where it has a comma or is long."""
    if ", " in loader:
        return loader.split(", ", 1)
    return loader.split(" ", 1)


def installed(package):
    return package is None or importlib.util.find_spec(package) is not None


def machine():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
    return f"{model or platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"


def versions(gristmill):
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    if gristmill:
        found["gristmill"] = subprocess.check_output([gristmill, "--version"], text=True).strip()
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gristmill", help="the binary; left out without it")
    parser.add_argument("--loaders", nargs="*", help="parts of the names of the columns to run, in any case")
    parser.add_argument("--json", type=pathlib.Path, help="where the figures go")
    parser.add_argument("--show", type=pathlib.Path, help="only print the table of figures that --json kept")
    args = parser.parse_args()
    if args.show:
        return report(json.loads(args.show.read_text()))
    work = pathlib.Path(tempfile.mkdtemp(prefix="plan-peers-"))
    try:
        loaders = [Gristmill(args.gristmill, work / "gristmill")] if args.gristmill else []
        loaders += [GrainElastic(), GrainSlice(), GrainLoader()]
        loaders += [Mosaic(work / "mds"), MosaicMachines(work / "mds-machines"), Torch(False), Torch(True)]
        left_out = [loader.name for loader in loaders if not installed(loader.package)]
        loaders = [loader for loader in loaders if installed(loader.package)]
        if args.loaders:
            loaders = [x for x in loaders if any(part.lower() in x.name.lower() for part in args.loaders)]
        if not loaders:
            raise SystemExit("no such loader, or none whose package is installed")
        results = []
        for loader in loaders:
            results.append(measure(loader))
            print(f"plan_peers: {loader.name}: {results[-1]['seconds']} s", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    document = {
        "rows": ROWS,
        "batch": BATCH,
        "step": STEP,
        "machine": machine(),
        "versions": versions(args.gristmill),
        "left_out": left_out,
        "loaders": results,
    }
    report(document)
    if args.json:
        args.json.write_text(json.dumps(document, separators=(",", ":")) + "\n")


def report(document):
    print("machine  " + document["machine"])
    found = (f"{name} {version}" for name, version in document["versions"].items())
    print("versions " + ", ".join(found).replace("gristmill gristmill", "gristmill"))
    if document["left_out"]:
        print("left out, not installed: " + "; ".join(document["left_out"]))
    show(document["loaders"])


if __name__ == "__main__":
    main()
