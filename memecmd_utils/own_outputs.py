"""What a command may overwrite: the files that it wrote itself and nobody changed since.

A folder beside the output holds `written.json` with the sha256 of every file that was written. A file that is
there and not in this list, or with other bytes, is somebody's work.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from memecmd_utils import storage
from memecmd_utils.chat_columns import ChatFileError

NAME = "written.json"
BY = "memecmd insert-memes"


@dataclass(frozen=True)
class Outputs:
    """The output file `target`, what stands beside it, and the `folder` that keeps the list."""

    target: Path
    folder: Path

    def check(self, files: Iterable[Path] | Mapping[Path, bytes]) -> None:
        """Raise `ChatFileError` if one of `files` exists and is not ours, or the folder is another's.

        A file that has the bytes already that would be written is let pass.
        """
        known = self._known()
        if (
            known is None
            and self.folder.exists()
            and (not self.folder.is_dir() or any(self.folder.iterdir()))
        ):
            raise self._refusal(self.folder)
        for path in files:
            if not path.exists():
                continue
            new = files[path] if isinstance(files, Mapping) else None
            now = path.read_bytes() if path.is_file() else None
            if now is None or (now != new and _hash(now) not in (known or {}).get(self._key(path), [])):
                raise self._refusal(path)

    def write(self, files: Mapping[Path, bytes]) -> None:
        """Write `files`, each atomically, in their order, after `check`; the list first.

        Until all are there the list holds what each was and what it becomes, so that a run that was killed
        can be repeated. Raises `ChatFileError`, also where a file cannot be written.
        """
        self.check(files)
        try:
            self._write(files)
        except OSError as error:
            raise ChatFileError(f"{error.filename} cannot be written: {error.strerror}") from error

    def _write(self, files: Mapping[Path, bytes]) -> None:
        known = self._known() or {}
        for path, data in files.items():
            before = [_hash(path.read_bytes())] if path.exists() else []
            known[self._key(path)] = list(dict.fromkeys([*before, _hash(data)]))
        storage.write_json(self.folder / NAME, {"written_by": BY, "output": self.target.name, "files": known})
        for path, data in files.items():
            with storage.atomic_path(path) as part:
                part.write_bytes(data)

    def _known(self) -> dict[str, list[str]] | None:
        """Path beside the output to the hashes that it may have; None where there is no list of ours."""
        try:
            found = json.loads((self.folder / NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        ours = isinstance(found, dict) and (found.get("written_by"), found.get("output")) == (
            BY,
            self.target.name,
        )
        return dict(found["files"]) if ours else None

    def _key(self, path: Path) -> str:
        return path.relative_to(self.target.parent).as_posix()

    def _refusal(self, path: Path) -> ChatFileError:
        return ChatFileError(
            f"{path} was not written by this command for {self.target.name}, or was changed since: "
            "name another OUT, or move it away"
        )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
