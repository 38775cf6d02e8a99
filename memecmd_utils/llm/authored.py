"""The embedded example corpus in `data/example`, and the backend that replies with its authored texts."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from memecmd_utils import files
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import prompts
from memecmd_utils.llm.types import Backend, ModelId, Reply, Request
from memecmd_utils.schemas import NewsItem, RolePair

GO_LIVE = "use a live model: PROFILE=local after `make local-llm`, or PROFILE=openai with a key"


class MissingText(MemecmdError, LookupError):
    """The authored corpus has no text for a request."""


class AuthoredBackend(Backend):
    """Texts of the example corpus, looked up by (task, subject). The prompt does not change them."""

    model = ModelId(name="authored")
    source = "authored"
    recordable = False
    repeats = True

    def __init__(self, texts: Mapping[tuple[str, str], str]) -> None:
        self._texts = texts

    async def complete(self, request: Request) -> Reply:
        """Return the authored text; `MissingText` says how to go live.

        An authored choice names its meme, and is given as the number that the meme has in this prompt; where
        it is none of the candidates, the reply is `rejected`.
        """
        missing = (
            f"the example corpus has no {request.task} for {request.subject}: for anything but its own memes "
            f"and dialogues {GO_LIVE}"
        )
        text = self._texts.get((request.task, request.subject))
        if request.task == "choice":
            row = json.loads(text or '{"meme_id": null}')
            numbers = {meme: number for number, meme in enumerate(["", *request.options])}
            if row["meme_id"] not in numbers:
                return Reply(text=missing, finish_reason="rejected")
            text = files.dumps({"reason": row["reason"], "number": numbers[row["meme_id"]]})
        if text is None:
            raise MissingText(missing)
        return Reply(text=text)


def load_news() -> list[NewsItem]:
    """News items of the example file, in its order."""
    return files.read_jsonl(paths.example / "news.jsonl", NewsItem)


def load_role_pairs() -> list[RolePair]:
    """The 23 role pairs."""
    return files.read_jsonl(paths.example / "role_pairs.jsonl", RolePair)


@lru_cache(maxsize=1)
def texts(folder: Path = paths.example) -> dict[tuple[str, str], str]:
    """Every authored text by (task, subject), in the form in which a model would have replied."""

    def json_of(row: dict[str, Any], *fields: str) -> str:
        return files.dumps({field: row[field] for field in fields})

    replies: dict[tuple[str, str], str] = {}
    for row in files.read_rows(folder / "annotations.jsonl"):
        replies["annotation", row["meme_id"]] = json_of(row, "s_plus", "s_minus", "emotion", "motivation")
    for row in files.read_rows(folder / "scenarios.jsonl"):
        replies["scenario", row["scenario_id"]] = json_of(row, "scenario")
        details = [f for f in row if f not in ("scenario_id", "pair_id", "scenario", "gloss", "source")]
        replies["scenario", f"{row['scenario_id']}/details"] = json_of(row, *details)
    for row in files.read_rows(folder / "dialogues.jsonl"):
        replies["utterance", f"{row['dialogue_id']}/{row['turn']}"] = row["text"]
    for row in files.read_rows(folder / "summaries.jsonl"):
        subject = f"{row['dialogue_id']}/{row['turn']}"
        replies["summary", subject] = json_of(row, "scenario", "emotion", "motivation")
    for row in files.read_rows(folder / "choices.jsonl") if (folder / "choices.jsonl").is_file() else ():
        replies["choice", f"{row['dialogue_id']}/{row['turn']}"] = json_of(row, "reason", "meme_id")
    return replies


@lru_cache(maxsize=1)
def glosses() -> dict[str, str]:
    """English glosses by authored subject: `<dialogue>/<turn>` and scenario ids."""
    utterances = files.read_rows(paths.example / "dialogues.jsonl")
    scenarios = files.read_rows(paths.example / "scenarios.jsonl")
    of_utterances = {f"{row['dialogue_id']}/{row['turn']}": row["gloss"] for row in utterances}
    return of_utterances | {row["scenario_id"]: row["gloss"] for row in scenarios}


def prompt_notice() -> str | None:
    """A notice for the reader where prompts differ from those that were shipped with the corpus."""
    shipped = json.loads((paths.example / "prompt_hashes.json").read_text(encoding="utf-8"))
    changed = sorted(name for name, digest in shipped.items() if prompts.prompt_sha256(name) != digest)
    if not changed:
        return None
    return f"authored text ignores prompts; to see what the changed {', '.join(changed)} do, {GO_LIVE}"


NOTES = b"\n## Notes after the fact\n"
"""What stands in a plan from this heading on came after the freeze, with its date, and is not hashed."""


def changed_texts(folder: Path = paths.example) -> list[str]:
    """Files that differ from what was frozen before their first scoring (`TEXT_HASHES.json` names them)."""

    def digest(path: Path) -> str:
        text = path.read_bytes() if path.is_file() else b""
        return hashlib.sha256(text.partition(NOTES)[0]).hexdigest()

    frozen = json.loads((folder / "TEXT_HASHES.json").read_text(encoding="utf-8"))
    return sorted(name for name, sha256 in frozen.items() if digest(folder / name) != sha256)
