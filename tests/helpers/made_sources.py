"""Real git repositories and zip archives of made-up pictures."""

import io
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from PIL import Image


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *words], check=True, capture_output=True, timeout=60
    )
    return done.stdout.decode()


def repository(root: Path, folders: dict[str, int], size: int = 50) -> tuple[str, str, Path]:
    """A real repository; its address, its first commit, its folder. A second commit deletes and adds."""
    home = root / "upstream"
    home.mkdir()
    git(home, "init", "-q", "-b", "main")
    # As the well-known host does: parts, and any commit by its name.
    for key in ("allowFilter", "allowAnySHA1InWant", "allowReachableSHA1InWant"):
        git(home, "config", f"uploadpack.{key}", "true")
    for folder, count in folders.items():
        (home / folder).mkdir()
        for number in range(count):
            (home / folder / f"图 {number}.jpg").write_bytes(os.urandom(size))
    (home / "README.md").write_text("read\r\nme\n", encoding="utf-8", newline="")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "one")
    commit = git(home, "rev-parse", "HEAD").strip()
    (home / "later.jpg").write_bytes(b"later")
    shutil.rmtree(home / next(iter(folders)))
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "two")
    return home.as_uri(), commit, home


def content(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and ".git" not in p.relative_to(folder).parts)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.frombytes("L", (24, 24), bytes([shade]) * 300 + os.urandom(276)).save(buffer, "PNG")
    return buffer.getvalue()


def archive(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as target:
        for name, data in entries.items():
            target.writestr(name, data)
    return path
