import gzip
import json
import zipfile

import pytest

from memecmd_utils.cm50 import records


@pytest.mark.parametrize(
    ("value", "found"),
    [("plain", False), ("caf\u00e9 \U0001f63a", False), ("\ud83d", True), ("a \udc00 b", True),
     ({"a": ["b", {"c": "\ud83d"}]}, True), ({"\ud83d": 1}, True), ([1, None, "x"], False)],
)  # fmt: skip
def test_half_a_character_is_found_wherever_it_stands(value, found):
    assert records.halves(value) == found
    text = json.dumps(value, ensure_ascii=False)
    if found:
        with pytest.raises(UnicodeEncodeError):
            text.encode()
    else:
        text.encode()


@pytest.mark.parametrize(
    ("url", "meme_id"),
    [("https://i.imgflip.com/3vmgm2.jpg", "3vmgm2"), ("//x.org/a/b.jpg?c=/d.png#e", "b"), ("a.jpg", "a"),
     ("https://i.imgflip.com/a.b.jpg", "a.b")],
)  # fmt: skip
def test_the_id_is_the_base_name_of_the_address(url, meme_id):
    raw = {"url": url, "views": 1, "img-votes": "1,000", "boxes": []}
    assert records.template_row(raw, "T", 3) == (meme_id, "T", 2, url, "", "", 1, 1000, [])


def test_documents_come_from_files_and_zips_with_errors_as_values(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b"[2]")[:-3])
    (tmp_path / "c.json").write_text("[" * 200_000)
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "d.zip", "w") as archive:
        archive.writestr("e/f.json", "[3]")
        archive.writestr("g.txt", "no")
    (tmp_path / "h.csv").touch()
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    found = dict(records.json_documents(files, tmp_path))
    assert list(found) == ["a.json", "b.json.gz", "c.json", "in/d.zip/e/f.json"]
    assert (found["a.json"], found["in/d.zip/e/f.json"]) == ([1], [3])
    assert isinstance(found["b.json.gz"], ValueError) and isinstance(found["c.json"], ValueError)


def test_names_of_files_can_be_shown():
    table = records.broken_table([("a\udcff.json", 1, "why")])
    assert table["file"][0] == "a\\udcff.json" and table.to_csv().encode()
