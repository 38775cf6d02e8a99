"""What every judge says of the items it is checked on, also in other wordings; nothing is counted here."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import consistency, evaluation, evaluation_run, judge_items, judges, llm
from memecmd_utils.judge_items import Item
from memecmd_utils.judges import OTHER_ORDER, WORDINGS, Context
from memecmd_utils.llm import Chat
from memecmd_utils.runs import Run
from memecmd_utils.schemas import DIMENSIONS, Dialogue, Placement, Rating
from memecmd_utils.study_data import StudyData

SCORES = ("judge", "reading", "kind", "dialogue_id", "turn", "meme_id", "length", "score", "p")
WORDED = ("judge", "wording", "kind", "dialogue_id", "turn", "meme_id", "p")
P_YES, CENTRED, RATING, CONSISTENCY, RETRIEVAL = "p(yes)", "centred", "rating", "consistency", "retrieval"
"""Readings: what a score is. A yes/no judge has two; retrieval is no judge but a yardstick."""
CHECKED = "judge check"
"""Strategy of a placement that only puts an item before a judge."""

Pair = tuple[str, int, str]


class Answers(NamedTuple):
    """Scores (a row a judge, reading and item) and p(yes) in several wordings; nan where there is none."""

    scores: pd.DataFrame
    worded: pd.DataFrame


def ask_all(run: Run, data: StudyData) -> Answers:
    """Put the drawn items before every judge of the profile, and before the scorers that ask nobody."""
    items = judge_items.draw(data)
    scores, worded, names = [], [], []
    for number in range(len(run.profile.judges) if items else 0):
        name, ratings, in_words = ask_judge(run, data, items, number)
        name = judges.numbered(name, names)
        names.append(name)
        of = {(r.dialogue_id, r.turn, r.meme_id): r for r in ratings}
        mine = [of[item.pair] for item in items]
        overall = [np.nan if r.overall is None else r.overall for r in mine]
        if run.profile.judges[number].kind == "rating":
            scores.append(_rows(data, items, name, RATING, overall))
            continue
        raw = [np.nan if r.raw is None else r.raw for r in mine]
        scores += [_rows(data, items, name, P_YES, raw), _rows(data, items, name, CENTRED, overall)]
        asked = {"as asked": {i.pair: r / 100 for i, r in zip(items, raw, strict=True)}, **in_words}
        few = judge_items.for_wordings(items, run.profile)
        worded += [
            (name, wording, *item, p[item.pair]) for wording, p in asked.items() for item in few if in_words
        ]
    if items:
        scores += _without_asking(run, data, items)
    frame = pd.concat(scores, ignore_index=True) if scores else pd.DataFrame(columns=list(SCORES))
    return Answers(frame, pd.DataFrame(worded, columns=list(WORDED)))


def ask_judge(
    run: Run, data: StudyData, items: Sequence[Item], number: int
) -> tuple[str, list[Rating], dict[str, dict[Pair, float]]]:
    """One judge of the profile on the items: its name, its ratings, and p(yes) by further wording and pair.

    The requests are those of stage 05, so what was asked there is replayed. A judge that gives numbers is
    shown one item at a time and has no further wordings; neither has a base model, or one that was stopped.
    """
    judge, profile = run.profile.judges[number], run.profile
    dialogues = {d.dialogue_id: d for d in data.dialogues}
    placed = _placements(items, dialogues)
    with run.chat("judge", "evaluation", number) as chat:
        name = f"{chat.backend.model.name} {judge.kind}"
        if judge.kind == "yes_no":
            ratings = llm.run(evaluation.rate_yes_no(placed, dialogues, data.memes, chat, profile, name))
            useless = any(rating.unscored == judges.STOPPED for rating in ratings)
            asked_once = useless or judges.continues_text(chat.backend.model)
            in_words = {} if asked_once else _worded(data, items, chat, name)
            return name, ratings, in_words
        sees = judge.llm == "openai" and run.endpoint("judge", number).vision
        alone = profile.model_copy(update={"judge_unit": "meme"})
        draw = evaluation_run.drawing(run, data.memes) if sees else None
        work = evaluation.rate_screenshots(placed, dialogues, data.memes, chat, alone, name, draw)
        return name, llm.run(work), {}


def _worded(data: StudyData, items: Sequence[Item], chat: Chat, name: str) -> dict[str, dict[Pair, float]]:
    """Mean p(yes) over the five questions in every wording but the run's own."""
    dialogues = {d.dialogue_id: d for d in data.dialogues}
    pairs = _distinct(judge_items.for_wordings(items, data.profile))
    if not pairs:
        return {}
    asked = [(Context(dialogues[d], t), data.memes[m]) for d, t, m in pairs]
    out = {}
    for wording in (*WORDINGS[1:], OTHER_ORDER):
        label = f"{name}: {wording if wording == OTHER_ORDER else wording + ' wording'}"
        got = llm.run(judges.ask_yes_no(asked, chat, label, wording))
        means = [np.nan if isinstance(p, str) else np.mean([p[k] for k in DIMENSIONS]) for p in got]
        out[wording] = dict(zip(pairs, map(float, means), strict=True))
    return out


