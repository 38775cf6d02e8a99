"""The live corpus is what was frozen; tracked tables, also of the blind look, are what graders gave."""

import hashlib
import json

import numpy as np
import pandas as pd
import pytest

from memecmd_utils.files import paths
from memecmd_utils.runs import open_run
from memecmd_utils.studies import live, paper_data


def test_prompts_and_texts_are_those_of_the_plan() -> None:
    for table, folder in (("prompt_hashes.json", paths.prompts), ("TEXT_HASHES.json", live.FOLDER)):
        frozen = json.loads((live.FOLDER / table).read_text(encoding="utf-8"))
        assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in frozen} == frozen


def test_tracked_shares_are_those_of_the_published_grades() -> None:
    """Who sent which meme at which turn of the authors' chats and of live ones, by both graders' grades."""
    of_live = pd.DataFrame([p.model_dump() for p in live.corpus().placements])
    of_look = pd.read_csv(paper_data.SAMPLE / "memes.csv").rename(columns={"dialogue": "dialogue_id"})
    chosen = pd.read_json(paper_data.SAMPLE / "choices.jsonl", lines=True).assign(strategy="reranked")
    of_look = pd.concat([of_look, chosen[chosen["meme"] != ""]]).rename(columns={"meme": "meme_id"})
    whole = paper_data.look()["look"].query("set == 'all' and who != 'a random meme'").to_dict("records")
    for folder, rows, placed in (
        (live.FOLDER, live.tables()["senders"], of_live), (paper_data.SAMPLE, whole, of_look),
    ):  # fmt: skip
        given: dict[tuple, list[int]] = {}
        for row in map(json.loads, (folder / "grades.jsonl").read_text("utf-8").splitlines()):
            for meme, grade in row["grades"].items():
                given.setdefault((row["dialogue_id"], row["turn"], meme), []).append(grade)
        for row in rows:
            sent = placed[placed["strategy"] == row["who"]][["dialogue_id", "turn", "meme_id"]]
            sums = np.array(
                [sum(given[key]) for key in sent.itertuples(index=False, name=None) if key in given]
            )
            found = row["memes"], *(row[name].value for name in ("described", "fits", "lands"))
            counted = len(sent), len(sums) / len(sent), (sums >= 2).mean(), (sums == 4).mean()
            assert found == pytest.approx(counted, abs=1e-6)
    assert {len(grades) for grades in given.values()} == {2}


def test_only_the_live_profile_reads_its_recordings() -> None:
    assert live.FOLDER / "recordings" in open_run("live").read_dirs
    assert live.FOLDER / "recordings" not in open_run("example").read_dirs
