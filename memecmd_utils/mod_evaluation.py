"""Retrieval of memes measured on MOD: Recall_n@K, R@K and MAP, with intervals over dialogues.

`Recall_n@K` is the share of questions whose meme is among the first K of the n candidates that the file
offers, R@K the same over the whole library; MAP is of one relevant meme a question. The measures are
trec_eval's own code. A question whose meme is not in the library, or that has no summary, counts as missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from memecmd_utils import (
    chat_summaries,
    conversations,
    library_search,
    mod_format,
    prompting,
    seeds,
    statistics,
    storage,
)
from memecmd_utils.conversations import Context, Conversation, Message
from memecmd_utils.library_search import Library
from memecmd_utils.mod_format import Item, Split
from memecmd_utils.mod_measures import MEASURES, WHOLE, measure, ranked_candidates, score_matrices
from memecmd_utils.retrieval_systems import FULL
from memecmd_utils.runs import Run

STAGE = "mod"
"""Folder of the summary agent's recorded answers, below those of the profile that asked."""
TABLE = ("split", "among", "memes", "system", "measure", "mean", "low", "high", "questions", "dialogues")
DIFFERENCES = (
    "split",
    "among",
    "system",
    "minus",
    "measure",
    "mean",
    "low",
    "high",
    "questions",
    "dialogues",
)


@dataclass(frozen=True)
class Evaluated:
    """Measures of all splits, and what stands behind them."""

    table: pd.DataFrame
    """A row a split, set of candidates, system and measure (`TABLE`)."""
    differences: pd.DataFrame
    """Paired differences of the run's score to the baselines (`DIFFERENCES`)."""
    notes: tuple[str, ...]
    folder: Path

    def text(self) -> str:
        """The measures with their intervals as a table, the notes, and where the files are."""
        cells = [statistics.format_interval(row, digits=3) for row in self.table.to_dict("records")]
        wide = self.table.assign(cell=cells)
        keys = ["split", "among", "memes", "questions", "dialogues", "system"]
        shown = wide.pivot_table(index=keys, columns="measure", values="cell", aggfunc="first", sort=False)
        return "\n".join([shown.reset_index().to_string(index=False), *self.notes, str(self.folder)])


def evaluate_file(
    path: Path,
    profile: str = "example",
    settings: str = "",
    run_name: str = "",
    n_dialogues: int | None = None,
) -> Evaluated:
    """Measure the run's retrieval on a file or folder of MOD: what `make evaluate-mod` does.

    The library is that of the finished run `run_name`, or else of the run that `profile` and `settings` make
    with MOD's folder of pictures as its source; the summary agent is asked by `profile` and `settings`.
    """
    run = library_search.library_of(run_name, profile, settings)
    return evaluate(path, run, library_search.asking_run(run, profile, settings, "mod"), n_dialogues)


def evaluate(path: Path, run: Run, asking: Run, n_dialogues: int | None = None) -> Evaluated:
    """Measure retrieval on a file of MOD, or on all JSON files of a folder, each a split.

    `n_dialogues` draws that many dialogues of each split by the run's seed. Writes `measures.csv`,
    `differences.csv` and, for a task file, its ranked candidates to the report folder of `asking`. Raises
    `ModError` for files of another form, `NoSummaryAgent` where no model can be asked.
    """
    splits, notes = mod_format.read_all(path)
    library = library_search.open_library(run, asking.profile.mode, asking)
    indexed = set(library.index.meme_ids)
    known = mod_format.meme_ids(m for m in library.memes.values() if m.meme_id in indexed)
    rows: list[dict[str, object]] = []
    differences: list[dict[str, object]] = []
    for split in splits:
        items = _drawn(split.items, n_dialogues, run.profile.seed)
        summaries = _summaries(split.name, items, library, known, asking)
        scores = score_matrices(items, summaries, library)
        notes += _notes(split, items, summaries, known)
        if all(item.candidates for item in items):
            ranked = [
                ranked_candidates(item, scores[FULL][i], library, known) for i, item in enumerate(items)
            ]
            if len(items) == len(split.items):
                mod_format.write_ranked(split, ranked, asking.report / f"{split.name}.ranked.json")
        answered = [i for i, item in enumerate(items) if item.truth]
        if not answered:
            continue
        for among in (WHOLE, "candidates"):
            asked = [i for i in answered if among == WHOLE or items[i].candidates]
            if asked:
                part = [items[i] for i in asked]
                measured, sizes = measure(
                    part, {s: m[asked] for s, m in scores.items()}, library, known, among
                )
                _tell(split.name, among, sizes, part, measured, rows, differences)
    table, minus = (
        pd.DataFrame(rows, columns=list(TABLE)),
        pd.DataFrame(differences, columns=list(DIFFERENCES)),
    )
    for name, frame in (("measures", table), ("differences", minus)):
        storage.write_frame(asking.report / f"{name}.csv", frame, float_format=None)
    return Evaluated(table, minus, tuple(notes), asking.report)


