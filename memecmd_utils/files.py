"""Where everything lies and how it is read and written: paths, files, JSON Lines, Parquet, tables, pages.

Importing this module creates nothing and prints nothing. It uses no other module of the package.
"""

import base64
import codecs
import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import filelock
import jinja2
from markupsafe import Markup, escape
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T", bound=BaseModel)

# --- paths


def find_root() -> Path:
    """Project root: `MEMECMD_ROOT` if set, else the nearest folder above that holds the notebooks."""
    if os.environ.get("MEMECMD_ROOT"):
        return Path(os.environ["MEMECMD_ROOT"]).resolve()
    for folder in (Path(__file__).resolve().parents[1], Path.cwd(), *Path.cwd().parents):
        if (folder / "notebooks").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise FileNotFoundError("project root not found: run inside the checkout or set MEMECMD_ROOT")


class Paths:
    """Absolute paths of the project's folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notebooks = root / "notebooks"
        self.data = root / "data"
        self.profiles = self.data / "profiles"  # one YAML file a profile
        self.example = self.data / "example"  # the embedded corpus, tracked
        self.live = self.data / "live"  # chats by a model, tracked
        self.raw = self.data / "raw"  # what a user brings or fetches, and recordings of live models
        self.interim = self.data / "interim"  # caches that can be made again
        self.processed = self.data / "processed"  # one folder a run
        self.reports = root / "reports"  # executed notebooks, tables, figures: one folder a run
        self.prompts = Path(__file__).resolve().parent / "prompts"

    def user_path(self, name: str | Path) -> Path:
        """A path as a user gives it: from the project's root if it is relative, `~` being the home folder."""
        return self.root / Path(name).expanduser()


paths = Paths(find_root())


def git(*arguments: str) -> str:
    """What git says about the project; empty where it says nothing or is not here."""
    if shutil.which("git") is None:
        return ""
    told = subprocess.run(["git", *arguments], cwd=paths.root, capture_output=True, text=True, check=False)
    return told.stdout.strip()


# --- errors


class MemecmdError(Exception):
    """A fault that a user can mend: the message says what to do, so nobody needs the traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows below a cell that raised it."""
        return [f"{type(self).__name__}: {self}"]


class ExtraMissing(MemecmdError, RuntimeError):
    """A package of an extra is not installed; the message says how to install it."""


class UnknownEncoding(MemecmdError, ValueError):
    """A file is no text in an encoding that can be told; the message says how to save it."""


class StageOutputError(MemecmdError, ValueError):
    """A file of a run does not have the columns or values that its schema demands."""


DISK = re.compile(rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EROFS})\]")
"""How Python says that a disk is full or must not be written; it does not always name the file."""


