import os
from pathlib import Path

import pytest

from memecmd_utils.core.encoders import weights
from memecmd_utils.core.fingerprints import CACHE, UNREADABLE, Fingerprints
from memecmd_utils.files import paths


@pytest.fixture(autouse=True)
def interim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "interim", tmp_path / "interim")
    return paths.interim


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content was read."""
    found: list[str] = []
    digest = weights.sampled_digest
    monkeypatch.setattr(weights, "sampled_digest", lambda path: found.append(path.name) or digest(path))
    return found


def fingerprint(path: Path) -> str:
    with Fingerprints() as known:
        return known.file(path)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, read: list[str]) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    first = fingerprint(path)
    assert fingerprint(path) == first and read == ["a.png"]
    os.utime(path)
    assert fingerprint(path) == first and len(read) == 2, "touched: read again, the same"
    path.write_bytes(b"two")
    assert fingerprint(path) != first


def test_a_change_is_seen_though_size_and_time_are_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    first, status = fingerprint(path), path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(path) != first


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff\xfe", b'{"%s": 3}', b'{"%s": [[1], 2]}'])
def test_a_damaged_memory_is_made_anew(tmp_path: Path, interim: Path, damage: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    first = fingerprint(path)
    (interim / CACHE).write_bytes(damage.replace(b"%s", str(path).encode()))
    assert fingerprint(path) == first == fingerprint(path)


def test_names_that_are_no_unicode_and_files_that_are_gone(tmp_path: Path, interim: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xb1\xed.png"))
    try:
        odd.write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    assert fingerprint(odd) == fingerprint(odd)
    assert "b1" in (interim / CACHE).read_text()
    odd.unlink()
    assert fingerprint(odd) == UNREADABLE
    (tmp_path / "b.png").write_bytes(b"x")
    fingerprint(tmp_path / "b.png")
    assert "udcb1" not in (interim / CACHE).read_text(), "what is gone is forgotten"
