from pathlib import Path

import pytest
from PIL import Image

from memecmd_utils.cm50.references import MemeCapMeme
from memecmd_utils.mtrclip import recall
from memecmd_utils.mtrclip.recall import DataMissing, RetrievalItem, gallery
from memecmd_utils.schemas import MemeReading, TemplateMeme


def item(name: str, *captions: str, template: str = "") -> RetrievalItem:
    return RetrievalItem(name, Path(f"{name}.png"), template, {"meme_caption": list(captions)})


def test_several_captions_of_a_meme() -> None:
    items = [item("a", "one", " ", "two"), item("b"), item("c", "three", template="t")]
    first = gallery(items, "meme_caption", "first")
    assert first.texts == ("one", "three") and first.owner.tolist() == [0, 1] and first.left_out == 1
    assert gallery(items, "meme_caption", "merge").texts == ("one two", "three")
    extended = gallery(items, "meme_caption", "extend")
    assert extended.texts == ("one", "two", "three") and extended.owner.tolist() == [0, 0, 1]
    assert [path.name for path in extended.images] == ["a.png", "c.png"]
    assert extended.clusters == (("", 0), ("t", -1)), "a meme without a template is one of its own"
    assert gallery(items, "title").texts == ()
    with pytest.raises(ValueError, match="none of first, merge, extend"):
        gallery(items, "meme_caption", "all")


def test_files_by_name_and_stem(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.jpg", "deep/b.PNG", "notes.txt"):
        (tmp_path / name).touch()
    found = recall.files_below(tmp_path)
    assert set(found) == {"a.jpg", "a", "b.PNG", "b"} and found["b"] == tmp_path / "deep" / "b.PNG"
    for name in ("deep/a.jpg", "deep/a.png"):
        (tmp_path / name).touch()
    (tmp_path / "c.png").mkdir()
    found = recall.files_below(tmp_path)
    assert found["a.jpg"] == found["a"] == tmp_path / "a.jpg", "the first by path"
    assert found["a.png"] == tmp_path / "deep" / "a.png" and "c" not in found
    with pytest.raises(DataMissing, match=r"give mtrclip\.images=DIR"):
        recall.files_below(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match="holds no picture"):
        recall.files_below(tmp_path / "empty")


def test_items_with_broken_pictures_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def named(*names: str) -> list[RetrievalItem]:
        return [RetrievalItem(name, tmp_path / name, "", {"title": [name]}) for name in names]

    for name in ("a.png", "b.jpg", "c.jpg"):
        Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / name)
    items = named("b.jpg", "a.png", "c.jpg")
    assert recall.readable(items) == items and capsys.readouterr().out == ""
    # The header of a file that was cut off is whole.
    (tmp_path / "c.jpg").write_bytes((tmp_path / "c.jpg").read_bytes()[:-900])
    (tmp_path / "d.png").write_text("<html>not found</html>")
    items += named("d.png")
    assert recall.readable(items) == items[:2]
    said = capsys.readouterr().out
    assert said.startswith("2 of 4 memes left out, their pictures cannot be read; the first: c.jpg: broken")
    with pytest.raises(DataMissing, match=r"none of 1 pictures can be read; the first: d\.png: not an image"):
        recall.readable(items[3:])
    gone = named("gone.png")
    assert recall.readable(gone) == gone and recall.readable([]) == []


def test_items_of_readings() -> None:
    meme = TemplateMeme(
        source="made up",
        meme_id="x1",
        template="Made-Up",
        url="u",
        title="A title",
        captions=["UP", "", "DOWN"],
    )
    reading = MemeReading(
        source="made up", meme_id="x1", image_caption="i", embedded_text="read", meme_caption="c"
    )
    other = reading.model_copy(update={"meme_id": "x2"})
    files = {"x1": Path("x1.jpg"), "x2": Path("x2.jpg")}
    (found,) = recall.of_readings([meme], [reading, other], files)
    assert found.template == "Made-Up" and found.image == Path("x1.jpg")
    assert found.texts == {
        "meme_caption": ["c"], "image_caption": ["i"], "embedded_text": ["UP\nDOWN"], "title": ["A title"]
    }  # fmt: skip
    (read,) = recall.of_readings([meme], [reading], files, "reading")
    assert read.texts["embedded_text"] == ["read"]
    with pytest.raises(DataMissing, match="none of the annotated template memes has its picture"):
        recall.of_readings([meme], [reading], {})


def test_items_of_memecap() -> None:
    made = {"title": "T", "image": "a.png", "meme_captions": ["m1", "m2"]}
    memes = [MemeCapMeme(post_id="p", image_captions=["i"], **made)]
    memes.append(memes[0].model_copy(update={"post_id": "q", "image": "gone.png"}))
    files = {"a.png": Path("a.png")}
    (plain,) = recall.of_memecap(memes, files)
    assert (plain.meme_id, plain.image, plain.template) == ("p", Path("a.png"), "")
    assert gallery([plain], "meme_caption", "merge").texts == ("m1 m2",)
    assert gallery([plain], "image_caption").texts == ("i",) and gallery([plain], "title").texts == ("T",)
    assert gallery([plain], "embedded_text").left_out == 1
    (more,) = recall.of_memecap(memes, files, {"p": "TEXT"}, {"p": "Made-Up"})
    assert more.template == "Made-Up" and gallery([more], "embedded_text").texts == ("TEXT",)
    with pytest.raises(DataMissing, match="MemeCap"):
        recall.of_memecap(memes, {})
