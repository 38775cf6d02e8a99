"""Does each term help (Study 2), and where should a turn's summary come from (Study 5)?

Intervals are over dialogues, not turns.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from memecmd_utils import grades, retrieval, statistics
from memecmd_utils.grades import MEASURES
from memecmd_utils.retrieval import COMPONENTS as TERMS
from memecmd_utils.retrieval import QUERY_FIELDS
from memecmd_utils.splits import Turns

ABLATION = ("embedder", "without", "compares", "measure", "full", "rest", "difference", "dialogues")


def leave_one_out(data: Turns) -> pd.DataFrame:
    """Full score minus the score without one term, a row an embedder, term and measure (columns `ABLATION`).

    The other weights stay as they are in the run, and so does the centring. A difference above 0: the term
    helps. Without ground truth the table is empty.
    """
    rows, weights = [], np.array(data.profile.retrieval.weights)
    for embedder in data.encoders if len(data.answerable) else ():
        terms = data.terms(embedder, data.profile.retrieval.centring)
        full = data.measure(retrieval.combine(terms, weights))
        for i, (term, part) in enumerate(zip(TERMS, grades.PARTS, strict=True)):
            rest = data.measure(retrieval.combine(terms, np.where(np.arange(len(TERMS)) == i, 0, weights)))
            for measure in ("R@1", "nDCG@5"):
                a, b = (values[:, MEASURES.index(measure)] for values in (full, rest))
                gap = statistics.cluster_mean(a - b, data.answerable_clusters, statistics.FINE_DIFFERENCE)
                rows.append((embedder, term, part, measure, a.mean(), b.mean(), gap, gap.clusters))
    return pd.DataFrame(rows, columns=list(ABLATION))


# --- The summary agent, the last turn, the whole history


OWN, LAST, HISTORY = "the run's own", "last turn only", "raw history"
JUDGED_ONLY = "nDCG@5 judged only"
SCORED = ("R@1", "nDCG@5", "judged@5")
TABLE = ("embedder", "source", "turns", *SCORED, JUDGED_ONLY, "dialogues")
MINUS_OWN = ("embedder", "source", "R@1", "nDCG@5", JUDGED_ONLY, "dialogues")


def by_source(data: Turns) -> dict[str, Turns]:
    """The same turns with the summaries of every source.

    The last turn u_{t-1} and the raw history u_1..u_{t-1} stand as S, E and Psi alike.
    """

    def with_texts(text_of: Callable[[list[str]], str]) -> Turns:
        dialogues = []
        for dialogue in data.split.dialogues:
            texts = [turn.text for turn in dialogue.turns]
            summaries = [
                summary.model_copy(update=dict.fromkeys(QUERY_FIELDS, text_of(texts[: summary.turn - 1])))
                for summary in dialogue.summaries
            ]
            dialogues.append(dialogue.model_copy(update={"summaries": summaries}))
        return replace(data, split=replace(data.split, dialogues=dialogues))

    return {OWN: data, LAST: with_texts(lambda before: before[-1]), HISTORY: with_texts("\n".join)}


def compare_sources(data: Turns) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Retrieval by each source's summaries, and its differences to the run's own, under both embedders.

    Each source is centred by its own mean. The run's summaries fed the pool of graded memes, the others did
    not: nDCG@5 over judged memes only stands beside. Without ground truth both tables are empty.
    """
    sources, names = by_source(data), data.answerable_clusters
    table, differences, columns = [], [], (*SCORED, JUDGED_ONLY)
    for embedder in data.encoders if names else ():
        measured = {source: _measure(turns, embedder) for source, turns in sources.items()}
        for source, mine in measured.items():
            row = {"embedder": embedder, "source": source, "turns": len(names), "dialogues": len(set(names))}
            table.append({**row, **statistics.cluster_means(columns, mine, names, statistics.MEASURE)})
            if source != OWN:
                gaps = mine - measured[OWN]
                minus = statistics.cluster_means(columns, gaps, names, statistics.FINE_DIFFERENCE)
                differences.append({**row, **minus})
    return pd.DataFrame(table, columns=list(TABLE)), pd.DataFrame(differences, columns=list(MINUS_OWN))


def _measure(turns: Turns, embedder: str) -> np.ndarray:
    """`SCORED` and `JUDGED_ONLY` where some meme fits, [turns, 4]."""
    knobs = turns.profile.retrieval
    scores = retrieval.combine(turns.terms(embedder, knobs.centring), knobs.weights)
    judged = np.where(np.isnan(turns.grades), -np.inf, scores)  # ungraded memes come last and gain nothing
    every = turns.measure(scores)[:, [MEASURES.index(name) for name in SCORED]]
    return np.column_stack([every, turns.measure(judged)[:, grades.NDCG]])
