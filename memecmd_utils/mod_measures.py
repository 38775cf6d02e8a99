"""Scores and measures of MOD's questions: the run's own score, a baseline without annotations, chance."""

from collections.abc import Mapping, Sequence

import numpy as np

from memecmd_utils import mod_format, retrieval
from memecmd_utils.chat_summaries import Told
from memecmd_utils.library_search import Library
from memecmd_utils.mod_format import Item
from memecmd_utils.retrieval import centre, weigh
from memecmd_utils.retrieval_systems import CAPTION, CONTEXT_TURNS, FULL, RANDOM

CUTS = (1, 2, 5, 10)
MEASURES = (*(f"R@{k}" for k in CUTS), "MAP")
_TREC = (*(f"success_{k}" for k in CUTS), "map")
WHOLE = "whole library"
EMPTY = "…"
"""What a picture without a caption, and turns without words, are compared by."""
AT_ONCE = 256
"""Questions whose rankings are in memory together."""


def score_matrices(
    items: Sequence[Item],
    summaries: Sequence[Told],
    library: Library,
) -> dict[str, np.ndarray]:
    """Scores [questions, memes] of the run's own score (Eq. 22) and of last turns against captions.

    Both are centred by their own means, as the profile says. A question without a summary has nan.
    """
    profile, index = library.run.profile, library.index
    rows = [i for i, told in enumerate(summaries) if told.summary is not None]
    full = np.full((len(items), len(index.meme_ids)), np.nan)
    if rows:
        queries = library.queries([summaries[i].summary for i in rows])
        full[rows] = np.hstack(list(retrieval.products(index, weigh(queries, profile.weights))))
    texts = ["\n".join(m.text for m in item.history[-CONTEXT_TURNS:] if m.text) for item in items]
    captions = [library.memes[name].text for name in index.meme_ids]
    # Some embedders refuse an empty text.
    left = library.encode([text or EMPTY for text in texts], "query")
    right = library.encode([text or EMPTY for text in captions], "document")
    if profile.centring == "attribute":
        left, right = centre(left), centre(right)
    return {FULL: full, CAPTION: left.astype(np.float64) @ right.astype(np.float64).T}


def measure(
    items: Sequence[Item],
    scores: Mapping[str, np.ndarray],
    library: Library,
    known: Mapping[str, str],
    among: str,
) -> tuple[dict[str, np.ndarray], list[int]]:
    """`MEASURES` of every system, [questions, 5], and of random; and how many memes each question had.

    `among`: `WHOLE`, or the candidates of each question. Random is exact: K of n, and the mean of 1 / rank.
    """
    truths = [known.get(mod_format.plain_id(item.truth)) for item in items]
    sizes = [len(library.index.meme_ids) if among == WHOLE else len(item.candidates) for item in items]
    names, found = library.index.meme_ids, {}
    for system, matrix in scores.items():
        values = np.zeros((len(items), len(MEASURES)))
        for start in range(0, len(items), AT_ONCE):
            part = np.arange(start, min(start + AT_ONCE, len(items)))
            asked = [i for i in part if truths[i] is not None and np.isfinite(matrix[i]).all()]
            runs = {}
            ranked = retrieval.order(np.nan_to_num(matrix[part], nan=-np.inf), names)
            for i in asked:
                ids = [names[place] for place in ranked[i - start]]
                if among != WHOLE:
                    own = {known.get(mod_format.plain_id(c)) for c in items[i].candidates}
                    ids = [name for name in ids if name in own]
                runs[str(i)] = {name: -float(rank) for rank, name in enumerate(ids)}
            if asked:
                values[asked] = _trec(runs, {str(i): {truths[i]: 1} for i in asked})
        found[system] = values
    has = np.array([truth is not None for truth in truths], dtype=float)
    n = np.array(sizes, dtype=float)
    harmonic = np.array([(1 / np.arange(1, size + 1)).sum() for size in sizes])
    chance = [np.minimum(1, k / n) for k in CUTS]
    found[RANDOM] = np.stack([*chance, harmonic / n], axis=1) * has[:, None]
    return found, sizes


def _trec(runs: dict[str, dict[str, float]], relevant: dict[str, dict[str, int]]) -> np.ndarray:
    import pytrec_eval

    cuts = ",".join(map(str, CUTS))
    got = pytrec_eval.RelevanceEvaluator(relevant, {f"success.{cuts}", "map"}).evaluate(runs)
    return np.array([[got[name][measure] for measure in _TREC] for name in runs])


def ranked_candidates(
    item: Item, scores: np.ndarray, library: Library, known: Mapping[str, str]
) -> list[str]:
    """Candidates of a question, best first, as the file spells them; those not in the library come last."""
    place = {name: i for i, name in enumerate(library.index.meme_ids)}
    at = [place.get(known.get(mod_format.plain_id(c), ""), -1) for c in item.candidates]
    value = [scores[i] if i >= 0 and np.isfinite(scores[i]) else -np.inf for i in at]
    return [item.candidates[i] for i in sorted(range(len(at)), key=lambda i: (-value[i], i))]
