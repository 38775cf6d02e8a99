"""Does consistency tell fitting from random memes better after Chinese-CLIP was tuned on the run's library?

Crossed: the model that is tested on one half of the dialogues was tuned without the memes that are tested
there and without their near duplicates. Fitting, random and hard negative memes are all new to it: what was
seen in the tuning scores higher with any text. The grades come from a large language model, not from people.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import (
    clip_models,
    consistency,
    evaluation_run,
    judge_items,
    library_pairs,
    paired_auc,
    seeds,
    study_data,
)
from memecmd_utils.clip_models import ModelMissing
from memecmd_utils.fast_retrieval import columns, said, with_intervals
from memecmd_utils.judge_items import FITS, Item
from memecmd_utils.meme_text_retrieval import Encoder
from memecmd_utils.profiles import Profile
from memecmd_utils.recordings import RecordingMiss
from memecmd_utils.runs import Run
from memecmd_utils.statistics import too_few
from memecmd_utils.study_data import StudyData
from memecmd_utils.vectors import normalise

TEXTS = {"u_t": 0, "u_t+1": 1}
"""The utterance beside the meme (the paper's Eq. 26), and the next one."""
AGAINST = ("random", "hard negative")
SCORES = ("half", "kind", "dialogue_id", "turn", "meme_id", "text", "before", "after")
TABLE = (
    "text", "against", *with_intervals("AUC before", "AUC after", "difference"), "p", "turns", "dialogues"
)  # fmt: skip


class Fold(NamedTuple):
    """What is tested in one half of the dialogues."""

    half: str
    items: list[Item]
    memes: frozenset[str]
    """All memes of the items: what the tuning must not see."""


class Separation(NamedTuple):
    """What came of it; without a model or grades the tables are empty and the note says what is missing."""

    table: pd.DataFrame
    """AUC before and after, a row a text and kind of other memes: columns `TABLE`."""
    scores: pd.DataFrame
    """50 (cos + 1) of every item under both models: columns `SCORES`."""
    note: str
    """Names of the models and numbers of pairs, or why nothing was computed."""


def study(
    run: Run,
    data: StudyData | None = None,
    *,
    tune: Callable[..., Any] | None = None,
    load: Callable[[str], Encoder] | None = None,
) -> Separation:
    """Tune `meme_retrieval.chinese_model` once for each half and compare its consistency with before.

    The weights go to `chinese_clip/<half>` of the run's folder. `tune` and `load` are those of `clip_tuning`
    and `clip_models` if not given.
    """
    settings = run.profile.meme_retrieval
    if settings.chinese_model is None:
        return not_computed(
            "set meme_retrieval.chinese_model, for example to OFA-Sys/chinese-clip-vit-base-patch16 or to a "
            "folder that holds it"
        )
    data = data or study_data.load(run)
    found = folds(data)
    if not found:
        return not_computed("the run has no ground truth, or its profile has judge_checks=0")
    if tune is None:
        from memecmd_utils.clip_tuning import tune
    load = load or clip_models.of_run(run)
    files, memes = evaluation_run.meme_files(run, data.memes), list(data.memes.values())
    plain = settings.model_copy(update={"selection": "validation"})
    parts, notes = [], []
    try:
        before = load(settings.chinese_model)
        for fold in found:
            old = score(fold.items, data, files, before)
            split = library_pairs.split(memes, data.annotations, files, fold.memes, seed=run.profile.seed)
            tuned = tune(
                split.train,
                split.validation,
                plain,
                run.folder / "chinese_clip" / fold.half,
                seed=run.profile.seed,
                model=settings.chinese_model,
            )
            after = load(str(tuned.folder))
            new = score(fold.items, data, files, after)
            parts.append(old.assign(half=fold.half, before=old["score"], after=new["score"]))
            notes.append(
                f"half {fold.half}: {after.name}, epoch {tuned.epoch}, tuned on {len(split.train)} pairs"
            )
    except (ModelMissing, RecordingMiss, library_pairs.TooFewMemes) as error:
        return not_computed(str(error))
    scores = pd.concat(parts, ignore_index=True)[list(SCORES)]
    return Separation(compare(scores, run.profile), scores, "; ".join([f"before: {before.name}", *notes]))


def not_computed(why: str) -> Separation:
    """Empty tables, and what is missing."""
    empty = pd.DataFrame(columns=list(TABLE)), pd.DataFrame(columns=list(SCORES))
    return Separation(*empty, f"not computed here: {why}")


def folds(data: StudyData) -> list[Fold]:
    """The items that the judges are checked on (`judge_items.draw`), by half of the dialogues.

    The random meme is drawn anew, by seed, among the memes of the half's other items that do not fit its
    turn. A turn where there is none keeps its two others.
    """
    row = {key: i for i, key in enumerate(data.keys)}
    column = {meme: j for j, meme in enumerate(data.meme_ids)}
    items = judge_items.draw(data)
    half_of = {item.dialogue_id: str(data.half[row[item.dialogue_id, item.turn]]) for item in items}
    out = []
    for half in sorted(set(half_of.values())):
        mine = [item for item in items if half_of[item.dialogue_id] == half]
        pool = sorted({item.meme_id for item in mine if item.kind != "random"})
        chosen = []
        for item in mine:
            if item.kind != "random":
                chosen.append(item)
                continue
            gains = data.gains[row[item.dialogue_id, item.turn]]
            able = [meme for meme in pool if not gains[column[meme]] >= FITS]  # nan: nobody graded it
            rng = seeds.rng(data.profile.seed, "separation", item.dialogue_id, item.turn)
            chosen += [item._replace(meme_id=able[int(rng.integers(len(able)))])] if able else []
        out.append(Fold(half, chosen, frozenset(pool)))
    return out


def score(
    items: Sequence[Item], data: StudyData, files: Mapping[str, Path], encoder: Encoder
) -> pd.DataFrame:
    """Consistency 50 (cos + 1) of each item's picture with u_t and with u_t+1, nan where there is none."""
    turns = {(d.dialogue_id, u.turn): u.text for d in data.dialogues for u in d.turns}
    memes = sorted({item.meme_id for item in items})
    pictures = dict(zip(memes, normalise(encoder.encode_images([files[m] for m in memes])), strict=True))
    asked = [
        (item, name, turns.get((item.dialogue_id, item.turn + TEXTS[name])))
        for item in items
        for name in TEXTS
    ]
    texts = sorted({text for _, _, text in asked if text is not None})
    rows = dict(zip(texts, normalise(encoder.encode_texts(texts)), strict=True))
    values = [
        np.nan if text is None else float(consistency.score(float(pictures[item.meme_id] @ rows[text])))
        for item, _, text in asked
    ]
    made = [(*item, name, value) for (item, name, _), value in zip(asked, values, strict=True)]
    return pd.DataFrame(made, columns=["kind", "dialogue_id", "turn", "meme_id", "text", "score"])


# --- AUC before and after ---------------------------------------------------------------------------------


def compare(scores: pd.DataFrame, profile: Profile) -> pd.DataFrame:
    """AUC of fitting against other memes before and after, and their paired difference: columns `TABLE`.

    Memes are compared within a half only, where one model scored all of them.
    """
    rows = []
    for text in TEXTS:
        for against in AGAINST:
            here = scores[(scores["text"] == text) & scores["kind"].isin(["fitting", against])]
            here = here.dropna(subset=["before", "after"])
            both = here.groupby(["dialogue_id", "turn"])["kind"].transform("nunique") == 2
            here = here[both]  # a turn without its other meme has nothing to be held against
            if here.empty:
                continue
            rng = seeds.rng(profile.seed, "separation", text, against)
            before, after, difference = paired_auc.before_after(here, rng)
            rows.append(
                {
                    "text": text,
                    "against": against,
                    **columns("AUC before", before),
                    **columns("AUC after", after),
                    **columns("difference", difference),
                    "p": np.nan if difference.p is None else difference.p,
                    "turns": len(here[["dialogue_id", "turn"]].drop_duplicates()),
                    "dialogues": here["dialogue_id"].nunique(),
                }
            )
    return pd.DataFrame(rows, columns=list(TABLE))


def sentence(found: Separation) -> str:
    """What tuning did to the consistency of memes with the utterance beside them; numbers from the table."""
    rows = found.table[(found.table["text"] == "u_t") & (found.table["against"] == "random")]
    if rows.empty:
        return found.note[:1].upper() + found.note[1:] + "."
    row = rows.iloc[0]
    low, high = row["difference low"], row["difference high"]
    verdict = (
        "tells them apart better"
        if low > 0
        else "tells them apart worse"
        if high < 0
        else "is not clearly better"
        if not too_few(row["dialogues"])
        else "may or may not be better: too few dialogues to say"
    )
    return (
        f"Consistency of fitting against random memes has AUC {said(row, 'AUC before', '')} before and "
        f"{said(row, 'AUC after', '')} after tuning, difference {said(row, 'difference')}: "
        f"after it, it {verdict} ({row['turns']} turns of {row['dialogues']} dialogues)."
    )
