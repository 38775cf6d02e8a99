"""The live corpus is what was frozen; its tables are what graders and readers gave."""

import hashlib
import json

import pandas as pd
import pytest

from memecmd_utils.files import paths
from memecmd_utils.retrieval import RERANKED
from memecmd_utils.runs import open_run
from memecmd_utils.studies import live


def test_prompts_and_texts_are_those_of_the_plan() -> None:
    for table, folder in (("prompt_hashes.json", paths.prompts), ("TEXT_HASHES.json", live.FOLDER)):
        frozen = json.loads((live.FOLDER / table).read_text(encoding="utf-8"))
        assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in frozen} == frozen


def test_every_meme_has_two_grades_and_shares_are_counts_of_them() -> None:
    memes = live.graded_memes()
    assert memes[["one", "two"]].notna().all().all(), "nothing that was sent is ungraded"
    mine = memes[memes["strategy"] == RERANKED]
    row = next(row for row in live.tables()["senders"] if row["who"] == RERANKED)
    assert row["lands"].value == pytest.approx(((mine["one"] == 2) & (mine["two"] == 2)).mean())
    assert row["fits"].value == pytest.approx((mine["one"] + mine["two"] >= 2).mean())


def test_a_pair_counts_the_mean_of_its_readers() -> None:
    votes = pd.read_csv(live.FOLDER / "preferences.csv")
    for row in live.preference_rows():
        mine = votes[(votes["first"] == row["first"]) & (votes["second"] == row["second"])]
        assert len(mine) == 2 * row["pairs"] and row["preferred"].value == pytest.approx(mine["vote"].mean())


def test_ladders_share_the_turns_whose_prompts_are_the_same() -> None:
    told = live.ladders()
    assert list(told) == ["ours", "paper", "full", "no_opening"] and {len(d) for d in told.values()} == {6}
    ours = {chat.dialogue_id: [turn.text for turn in chat.turns] for chat in told["ours"]}
    for phases, shared in (("paper", 6), ("full", 1), ("no_opening", 6)):
        for chat in told[phases]:
            texts = [turn.text for turn in chat.turns]
            assert texts[:shared] == ours[chat.dialogue_id][:shared] and texts != ours[chat.dialogue_id]


def test_only_the_live_profile_reads_its_recordings() -> None:
    assert live.FOLDER / "recordings" in open_run("live").read_dirs
    assert live.FOLDER / "recordings" not in open_run("example").read_dirs
