"""From folders of pictures to one library: every file becomes a meme, or has its reason and a funnel's row.

The same files give the same library, killed or not, in one thread, in many or on Dask; what a person marks on
the contact sheet comes back as the curation file that the next build honours.
"""

from itertools import combinations

import browser
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw

from memecmd_utils import files, library, schemas
from memecmd_utils.drawing import pil_font
from memecmd_utils.files import paths
from memecmd_utils.library import LibraryError, RapidOcr, build_library
from memecmd_utils.llm.recordings import Recordings
from memecmd_utils.settings import Profile


class FakeOcr:
    """Reads what the test says about a picture's colour at its upper left corner."""

    def __init__(self, texts=None, default="字"):
        self.texts, self.default, self.calls, self.ocr_id = texts or {}, default, 0, "fake 1"

    def read_text(self, image):
        self.calls += 1
        text = self.texts.get(image.getpixel((0, 0)), self.default)
        if isinstance(text, BaseException):
            raise text
        return text


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", tmp_path)
    return tmp_path


def save(path, seed=0, corner=(255, 255, 255), size=(96, 96), **options):
    """A picture of its own for every seed; `corner` colours one pixel and leaves the hash nearly alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (6, 6), dtype=np.uint8)
    image = Image.fromarray(values).resize(size, Image.Resampling.NEAREST).convert("RGB")
    image.putpixel((0, 0), corner)
    image.save(path, **{"format": "PNG", **options})
    return path


def profile(**values):
    return Profile(name="test").replace(**{"sources": ["memes"], **values})


def build(root, ocr=None, cache=None, **values):
    """The memes, and the number of files at each step of the funnel."""
    run = root / "run"
    table, _ = build_library(profile(**values), run, ocr or FakeOcr(), cache)
    pd.testing.assert_frame_equal(table, pd.read_csv(run / "funnel.csv", keep_default_na=False))
    memes = files.read_parquet(run / "memes.parquet", schemas.Meme)
    assert table.left.tolist()[-1] == len(memes) and table.left.is_monotonic_decreasing
    return memes, dict(zip((table.step + " " + table.reason).str.strip(), table.files, strict=True))


def reasons(root):
    return dict(pd.read_csv(root / "run" / "rejected.csv").to_numpy())


def snapshot(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- from folders to a library


def test_a_folder_becomes_a_library(root):
    save(root / "memes" / "鸽子" / "今天也要加油.png", seed=1, size=(1280, 320))
    save(root / "memes" / "b" / "QQ图片20171201095500.jpg", seed=2, format="JPEG", quality=95)
    ocr, cache = FakeOcr(default="不想上 班的 Monday morning"), Recordings("ocr", [], root)
    memes, _ = build(root, ocr, cache)
    assert [m.origin for m in memes] == ["b/QQ图片20171201095500.jpg", "鸽子/今天也要加油.png"]
    for meme, size in zip(memes, ((96, 96), (640, 160)), strict=True):
        image = Image.open(root / "run" / "memes" / f"{meme.sha256[:12]}.png")
        assert image.size == (meme.width, meme.height) == size
        assert (meme.text_source, meme.source, meme.licence) == ("ocr", "user image", "")
        assert meme.text == "不想上班的 Monday morning", "no blank where a Chinese line was wrapped"
    assert [m.picture_note for m in memes] == ["", "文件夹：鸽子；文件名：今天也要加油"]
    build(root, ocr, cache)
    assert ocr.calls == len(cache.fresh_keys) == 2, "recorded texts are not read again"


def test_every_file_that_is_left_out_has_its_reason_and_its_row_in_the_funnel(root):
    folder = root / "memes"
    made = {  # name -> seed of the picture, grey of its corner, size
        "fits": (1, 255, (96, 96)), "near": (1, 254, (96, 96)), "too": (1, 253, (96, 96)),
        "caption": (1, 1, (96, 96)), "silent": (1, 2, (96, 96)), "page": (4, 3, (96, 96)),
        "odd": (5, 9, (96, 96)), "也": (7, 7, (96, 96)), "=odd": (9, 6, (96, 96)),
        "small": (2, 255, (63, 200)), "strip": (3, 255, (96, 400)), "thin": (8, 255, (70, 1500)),
        "kept": (6, 3, (40, 400)),
    }  # fmt: skip
    for name, (seed, grey, size) in made.items():
        save(folder / f"{name}.png", seed, (grey,) * 3, size)
    (folder / "twin.png").write_bytes((folder / "small.png").read_bytes())
    (folder / "broken.png").write_bytes(b"?")
    (folder / "empty.gif").touch()
    text = "\ufefffile,action,why\nkept.png,keep,good\ntoo.png,keep\n也.png,drop,看不清\n'=odd.png,DROP,'=1\n"
    (root / "c.csv").write_text(text, encoding="utf-8")
    ocr = FakeOcr(
        {(3,) * 3: "很 长的一段话", (1,) * 3: "别的字", (2,) * 3: "", (9,) * 3: RuntimeError("no shape")}
    )
    filters = {"min_side": 64, "max_aspect_ratio": 4, "max_text_chars": 5}
    memes, funnel = build(root, ocr, curation="c.csv", filters=filters)
    names = ["caption.png", "fits.png", "kept.png", "silent.png", "too.png"]
    assert [m.origin for m in memes] == names and memes[3].text_source == "none"
    assert reasons(root) == {
        "'=odd.png": "dropped by the curation file: =1",
        "broken.png": "not an image: none of PNG, JPEG, GIF, WEBP, BMP, TIFF, ICO, AVIF",
        "empty.gif": "empty file",
        "near.png": "near duplicate of fits.png",
        "odd.png": "the OCR engine failed: no shape",
        "page.png": "6 characters of text (max_text_chars 5)",
        "small.png": "shorter side of 63 pixels (min_side 64)",
        "strip.png": "sides as 4.17 to 1 (max_aspect_ratio 4)",
        "thin.png": "too thin: 70 x 1500",
        "twin.png": "exact duplicate of small.png",
        "也.png": "dropped by the curation file: 看不清",
    }
    assert ocr.calls == 8, "what is out by its size or by hand is never read"
    assert funnel == {
        "found": 16, "undecodable empty file": 1, "undecodable not an image": 1,
        "undecodable the OCR engine failed": 1, "undecodable too thin": 1, "exact duplicate": 1,
        "filter max_aspect_ratio": 1, "filter max_text_chars": 1, "filter min_side": 1, "near duplicate": 1,
        "dropped by curation": 2, "kept": 5,
    }  # fmt: skip
    page = (root / "run" / "contact_sheet.html").read_text(encoding="utf-8")
    assert "3 doubtful pairs" in page and '<div class="choice" data-file="page.png">' in page
    assert '<div class="choice" data-file="broken.png">' not in page, "a person can overrule a filter only"
    (root / "c.csv").write_text(f"{text}gone.png,drop,\n", encoding="utf-8")
    with pytest.raises(LibraryError, match=r"line 6: 'gone\.png', 'drop' is not a file"):
        build(root, curation="c.csv")


def test_what_is_rejected_of_a_sample_is_made_up_for(root):
    for number in range(24):
        save(root / "memes" / f"{number}.png", seed=number)
    memes, _ = build(root, max_memes=12)
    for meme in memes[:3]:
        (root / "memes" / meme.origin).write_bytes(meme.origin.encode())
    refilled, funnel = build(root, max_memes=12)
    assert {m.origin for m in memes[3:]} <= {m.origin for m in refilled}
    assert [funnel[row] for row in ("undecodable not an image", "kept", "not sampled")] == [3, 12, 9]


def test_an_interrupted_run_gives_the_same_result(root):
    for number in range(6):
        save(root / "memes" / f"{number}.png", seed=number, corner=(number, 0, 0))
    build(root)
    whole, cache, ocr = snapshot(root / "run"), Recordings("ocr", [], root), FakeOcr()
    (root / "run" / "memes" / "0123456789ab.png").write_bytes(b"left behind")
    with pytest.raises(KeyboardInterrupt):
        build(root, FakeOcr({(3, 0, 0): KeyboardInterrupt()}), cache)
    build(root, ocr, cache)
    assert ocr.calls == 3 and snapshot(root / "run") == whole


def test_example_memes_keep_id_and_known_text(root, monkeypatch):
    rows = ["meme_id,caption_top,caption,picture_note,gloss", "x1,上面的,下面的,一张脸,above / below"]
    (root / "memes.csv").write_text("\n".join(rows), encoding="utf-8")
    save(root / "memes" / "x1.webp", format="WEBP", lossless=True)
    monkeypatch.setattr(paths, "example", root)
    (root / "mine").mkdir()  # a larger copy of a user does not replace it
    large = Image.open(root / "memes" / "x1.webp").resize((300, 300), Image.Resampling.NEAREST)
    large.save(root / "mine" / "b.png")
    ocr = FakeOcr(default="上面的下面的")
    (meme,), _ = build(root, ocr, sources=["mine", "example"])
    assert (meme.meme_id, meme.text, meme.text_source) == ("x1", "上面的 下面的", "known") and ocr.calls == 1
    assert (meme.picture_note, meme.gloss, meme.source) == ("一张脸", "above / below", "drawn")
    assert reasons(root) == {"b.png": "near duplicate of x1"}


@pytest.mark.slow
def test_threads_and_dask_make_the_same_library(root):
    for number in range(5):
        save(root / "memes" / f"{number}.png", seed=number)
    for name, settings, ocr in (
        ("here", {}, RapidOcr()),
        ("threads", {}, None),
        ("dask", {"engine": "dask"}, None),
    ):
        build_library(profile(**settings), root / name, ocr)
        memes = files.read_parquet(root / name / "memes.parquet", schemas.Meme)
        assert memes == files.read_parquet(root / "here" / "memes.parquet", schemas.Meme)


# --- texts and pictures


def test_chinese_lines_are_read_in_order_without_a_word_on_the_screen(capfd):
    image = Image.new("RGB", (360, 240), "white")
    for row, line in enumerate(("早上九点的我", "晚上九点的我")):
        ImageDraw.Draw(image).text((20, 20 + 80 * row), line, font=pil_font(40), fill="black")
    assert RapidOcr().read_text(image) == "早上九点的我 晚上九点的我"
    assert capfd.readouterr() == ("", "")


def test_same_picture_needs_the_same_text():
    hashes = [0, 0b111111, 0b1111111, 0, 0]
    texts = ["今天也要加油", "今天也要加油！", "今天也要加油", "明天再说吧", ""]
    near, doubtful = library.near_duplicates(hashes, texts)
    assert near == [(0, 1)]  # 2 is 7 bits away from 0 and near only to 1, which is dropped
    assert doubtful == [(0, 4), (1, 4), (3, 4)]
    # 5 and 4 differ in one bit: with no text to compare, a person decides on the contact sheet.
    assert library.near_duplicates([5, 4, 5, 2**40 - 1], ["", " ", "", ""]) == ([(0, 2)], [(0, 1), (1, 2)])
    values = [int(value) for value in np.random.default_rng(1).integers(0, 40, 600)]  # in blocks of 512
    plain = [(i, j, (a ^ b).bit_count()) for (i, a), (j, b) in combinations(enumerate(values), 2)]
    assert library.close_pairs(values, 2) == [pair for pair in plain if pair[2] <= 2]


# --- the contact sheet in a real browser: its buttons make the curation file that the build reads


def test_what_is_marked_comes_back_as_decisions(root, open_browser):
    from selenium.webdriver.support.ui import Select

    for number in range(4):
        save(root / "memes" / f'图,"{number}".png', seed=number)
    evil = "</script><script>alert(1)</script>"
    (root / "c.csv").write_text(f'file,action,why\n"图,""3"".png",drop,{evil}\n', encoding="utf-8")
    build(root, curation="c.csv")
    downloads = root / "downloads"
    with open_browser(1200, 900, downloads) as driver:
        driver.get((root / "run" / "contact_sheet.html").as_uri())
        boxes = {box.get_attribute("data-file"): box for box in driver.find_elements("class name", "choice")}
        for name, actions in {'图,"0".png': ("drop",), '图,"2".png': ("keep", "")}.items():
            for action in actions:
                Select(boxes[name].find_element("tag name", "select")).select_by_visible_text(action)
        boxes['图,"0".png'].find_element("tag name", "input").send_keys('看"不"清, 真的')
        driver.find_element("id", "download").click()
        candidates = library.find_candidates(["memes"])
        assert sorted(library.curate(candidates, browser.downloaded(downloads))) == [
            ['图,"0".png', "drop", '看"不"清, 真的'], ['图,"3".png', "drop", evil],
        ]  # fmt: skip
