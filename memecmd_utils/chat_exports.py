"""Read a chat export, and write it back with memes in it.

CSV (comma, semicolon, tab), JSON Lines and JSON: one row a message, or one object a chat
(`{"messages": [...]}` as of chat endpoints, `{"dialogue": [...]}`); and text as chat programs copy and
export it. Several chats a file, any number of speakers, in one of the encodings of `chat_encodings`. What is
written back has the rows, columns, encoding and delimiter of what was read.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memecmd_utils import chat_columns, chat_encodings, chat_json, chat_tables, chat_transcripts, storage
from memecmd_utils.chat_columns import ChatFileError, Place
from memecmd_utils.chat_encodings import Encoding
from memecmd_utils.chat_json import Documents
from memecmd_utils.chat_tables import Table
from memecmd_utils.chat_transcripts import Transcript
from memecmd_utils.conversations import Conversation

SUFFIXES = {
    ".csv": "table", ".tsv": "table", ".txt": "text",
    ".jsonl": "lines", ".ndjson": "lines", ".json": "whole",
}  # fmt: skip
ENCODING = "encoding"
"""What `FIELDS=` may name besides columns."""


@dataclass(frozen=True)
class Export:
    """A chat export: its chats, and the file around them."""

    path: Path
    chats: tuple[Conversation, ...]
    places: tuple[tuple[Place, ...], ...]
    """Where each message of each chat stands in the file."""
    content: Table | Documents | Transcript
    encoding: Encoding
    taken: str
    """What was taken for what, in words: messages, speakers, chats, columns, order, encoding."""

    def render(self, memes: Mapping[tuple[int, int], Mapping[str, Any]], position: str = "before") -> bytes:
        """The export with `memes`: (chat, message) to values of `chat_columns.MEME_COLUMNS`.

        In a text, a meme stands before or after what its message says. Raises `ChatFileError` if the encoding
        of the file lacks a sign of something in `memes`.
        """
        at = {self.places[chat][message]: values for (chat, message), values in memes.items()}
        return self.encoding.encode(self.content.render(at, position))

    def write(self, target: Path, memes: Mapping[tuple[int, int], Mapping[str, Any]]) -> None:
        """Write what `render` gives, atomically, in the format of the file read."""
        data = self.render(memes)
        with storage.atomic_path(target) as part:
            part.write_bytes(data)


def read(path: Path, columns: Mapping[str, str] | None = None) -> Export:
    """Read a chat export by its suffix: .csv, .tsv, .txt, .jsonl, .ndjson or .json.

    `columns` names columns that are not called by a known name: part of a message (`chat`, `order`, `time`,
    `date`, `speaker`, `text`, `scenario`, `emotion`, `motivation`) to column; and the file's `encoding`,
    where it is not recognised. Raises `ChatFileError`.
    """
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise ChatFileError(
            f"{path.name}: a chat is a file {', '.join(SUFFIXES)}, not {path.suffix or 'this'}"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ChatFileError(f"{path} cannot be read: {error.strerror}") from error
    given = dict(columns or {})
    text, encoding = chat_encodings.decode(data, path.name, given.pop(ENCODING, ""))
    if not text.strip():
        raise ChatFileError(f"{path.name}: the file is empty")
    content: Table | Documents | Transcript
    if kind == "table" or (kind == "text" and (given or chat_tables.is_table(text))):
        content = chat_tables.read(text, path.name, given)
    elif kind == "text":
        content = chat_transcripts.read(text, path.name)
    else:
        content = (chat_json.read_lines if kind == "lines" else chat_json.read_whole)(text, path.name)
    cells, how = content.cells(path.name, given)
    found = chat_columns.conversations(cells)
    messages = [message for read in found for message in read.chat.messages]
    if not any(m.speaker and m.text.strip() for m in messages):
        raise ChatFileError(f"{path.name}: no message has both a speaker and a text")
    speakers = {message.speaker for message in messages} - {""}
    taken = [
        f"{_counted(len(messages), 'message')} of {_counted(len(speakers), 'speaker')} "
        f"in {_counted(len(found), 'chat')}",
        how,
        f"ordered by {_orders([read.order for read in found])}",
        encoding.text(),
    ]
    return Export(
        path,
        tuple(read.chat for read in found),
        tuple(tuple(read.places) for read in found),
        content,
        encoding,
        "; ".join(taken),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _orders(orders: list[str]) -> str:
    counts = Counter(orders).most_common()
    return (
        counts[0][0] if len(counts) == 1 else ", ".join(f"{how} ({_counted(n, 'chat')})" for how, n in counts)
    )


def parse_columns(text: str) -> dict[str, str]:
    """`FIELDS=` of the command line: `part=column`, commas between, or `encoding=name`.

    >>> parse_columns("text=消息, speaker=昵称")
    {'text': '消息', 'speaker': '昵称'}
    """
    found = {}
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        part, equals, column = pair.partition("=")
        if not equals or not part.strip() or not column.strip():
            raise ChatFileError(f"FIELDS needs part=column, got {pair!r}")
        found[part.strip()] = column.strip()
    return found
