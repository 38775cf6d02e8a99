"""The live corpus is what was frozen; its tables are what graders and readers gave."""

import hashlib
import json

from memecmd_utils.files import paths
from memecmd_utils.runs import open_run
from memecmd_utils.studies import live


def test_prompts_and_texts_are_those_of_the_plan() -> None:
    for table, folder in (("prompt_hashes.json", paths.prompts), ("TEXT_HASHES.json", live.FOLDER)):
        frozen = json.loads((live.FOLDER / table).read_text(encoding="utf-8"))
        assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in frozen} == frozen


def test_nothing_that_was_sent_is_ungraded() -> None:
    assert live.graded_memes()[["one", "two"]].notna().all().all()


def test_only_the_live_profile_reads_its_recordings() -> None:
    assert live.FOLDER / "recordings" in open_run("live").read_dirs
    assert live.FOLDER / "recordings" not in open_run("example").read_dirs
