"""What the requests of a stage have come to at the Batch API, on disk: nothing is paid twice or lost.

A folder holds `journal.jsonl` (what was sent, and what came back), `inputs/` (files of requests on their
way) and `results/` (what came back, as it came). The process may be killed between any two writes; one
process at a time holds the folder.
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memecmd_utils import recordings, storage
from memecmd_utils.llm_types import EndpointError

VERDICTS = {200, 400, 413, 422}
"""Statuses that tell of the request and not of the day: only these are kept for a later process."""


@dataclass(eq=False)
class Part:
    """One file of requests, and the batch made from it.

    `forms` maps custom ids to how the reply was asked for, and of which model.
    """

    tag: str
    path: Path
    """Where its requests stand, one JSON line each."""
    forms: dict[str, str] = field(default_factory=dict)
    size: int = 0
    """Bytes of the file."""
    at: float = 0.0
    """Unix time at which the file was closed; 0 while it is open."""
    file: str = ""
    """Id of the file at the server; empty before the upload."""
    batch: str = ""
    """Id of the batch; empty before it is known that there is one."""
    done: int = 0
    """Requests that the server has worked off, by its last word."""


class Result(NamedTuple):
    """What came back for one request."""

    line: dict[str, Any]
    fresh: bool
    """Whether it came in this process; else it was saved by an earlier one."""


JOURNAL = "journal.jsonl"


class _Place(NamedTuple):
    path: Path
    offset: int
    status: int
    fresh: bool


def is_free(folder: Path) -> bool:
    """Whether no process works with the batches in `folder`."""
    if not (folder / JOURNAL).is_file():
        return True
    handle = storage.lock(folder / JOURNAL)
    if handle is None:
        return False
    handle.close()
    return True


class Jobs:
    """Journal, inputs and results of one folder; locked until `close`."""

    def __init__(self, folder: Path) -> None:
        """Read what there is. Raises `EndpointError` while another process holds the folder."""
        self._inputs, self._results = folder / "inputs", folder / "results"
        for path in (self._inputs, self._results):
            path.mkdir(parents=True, exist_ok=True)
        self._journal = folder / JOURNAL
        self._handle = storage.lock(self._journal)
        if self._handle is None:
            raise EndpointError(
                f"another process works with the batches in {folder}: wait until it has ended, or end it. "
                "Batches that it has sent go on at the server and are found again"
            )
        self.open: dict[str, Part] = {}
        """Parts that may have a batch whose results are not saved yet, by tag."""
        self.works: set[str] = set()
        """Forms (as in `Part.forms`) in which a chat completion came back."""
        self._places: dict[str, _Place] = {}
        self._taken: set[str] = set()
        try:
            self._handle.truncate(sum(len(raw) for _, _, raw in recordings.raw_lines(self._journal)))
            self._read()
        except BaseException:
            self._handle.close()
            raise

    def new_part(self) -> Part:
        """Begin a file of requests."""
        tag = secrets.token_hex(8)
        return Part(tag, self._inputs / f"{tag}.jsonl")

    def add(self, part: Part, custom_id: str, form: str, line: bytes) -> None:
        """Append a request; it is on disk at once and not held in memory."""
        with part.path.open("ab") as handle:
            handle.write(line)
        part.forms[custom_id] = form
        part.size += len(line)

    def seal(self, part: Part) -> None:
        """Close a part, and write down that a batch is going to be made from it."""
        with part.path.open("rb+") as handle:
            os.fsync(handle.fileno())
            sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
        storage.write_text(
            self._ids(part.tag), "".join(f"{one} {form}\n" for one, form in part.forms.items())
        )
        part.at = time.time()
        self._note("intent", part, at=part.at, size=part.size, requests=len(part.forms), sha256=sha256)
        self.open[part.tag] = part

    def created(self, part: Part, batch: str, file: str) -> None:
        """Write down that the server has made the batch."""
        part.batch, part.file = batch, file
        self._note("created", part, batch=batch, file=file)

    def dropped(self, part: Part, why: str) -> None:
        """Write down that nothing will come back for this part."""
        if part.at:
            self._note("dropped", part, why=why)
        self._forget_part(part)

    def again(self, part: Part) -> Part:
        """Make a part with the same requests in place of one that the server did not take."""
        new = self.new_part()
        part.path.replace(new.path)
        new.forms, new.size, new.file = part.forms, part.size, part.file
        self.dropped(part, "sent again")
        self.seal(new)
        return new

    def halves(self, part: Part) -> list[Part]:
        """Make two parts in place of one that is too big for the server."""
        new = [self.new_part(), self.new_part()]
        with part.path.open("rb") as handle:
            for number, (raw, (one, form)) in enumerate(zip(handle, part.forms.items(), strict=True)):
                self.add(new[2 * number >= len(part.forms)], one, form, raw)
        self.dropped(part, "split")
        for half in new:
            self.seal(half)
        return new

    def save(self, part: Part, lines: Iterable[bytes]) -> None:
        """Keep what came back for a part, whole, before any of it is used."""
        with storage.atomic_path(self._results / f"{part.batch}.jsonl") as path, path.open("wb") as handle:
            handle.writelines(line + b"\n" for line in lines)
        self._saved(part, fresh=True)

    def holder(self, custom_id: str) -> Part | None:
        """Return the part on its way that holds a request."""
        return next((part for part in self.open.values() if custom_id in part.forms), None)

    def result(self, custom_id: str) -> Result | None:
        """Return what came back for a request; None where it is on its way, or was never sent."""
        place = self._places.get(custom_id)
        if place is None or (place.status != 200 and self.holder(custom_id) is not None):
            return None
        self._taken.add(custom_id)
        with place.path.open("rb") as handle:
            handle.seek(place.offset)
            return Result(json.loads(handle.readline()), place.fresh)

    def status(self, custom_id: str) -> int | None:
        """Return the HTTP status of a request's result, 0 for one without, None where there is no result."""
        place = self._places.get(custom_id)
        return None if place is None else place.status

    def forget(self, custom_id: str) -> None:
        """Use a result no more, because its request is sent again."""
        self._places.pop(custom_id, None)
        self._taken.discard(custom_id)

    def close(self, used_up: bool = False) -> None:
        """Let go of the folder; with `used_up` the results taken by now answer no later request."""
        if used_up and self._taken:
            self._note("used", ids=sorted(self._taken))
        self._handle.close()

    def _ids(self, tag: str) -> Path:
        return self._inputs / f"{tag}.ids"

    def _note(self, event: str, part: Part | None = None, **more: Any) -> None:
        line = {"event": event, **({} if part is None else {"tag": part.tag}), **more}
        self._handle.write((storage.dumps(line) + "\n").encode())
        os.fsync(self._handle.fileno())

    def _forget_part(self, part: Part) -> None:
        self.open.pop(part.tag, None)
        part.path.unlink(missing_ok=True)
        self._ids(part.tag).unlink(missing_ok=True)

    def _saved(self, part: Part, fresh: bool) -> None:
        for custom_id, body in self._index(part.batch, fresh):
            if isinstance(body, dict) and body.get("choices"):
                self.works.add(part.forms.get(custom_id, ""))
        self._note("saved", part, batch=part.batch, works=sorted(self.works))
        self._forget_part(part)

    def _index(self, batch: str, fresh: bool) -> Iterator[tuple[str, Any]]:
        """Note where each result of a batch stands; yield (custom id, body) of the answered ones."""
        path = self._results / f"{batch}.jsonl"
        for _, offset, raw in recordings.raw_lines(path):
            line = json.loads(raw)
            custom_id, response = line.get("custom_id"), line.get("response") or {}
            status = response.get("status_code") or 0
            known = self._places.get(custom_id)
            if (fresh or status in VERDICTS) and (known is None or known.status != 200):
                self._places[custom_id] = _Place(path, offset, status, fresh)
            if status == 200:
                yield custom_id, response.get("body")

    def _read(self) -> None:
        saved: list[str | list[str]] = []
        for number, _, raw in recordings.raw_lines(self._journal):
            try:
                self._take_in(json.loads(raw), saved)
            except (ValueError, KeyError, TypeError) as error:
                raise EndpointError(
                    f"{self._journal} line {number} is damaged ({error}); restore the file, or delete the "
                    "folder to send anew what is not recorded (batches under way would be paid twice)"
                ) from None
        for entry in saved:
            if isinstance(entry, str):
                for _ in self._index(entry, fresh=False):
                    pass
            else:
                for custom_id in entry:
                    self._places.pop(custom_id, None)
        for part in list(self.open.values()):
            ids = self._ids(part.tag).read_text(encoding="utf-8").splitlines()
            part.forms = dict(line.split(" ", 1) for line in ids)
            if part.batch and (self._results / f"{part.batch}.jsonl").is_file():
                self._saved(part, fresh=False)
        for path in self._inputs.iterdir():  # of a process that was killed before it sent them
            if path.stem not in self.open:
                path.unlink()

    def _take_in(self, line: dict[str, Any], saved: list[str | list[str]]) -> None:
        match line["event"]:
            case "intent":
                tag = line["tag"]
                part = Part(tag, self._inputs / f"{tag}.jsonl", size=line["size"], at=line["at"])
                self.open[tag] = part
            case "created":
                part = self.open[line["tag"]]
                part.batch, part.file = line["batch"], line["file"]
            case "dropped":
                self.open.pop(line["tag"], None)
            case "saved":
                self.open.pop(line["tag"], None)
                saved.append(line["batch"])
                self.works |= set(line["works"])
            case "used":
                saved.append(line["ids"])
