import zipfile

import pytest
from made_sources import archive, picture

from memecmd_utils.core.fetch import archive as fetch_archive
from memecmd_utils.core.fetch.archive import Unpacked, unpack
from memecmd_utils.core.images import LibraryError


def test_images_come_out_and_nothing_else(tmp_path) -> None:
    one, two = picture(1), picture(2)
    link = zipfile.ZipInfo("emo/link.jpg")
    link.external_attr = 0o120777 << 16
    path = archive(
        tmp_path / "a.zip",
        {"emo/表情 1.png": one, "emo/x/2.JPG": two, "emo/说明.txt": b"hello", "emo/lie.jpg": b"MZ no image",
         "__MACOSX/emo/._1.png": one, "emo/.hidden.png": one, "emo/": b""},
    )  # fmt: skip
    with zipfile.ZipFile(path, "a") as target:
        target.writestr(link, "/etc/passwd")
    assert unpack(path, tmp_path / "out") == Unpacked(2, 0, 5)
    files = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files == {"emo/表情 1.png", "emo/x/2.JPG"}
    assert (tmp_path / "out" / "emo" / "表情 1.png").read_bytes() == one


def test_it_goes_on_where_it_was_cut_off(tmp_path, monkeypatch) -> None:
    pictures = {f"{n}.png": picture(n) for n in range(6)}
    path, out = archive(tmp_path / "a.zip", pictures), tmp_path / "out"

    def killed_at_the_third(entries, **_):
        yield from entries[:3]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_archive, "tqdm", killed_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            unpack(path, out)
    assert sorted(p.name for p in out.iterdir()) == ["0.png", "1.png", "2.png"]
    (out / "1.png").write_bytes(pictures["1.png"][:-1] + b"?")  # torn, same size
    assert unpack(path, out) == Unpacked(4, 2, 0)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == pictures
    assert unpack(path, out) == Unpacked(0, 6, 0)


@pytest.mark.parametrize("name", ["../out.png", "a/../../b.png", "/etc/b.png", "..\\b.png"])
def test_an_entry_that_leads_out_stops_before_anything_is_written(tmp_path, name) -> None:
    path = archive(tmp_path / "a.zip", {"good.png": picture(1), name: picture(2)})
    with pytest.raises(LibraryError, match="leads out of the folder"):
        unpack(path, tmp_path / "x" / "out")
    assert not (tmp_path / "x").exists()


def test_bombs_are_refused(tmp_path, monkeypatch) -> None:
    bomb = archive(tmp_path / "b.zip", {"b.png": picture(1) + bytes(50_000_000)})
    assert bomb.stat().st_size < 100_000
    with pytest.raises(LibraryError, match=r"'b.png' unpacks .* to 50,0.*: a bomb\?"):
        unpack(bomb, tmp_path / "out")
    monkeypatch.setattr(fetch_archive, "MAX_TOTAL", 1000)
    with pytest.raises(LibraryError, match="the limit is 1,000"):
        unpack(archive(tmp_path / "c.zip", {f"{n}.png": picture(n) for n in range(9)}), tmp_path / "out")
    monkeypatch.setattr(fetch_archive, "MAX_ENTRIES", 8)
    with pytest.raises(LibraryError, match="9 entries; the limit is 8"):
        unpack(tmp_path / "c.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_header_that_lies_about_the_size_is_caught(tmp_path) -> None:
    data = picture(1) + bytes(30_000_000)
    path = archive(tmp_path / "a.zip", {"a.png": data})
    raw, said = path.read_bytes(), len(data).to_bytes(4, "little")
    assert raw.count(said) == 2
    path.write_bytes(raw.replace(said, (1000).to_bytes(4, "little")))
    with pytest.raises(LibraryError, match=r"no whole zip archive|a bomb"):
        unpack(path, tmp_path / "out")
    assert not list(tmp_path.rglob("*.png"))


def test_broken_and_wrong_files_are_named(tmp_path) -> None:
    with pytest.raises(LibraryError, match="there is no file"):
        unpack(tmp_path / "none.zip", tmp_path)
    (tmp_path / "a.zip").write_bytes(b"<html>please log in</html>")
    with pytest.raises(LibraryError, match=r"no whole zip archive .*download it again"):
        unpack(tmp_path / "a.zip", tmp_path)
    with pytest.raises(LibraryError, match="holds no image"):
        unpack(archive(tmp_path / "t.zip", {"a.txt": b"x"}), tmp_path / "out")
    data = picture(7)
    whole = archive(tmp_path / "w.zip", {"0.png": picture(3), "a.png": data}, zipfile.ZIP_STORED)
    raw = bytearray(whole.read_bytes())
    raw[raw.index(data) + len(data) // 2] ^= 255
    whole.write_bytes(raw)
    with pytest.raises(LibraryError, match="what was unpacked is kept"):
        unpack(whole, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["0.png"]
    locked = bytearray(archive(tmp_path / "l.zip", {"a.png": data}).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(mark) + offset] |= 1
    (tmp_path / "l.zip").write_bytes(locked)
    with pytest.raises(LibraryError, match="locked with a password"):
        unpack(tmp_path / "l.zip", tmp_path / "out")
