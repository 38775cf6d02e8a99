"""Stage 04: which meme fits the next turn, and whether to send it (2507.00891, Eq. 18 to 25).

Four weighted cosines make the score T; a threshold that decays since the last meme opens; strategies choose.
"""

from memecmd_utils.retrieval.figures import score_distribution, score_distributions
from memecmd_utils.retrieval.learned import open_placement, score_by_learned
from memecmd_utils.retrieval.placement import (
    calibrate,
    calibrated_gates,
    candidates,
    index_library,
    place,
    sample_scores,
    score_dialogues,
    scores_by_kind,
    tuned,
)
from memecmd_utils.retrieval.scoring import weigh

__all__ = [
    "calibrate",
    "calibrated_gates",
    "candidates",
    "index_library",
    "open_placement",
    "place",
    "sample_scores",
    "score_by_learned",
    "score_dialogues",
    "score_distribution",
    "score_distributions",
    "scores_by_kind",
    "tuned",
    "weigh",
]
