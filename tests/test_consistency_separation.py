import dataclasses
from pathlib import Path
from types import SimpleNamespace

import made_judged
import made_up
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw

from memecmd_utils import consistency, consistency_separation, library_pairs, statistics, vectors
from memecmd_utils.clip_models import ModelMissing
from memecmd_utils.consistency_separation import TABLE
from memecmd_utils.runs import Run
from memecmd_utils.study_data import StudyData

NAMES = [f"news-{n:02d}" for n in range(12)]


def study_of(tmp_path: Path, **retrieval: object) -> tuple[Run, StudyData]:
    """A run on disk: m0, m1 and m2 land at turns 2, 3 and 4; m3 to m7 are never graded."""
    settings = {"chinese_model": "tiny", "epochs": 1, **retrieval}
    data = made_judged.data(NAMES, meme_retrieval=settings, mode="auto")
    memes, annotations = {}, []
    for n, (name, meme) in enumerate(data.memes.items()):
        memes[name] = meme.model_copy(update={"phash": f"{(n + 1) * 0x1F1F3D5B79A7C1E5 % 2**64:016x}"})
        said = {
            "s_plus": f"周末{'天气真好'[n % 4]}{name}",
            "motivation": f"去爬山{name}",
            "emotion": f"真好{name}",
        }
        annotations.append(made_up.annotation(name, **said))
    data = dataclasses.replace(data, memes=memes, annotations=annotations)
    run = Run("made-up", data.profile, tmp_path / "processed", tmp_path / "reports")
    (run.folder / "images").mkdir(parents=True)
    (run.folder / "memes.parquet").touch()
    for n, meme in enumerate(memes.values()):
        picture = Image.new("RGB", (40, 40), (30 * n, 255 - 30 * n, 60))
        ImageDraw.Draw(picture).rectangle((n, 2 * n, 20 + n, 30), fill=(255 - 25 * n, 20 * n, 128))
        picture.save(run.folder / meme.file)
    return run, data


class Made:
    """Made-up vectors; with `gain` an utterance of turn t and the meme that lands there draw near."""

    def __init__(self, name: str, gain: float) -> None:
        self.name, self.gain = name, gain

    def encode_images(self, files):
        turns = {"m0": 2, "m1": 3, "m2": 4}
        return np.float32([self._row(f.name, turns.get(f.stem)) for f in files]) * 7

    def encode_texts(self, texts):
        return np.float32([self._row(text, int(text.split("第")[1][0])) for text in texts])

    def _row(self, what: str, turn: int | None) -> np.ndarray:
        noise = np.random.default_rng(sum(map(ord, what)) * 7919 % 2**31).normal(size=8)
        noise[turn if turn is not None else 0] += self.gain
        return noise


def fake(calls: list):
    """A tuning that keeps what it was given and names a folder."""

    def tune(pairs, validation, settings, folder, *, seed, model):
        calls.append((list(pairs), list(validation), settings, folder, seed, model))
        return SimpleNamespace(folder=folder / "weights", epoch=1)

    return tune


def load(name: str) -> Made:
    return Made(name, 0.0 if name == "tiny" else 4.0)


def test_the_items_of_a_half_are_all_new_to_its_model(tmp_path: Path) -> None:
    run, data = study_of(tmp_path)
    calls: list = []
    found = consistency_separation.study(run, data, tune=fake(calls), load=load)
    assert [call[3].name for call in calls] == ["a", "b"] and {call[5] for call in calls} == {"tiny"}
    for half, (pairs, validation, settings, *_) in zip("ab", calls, strict=True):
        tested = set(found.scores.loc[found.scores["half"] == half, "meme_id"])
        seen = {pair.template for pair in [*pairs, *validation]}
        assert tested == {"m0", "m1", "m2"} and seen == {"m3", "m4", "m5", "m6", "m7"}
        assert len(pairs) + len(validation) == 15 and settings.selection == "validation"
        assert all(pair.image.is_file() for pair in pairs)
    assert (
        found.note.startswith("before: tiny; half a: ")
        and found.note.count("epoch 1, tuned on 12 pairs") == 2
    )


