"""What files hold, in a few letters: read once, and again only where size or times have changed.

A file that was merely touched or copied has the fingerprint it had; one that was changed and given its old
size and time has another, for the system notes the change itself.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from memecmd_utils import files
from memecmd_utils.core.encoders import weights
from memecmd_utils.files import paths

CACHE = "fingerprints.json"
"""In `data/interim`: for each file what the system says of it and its digest. It can be made again."""
UNREADABLE = "unreadable"


class Fingerprints:
    """Fingerprints of files and folders, with what is known of files from earlier calls.

    Use as a context manager: what was newly read is remembered at the end.
    """

    def __init__(self) -> None:
        self._file = paths.interim / CACHE
        self._new: dict[str, list] = {}
        try:
            known = json.loads(self._file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            known = {}  # not there, or damaged: everything is read
        self._known: dict[str, list] = known if isinstance(known, dict) else {}

    def __enter__(self) -> "Fingerprints":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._new:
            return
        there = {name: entry for name, entry in self._known.items() if Path(name).exists()}
        # ASCII: names of files need not be valid Unicode.
        files.write_text(self._file, json.dumps(there | self._new) + "\n")

    def file(self, path: Path) -> str:
        """12 hex digits of a file; a file over 16 MB counts by its size and samples (`weights`)."""
        try:
            # Asked before the content is read: a change meanwhile is then seen the next time.
            status = path.stat()
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            name = str(path.absolute())
            entry = self._new.get(name) or self._known.get(name)
            if not isinstance(entry, list) or len(entry) != 2 or entry[0] != stamp:
                entry = self._new[name] = [stamp, weights.sampled_digest(path)]
        except OSError:
            return UNREADABLE
        return str(entry[1])

    def files(self, files: Iterable[Path], base: Path) -> str:
        """Number of files and 12 hex digits of their names below `base` and contents, in any order."""
        lines = sorted(
            os.fsencode(os.path.relpath(path, base)) + f"\0{self.file(path)}\n".encode() for path in files
        )
        digest = hashlib.sha256(b"".join(lines)).hexdigest()[: weights.DIGITS]
        return f"{len(lines)} files {digest}"