def _without_asking(run: Run, data: StudyData, items: Sequence[Item]) -> list[pd.DataFrame]:
    """Consistency with u_t and u_t+1, and as a yardstick the score T that ranks memes, by embedder."""
    profile, out = run.profile, []
    if profile.consistency_embedder != profile.embedder:
        embedder = run.embedder(profile.consistency_embedder)
        out += _consistency(data, items, consistency.TextScorer(embedder, run.embedder_name()))
    if profile.consistency == "cn_clip":
        out += _consistency(data, items, evaluation_run.clip_scorer(run, data.memes))
    row = {key: i for i, key in enumerate(data.keys)}
    column = {meme: j for j, meme in enumerate(data.meme_ids)}
    at = [(row[i.dialogue_id, i.turn], column[i.meme_id]) for i in items]
    for name in data.encoders:
        terms = data.terms(name, profile.centring)
        values = [float(np.dot(profile.weights, terms[:, r, c])) for r, c in at]
        out.append(_rows(data, items, f"T under {name}", RETRIEVAL, values))
    return out


def _consistency(data: StudyData, items: Sequence[Item], scorer: consistency.Scorer) -> list[pd.DataFrame]:
    """50 (cos + 1) of each item's meme with the utterance beside it and with the next one (Eq. 26)."""
    turns = {(d.dialogue_id, u.turn): u.text for d in data.dialogues for u in d.turns}
    sees = scorer.name.startswith("cn_clip")
    able = [i for i in items if sees or consistency.meme_words(data.memes[i.meme_id])]
    ids = sorted({item.meme_id for item in able})
    memes = dict(zip(ids, scorer.memes([data.memes[m] for m in ids]), strict=True))
    out = []
    for later, name in ((0, "u_t"), (1, "u_t+1")):
        of = {i.pair: turns[key] for i in able if (key := (i.dialogue_id, i.turn + later)) in turns}
        texts = sorted(set(of.values()))
        rows = dict(zip(texts, scorer.texts(texts), strict=True))
        values = [
            float(consistency.score(float(memes[i.meme_id] @ rows[of[i.pair]]))) if i.pair in of else np.nan
            for i in items
        ]
        out.append(_rows(data, items, f"{scorer.name} {name}", CONSISTENCY, values))
    return out


def _rows(
    data: StudyData, items: Sequence[Item], judge: str, reading: str, values: Sequence[float]
) -> pd.DataFrame:
    """The scores of one judge as a table; `length` is that of the caption in characters."""
    rows = [
        (judge, reading, *item, len(data.memes[item.meme_id].text), value, value / 100)
        for item, value in zip(items, values, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=list(SCORES))
    return frame if reading == P_YES else frame.assign(p=np.nan)


def _distinct(items: Iterable[Item]) -> list[Pair]:
    """The pairs of turn and meme, each once: one meme may be both random and a hard negative."""
    return sorted({item.pair for item in items})


def _placements(items: Sequence[Item], dialogues: dict[str, Dialogue]) -> list[Placement]:
    return [
        Placement(
            source="drawn by seed",
            dialogue_id=name,
            turn=turn,
            speaker=dialogues[name].turns[turn - 1].speaker,
            strategy=CHECKED,
            meme_id=meme_id,
            rank=None,
            score=None,
            gate_score=None,
            threshold=None,
            fold="",
        )
        for name, turn, meme_id in _distinct(items)
    ]