def mendable_message(error: BaseException) -> str | None:
    """The one line that a user needs of an error; None for an error of the code, which needs its traceback.

    One line is enough for a `MemecmdError` and for a path that the system refuses (no such file, no
    permission, disk full).
    """
    if isinstance(error, MemecmdError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        if DISK.match(str(error)):
            return error.strerror
    return None


# --- what this process may use

HEADLESS_VARIABLE = "MEMECMD_HEADLESS"
"""Set to 1 in the kernel of a headless run; panels then stay away."""
TERMINAL_VARIABLE = "MEMECMD_TERMINAL"
"""Names the terminal on which a headless run's kernel draws its progress bars, or a file for its lines."""


def cores() -> int:
    """CPU cores that this process may use: those it is bound to, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_headless() -> bool:
    """Whether this process belongs to a headless run, where nobody can turn a knob."""
    return os.environ.get(HEADLESS_VARIABLE) == "1"


# --- files of any kind


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success rename it over `target`.

    A reader sees the old file or the new one, never half of either, also after a kill. On an exception the
    temporary file is removed and `target` stays as it was. Nothing waits for the disk: a run writes some 700
    small files, and what a power cut takes is made again.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part{target.suffix}")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def held(lock: filelock.BaseFileLock, waiting: str) -> Iterator[None]:
    """Hold a lock until the block ends; where another process has it, say `waiting` and wait."""
    Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        print(waiting, file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sha256(path: Path) -> str:
    """SHA-256 of a file as hex, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_text(target: Path, text: str) -> None:
    """Write UTF-8 text with `\\n` line ends, atomically."""
    with atomic_path(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


# --- texts that people bring


def decode(data: bytes, name: str) -> tuple[str, str]:
    """The text of a file and its encoding: UTF-8, UTF-16 or GB18030.

    Raises `UnknownEncoding` for another one: Big5 read as GB18030 would give other words unnoticed.
    """
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    known = next((codec for mark, codec in marks.items() if data.startswith(mark)), "")
    codecs_tried = [known] if known else ["utf-8", "gb18030"]
    if b"\0" in data[:1000] and not known:
        wide = "utf-16-le" if data[1:1000:2].count(0) > data[:1000:2].count(0) else "utf-16-be"
        # A stray NUL may stand in UTF-8; in UTF-16 every letter, digit and line end has one.
        codecs_tried = ["utf-8", wide] if data[:1000].count(0) < len(data[:1000]) / 50 else [wide]
    for codec in codecs_tried:
        try:
            text = data.decode(codec)
        except UnicodeDecodeError:
            continue
        if codec != "gb18030" or _is_common_chinese(text):
            return text, codec
    raise UnknownEncoding(f"{name} is in none of UTF-8, UTF-16 and GB18030: save it as UTF-8")


def _is_common_chinese(text: str) -> bool:
    """Whether most Chinese signs are among the 3,755 most used ones (rows 16 to 55 of GB 2312)."""
    signs = re.findall(r"[\u3400-\u9fff]", text)
    codes = [sign.encode("gbk", "replace") for sign in signs]
    common = sum(len(code) == 2 and 0xB0 <= code[0] <= 0xD7 and code[1] >= 0xA1 for code in codes)
    return 2 * common >= len(signs)


# --- CSV that a spreadsheet may open or have written


def read_table(source: Path, columns: Collection[str]) -> "pd.DataFrame":
    """The rows of a user's table that are not blank, all cells as text, by the number of their line.

    It may come from a spreadsheet: UTF-8, UTF-16 or GB18030, separated by comma, semicolon or tab, with lines
    above its header. Names of columns are in lower case; `StageOutputError` where `columns` are not there.
    """
    import pandas as pd

    try:
        text, _ = decode(source.read_bytes(), source.name)
    except OSError as error:
        raise StageOutputError(f"{source} cannot be read: {error.strerror}") from error
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may be as long as the file
    for separator in ",;\t":
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        for cells in reader:
            head = [cell.strip().lower() for cell in cells]
            if set(columns) <= set(head):
                rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
                told = [dict(zip(head, row, strict=False)) for _, row in rows]
                lines = [line for line, _ in rows]
                return pd.DataFrame(told, index=lines, columns=dict.fromkeys(head), dtype=str).fillna("")
    raise StageOutputError(
        f"{source.name}: its first line needs the columns {', '.join(columns)}, in a CSV file in UTF-8"
    )


_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def guarded(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: `'` before what begins with =, +, -, @, tab or CR.

    The forms do the same in the browser (`html/guarded.js.j2`). `unguarded` gives the text back.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """The text that `guarded` made a cell of; a cell that a person wrote without a guard stays."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def write_frame(target: Path, frame: "pd.DataFrame") -> Path:
    """Write a table as CSV without its index, texts `guarded`; a sign alone stays as it is."""

    def cell(value: Any) -> Any:
        return guarded(value) if isinstance(value, str) and len(value) > 1 else value

    safe = frame.apply(lambda column: column.map(cell) if column.dtype.kind not in "biuf" else column)
    # With this line end the writer quotes every kind of line break in a cell.
    text = safe.to_csv(index=False, float_format="%.6f", lineterminator="\r\n")
    write_text(target, text.replace("\r\n", "\n"))
    return target


# --- records: JSON Lines and Parquet


def dumps(value: Any) -> str:
    """JSON on one line, Chinese characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def write_json(target: Path, value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write indented JSON with sorted keys, so that diffs are small; `default` as of `json.dumps`."""
    text = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True, default=default)
    write_text(target, text + "\n")


def write_jsonl(target: Path, records: Iterable[BaseModel]) -> None:
    """Write one record a line, fields in the order of the schema; the file appears when all are written."""
    with atomic_path(target) as part, part.open("w", encoding="utf-8", newline="\n") as handle:
        for record in records:
            handle.write(record.model_dump_json() + "\n")


def read_jsonl(source: Path, schema: type[T]) -> list[T]:
    """Read all records of one schema; a bad line raises `StageOutputError` with file and line number."""
    records = []
    text, _ = decode(source.read_bytes(), source.name)
    # A text file's lines end at "\n" only; str.splitlines would also break at U+2028 inside a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(schema.model_validate_json(line))
        except ValidationError as error:
            raise StageOutputError(f"{source.name} line {number}: {first_fault(error)}") from error
    return records


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong with a record, in one line: its field, and what is expected there."""
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, problem["loc"]))
    words = re.sub(r"^Value error, | or instance of \w+$", "", problem["msg"])
    return f"{place}: {words}" if place else words


def read_rows(source: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file of the package, which need no check."""
    return [json.loads(line) for line in source.read_text(encoding="utf-8").split("\n") if line]


def write_parquet(target: Path, records: Iterable[T], schema: type[T]) -> None:
    """Write records of one schema as Parquet, then read the file back and check it against the schema."""
    import pandas as pd

    rows = [record.model_dump(mode="json") for record in records]
    frame = pd.DataFrame(rows, columns=list(schema.model_fields))
    with atomic_path(target) as part:
        frame.to_parquet(part, index=False)
        read_parquet(part, schema)


def read_parquet(source: Path, schema: type[T]) -> list[T]:
    """Read Parquet as validated records of `schema`; `StageOutputError` names what is missing or wrong."""
    import pyarrow.parquet as pq

    try:
        return [schema.model_validate(row) for row in pq.read_table(source).to_pylist()]
    except ValidationError as error:
        raise StageOutputError(f"{source.name}: {first_fault(error)}") from error


# --- tables as text. Our own marks in cells, `**best**` and `<u>second</u>`, become each format's own; all
# else is escaped.

MARKDOWN_SIGNS = re.compile(r"[|<`$]|\](?=[(\[:])")
LATEX_MARKS = (
    (r"\*\*(.+?)\*\*", r"\\textbf{\1}"),
    (r"<u>(.+?)</u>", r"\\underline{\1}"),
    ("↑", r"$\\uparrow$"),
    ("↓", r"$\\downarrow$"),
    ("–", "--"),
)
HTML_MARKS = ((r"\*\*([\d.]+)\*\*", r"<b>\1</b>"), (r"&lt;u&gt;([\d.]+)&lt;/u&gt;", r"<u>\1</u>"))


def _cell(value: Any) -> str:
    """A value on one line: a dash for none, three digits for a float, two from 10 on."""
    if value is None or type(value).__name__ == "NAType" or value != value:
        return "–"
    if type(value).__name__ in ("bool", "bool_"):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "< 0.001" if 0 < value < 0.001 else f"{value:.{3 if abs(value) < 10 else 2}f}"
    return " ".join(str(value).splitlines())


def markdown(table: "pd.DataFrame") -> str:
    """A GitHub-style table."""

    def cell(value: Any) -> str:
        # Markdown lets HTML through and makes links and pictures; our own <u> and ** stay.
        return re.sub(r"\\<(/?u)\\?>", r"<\1>", MARKDOWN_SIGNS.sub(r"\\\g<0>", _cell(value)))

    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    lines += ["| " + " | ".join(cell(v) for v in row) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def latex(table: "pd.DataFrame") -> str:
    """A LaTeX table."""
    text = table.map(_cell).to_latex(index=False, escape=True)
    for mark, command in LATEX_MARKS:
        text = re.sub(mark, command, text)
    return text


def read_markdown(source: Path) -> "pd.DataFrame":
    """The table that `markdown` wrote, its cells as they were printed."""
    import pandas as pd

    lines = source.read_text(encoding="utf-8").splitlines()
    head, _, *rows = (
        [re.sub(r"\\([|<`$\]])", r"\1", cell) for cell in line[2:-2].split(" | ")] for line in lines
    )
    return pd.DataFrame(rows, columns=head, dtype=str)


def html_table(table: "pd.DataFrame") -> Markup:
    """A table for a page."""

    def cell(value: Any) -> str:
        text = str(escape(_cell(value)))
        for mark, element in HTML_MARKS:
            text = re.sub(mark, element, text)
        return text

    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell(v)}</td>' for v in row)}</tr>" for row in table.itertuples(index=False)
    )
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")


# --- pages

HTML = Path(__file__).resolve().parent / "html"


def templates(**filters: Callable[..., Any]) -> jinja2.Environment:
    """Templates of `memecmd_utils/html/`, whose values come out escaped: strangers' texts go into them.

    A name that a template knows and the caller does not give is an error, not an empty hole in a page.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HTML, encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
    environment.filters.update(filters)
    return environment


def data_url(data: bytes) -> str:
    """The bytes of a PNG, JPEG, WebP or SVG as a data URL, by what they are."""
    starts = {b"\xff\xd8": "jpeg", b"RIFF": "webp", b"<": "svg+xml"}
    kind = next((kind for start, kind in starts.items() if data.startswith(start)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
