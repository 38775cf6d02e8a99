"""The embedded example corpus in `data/example`, and the backend that replies with its authored texts."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from memecmd_utils import files
from memecmd_utils.files import paths
from memecmd_utils.llm import prompts
from memecmd_utils.llm.recordings import RecordingMiss
from memecmd_utils.llm.types import Backend, ModelId, Reply, Request
from memecmd_utils.schemas import NewsItem, RolePair

PROMPTS = paths.example / "prompts_2026-11-26"
"""The prompts that the corpus belongs to; `choice_request_*.txt` is one request as a chooser read it."""
GO_LIVE = "use a live model: PROFILE=local after `make local-llm`, or PROFILE=openai with a key"


class AuthoredBackend(Backend):
    """Texts of the example corpus, looked up by (task, subject). The prompt does not change them."""

    model = ModelId(name="authored")
    source = "authored"
    recordable = False
    repeats = True

    def __init__(self, texts: Mapping[tuple[str, str], str]) -> None:
        self._texts = texts

    async def complete(self, request: Request) -> Reply:
        """Return the authored text; `RecordingMiss` says how to go live.

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
            raise RecordingMiss(missing)
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
    return replies | choices(folder / "choices.jsonl")


def choices(path: Path) -> dict[tuple[str, str], str]:
    """The choices of a table by (task, subject), as `texts` has them; none without the file."""
    return {
        ("choice", f"{row['dialogue_id']}/{row['turn']}"): files.dumps(
            {"reason": row["reason"], "meme_id": row["meme_id"]}
        )
        for row in (files.read_rows(path) if path.is_file() else ())
    }


def prompt_sha256(source: str, *names: str) -> str:
    """Hash of the prompts that a text of this source belongs to: the kept ones (`PROMPTS`) if authored."""
    return prompts.prompt_sha256(*names, folder=PROMPTS if source == "authored" else None)


@lru_cache(maxsize=1)
def reason_glosses() -> dict[str, str]:
    """English of reasons for a choice, by the reason: those of the example and of `data/live`."""
    return {row["reason"]: row["gloss"] for row in files.read_rows(paths.example / "reason_glosses.jsonl")}


@lru_cache(maxsize=1)
def glosses() -> dict[str, str]:
    """English glosses by authored subject: `<dialogue>/<turn>` and scenario ids."""
    utterances = files.read_rows(paths.example / "dialogues.jsonl")
    scenarios = files.read_rows(paths.example / "scenarios.jsonl")
    of_utterances = {f"{row['dialogue_id']}/{row['turn']}": row["gloss"] for row in utterances}
    return of_utterances | {row["scenario_id"]: row["gloss"] for row in scenarios}