def test_before_and_after(tmp_path: Path) -> None:
    run, data = study_of(tmp_path)
    found = consistency_separation.study(run, data, tune=fake([]), load=load)
    assert list(found.table.columns) == list(TABLE) and len(found.table) == 4
    row = found.table.iloc[0]
    assert (row["text"], row["against"], row["turns"], row["dialogues"]) == ("u_t", "random", 24, 12)
    assert row["AUC after"] > 0.95 and row["difference low"] > 0 and row["p"] < 0.05
    assert row["difference"] == pytest.approx(row["AUC after"] - row["AUC before"])
    # One score by hand, and an AUC by statistics.auc of both halves.
    one = found.scores[(found.scores["text"] == "u_t+1") & (found.scores["kind"] == "fitting")].iloc[0]
    said = next(d for d in data.dialogues if d.dialogue_id == one["dialogue_id"]).turns[one["turn"]].text
    a = vectors.normalise(Made("x", 4.0).encode_texts([said]))
    b = vectors.normalise(Made("x", 4.0).encode_images([Path(f"{one['meme_id']}.png")]))
    assert one["after"] == pytest.approx(float(consistency.score(float(a[0] @ b[0]))), abs=1e-4)
    here = found.scores[found.scores["text"] == "u_t"]
    by_half = [
        statistics.auc(
            *(mine.loc[mine["kind"] == kind, "before"].to_numpy() for kind in ("fitting", "random"))
        )
        for _, mine in here.groupby("half")
    ]
    assert row["AUC before"] == pytest.approx(np.mean(by_half))
    said = consistency_separation.sentence(found)
    assert (
        f"{row['AUC after']:.3f} [" in said and "tells them apart better (24 turns of 12 dialogues)" in said
    )
    same = consistency_separation.study(run, data, tune=fake([]), load=lambda name: Made(name, 0.0))
    assert (
        same.table["difference"] == 0
    ).all() and "is not clearly better" in consistency_separation.sentence(same)
    few = found._replace(table=found.table.assign(dialogues=5, **{"difference low": np.nan}))
    assert "too few dialogues to say" in consistency_separation.sentence(few)


def test_the_last_turn_has_no_next_one(tmp_path: Path) -> None:
    _, data = study_of(tmp_path)
    short = [d.model_copy(update={"turns": d.turns[:4]}) for d in data.dialogues]
    short = dataclasses.replace(data, dialogues=short)
    items = consistency_separation.folds(data)[0].items
    scores = consistency_separation.score(
        items, short, {f"m{n}": Path(f"m{n}.png") for n in range(8)}, load("tiny")
    )
    missing = scores[scores["score"].isna()]
    assert set(missing["turn"]) == {4} and set(missing["text"]) == {"u_t+1"}


def test_random_memes_are_drawn_among_the_tested_and_do_not_fit(tmp_path: Path) -> None:
    _, data = study_of(tmp_path)
    lands = {2: "m0", 3: "m1", 4: "m2"}
    for fold in consistency_separation.folds(data):
        random = [item for item in fold.items if item.kind == "random"]
        assert len(random) == 12 and {item.meme_id for item in random} <= fold.memes
        assert all(lands[item.turn] != item.meme_id for item in random)
    assert consistency_separation.folds(data) == consistency_separation.folds(data)


def test_a_turn_without_its_other_meme_does_not_count() -> None:
    rows = [
        (h, kind, f"d{i}{h}", 2, "m", "u_t", float(i % 3), float(i))
        for h in "ab"
        for i in range(6)
        for kind in ("fitting", "random")
        if kind == "fitting" or i
    ]
    scores = pd.DataFrame(rows, columns=list(consistency_separation.SCORES))
    table = consistency_separation.compare(scores, made_up.profile())
    assert list(table["turns"]) == [10] and list(table["AUC before"]) == [0.5]


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = study_of(tmp_path, chinese_model=None)
    found = consistency_separation.study(run, data)
    assert found.table.empty and "not computed here: set meme_retrieval.chinese_model" in found.note
    assert consistency_separation.sentence(found).startswith("Not computed here: set")
    run, data = study_of(tmp_path / "other")
    nothing = dataclasses.replace(data, profile=data.profile.model_copy(update={"judge_checks": 0}))
    assert "judge_checks=0" in consistency_separation.study(run, nothing, load=load).note

    def missing(name: str):
        raise ModelMissing("there is no folder tiny")

    found = consistency_separation.study(run, data, tune=fake([]), load=missing)
    assert found.note == "not computed here: there is no folder tiny" and found.scores.empty

    def too_few(*_: object, **__: object):
        raise library_pairs.TooFewMemes("1 groups of memes are left")

    monkeypatch.setattr(library_pairs, "split", too_few)
    found = consistency_separation.study(run, data, tune=fake([]), load=load)
    assert found.note == "not computed here: 1 groups of memes are left" and found.table.empty


def test_a_tiny_chinese_clip_is_tuned_and_measured(tmp_path: Path) -> None:
    """Wiring only: random weights of the real classes, the real tuning, nothing of it means anything."""
    for package in ("torch", "transformers", "sentence_transformers"):
        pytest.importorskip(package)
    import tiny_clips

    tiny = tiny_clips.folder_of("chinese_clip", tmp_path / "tiny")
    settings = {"batch_size": 4, "mini_batch_size": 2, "learning_rate": 1e-3, "edge_learning_rate": 1e-4}
    run, data = study_of(tmp_path, chinese_model=str(tiny), **settings)
    found = consistency_separation.study(run, data)
    assert len(found.table) == 4 and found.scores[["before", "after"]].notna().all(axis=None)
    assert found.note.startswith("before: clip:tiny@") and "epoch 1, tuned on 12 pairs" in found.note
    moved = (found.scores["after"] - found.scores["before"]).abs()
    assert moved.max() > 0.01, "the tuned weights were measured"
    assert library_pairs.FIELDS == ("s_plus", "emotion", "motivation")
