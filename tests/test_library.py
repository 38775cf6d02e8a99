"""From folders of pictures to one library: every file becomes a meme, or has its reason and a funnel's row.

The same files give the same library, killed or not, here, in processes or on Dask; what a person marks on the
contact sheet comes back as the curation file that the next build honours.
"""

import csv
import os
import re
from itertools import combinations

import browser
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw

from memecmd_utils import files, library, schemas
from memecmd_utils.drawing import pil_font
from memecmd_utils.files import paths
from memecmd_utils.library import (
    Decision,
    LibraryError,
    RapidOcr,
    build_library,
    close_pairs,
    near_duplicate_groups,
    read_curation,
)
from memecmd_utils.settings import Filters, Profile


class FakeOcr:
    """Reads what the test says about a picture's colour at its upper left corner."""

    ocr_id = "fake 1"

    def __init__(self, texts=None, default="字"):
        self.texts, self.default, self.calls = texts or {}, default, 0

    def read_text(self, image):
        self.calls += 1
        text = self.texts.get(image.getpixel((0, 0)), self.default)
        if isinstance(text, Exception):
            raise text
        return text


class Cache(dict):
    """As `recordings.TextCache`, in memory."""

    put = dict.__setitem__


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
    run = root / "run"
    report = build_library(profile(**values), run, ocr or FakeOcr(), cache)
    return report, files.read_parquet(run / "memes.parquet", schemas.Meme)


def reasons(root):
    with (root / "run" / "rejected.csv").open(encoding="utf-8", newline="") as handle:
        return {row["file"]: row["reason"] for row in csv.DictReader(handle)}


def funnel(report):
    table = pd.read_csv(report.funnel, keep_default_na=False)
    assert table.left.tolist()[-1] == report.kept and table.left.is_monotonic_decreasing
    return dict(zip((table.step + " " + table.reason).str.strip(), table.files, strict=True))


