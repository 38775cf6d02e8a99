"""Where should a turn's summary come from: the run's own, a small model, the last turn, all? (Study 5.)

Requests of the small model are those of stage 03, so only the writer differs.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from memecmd_utils import grades, retrieval, statistics
from memecmd_utils.dialogue import summarise
from memecmd_utils.grades import MEASURES, GradedTurns
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm.chat import Progress
from memecmd_utils.runs import Run
from memecmd_utils.schemas import ColdStart, Dialogue, Summary

OWN, SMALL, LAST, HISTORY = "the run's own", "small model", "last turn only", "raw history"
ALL_DIALOGUES = "all"
JUDGED_ONLY = "nDCG@5 judged only"
SCORED = ("R@1", "nDCG@5", "judged@5")
_NAMES = ("embedder", "dialogues", "source")
TABLE = (
    *_NAMES, "turns", "no summary", *statistics.with_ends("R@1", "nDCG@5"), "judged@5",
    *statistics.with_ends(JUDGED_ONLY), "n dialogues",
)  # fmt: skip
MINUS_OWN = (*_NAMES, *statistics.with_ends("R@1", "nDCG@5", JUDGED_ONLY), "n dialogues")


def chosen(dialogues: Sequence[Dialogue], run: Run) -> list[Dialogue]:
    """The dialogues that the small model summarises: drawn by seed, as many news as role ones."""
    drawn: list[Dialogue] = []
    kinds = sorted({d.kind for d in dialogues})
    for place, kind in enumerate(kinds):
        mine = sorted((d for d in dialogues if d.kind == kind), key=lambda d: d.dialogue_id)
        share = (run.profile.evaluation.other_summaries + place) // len(kinds)
        order = statistics.rng(run.profile.seed, "other summaries", kind).permutation(len(mine))
        drawn += [mine[i] for i in sorted(order[:share])]
    return drawn


def summarise_with_small_model(
    run: Run, dialogues: Sequence[Dialogue], starts: Mapping[str, ColdStart]
) -> dict[str, list[Summary]]:
    """Summaries of the chosen dialogues by the profile's local model: dialogue -> summaries of turns 2..T."""
    profile, drawn = run.profile.replace(llm="local"), chosen(dialogues, run)
    asked = [(d, t) for d in drawn for t in range(2, len(d.turns) + 1)]
    if not asked:
        return {}

    async def all_of_them(chat: llm_chat.Chat) -> list[Summary]:
        with Progress(chat, len(asked), SMALL, "summary") as bar:

            async def one(dialogue: Dialogue, turn: int) -> Summary:
                earlier = [u.text for u in dialogue.turns[: turn - 1]]
                found = await summarise(starts[dialogue.dialogue_id], earlier, chat, profile)
                bar.update()
                return found

            return await chat.side_by_side(one(d, t) for d, t in asked)

    with run.chat("summariser", "studies") as chat:
        summaries = llm_chat.run(all_of_them(chat))
    by_dialogue: dict[str, list[Summary]] = {d.dialogue_id: [] for d in drawn}
    for (dialogue, _), summary in zip(asked, summaries, strict=True):
        by_dialogue[dialogue.dialogue_id].append(summary)
    return by_dialogue


def summaries_by_source(
    data: GradedTurns, small: Mapping[str, Sequence[Summary]]
) -> dict[str, list[Summary | None]]:
    """A summary of every turn of the study from every source; None where a source has no usable one.

    The last turn u_{t-1} and the raw history u_1..u_{t-1} stand as S, E and Psi alike.
    """

    def alike(own: Summary, text: str, source: str) -> Summary:
        same = {"scenario": text, "emotion": text, "motivation": text, "source": source}
        return own.model_copy(update=same)

    by_model = {(name, s.turn): s for name, mine in small.items() for s in mine if not s.unscored}
    out: dict[str, list[Summary | None]] = {OWN: list(data.summaries), LAST: [], HISTORY: []}
    for query, own in zip(data.asked, data.summaries, strict=True):
        before = [u.text for u in query.dialogue.turns[: query.turn - 1]]
        out[LAST].append(alike(own, before[-1], LAST))
        out[HISTORY].append(alike(own, "\n".join(before), HISTORY))
    if small:
        out[SMALL] = [by_model.get(query.key) for query in data.asked]
    return out


def compare_sources(
    data: GradedTurns, small: Mapping[str, Sequence[Summary]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Retrieval by each source's summaries, and its differences to the run's own, under both embedders.

    All sources but the small model on all dialogues; then all of them on the small model's dialogues alone,
    at the turns of which it has a usable summary (`no summary` counts the others). Each source is centred by
    its own mean over the turns that are compared. The run's summaries fed the pool of graded memes, the
    others did not: nDCG@5 over judged memes only stands beside. Without ground truth both tables are empty.
    """
    sources, clusters = summaries_by_source(data, small), np.array(data.clusters)
    groups = [(ALL_DIALOGUES, np.arange(len(data.asked)))]
    if small:
        groups.append((f"the small model's {len(small)}", np.flatnonzero([c in small for c in clusters])))
    table, differences = [], []
    for embedder, (group, rows) in product(data.encoders, groups):
        there = {name: of for name, of in sources.items() if group != ALL_DIALOGUES or name != SMALL}
        usable = np.array([i for i in rows if all(of[i] is not None for of in there.values())], dtype=int)
        fit = np.isin(usable, data.known)
        names = clusters[usable[fit]].tolist()
        if not names:
            continue
        measured = {name: _measure(data, of, usable, fit, embedder) for name, of in there.items()}
        for source, mine in measured.items():
            row = {"embedder": embedder, "dialogues": group, "source": source, "n dialogues": len(set(names))}
            counts = {"turns": len(names), "no summary": len(rows) - len(usable)}
            columns = (*SCORED, JUDGED_ONLY)
            table.append({**row, **counts, **statistics.mean_columns(columns, mine, names, statistics.SHARE)})
            if source != OWN:
                minus = statistics.mean_columns(columns, mine - measured[OWN], names)
                differences.append({**row, **minus})
    return pd.DataFrame(table, columns=list(TABLE)), pd.DataFrame(differences, columns=list(MINUS_OWN))


def _measure(
    data: GradedTurns, summaries: Sequence[Summary | None], usable: np.ndarray, fit: np.ndarray, embedder: str
) -> np.ndarray:
    """`SCORED` and `JUDGED_ONLY` where some meme fits, [turns, 4], with `summaries` as the queries."""
    queries = [summaries[i] for i in usable]
    profile = data.profile.retrieval
    terms = grades.four_terms(queries, data.annotations, data.encoders[embedder], profile.centring)
    scores, known = retrieval.combine(terms, profile.weights)[fit], data.grades[usable[fit]]
    judged = np.where(np.isnan(known), -np.inf, scores)  # ungraded memes come last and gain nothing
    every, graded = (grades.per_turn(retrieval.order(s, data.meme_ids), known) for s in (scores, judged))
    return np.column_stack([every[:, [MEASURES.index(name) for name in SCORED]], graded[:, grades.NDCG]])