def _drawn(items: Sequence[Item], n_dialogues: int | None, seed: int) -> list[Item]:
    names = list(dict.fromkeys(item.dialogue for item in items))
    if n_dialogues is None or n_dialogues >= len(names):
        return list(items)
    chosen = {names[i] for i in seeds.rng(seed, "mod dialogues").permutation(len(names))[:n_dialogues]}
    return [item for item in items if item.dialogue in chosen]


def context(split: str, item: Item, library: Library, known: Mapping[str, str]) -> Context:
    """What the summary agent reads for a question; memes sent before are told by their captions."""
    told = []
    for message in item.history:
        mark = ""
        if message.meme:
            meme = library.memes.get(known.get(mod_format.plain_id(message.meme), ""))
            mark = prompting.render("sent_meme", caption=(meme.text or meme.picture_note) if meme else "")
        told.append(Message(message.speaker, f"{message.text}{mark}"))
    turns = conversations.spoken_turns(Conversation(item.name, tuple(told)))
    lines = tuple((t.speaker, t.text) for t in turns[-conversations.HISTORY_TURNS :])
    return Context(f"{split}/{item.name}", len(turns) + 1, lines, item.sender)


def _summaries(
    split: str, items: Sequence[Item], library: Library, known: Mapping[str, str], asking: Run
) -> list[chat_summaries.Told]:
    contexts = [context(split, item, library, known) for item in items]
    return chat_summaries.ask(contexts, asking, STAGE, library.run.name)


def _tell(
    split: str,
    among: str,
    sizes: Sequence[int],
    items: Sequence[Item],
    measured: Mapping[str, np.ndarray],
    rows: list[dict[str, object]],
    differences: list[dict[str, object]],
) -> None:
    """Add the rows of one split and set of candidates to both tables."""
    clusters = [item.dialogue for item in items]
    memes = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    head = {"split": split, "among": among}
    tail = {"questions": len(items), "dialogues": len(set(clusters))}

    def estimate(values: np.ndarray, ends: statistics.Ends = None) -> dict[str, float]:
        got = statistics.cluster_mean(values, clusters, ends)
        return {"mean": got.mean, "low": got.low, "high": got.high}

    for system, values in measured.items():
        for column, name in enumerate(MEASURES):
            named = {"memes": memes, "system": system, "measure": name}
            rows.append({**head, **named, **estimate(values[:, column], statistics.SHARE), **tail})
            if system != FULL:
                less = {"system": FULL, "minus": system, "measure": name}
                apart = measured[FULL][:, column] - values[:, column]
                differences.append({**head, **less, **estimate(apart), **tail})


def _notes(
    split: Split, items: Sequence[Item], summaries: Sequence[chat_summaries.Told], known: Mapping[str, str]
) -> list[str]:
    """What a reader must know of a split beside its numbers."""
    notes = []
    missing = sum(bool(i.truth) and mod_format.plain_id(i.truth) not in known for i in items)
    unscored = sum(told.summary is None for told in summaries)
    hidden = sum(not item.truth for item in items)
    for count, text in (
        (missing, "questions ask for a meme that the library does not hold; they count as missed"),
        (unscored, "questions have no summary; they count as missed"),
        (hidden, "questions keep their answer back: ranked, not measured"),
        (split.passed_over, "memes open a dialogue and are no questions"),
    ):
        if count:
            notes.append(f"{split.name}: {count:,} of {len(items):,} {text}")
    return notes
