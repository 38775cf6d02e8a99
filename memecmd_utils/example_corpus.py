"""The embedded example corpus in `data/example`: authored cold starts, dialogues, summaries, annotations."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from memecmd_utils import paths, prompting, storage
from memecmd_utils.schemas import NewsItem, RolePair

AUTHORED_NOTICE = (
    "authored text ignores prompts: {names} differ from the shipped ones, and nothing in this run "
    "will differ for it. To see what a prompt does, go live: PROFILE=local after `make local-llm`, or "
    "PROFILE=openai with a key."
)

N_TURNS = 18
"""Turns of every authored dialogue."""


def _rows(name: str, folder: Path) -> list[dict[str, Any]]:
    path = folder / name
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise storage.StageOutputError(f"{name} line {number}: {error}") from error
    return rows


def load_news(folder: Path = paths.example) -> list[NewsItem]:
    """News items of the example file, in its order."""
    return storage.read_jsonl(folder / "news.jsonl", NewsItem)


def load_role_pairs(folder: Path = paths.example) -> list[RolePair]:
    """The 23 role pairs."""
    return storage.read_jsonl(folder / "role_pairs.jsonl", RolePair)


@lru_cache(maxsize=1)
def texts(folder: Path = paths.example) -> dict[tuple[str, str], str]:
    """Every authored text by (task, subject), in the form in which a model would have replied."""
    found: dict[tuple[str, str], str] = {}
    for row in _rows("annotations.jsonl", folder):
        fields = ("s_plus", "s_minus", "emotion", "motivation")
        found["annotation", row["meme_id"]] = storage.dumps({key: row[key] for key in fields})
    for row in _rows("scenarios.jsonl", folder):
        name = row["scenario_id"]
        found["scenario", name] = storage.dumps({"scenario": row["scenario"]})
        details = {
            key: value
            for key, value in row.items()
            if key not in ("scenario_id", "pair_id", "scenario", "gloss", "source")
        }
        found["scenario", f"{name}/details"] = storage.dumps(details)
    for row in _rows("dialogues.jsonl", folder):
        found["utterance", f"{row['dialogue_id']}/{row['turn']}"] = row["text"]
    for row in _rows("summaries.jsonl", folder):
        fields = ("scenario", "emotion", "motivation")
        found["summary", f"{row['dialogue_id']}/{row['turn']}"] = storage.dumps({k: row[k] for k in fields})
    return found


@lru_cache(maxsize=1)
def glosses(folder: Path = paths.example) -> dict[str, str]:
    """English glosses by authored subject: `<dialogue>/<turn>` and scenario ids."""
    found = {f"{r['dialogue_id']}/{r['turn']}": r["gloss"] for r in _rows("dialogues.jsonl", folder)}
    return found | {r["scenario_id"]: r["gloss"] for r in _rows("scenarios.jsonl", folder)}


def changed_prompts(folder: Path = paths.example) -> list[str]:
    """Names of prompts whose file differs from the one that was shipped with the corpus."""
    shipped = json.loads((folder / "prompt_hashes.json").read_text(encoding="utf-8"))
    return sorted(name for name, digest in shipped.items() if _prompt_sha256(name) != digest)


def _prompt_sha256(name: str) -> str | None:
    try:
        return prompting.prompt_sha256(name)
    except prompting.PromptError:
        return None  # taken away or renamed


def prompt_notice(folder: Path = paths.example) -> str | None:
    """A notice for the reader when prompts were changed while the texts are authored."""
    names = changed_prompts(folder)
    return AUTHORED_NOTICE.format(names=", ".join(names)) if names else None
