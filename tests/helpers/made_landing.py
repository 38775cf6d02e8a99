"""A made-up `landing.json` of two splits."""

from typing import Any

from memecmd_utils import statistics
from memecmd_utils.evaluation import learning
from memecmd_utils.evaluation.landing import WAYS
from memecmd_utils.report.landing import OURS, OWN, SHARES, THEIRS


def interval(*names: str) -> dict[str, float]:
    """0.3 [0.2, 0.4] under every name."""
    return dict(zip(statistics.with_ends(*names), (0.3, 0.2, 0.4) * len(names), strict=True))


def found() -> dict[str, list[dict[str, Any]]]:
    """The example first, as the file has it; one case, at which Greedy sends nothing."""
    splits, parts, minus = (
        ("example", "untouched"),
        ("all", "news"),
        f"{learning.LEARNED} minus {learning.PAPER}",
    )
    against = (("greedy", OWN), ("greedy", THEIRS), ("greedy", OURS), ("random", OURS))
    difference = {"mean": 0.2, "low": -0.1, "high": 0.5, "n": 9, "dialogues": 9, "p": 0.2}
    one = {"mean": 0.8, "low": 0.7, "high": 0.9, "n": 9, "dialogues": 9}
    return {
        "placed": [
            {"split": s, "part": p, "way": way, "memes": 7, "ungraded": 0.0, **interval(*SHARES)}
            for s in splits for p in parts for way in WAYS
        ],
        "differences": [
            {"split": s, "part": p, "learned minus": other, "where": where, **difference}
            for s in splits for p in parts for other, where in against
        ],
        "gate": [
            {"split": s, "gate": gate, "measure": measure, **one}
            for s in splits for gate in (learning.LEARNED, "the paper's top score")
            for measure in ("AUC", "kappa with marker 1")
        ],
        "reliability": [
            {"split": s, "fifth": n, "P(wanted)": 0.4, "marked": 0.5, "turns": 3}
            for s in splits for n in range(1, 6)
        ],
        "ranking": [
            {"split": s, "part": p, "what": what, "turns": 9, **interval(*learning.MEASURES)}
            for s in splits for p in parts for what in (learning.LEARNED, learning.PAPER, minus)
        ],
        "cases": [
            {"split": s, "case": "win", "dialogue_id": "news-made-1", "turn": 4, "learned": "m1",
             "learned grade": 2.0, "learned sends": True, "greedy": "m2", "greedy grade": 0.0,
             "greedy sends": False}
            for s in splits
        ],
    }  # fmt: skip
