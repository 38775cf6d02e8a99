import shutil
from pathlib import Path

import pytest

from memecmd_utils.core import paths
from memecmd_utils.core.llm import authored


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in (*authored.TEXT_FILES, "TEXT_HASHES.json"):
        shutil.copy(paths.example / name, tmp_path / name)
    return tmp_path


def test_the_texts_are_as_frozen() -> None:
    assert authored.changed_texts() == []


@pytest.mark.parametrize("name", authored.TEXT_FILES)
def test_a_changed_byte_or_a_missing_file_is_seen(corpus: Path, name: str) -> None:
    assert authored.changed_texts(corpus) == []
    path = corpus / name
    path.write_bytes(path.read_bytes()[:-1] + b"\n\n" if authored.NOTES not in path.read_bytes() else b"\n")
    assert authored.changed_texts(corpus) == [name]
    path.unlink()
    assert authored.changed_texts(corpus) == [name]


def test_a_plan_may_be_given_dated_notes_and_keeps_its_wording(corpus: Path) -> None:
    path = corpus / "ANALYSIS_PLAN.md"
    plan, heading, notes = path.read_bytes().partition(authored.NOTES)
    assert heading and notes.startswith(b"\n**2026-11-23.**")
    path.write_bytes(plan + heading + notes + b"\n**2030-01-01.** Another note.\n")
    assert authored.changed_texts(corpus) == []
    path.write_bytes(plan.replace(b"two-sided", b"one-sided") + heading + notes)
    assert authored.changed_texts(corpus) == ["ANALYSIS_PLAN.md"]
    path.write_bytes(plan)
    assert authored.changed_texts(corpus) == []


def test_freezing_anew(corpus: Path) -> None:
    path = corpus / "news.jsonl"
    path.write_bytes(path.read_bytes() + b"\n")
    authored.freeze(corpus)
    assert authored.changed_texts(corpus) == []
    assert (corpus / "prompt_hashes.json").is_file()
