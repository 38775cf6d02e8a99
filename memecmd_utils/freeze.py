"""Hashes of the authored texts, frozen before their first scoring, and of the prompts as shipped."""

import hashlib
import json
from pathlib import Path

from memecmd_utils import paths, prompting, storage

TEXT_FILES = (
    "ANALYSIS_PLAN.md",
    "annotations.jsonl",
    "dialogues.jsonl",
    "grades.jsonl",
    "marks.jsonl",
    "memes.csv",
    "news.jsonl",
    "role_pairs.jsonl",
    "scenarios.jsonl",
    "summaries.jsonl",
)


NOTES = b"\n## Notes after the fact\n"
"""What stands in a plan from this heading on came after the freeze, with its date, and is not hashed."""


def text_hashes(folder: Path = paths.example) -> dict[str, str]:
    """SHA-256 of every frozen file of the example corpus that is there."""
    found = [folder / name for name in TEXT_FILES if (folder / name).is_file()]
    frozen = {path.name: path.read_bytes().partition(NOTES)[0] for path in found}
    return {name: hashlib.sha256(text).hexdigest() for name, text in frozen.items()}


def changed_texts(folder: Path = paths.example) -> list[str]:
    """Frozen files that differ from `TEXT_HASHES.json`."""
    frozen = json.loads((folder / "TEXT_HASHES.json").read_text(encoding="utf-8"))
    now = text_hashes(folder)
    return sorted(name for name in frozen.keys() | now.keys() if frozen.get(name) != now.get(name))


def write(folder: Path = paths.example) -> None:
    """Freeze texts and prompt files. For a new corpus only, before its first scoring."""
    storage.write_json(folder / "TEXT_HASHES.json", text_hashes(folder))
    # Judges are asked for real, also in the example profile: their prompts are no authored matter.
    asked = ("judge", "rating", "ask_again", "template_")
    names = sorted(path.stem for path in paths.prompts.glob("*.j2") if not path.stem.startswith(asked))
    storage.write_json(folder / "prompt_hashes.json", {name: prompting.prompt_sha256(name) for name in names})
