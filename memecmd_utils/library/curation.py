"""The contact sheet of a meme library, and the curation file that it helps to fill."""

import csv
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from memecmd_utils import files, pictures, statistics
from memecmd_utils.library import duplicates, text_similarity
from memecmd_utils.library.ocr import Ocr
from memecmd_utils.pictures import LibraryError
from memecmd_utils.schemas import Meme

if TYPE_CHECKING:
    import pandas as pd


ACTIONS = ("keep", "drop")


class Decision(NamedTuple):
    """What a person decided: `keep` a file that a filter or its near twin would push out, or `drop` it."""

    file: str
    action: Literal["keep", "drop"]
    why: str


class Card(NamedTuple):
    """A meme as the contact sheet shows it. `image` is a path relative to the page."""

    file: str
    image: str
    text: str
    note: str = ""


class LeftOut(NamedTuple):
    """A file that is not in the library. `curable`: a person can take it back."""

    file: str
    why: str
    curable: bool


def read_curation(path: Path, known: Collection[str]) -> dict[str, Decision]:
    """Read a curation file (CSV with `file,action,why`), by file.

    Names may be guarded, as `rejected.csv` writes them, or plain; blanks around a name that a spreadsheet
    took away are put back where one file alone can be meant. `LibraryError` names the line of what is wrong.
    """
    if not path.is_file():
        raise LibraryError(f"curation file {path} does not exist: correct `curation` in the profile")
    decisions: dict[str, Decision] = {}
    loose: dict[str, list[str]] = {}
    for name in known:
        loose.setdefault(_loosely(name), []).append(name)
    try:
        # "utf-8-sig" because spreadsheet programs put a byte order mark in front.
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            if not {"file", "action"} <= set(reader.fieldnames or ()):
                raise LibraryError(f"curation file {path.name}: the first line must be file,action,why")
            for row in reader:
                where = f"curation file {path.name} line {reader.line_num}"
                cell, action = row["file"] or "", (row["action"] or "").strip().lower()
                if not cell.strip() and not action:
                    continue
                if action not in ACTIONS:
                    raise LibraryError(f"{where}: action {action!r} is neither keep nor drop")
                file = files.unguarded(cell)
                if file not in known:
                    file = cell
                if file not in known:
                    bare = _loosely(cell)
                    meant = loose.get(files.unguarded(bare)) or loose.get(bare) or []
                    if len(meant) > 1:
                        raise LibraryError(
                            f"{where}: {cell!r} may be any of {sorted(meant)}: name it exactly"
                        )
                    if not meant:
                        raise LibraryError(f"{where}: there is no file {cell.strip()!r} in the sources")
                    file = meant[0]
                if file in decisions and decisions[file].action != action:
                    raise LibraryError(f"{where}: {file!r} is kept on one line and dropped on another")
                decisions[file] = Decision(file, action, files.unguarded(row.get("why") or "").strip())
    except UnicodeDecodeError as error:
        raise LibraryError(f"curation file {path.name} is not UTF-8: save it as CSV UTF-8") from error
    return decisions


def _loosely(name: str) -> str:
    """A name as it may come back from a spreadsheet or an editor: no blanks around it, signs composed."""
    return unicodedata.normalize("NFC", name.strip())


def write_contact_sheet(
    target: Path,
    name: str,
    memes: Sequence[Card],
    doubtful: Sequence[tuple[Card, Card]],
    near: Sequence[tuple[Card, Card]],
    left_out: Sequence[LeftOut],
    decisions: Sequence[Decision] = (),
) -> None:
    """Write the page; its button saves a curation file that `read_curation` reads. All text is escaped."""
    template = files.templates().get_template("contact_sheet.html.j2")
    page = template.render(
        name=name, memes=memes, doubtful=doubtful, near=near, left_out=left_out, decisions=list(decisions)
    )
    files.write_text(target, page)


def check_ocr_on_sample(
    memes: Sequence[Meme], run_dir: Path, ocr: Ocr, n: int = 6, seed: int = 13
) -> "pd.DataFrame":
    """Read `n` memes of known text by OCR and compare (similarity 0-1 of the normalised texts)."""
    import pandas as pd

    known = sorted((m for m in memes if m.text_source == "known"), key=lambda m: m.meme_id)
    chosen = statistics.rng(seed, "ocr check").permutation(len(known))[:n]
    rows = []
    for meme in (known[i] for i in sorted(chosen)):
        read = ocr.read_text(pictures.decode(run_dir / meme.file))
        same = text_similarity.similarity(*map(text_similarity.normalise_text, (meme.text, read)))
        rows.append((meme.meme_id, meme.text, read, same))
    return pd.DataFrame(rows, columns=["meme_id", "known", "read", "similarity"])


def closest_pictures(memes: Sequence[Meme], n: int = 3) -> "pd.DataFrame":
    """The `n` pairs of memes whose perceptual hashes differ least, the closest first.

    `bits` (of 64) differ; `similarity` is that of the normalised texts, 0-1.
    """
    import pandas as pd

    hashes = [int(meme.phash, 16) for meme in memes]
    closest: list[tuple[int, int, int]] = []
    for distance in range(6, 64, 3):
        pairs = duplicates.close_pairs(hashes, distance).tolist()
        closest = sorted(((hashes[i] ^ hashes[j]).bit_count(), i, j) for i, j in pairs)
        if len(closest) >= n:
            break
    rows = []
    for bits, i, j in closest[:n]:
        a, b = memes[i], memes[j]
        same = text_similarity.similarity(*map(text_similarity.normalise_text, (a.text, b.text)))
        rows.append((a.meme_id, a.text, b.meme_id, b.text, bits, same))
    return pd.DataFrame(rows, columns=["meme_id", "text", "other", "other_text", "bits", "similarity"])
