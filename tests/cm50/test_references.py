import gzip
import json

import pytest
from made_templates import memecap_row

from memecmd_utils.cm50 import references
from memecmd_utils.cm50.references import MemeCapError
from memecmd_utils.core import paths
from memecmd_utils.core.fetch.datasets import SOURCES, missing_parts

REAL = paths.root.parent / "shared" / "corpora" / "memecap"


def written(folder, rows, name: str = "memes-test.json"):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(rows).encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


@pytest.mark.parametrize("name", references.FILES)
def test_file_and_folder_are_read(tmp_path, name) -> None:
    file = written(tmp_path, [memecap_row("a1"), memecap_row("b2")], name)
    for source in (file, tmp_path):
        memes = references.read(source)
        assert [meme.post_id for meme in memes] == ["a1", "b2"]
    assert memes[0].image == "memes_a1.png"
    assert memes[0].meme_captions == ["a1 is tired.", "a1 wants the weekend."]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (memecap_row("b2", meme_captions=[]), "meme_captions"),
        (memecap_row("b2", meme_captions="text"), "meme_captions is no list of texts"),
        (memecap_row("b2", post_id=""), "post_id"),
        ("text", "it is no object"),
        (memecap_row(), "post a1 occurs twice"),
        (memecap_row("b2", meme_captions=[1]), "meme_captions is no list of texts"),
        (memecap_row("b2", title="\ud83d"), "title holds half a character"),
    ],
)
def test_a_bad_record_is_left_out_and_counted(tmp_path, bad, reason, capsys) -> None:
    file = written(tmp_path, [memecap_row(), bad, memecap_row("c3")])
    assert [meme.post_id for meme in references.read(file)] == ["a1", "c3"]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("MemeCap: 2 records read, 1 left out (record 2: ") and reason in line


def test_a_file_without_any_record_is_an_error(tmp_path) -> None:
    with pytest.raises(MemeCapError, match=r"record 1: .*no object, and no other"):
        references.read(written(tmp_path, ["text", memecap_row("b2", url=None)]))
    with pytest.raises(MemeCapError, match="no list of memes"):
        references.read(written(tmp_path, {"a": 1}))


@pytest.mark.parametrize("name", ["in/data/memes-test.json", "memes_test_x.json", "a/memes-test.json.gz"])
def test_what_the_list_of_sources_accepts_is_found(tmp_path, name) -> None:
    written(tmp_path, [memecap_row("b2")], "deep/er/still/memes-test.json")
    written(tmp_path, [memecap_row("a1")], name)
    assert not missing_parts(SOURCES["memecap"], tmp_path)
    assert [meme.post_id for meme in references.read(tmp_path)] == ["a1"]


def test_missing_and_broken_files_say_what_to_give(tmp_path) -> None:
    with pytest.raises(MemeCapError, match=r"set memecap to the file memes-test\.json"):
        references.read(tmp_path)
    (tmp_path / "memes-test.json").write_text("{", encoding="utf-8")
    with pytest.raises(MemeCapError, match="cannot be read as JSON"):
        references.read(tmp_path)
    (tmp_path / "x.json.gz").write_bytes(b"no gzip")
    with pytest.raises(MemeCapError, match="cannot be read as JSON"):
        references.read(tmp_path / "x.json.gz")


def test_references_are_found_by_post_and_by_picture(tmp_path) -> None:
    found = references.references(references.read(written(tmp_path, [memecap_row("a1")])))
    assert found["a1"] == found["memes_a1"] == ["a1 is tired.", "a1 wants the weekend."]


@pytest.mark.corpora
@pytest.mark.skipif(not REAL.is_dir(), reason=f"no MemeCap records at {REAL}")
def test_every_real_record_is_parsed() -> None:
    memes = references.read(REAL)
    raw = json.loads(gzip.decompress((REAL / "memes_test_dev.json.gz").read_bytes()))
    assert len(memes) == len(raw) == 279
    for meme, record in zip(memes, raw, strict=True):
        assert [t.strip() for t in record["meme_captions"]] == meme.meme_captions
