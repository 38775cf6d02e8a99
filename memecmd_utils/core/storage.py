"""One writer and one reader for JSON Lines, Parquet and small files; every write is atomic."""

import csv
import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from memecmd_utils.core.errors import MemecmdError

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T", bound=BaseModel)


class StageOutputError(MemecmdError, ValueError):
    """A file of a run does not have the columns or values that its schema demands."""


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success fsync it and rename it over `target`.

    A reader sees the old file or the new one, never half of either. On an exception the
    temporary file is removed and `target` stays as it was. An `OSError` of writing names `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part{target.suffix}")
    try:
        yield part
        with part.open("rb+") as handle:
            os.fsync(handle.fileno())
        part.replace(target)
    except OSError as error:
        # A full disk names no file, and nobody knows the temporary one.
        if error.errno is not None and error.filename in (None, str(part)):
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        part.unlink(missing_ok=True)


def lock(path: Path) -> Any:
    """Open a file to append to it and hold it until it is closed; None while another process does."""
    handle = path.open("ab+", buffering=0)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


def sha256(path: Path) -> str:
    """SHA-256 of a file as hex, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_text(target: Path, text: str) -> None:
    """Write UTF-8 text with `\\n` line ends, atomically."""
    with atomic_path(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def guarded(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: `'` before what begins with =, +, -, @, tab or CR.

    The forms do the same (`html/guarded.js.j2`). `unguarded` gives the text back, whatever it is.

    >>> [guarded(text) for text in ("=1+1.png", "'=1", "1-2", "'t")]
    ["'=1+1.png", "''=1", '1-2', "'t"]
    """
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """The text that `guarded` made a cell of; a cell that a person wrote without a guard stays."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def write_csv(target: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as CSV with `\\n` line ends, atomically; `ValueError` for a field that is no column.

    Texts are `guarded`: they may be names of files and words of strangers.
    """
    lines = []
    for row in (dict(zip(columns, columns, strict=True)), *rows):
        buffer = io.StringIO(newline="")
        # With this line end the writer quotes every kind of line break in a cell.
        writer = csv.DictWriter(buffer, columns, lineterminator="\r\n")
        writer.writerow({k: guarded(v) if isinstance(v, str) else v for k, v in row.items()})
        lines.append(buffer.getvalue().removesuffix("\r\n") + "\n")
    write_text(target, "".join(lines))
    return target


def write_frame(target: Path, frame: "pd.DataFrame", float_format: str | None = "%.6f") -> None:
    """Write a table as CSV without its index, texts `guarded`; a sign alone stays as it is."""

    import pandas as pd

    def cell(value: Any) -> Any:
        return guarded(value) if isinstance(value, str) and len(value) > 1 else value

    safe = frame.apply(lambda column: column if pd.api.types.is_numeric_dtype(column) else column.map(cell))
    write_text(target, safe.to_csv(index=False, float_format=float_format, lineterminator="\n"))


def dumps(value: Any) -> str:
    """JSON on one line, Chinese characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def write_json(target: Path, value: Any) -> None:
    """Write indented JSON with sorted keys, so that diffs are small."""
    write_text(target, json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def write_jsonl(target: Path, records: Iterable[BaseModel]) -> None:
    """Write one record a line, fields in the order of the schema."""
    with jsonl_writer(target) as write:
        for record in records:
            write(record)


@contextmanager
def jsonl_writer(target: Path) -> Iterator[Callable[[BaseModel], None]]:
    """Yield a function that appends one record; the file appears, atomically, when the block ends well."""
    with atomic_path(target) as part, part.open("w", encoding="utf-8", newline="\n") as handle:
        yield lambda record: handle.write(record.model_dump_json() + "\n") and None


def read_jsonl(source: Path, schema: type[T]) -> list[T]:
    """Read all records of one schema; a bad line raises `StageOutputError` with file and line number."""
    records = []
    # A text file's lines end at "\n" only; str.splitlines would also break at U+2028 inside a text.
    with source.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                records.append(schema.model_validate_json(line))
            except ValidationError as error:
                raise StageOutputError(f"{source.name} line {number}: {error}") from error
    return records


def write_parquet(target: Path, records: Iterable[T], schema: type[T]) -> None:
    """Write records of one schema as Parquet, then read the file back and check it against the schema."""
    import pandas as pd

    rows = [record.model_dump(mode="json") for record in records]
    frame = pd.DataFrame(rows, columns=list(schema.model_fields))
    with atomic_path(target) as part:
        frame.to_parquet(part, index=False)
        read_parquet(part, schema)


def read_parquet(source: Path, schema: type[T]) -> list[T]:
    """Read Parquet as validated records of `schema`."""
    import pyarrow.parquet as pq

    missing = set(schema.model_fields) - set(pq.read_schema(source).names)
    if missing:
        raise StageOutputError(f"{source.name}: columns missing: {sorted(missing)}")
    try:
        return [schema.model_validate(row) for row in pq.read_table(source).to_pylist()]
    except ValidationError as error:
        raise StageOutputError(f"{source.name}: {error}") from error
