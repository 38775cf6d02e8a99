"""Three cures for hubs: centring, CSLS and the inverted softmax, each estimated on the other half's turns.

Centring: Suzuki et al. (2013). CSLS: Conneau et al. (2018). Inverted softmax: Smith et al. (2017).
"""

import numpy as np

from memecmd_utils import fast_retrieval, retrieval
from memecmd_utils.retrieval import MEME_SIDE, QUERY_SIDE, SIGNS, centre, mean_row
from memecmd_utils.study_data import StudyData

NEIGHBOURS = 10
BETA = 30.0
STARTS = {"uncentred": "none", "centred": "attribute"}
"""Scores that a cure starts from, and their name in the profile."""
NONE, CENTRING, CSLS, INVERTED = "none", "centring", "CSLS", "inverted softmax"


def csls(scores: np.ndarray, fit: np.ndarray, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """Cross-domain similarity local scaling (Conneau et al., 2018): 2 s - r(meme) - r(turn).

    r(meme) is the mean of the `neighbours` largest of its scores over the turns of `fit` [turns, memes].
    r(turn) is the same for all memes of a turn and cannot change their order: it is left out.
    """
    nearest = np.sort(fit, axis=0)[-neighbours:]
    return 2 * scores - nearest.mean(axis=0)


def inverted_softmax(scores: np.ndarray, fit: np.ndarray, beta: float = BETA) -> np.ndarray:
    """Inverted softmax (Smith et al., 2017): p(turn | meme), its normaliser summed over the turns of `fit`.

    As a logarithm over beta, on the scale of the scores: s - log(sum exp(beta s)) / beta.
    """
    most = fit.max(axis=0)
    return scores - most - np.log(np.exp(beta * (fit - most)).sum(axis=0)) / beta


def centred(data: StudyData, embedder: str) -> np.ndarray:
    """Scores with summaries centred by the other half's mean, memes by their own (Suzuki et al., 2013).

    The run centres summaries by the mean of all of them; here a turn has no part in the mean it is freed of.
    """
    encode, out = data.encoders[embedder], np.zeros((len(data.asked), len(data.meme_ids)))
    of = {side: encode([getattr(s, side) for s in data.summaries], "query") for side in set(QUERY_SIDE)}
    for weight, query, side, sign in zip(data.profile.weights, QUERY_SIDE, MEME_SIDE, SIGNS, strict=True):
        memes = centre(encode([getattr(a, side) for a in data.annotations], "document")).astype(float)
        for rows, fit, _ in fast_retrieval.folds(data.half):
            # One turn alone has no spread, as `centre` says: its half is left uncentred.
            turns = centre(of[query][rows], mean_row(of[query][fit])) if len(fit) > 1 else of[query][rows]
            out[rows] += weight * sign * turns.astype(float) @ memes.T
    return out


def rankings(data: StudyData, embedder: str) -> dict[tuple[str, str], np.ndarray]:
    """Full scores [turns, memes] under the run's weights, by (start, cure); `NONE` comes first of each start.

    With one dialogue there is no other half: the cures are estimated on its own turns.
    """
    out = {}
    for start, centring in STARTS.items():
        plain = retrieval.combine(data.terms(embedder, centring), data.profile.weights)
        out[start, NONE] = plain
        if start == "uncentred":
            out[start, CENTRING] = centred(data, embedder)
        for name, cure in ((CSLS, csls), (INVERTED, inverted_softmax)):
            cured = np.empty_like(plain)
            for rows, fit, _ in fast_retrieval.folds(data.half):
                cured[rows] = cure(plain[rows], plain[fit])
            out[start, name] = cured
    return out