def snapshot(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- from folders to a library


def test_a_folder_becomes_a_library(root):
    save(root / "memes" / "鸽子" / "今天也要加油.png", seed=1, size=(1280, 320))
    save(root / "memes" / "b" / "QQ图片20171201095500.jpg", seed=2, format="JPEG", quality=95)
    ocr, cache = FakeOcr(default="不想上 班的 Monday morning"), Cache()
    report, memes = build(root, ocr, cache)
    assert (report.found, report.kept) == (2, 2) and reasons(root) == {}
    assert [m.origin for m in memes] == ["b/QQ图片20171201095500.jpg", "鸽子/今天也要加油.png"]
    for meme in memes:
        image = Image.open(root / "run" / meme.file)
        assert image.format == "PNG" and image.size == (meme.width, meme.height)
        assert meme.file == f"memes/{meme.meme_id}.png" and meme.meme_id == meme.sha256[:12]
        assert (meme.text_source, meme.source, meme.licence) == ("ocr", "user image", "")
        assert meme.text == "不想上班的 Monday morning", "no blank where a Chinese line was wrapped"
        assert re.fullmatch("[0-9a-f]{16}", meme.phash)
    assert (memes[1].width, memes[1].height) == (640, 160)
    assert [m.picture_note for m in memes] == ["", "文件夹：鸽子；文件名：今天也要加油"]
    build(root, ocr, cache)
    assert ocr.calls == len(cache) == 2, "recorded texts are not read again"


def test_every_file_that_is_left_out_has_its_reason_and_its_row_in_the_funnel(root):
    folder = root / "memes"
    made = {  # name -> seed of the picture, grey of its corner, size
        "fits": (1, 255, (96, 96)), "near": (1, 254, (96, 96)), "caption": (1, 1, (96, 96)),
        "silent": (1, 2, (96, 96)), "page": (4, 3, (96, 96)), "odd": (5, 9, (96, 96)), "也": (7, 7, (96, 96)),
        "=odd": (9, 6, (96, 96)), "small": (2, 255, (63, 200)), "strip": (3, 255, (96, 400)),
        "thin": (8, 255, (70, 1500)), "kept": (6, 3, (40, 400)),
    }  # fmt: skip
    for name, (seed, grey, size) in made.items():
        save(folder / f"{name}.png", seed, (grey,) * 3, size)
    (folder / "twin.png").write_bytes((folder / "small.png").read_bytes())
    (folder / "broken.png").write_bytes(b"?")
    (folder / "empty.gif").touch()
    text = "\ufefffile,action,why\nkept.png,keep,good\n也.png,drop,看不清\n'=odd.png,DROP,'=1\n"
    (root / "c.csv").write_text(text, encoding="utf-8")
    ocr = FakeOcr(
        {(3,) * 3: "很 长的一段话", (1,) * 3: "别的字", (2,) * 3: "", (9,) * 3: RuntimeError("no shape")}
    )
    filters = {"min_side": 64, "max_aspect_ratio": 4, "max_text_chars": 5}
    report, memes = build(root, ocr, curation="c.csv", filters=filters)
    assert [m.origin for m in memes] == ["caption.png", "fits.png", "kept.png", "silent.png"]
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
    assert ocr.calls == 7, "what is out by its size or by hand is never read"
    assert funnel(report) == {
        "found": 15, "undecodable empty file": 1, "undecodable not an image": 1,
        "undecodable the OCR engine failed": 1, "undecodable too thin": 1, "exact duplicate": 1,
        "filter max_aspect_ratio": 1, "filter max_text_chars": 1, "filter min_side": 1, "near duplicate": 1,
        "dropped by curation": 2, "not sampled": 0, "kept": 4,
    }  # fmt: skip
    assert memes[3].text_source == "none" and report.doubtful_pairs == 2
    page = (root / "run" / "contact_sheet.html").read_text(encoding="utf-8")
    assert "Doubtful pairs" in page and '<div class="choice" data-file="page.png">' in page
    assert '<div class="choice" data-file="broken.png">' not in page, "a person can overrule a filter only"
    assert all((root / "run" / image).is_file() for image in re.findall(r'<img src="([^"]+)"', page))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,action\n", "first line must be file,action,why"),
        ("file,action,why\nb.png,drop,\n", r"line 2: there is no file 'b\.png'"),
        ("file,action,why\n中文图.png,drop,\n".encode("gbk"), "as CSV in UTF-8"),
    ],
)
def test_a_wrong_curation_file_says_where(root, text, message):
    save(root / "memes" / "a.png")
    (root / "c.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LibraryError, match=message):
        build(root, curation="c.csv")


def test_one_of_near_duplicates_that_a_person_keeps_is_kept_beside_the_other(root):
    for name, corner in (("a", (9,) * 3), ("near", (8,) * 3)):
        save(root / "memes" / f"{name}.png", seed=1, corner=corner)
    (root / "c.csv").write_text("file,action\nnear.png,keep\n", encoding="utf-8")
    assert [m.origin for m in build(root, curation="c.csv")[1]] == ["a.png", "near.png"]


def test_a_sample_is_spread_over_folders_and_topped_up(root):
    for folder, count, first in (("big", 30, 0), ("small", 6, 100)):
        for number in range(count):
            save(root / "memes" / folder / f"{number:02}.png", seed=number + first)
    ocr = FakeOcr()
    _, memes = build(root, ocr, max_memes=12)
    assert ocr.calls == 12
    assert [m.origin.split("/")[0] for m in memes] == ["big"] * 10 + ["small"] * 2
    again = snapshot(root / "run")
    build(root, max_memes=12)
    assert snapshot(root / "run") == again
    _, other = build(root, max_memes=12, seed=14)
    assert [m.origin for m in other] != [m.origin for m in memes]
    for meme in memes[:3]:  # the number is made up again
        (root / "memes" / meme.origin).write_bytes(meme.origin.encode())
    for one, two in ((memes[3], memes[4]), (memes[5], memes[6])):
        (root / "memes" / one.origin).write_bytes((root / "memes" / two.origin).read_bytes())
    report, refilled = build(root, max_memes=12)
    assert {m.origin for m in memes[7:]} <= {m.origin for m in refilled}
    rows = funnel(report)
    assert (rows["kept"], rows["exact duplicate"], rows["undecodable not an image"]) == (12, 2, 3)
    assert rows["not sampled"] == 36 - 12 - 5


def test_an_interrupted_run_gives_the_same_result(root):
    for number in range(6):
        save(root / "memes" / f"{number}.png", seed=number, corner=(number, 0, 0))
    build(root)
    whole = snapshot(root / "run")
    (root / "run" / "memes.parquet").unlink()
    cache = Cache()

    class Stops(FakeOcr):
        def read_text(self, image):
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().read_text(image)

    with pytest.raises(KeyboardInterrupt):
        build(root, Stops(), cache)
    assert not (root / "run" / "memes.parquet").exists()
    (root / "run" / "memes" / "0123456789ab.png").write_bytes(b"left behind")
    ocr = FakeOcr()
    build(root, ocr, cache)
    assert ocr.calls == 3 and snapshot(root / "run") == whole


def test_example_memes_keep_id_and_known_text(root, monkeypatch):
    columns = ["meme_id", "caption_top", "caption", "pictures", "layout", "picture_note", "gloss"]
    rows = [
        ("x1", "上面的", "下面的", "1F634", "top_bottom", "一张脸", "above / below"),
        ("x2", "", "一起走吧", "1F431 1F436", "duo", "一猫一狗", "Let's go"),
    ]
    with (root / "memes.csv").open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([columns, *rows])
    for seed, (name, *_) in enumerate(rows):
        save(root / "memes" / f"{name}.webp", seed, format="WEBP", lossless=True)
    monkeypatch.setattr(paths, "example", root)
    ocr = FakeOcr(default="上面的")
    _, memes = build(root, ocr, sources=["example"])
    assert ocr.calls == 0 and [m.meme_id for m in memes] == ["x1", "x2"]
    first = memes[0]
    assert (first.text, first.text_source, first.source) == ("上面的 下面的", "known", "drawn"), "as it is"
    assert (first.picture_note, first.gloss) == ("一张脸", "above / below")
    assert first.licence == "CC BY-SA 4.0 (OpenMoji)"
    # A user's copy of an example meme does not replace it, nor does a larger one.
    (root / "mine").mkdir()
    (root / "mine" / "a.webp").write_bytes((root / "memes" / "x1.webp").read_bytes())
    large = Image.open(root / "memes" / "x1.webp").resize((300, 300), Image.Resampling.NEAREST)
    large.save(root / "mine" / "b.png")
    _, both = build(root, FakeOcr(default="上面的下面的"), sources=["mine", "example"])
    assert [m.meme_id for m in both] == ["x1", "x2"]
    assert reasons(root) == {"a.webp": "exact duplicate of x1", "b.png": "near duplicate of x1"}


@pytest.mark.slow
def test_processes_and_dask_make_the_same_library_and_one_that_dies_costs_one_image(root, monkeypatch):
    for number in range(5):
        save(root / "memes" / f"{number}.png", seed=number)
    build_library(profile(), root / "here")
    memes = files.read_parquet(root / "here" / "memes.parquet", schemas.Meme)
    monkeypatch.setattr(library, "PARALLEL_FROM", 1)
    build_library(profile(), root / "processes")
    alone, together = (snapshot(root / name) for name in ("here", "processes"))
    assert [name for name in alone if alone[name] != together[name]] == ["contact_sheet.html"], "its title"
    build_library(profile(engine="dask"), root / "dask")
    assert files.read_parquet(root / "dask" / "memes.parquet", schemas.Meme) == memes
    jobs = [(root / "memes" / f"{n}.png", Filters(), "字") for n in range(2)]
    jobs.insert(1, (Dies(), Filters(), "字"))
    read = list(library.read_pictures([(path, filters, None) for path, filters, _ in jobs], profile()))
    assert [one.exit and one.exit.why for one in read] == [None, library.DIED, None]


class Dies:
    """In place of a path: the process that opens it ends."""

    def stat(self):
        os._exit(1)


# --- texts and pictures


def drawn(*lines):
    image = Image.new("RGB", (360, 240), "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        pen.text((20, 20 + 80 * number), line, font=pil_font(40), fill="black")
    return image


def test_chinese_lines_are_read_in_order_without_a_word_on_the_screen(capfd):
    assert RapidOcr(threads=1).read_text(drawn("早上九点的我", "晚上九点的我")) == "早上九点的我 晚上九点的我"
    assert capfd.readouterr() == ("", "")


def test_same_picture_needs_the_same_text():
    hashes = [0, 0b111111, 0b1111111, 0, 0]
    groups, doubtful = near_duplicate_groups(
        hashes, ["今天也要加油", "今天也要加油！", "今天也要加油", "明天再说吧", ""]
    )
    assert groups == [[0, 1]]  # 2 is 7 bits away from 0 and near only to 1, which is dropped
    assert doubtful == [(0, 4), (1, 4), (3, 4)]
    # 5 and 4 differ in one bit: with no text to compare, a person decides on the contact sheet.
    assert near_duplicate_groups([5, 4, 5, 2**40 - 1], ["", " ", "", ""]) == ([[0, 2]], [(0, 1), (1, 2)])


def test_close_pairs_equal_a_double_loop():
    values = np.random.default_rng(1).integers(0, 40, 1200)  # more than are compared at once
    hashes = [int(value) << 40 | int(value) for value in values]
    plain = [(i, j, (a ^ b).bit_count()) for (i, a), (j, b) in combinations(enumerate(hashes), 2)]
    assert close_pairs(hashes, 2) == [pair for pair in plain if pair[2] <= 2]


# --- the contact sheet in a real browser: its buttons make the curation file that the build reads


def test_the_contact_sheet_escapes_strangers_text(root):
    evil = "<script>alert(1)</script>"
    save(root / "memes" / "a b&#'.png")
    (root / "memes" / "<img src=x onerror=y>.png").write_bytes(b"text")
    (root / "c.csv").write_text('file,action,why\n"a b&#\'.png",keep,</script><b>\n', encoding="utf-8")
    build(root, FakeOcr(default=evil), curation="c.csv")
    page = (root / "run" / "contact_sheet.html").read_text(encoding="utf-8")
    assert evil not in page and "&lt;script&gt;alert(1)" in page
    assert "<img src=x" not in page and "</script><b>" not in page and page.count("<script>") == 1


def press(driver, box, action):
    from selenium.webdriver.support.ui import Select

    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    Select(box.find_element("tag name", "select")).select_by_visible_text(action)


def test_what_is_marked_comes_back_as_decisions(root):
    for number in range(4):
        save(root / "memes" / f'图,"{number}".png', seed=number)
    save(root / "memes" / "=small.png", seed=9, size=(20, 20))
    (root / "c.csv").write_text('file,action,why\n"图,""3"".png",drop,旧的\n', encoding="utf-8")
    build(root, filters={"min_side": 64}, curation="c.csv")
    names = {path.name for path in (root / "memes").iterdir()}
    with browser.open_browser(1200, 900) as driver:
        downloads = root / "downloads"
        driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
        )
        driver.get((root / "run" / "contact_sheet.html").as_uri())
        figures = {f.get_attribute("data-file"): f for f in driver.find_elements("css selector", "figure")}
        press(driver, figures['图,"0".png'], "drop")
        figures['图,"0".png'].find_element("tag name", "input").send_keys('看"不"清, 真的')
        press(driver, figures['图,"1".png'], "keep")
        press(driver, figures['图,"2".png'], "keep")
        press(driver, figures['图,"2".png'], "")  # taken back: no mark
        (row,) = driver.find_elements("css selector", "tr .choice[data-file='=small.png']")
        press(driver, row, "keep")
        driver.find_element("id", "download").click()
        assert sorted(read_curation(browser.downloaded(downloads), names)) == [
            Decision("=small.png", "keep", ""),
            Decision('图,"0".png', "drop", '看"不"清, 真的'),
            Decision('图,"1".png', "keep", ""),
            Decision('图,"3".png', "drop", "旧的"),
        ]
        assert browser.errors(driver) == []
