"""The files of MOD (DSTC10 track 1, meme-incorporated open-domain dialogue): dialogues and tasks.

The data is for research only and is not part of this package; who has it names its folder. A file of
dialogues maps names to messages `{"speaker_id", "txt", "img_id", "emotion_id"}`, of which a message may lack
any but the first. A task file is a list of `{"history", "answer", "candidate"}`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from memecmd_utils import storage
from memecmd_utils.conversations import Conversation, Message
from memecmd_utils.errors import MemecmdError
from memecmd_utils.schemas import Meme

PEOPLE = "甲乙丙丁戊己庚辛"
"""Names for `[speaker1]`, `[speaker2]`, ...: a chat reads better with names than with brackets."""


class ModError(MemecmdError, ValueError):
    """A file that is not as MOD's files are; the message names file and item and what is expected."""


@dataclass(frozen=True)
class Item:
    """One question: which meme does `sender` send now?"""

    name: str
    dialogue: str
    """Items of one dialogue count as one cluster."""
    history: tuple[Message, ...]
    """What was said and sent before, and what the sender says with the meme."""
    sender: str
    truth: str
    """Id of the meme that was sent; empty in a test file that keeps it back."""
    candidates: tuple[str, ...] = ()
    """Ids to choose from, as the file spells them; empty: the whole set."""


@dataclass(frozen=True)
class Split:
    """The questions of one file."""

    name: str
    path: Path
    items: tuple[Item, ...]
    passed_over: int
    """Memes that open a dialogue: nothing is known before them."""


def read_dialogues(path: Path) -> list[Conversation]:
    """Read a file of dialogues (train, validation, test). Raises `ModError`."""
    value = _load(path)
    if not isinstance(value, dict) or not value or not all(isinstance(v, list) for v in value.values()):
        raise ModError(f'{path.name}: expected {{"dialogue 1": [messages ...], ...}}')
    return [
        Conversation(
            name, tuple(_message(m, f"{path.name}, {name}, message {i}") for i, m in _from_1(messages))
        )
        for name, messages in value.items()
    ]


def read(path: Path) -> Split:
    """Read the questions of a file of dialogues or of a task file of meme retrieval.

    In dialogues each meme from the second message on is one question, whose history ends with the words
    that came with the meme, as in the task files. Raises `ModError`, also for a task file of the other
    two tasks, which ask for a text or an emotion.
    """
    value = _load(path)
    if isinstance(value, list):
        return _task(value, path)
    items: list[Item] = []
    passed_over = 0
    for chat in read_dialogues(path):
        for place, sent in enumerate(chat.messages):
            if not sent.meme:
                continue
            history = (*chat.messages[:place], Message(sent.speaker, sent.text))
            if place == 0 or not any(m.text or m.meme for m in history):
                passed_over += 1
                continue
            items.append(Item(f"{chat.name}/{place + 1}", chat.name, history, sent.speaker, sent.meme))
    if not items:
        raise ModError(f"{path.name}: no meme is sent after the first message of a dialogue")
    return Split(path.stem, path, tuple(items), passed_over)


def read_all(path: Path) -> tuple[list[Split], list[str]]:
    """Questions of a file, or of all JSON files of a folder with what was passed over and why."""
    if path.is_file():
        return [read(path)], []
    if not path.is_dir():
        raise ModError(f"{path} is neither a file nor a folder: name where your copy of MOD lies")
    splits, notes = [], []
    for file in sorted(path.glob("*.json")):
        try:
            splits.append(read(file))
        except ModError as error:
            notes.append(str(error))
    if not splits:
        raise ModError(f"{path}: no file asks for memes" + "".join(f"\n  {note}" for note in notes[:5]))
    return splits, notes


def write_ranked(split: Split, ranked: Sequence[Sequence[str]], target: Path) -> None:
    """Write a task file with the ranked candidates of each question as the `img_id` of its answer."""
    value = _load(split.path)
    for item, ids in zip(value, ranked, strict=True):
        item["answer"]["img_id"] = list(ids)
    storage.write_json(target, value)


def meme_ids(memes: Iterable[Meme]) -> dict[str, str]:
    """Number of a meme of MOD (`plain_id`) to its id in a library made of MOD's folder of pictures.

    The file's name is the number: `030.jpg` is meme 30.
    """
    return {plain_id(PurePosixPath(meme.origin).stem): meme.meme_id for meme in memes}


def plain_id(text: str) -> str:
    """A meme's number without leading zeros; other names as they are."""
    return str(int(text)) if text.isdecimal() else text


def _task(value: list[Any], path: Path) -> Split:
    items = []
    for number, entry in _from_1(value):
        where = f"{path.name}, item {number}"
        answer = entry.get("answer") if isinstance(entry, dict) else None
        if not isinstance(answer, dict) or not isinstance(entry.get("history"), list):
            raise ModError(f'{where}: expected {{"history": [messages], "answer": ..., "candidate": ...}}')
        if "img_id" not in answer:
            raise ModError(
                f"{path.name}: its items ask for {', '.join(sorted(answer))}, not for a meme (img_id)"
            )
        history = tuple(_message(m, f"{where}, message {i}") for i, m in _from_1(entry["history"]))
        if not any(m.text or m.meme for m in history):
            raise ModError(f"{where}: a history with at least one text or meme is expected")
        candidates = _candidates(entry.get("candidate"), where)
        sender = _message({**answer, "txt": "", "img_id": ""}, where).speaker
        truth = _id(answer["img_id"], where)
        if truth and candidates and plain_id(truth) not in map(plain_id, candidates):
            raise ModError(f"{where}: the meme sent, {truth}, is not among the candidates")
        # Questions that begin with the same message come from one dialogue.
        dialogue = json.dumps(entry["history"][0], ensure_ascii=False, sort_keys=True)
        items.append(Item(str(number), dialogue, history, sender, truth, candidates))
    if not items:
        raise ModError(f"{path.name}: the list is empty")
    return Split(path.stem, path, tuple(items), 0)


def _candidates(value: Any, where: str) -> tuple[str, ...]:
    found = value.get("set") if isinstance(value, dict) else value
    if found is None:
        return ()
    if not isinstance(found, list) or not found:
        raise ModError(f'{where}: `candidate` is expected as {{"set": [ids of memes]}}')
    ids = tuple(_id(one, where) for one in found)
    if len(set(map(plain_id, ids))) != len(ids):
        raise ModError(f"{where}: a candidate stands twice")
    return ids


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or not str(value.get("speaker_id", "")).strip():
        raise ModError(f'{where}: expected {{"speaker_id": ..., "txt": ..., "img_id": ...}}')
    text = value.get("txt") or ""
    if not isinstance(text, str):
        raise ModError(f"{where}: `txt` is expected as text")
    return Message(_speaker(str(value["speaker_id"])), text, meme=_id(value.get("img_id"), where))


def _speaker(name: str) -> str:
    plain = name.strip().strip("[]")
    number = plain.removeprefix("speaker")
    if number.isdecimal() and 1 <= int(number) <= len(PEOPLE):
        return PEOPLE[int(number) - 1]
    return plain


def _id(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ModError(f"{where}: `img_id` is expected as a text such as 030")
    return str(value).strip()


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModError(f"{path.name}: not JSON ({error})") from error


def _from_1(values: Sequence[Any] | Mapping[Any, Any]) -> Iterable[tuple[int, Any]]:
    return enumerate(values, start=1)
