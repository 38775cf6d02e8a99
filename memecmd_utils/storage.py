"""One writer and one reader for JSON Lines, Parquet and small files; every write is atomic."""

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T", bound=BaseModel)


class StageOutputError(ValueError):
    """A file of a run does not have the columns or values that its schema demands."""


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success fsync it and rename it over `target`.

    A reader sees the old file or the new one, never half of either. On an exception the
    temporary file is removed and `target` stays as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part{target.suffix}")
    try:
        yield part
        with part.open("rb+") as handle:
            os.fsync(handle.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """SHA-256 of a file as hex, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_text(target: Path, text: str) -> None:
    """Write UTF-8 text with `\\n` line ends, atomically."""
    with atomic_path(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_csv(target: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as CSV with `\\n` line ends, atomically; `ValueError` for a field that is no column."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(target, buffer.getvalue())
    return target


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


def iter_jsonl(source: Path, schema: type[T]) -> Iterator[T]:
    """Read records of one schema one by one; a bad line raises `StageOutputError` with file and line."""
    # A text file's lines end at "\n" only; str.splitlines would also break at U+2028 inside a text.
    with source.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield schema.model_validate_json(line)
            except ValidationError as error:
                raise StageOutputError(f"{source.name} line {number}: {error}") from error


def read_jsonl(source: Path, schema: type[T]) -> list[T]:
    """Read all records of one schema; a bad line raises `StageOutputError` with file and line number."""
    return list(iter_jsonl(source, schema))


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
