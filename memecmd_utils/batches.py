"""A provider's batches: a stage's questions go in one file, and answers come within a day at half the price.

`send` goes through the questions of a stage as its notebook does, and notes what is not on record. `fetch`
goes through them again and answers from what came back, so answers are checked, recorded and counted like
others. The next run replays them and asks the rest one by one.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memecmd_utils import annotation, files, judges, runs, schemas
from memecmd_utils.files import MemecmdError, StageOutputError
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm.endpoint import OpenAIBackend, read_reply
from memecmd_utils.llm.recordings import key_of
from memecmd_utils.llm.spending import Budget
from memecmd_utils.llm.types import UNRECORDED, Reply, Request
from memecmd_utils.settings import Endpoint

URL = "/v1/chat/completions"
DISCOUNT, BATCH_SIZE = 0.5, 2_000  # a batch's file may have 200 MB
LOST = ("failed", "expired", "cancelled")
PRICES = "usd_per_million_in", "usd_per_million_out"


def ask(run: runs.Run, stage: str, endpoint: Endpoint, answers: dict[str, Any]) -> dict[str, Request]:
    """Ask as a stage's notebook does, answered by `answers`; return what stays open, by recording key."""
    unanswered: dict[str, Request] = {}
    prices = {name: DISCOUNT * (getattr(endpoint, name) or 0) for name in PRICES}

    @contextmanager
    def batch_chat(role: runs.Role, name: str, number: int = 0) -> Iterator[llm_chat.Chat]:
        async def complete(request: Request) -> Reply:
            if (key := key_of(model.normal_form(request))) in answers:
                return read_reply(answers.pop(key))
            if model.endpoint == endpoint:  # other judges may be local
                unanswered[key] = request
            return Reply(text="no recorded answer", finish_reason=UNRECORDED)

        with runs.Run.chat(asking, role, name, number) as chat:
            model, chat.backend.complete = chat.backend, complete
            chat.budget = Budget(runs.spent(run), name, endpoint=endpoint.model_copy(update=prices))
            yield chat

    with TemporaryDirectory() as scratch, suppress(StageOutputError):  # as nothing may be answered yet
        asking = replace(run, folder=Path(scratch), read_also=run.folder)
        asking.chat = batch_chat
        if stage == "annotation":
            folder = run.read("memes.parquet").parent
            image = (lambda m: files.data_url((folder / m.file).read_bytes())) if endpoint.vision else None
            with asking.chat("annotator", stage) as chat:
                llm_chat.run(annotation.annotate(run.load(schemas.Meme), chat, run.profile, image))
        else:
            dialogues = {dialogue.dialogue_id: dialogue for dialogue in run.load(schemas.Dialogue)}
            judges.rate(asking, run.load(schemas.Placement), dialogues, run.memes())
    return unanswered


def provider(run: runs.Run, stage: str) -> tuple[OpenAIBackend, Path]:
    """Whom a stage asks, of several judges the first, and the list of its batches under way."""
    if run.profile.models.mode != "auto":
        raise MemecmdError("batches need mode=auto, which records answers and goes on from them")
    backend = OpenAIBackend(run.endpoint("annotator" if stage == "annotation" else "judge"))
    return backend, run.write_dir / "batches" / f"{stage}.json"


def send(run: runs.Run, stage: str) -> str:
    """Send the open questions of `stage` (annotation or evaluation); say in which batches."""
    backend, noted = provider(run, stage)
    if noted.is_file():
        raise MemecmdError(f"a batch of {stage} is under way: `memecmd batch fetch {stage}` first")
    lines = []
    for key, request in ask(run, stage, backend.endpoint, {}).items():
        body = backend.body(request, backend.forms(request)[0])
        lines.append(files.dumps({"custom_id": key, "method": "POST", "url": URL, "body": body}) + "\n")
    if not lines:
        return f"{stage} has no open questions: all answers are recorded"

    async def create(client: Any, _: Any) -> list[str]:
        listed = [batch async for batch in client.batches.list(limit=100) if batch.status not in LOST]
        sent = {(batch.metadata or {}).get("sha256"): batch.id for batch in listed}
        parts = ["".join(lines[first : first + BATCH_SIZE]) for first in range(0, len(lines), BATCH_SIZE)]
        by_digest = {hashlib.sha256(part.encode()).hexdigest(): part.encode() for part in parts}
        for digest in by_digest.keys() - sent.keys():  # a process that was killed may have sent some
            file = await client.files.create(file=(f"{stage}.jsonl", by_digest[digest]), purpose="batch")
            given = {"endpoint": URL, "completion_window": "24h", "metadata": {"sha256": digest}}
            sent[digest] = (await client.batches.create(input_file_id=file.id, **given)).id
        return [sent[digest] for digest in by_digest]

    files.write_json(noted, ids := llm_chat.run(backend.using(create)))
    return f"{len(lines):,} questions of {stage} are sent in {', '.join(ids)}"


def fetch(run: runs.Run, stage: str) -> str:
    """Record the answers of the stage's batches that have ended; say how far each is."""
    backend, noted = provider(run, stage)
    if not noted.is_file():
        raise MemecmdError(f"no batch of {stage} is under way: `memecmd batch send {stage}` sends one")

    async def retrieve(client: Any, _: Any) -> tuple[list[Any], str]:
        batches = [await client.batches.retrieve(name) for name in json.loads(noted.read_text())]
        outputs = [batch.output_file_id for batch in batches if batch.output_file_id]
        return batches, "\n".join([(await client.files.content(output)).text for output in outputs])

    batches, text = llm_chat.run(backend.using(retrieve))
    lines = [json.loads(line) for line in backend.blotted(text).split("\n") if line]
    bodies = {line["custom_id"]: line["response"]["body"] for line in lines if line.get("response")}
    ask(run, stage, backend.endpoint, bodies)
    waiting = [batch.id for batch in batches if batch.status not in (*LOST, "completed")]
    files.write_json(noted, waiting) if waiting else noted.unlink()
    faults = [error.message for batch in batches for error in (batch.errors and batch.errors.data) or []]
    told = [f"{b.id}: {b.status}, {getattr(b.request_counts, 'completed', 0):,} answered" for b in batches]
    return "\n".join(told + [backend.shown(str(fault)) for fault in faults])
