import csv
import hashlib
import io
import re
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from memecmd_utils import files, library, pictures, schemas
from memecmd_utils.files import paths
from memecmd_utils.library import build as library_build
from memecmd_utils.library import example_memes, reading
from memecmd_utils.library.build import build_library, write_funnel
from memecmd_utils.library.ocr import MemoryCache, RapidOcr, cache_key
from memecmd_utils.library.reading import Exit, undecodable
from memecmd_utils.pictures import LibraryError
from memecmd_utils.settings import Filters, Profile

CORPUS = paths.root.parent / "shared" / "corpora" / "emojipackage"


class FakeOcr:
    """Reads what the test says about a picture's colour at its upper left corner."""

    ocr_id = "fake 1"

    def __init__(self, texts=None, default=""):
        self.texts, self.default, self.calls = texts or {}, default, 0

    def read_text(self, image):
        self.calls += 1
        return self.texts.get(image.getpixel((0, 0)), self.default)


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
    return Profile(name="test", **{"sources": ["memes"], **values})


def build(root, ocr=None, cache=None, **values):
    run = root / "run"
    report = build_library(profile(**values), run, ocr or FakeOcr(default="字"), cache)
    return report, files.read_parquet(run / "memes.parquet", schemas.Meme)


def reasons(root):
    return reasons_of(root / "run")


def reasons_of(run):
    with (run / "rejected.csv").open(encoding="utf-8", newline="") as handle:
        return {row["file"]: row["reason"] for row in csv.DictReader(handle)}


def read_funnel(path):
    return pd.read_csv(path, keep_default_na=False)


def snapshot(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_becomes_a_library(root):
    save(root / "memes" / "鸽子" / "今天也要加油.png", seed=1, size=(1280, 320))
    save(root / "memes" / "b" / "QQ图片20171201095500.jpg", seed=2, format="JPEG", quality=95)
    ocr, cache = FakeOcr(default="加油"), MemoryCache()
    report, memes = build(root, ocr, cache)
    assert (report.found, report.kept, report.rejected, report.not_sampled) == (2, 2, 0, 0)
    assert [m.origin for m in memes] == ["b/QQ图片20171201095500.jpg", "鸽子/今天也要加油.png"]
    for meme in memes:
        image = Image.open(root / "run" / meme.file)
        assert image.format == "PNG"
        assert image.size == (meme.width, meme.height)
        assert meme.file == f"memes/{meme.meme_id}.png"
        assert meme.meme_id == meme.sha256[:12]
        assert (meme.text, meme.text_source, meme.source, meme.licence) == ("加油", "ocr", "user image", "")
        assert re.fullmatch("[0-9a-f]{16}", meme.phash)
    assert (memes[1].width, memes[1].height) == (640, 160)
    assert memes[1].picture_note == "文件夹：鸽子；文件名：今天也要加油"
    assert memes[0].picture_note == ""
    assert reasons(root) == {}
    assert (root / "run" / "rejected.csv").read_text(encoding="utf-8") == "file,reason\n"
    build(root, ocr, cache)
    assert ocr.calls == len(cache) == 2


def test_bad_files_are_listed_with_their_reason(root):
    folder = root / "memes"
    save(folder / "good.png")
    (folder / "text.png").write_text("no image", encoding="utf-8")
    (folder / "empty.gif").touch()
    data = save(folder / "cut.jpg", seed=3, format="JPEG").read_bytes()
    (folder / "cut.jpg").write_bytes(data[: len(data) // 2])
    (folder / "gone.png").symlink_to(root / "nothing.png")
    report, _ = build(root)
    assert (report.rejected, report.kept) == (4, 1)
    listed = reasons(root)
    assert sorted(listed) == ["cut.jpg", "empty.gif", "gone.png", "text.png"]
    assert "broken image data" in listed["cut.jpg"]
    assert "not an image" in listed["text.png"]
    assert listed["empty.gif"] == "empty file"


def test_duplicates_are_dropped_and_say_of_what(root):
    folder = root / "memes"
    save(folder / "a.png", seed=1)
    save(folder / "copy.png", seed=1)
    save(folder / "near.png", seed=1, corner=(255, 255, 254))
    save(folder / "other caption.png", seed=1, corner=(1, 1, 1))
    save(folder / "silent.png", seed=1, corner=(2, 2, 2))
    ocr = FakeOcr({(1, 1, 1): "别的字", (2, 2, 2): ""}, default="字")
    report, memes = build(root, ocr)
    assert [m.origin for m in memes] == ["a.png", "other caption.png", "silent.png"]
    assert (report.exact_duplicates, report.near_duplicates, report.doubtful_pairs) == (1, 1, 2)
    assert reasons(root) == {"copy.png": "exact duplicate of a.png", "near.png": "near duplicate of a.png"}
    assert memes[2].text_source == "none"
    page = report.contact_sheet.read_text(encoding="utf-8")
    assert "Doubtful pairs" in page
    for source in re.findall(r'<img src="([^"]+)"', page):
        assert (root / "run" / source).is_file()


def scaled(path, side, corner=(255, 255, 255)):
    """One soft picture at any size; its perceptual hash stays near."""
    values = np.random.default_rng(1).integers(0, 256, (6, 6), dtype=np.uint8)
    image = Image.fromarray(values).resize((1200, 1200), Image.Resampling.BICUBIC)
    image = image.resize((side, side), Image.Resampling.LANCZOS).convert("RGB")
    image.putpixel((0, 0), corner)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.mark.parametrize("sizes", [(100, 150), (1000, 700)])
def test_of_near_duplicates_the_largest_stays(root, sizes):
    for name, side in zip("ab", sizes, strict=True):  # the stored copies have at most 640 pixels a side
        scaled(root / "memes" / f"{name}.png", side)
    scaled(root / "memes" / "copy of the small one.png", min(sizes))
    for limit in (None, 3):
        report, memes = build(root, max_memes=limit)
        large = "a.png" if sizes[0] > sizes[1] else "b.png"
        assert [meme.origin for meme in memes] == [large]
        assert f"near duplicate of {large}" in reasons(root).values()
        assert report.exact_duplicates == 1


@pytest.mark.parametrize("limit", [1, 2, 3, None])
def test_a_larger_twin_that_comes_late_makes_no_sample_too_long(root, limit):
    """y is near x1 and x2, which are not near each other; z is near y alone."""
    texts = ("壹二三四五六七八九十", "一贰三四五六七八九十", "一二三四五六七八九十", "一二三四五六七八九拾")
    for number, (name, side) in enumerate((("x1", 90), ("x2", 90), ("y", 100), ("z", 120))):
        scaled(root / "memes" / f"{name}.png", side, (number, 0, 0))
    ocr = FakeOcr({(number, 0, 0): text for number, text in enumerate(texts)})
    for seed in range(6):
        report, memes = build(root, ocr, max_memes=limit, seed=seed)
        assert len(memes) <= (limit or 4) and report.found == 4
        assert report.kept + report.near_duplicates + report.not_sampled == 4
        assert {path.stem for path in (root / "run" / "memes").iterdir()} >= {m.meme_id for m in memes}
        if limit is None:
            assert [meme.origin for meme in memes] == ["x1.png", "x2.png", "z.png"]


@pytest.mark.slow
def test_a_copy_of_an_example_meme_takes_no_place_however_large(root):
    meme = example_memes()[0]
    picture = Image.open(meme.path).convert("RGB")
    large = picture.resize((picture.width * 3, picture.height * 3))
    (root / "memes").mkdir()
    large.save(root / "memes" / "0.png")
    report, memes = build(root, FakeOcr(default=meme.text), sources=["memes", "example"])
    assert "0.png" not in {m.origin for m in memes} and report.near_duplicates == 1
    assert reasons(root)["0.png"] == f"near duplicate of {meme.meme_id}"


def test_the_curation_file_is_honoured(root):
    folder = root / "memes"
    for name, corner in (("a.png", (9, 9, 9)), ("near.png", (8, 8, 8)), ("也.png", (7, 7, 7))):
        save(folder / name, seed=1 if name != "也.png" else 2, corner=corner)
    (root / "c.csv").write_text(
        "\ufefffile,action,why\nnear.png,keep,\n也.png,drop,看不清\n", encoding="utf-8"
    )
    report, memes = build(root, curation="c.csv")
    assert [m.origin for m in memes] == ["a.png", "near.png"]
    assert report.near_duplicates == 0
    assert reasons(root)["也.png"] == "dropped by the curation file: 看不清"
    assert report.dropped == 1


def test_keeping_one_twin_leaves_the_other_dropped_and_is_in_every_sample(root):
    for name, corner in (("a.png", (9, 9, 9)), ("near.png", (8, 8, 8))):
        save(root / "memes" / name, seed=1, corner=corner)
    for number in range(2, 30):
        save(root / "memes" / f"{number}.png", seed=number)
    (root / "c.csv").write_text("file,action,why\na.png,keep,\n", encoding="utf-8")
    _, memes = build(root, curation="c.csv")
    assert "a.png" in [m.origin for m in memes]
    assert reasons(root) == {"near.png": "near duplicate of a.png"}
    for seed in range(4):
        _, memes = build(root, curation="c.csv", max_memes=2, seed=seed)
        assert "a.png" in [m.origin for m in memes]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,action,why\na.png,keep,\nb.png,drop,\n", r"line 3: there is no file 'b.png'"),
        ("file,action,why\na.png,remove,\n", r"line 2: action 'remove' is neither keep nor drop"),
        ("file,action,why\na.png,keep,\na.png,drop,\n", r"line 3: 'a.png' is kept on one line"),
        ("a.png,keep\n", "the first line must be file,action,why"),
        (None, "does not exist"),
    ],
)
def test_a_wrong_curation_file_names_the_line(root, text, message):
    save(root / "memes" / "a.png")
    if text is not None:
        (root / "c.csv").write_text(text, encoding="utf-8")
    with pytest.raises(LibraryError, match=message):
        build(root, curation="c.csv")


ODD_NAMES = (
    " begins.png", "ends.png ", " both ", "=1+1.png", "'=1+1.png", "-x.png", "@x.png", "\tx.png", "\rx.png",
    "+1.png", "two\nlines.png", 'a,"b".png', "'quoted'.png", "e\u0301.png",
)  # fmt: skip


def test_every_file_can_be_named_as_rejected_csv_names_it(root):
    for number, name in enumerate(ODD_NAMES):
        save(root / "memes" / name, seed=number, size=(20, 20))
    save(root / "memes" / "large.png", seed=99)
    build(root, filters={"min_side": 64})
    listed = reasons(root)
    assert len(listed) == len(ODD_NAMES) and not any(re.match(r"[=+\-@\t\r]", name) for name in listed)
    rows = [{"file": name, "action": "keep", "why": "-"} for name in listed]
    with (root / "c.csv").open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, ["file", "action", "why"])
        writer.writeheader()
        writer.writerows(rows)
    _, memes = build(root, curation="c.csv", filters={"min_side": 64})
    assert {meme.origin for meme in memes} == {*ODD_NAMES, "large.png"}


def test_names_that_a_person_typed_or_a_spreadsheet_trimmed_are_understood(root):
    for number, name in enumerate((" a.png", "=b.png", "e\u0301.png", "c.png", "c.png ")):
        save(root / "memes" / name, seed=number)
    (root / "c.csv").write_text("file,action,why\na.png,drop,\n=b.png,drop,\n\u00e9.png,drop,\nc.png,drop,\n",
                                encoding="utf-8")  # fmt: skip
    _, memes = build(root, curation="c.csv")
    assert [meme.origin for meme in memes] == ["c.png "]
    (root / "c.csv").write_text("file,action,why\n c.png ,drop,\n", encoding="utf-8")
    with pytest.raises(LibraryError, match=r"line 2: ' c.png ' may be any of \['c.png', 'c.png '\]"):
        build(root, curation="c.csv")


def test_links_that_lead_out_are_left_out_counted_and_named(root):
    save(root / "memes" / "a.png", seed=1)
    save(root / "private" / "b.png", seed=2)
    (root / "memes" / "up").symlink_to("..")
    (root / "memes" / "=b.png").symlink_to("../private/b.png")
    (root / "memes" / "again").symlink_to(".")
    with pytest.warns(UserWarning, match="2 links lead out of their source folder and were not followed"):
        report, memes = build(root)
    assert [meme.origin for meme in memes] == ["a.png"]
    assert (report.found, report.kept, report.links_out, report.rejected) == (3, 1, 2, 0)
    assert list(reasons(root)) == ["'=b.png", "up"] and "not followed" in reasons(root)["up"]
    table = read_funnel(report.funnel)
    assert table[table.step == "link out of the source"].files.tolist() == [2]


def test_a_sample_is_spread_over_folders_and_topped_up(root):
    for folder, count in (("big", 30), ("small", 6)):
        for number in range(count):
            save(
                root / "memes" / folder / f"{number:02}.png", seed=number + (100 if folder == "small" else 0)
            )
    ocr = FakeOcr(default="字")
    _, memes = build(root, ocr, max_memes=12)
    assert ocr.calls == 12
    assert [m.origin.split("/")[0] for m in memes] == ["big"] * 10 + ["small"] * 2
    again = snapshot(root / "run")
    build(root, max_memes=12)
    assert snapshot(root / "run") == again
    _, other = build(root, max_memes=12, seed=14)
    assert [m.origin for m in other] != [m.origin for m in memes]
    # Three of the chosen break and two become twins of others: the number is made up again.
    for meme in memes[:3]:
        (root / "memes" / meme.origin).write_bytes(b"broken")
    for one, two in ((memes[3], memes[4]), (memes[5], memes[6])):
        (root / "memes" / one.origin).write_bytes((root / "memes" / two.origin).read_bytes())
    report, refilled = build(root, max_memes=12)
    assert (report.kept, report.rejected, report.exact_duplicates) == (12, 3, 2)
    every, _ = build(root, max_memes=50)
    assert (every.kept, every.not_sampled) == (36 - 5, 0)
    assert {m.origin for m in memes[7:]} <= {m.origin for m in refilled}
    assert report.not_sampled == 36 - 12 - 5


def test_filters_leave_out_what_does_not_fit_and_say_why(root):
    folder = root / "memes"
    save(folder / "fits.png", seed=1)
    save(folder / "small.png", seed=2, size=(63, 200))
    save(folder / "strip.png", seed=3, size=(96, 400))
    save(folder / "page.png", seed=4, corner=(3, 3, 3))
    save(folder / "silent.png", seed=5, corner=(4, 4, 4))
    save(folder / "kept.png", seed=6, size=(40, 400), corner=(3, 3, 3))
    (folder / "twin.png").write_bytes((folder / "small.png").read_bytes())
    (folder / "broken.png").write_bytes(b"?")
    (root / "c.csv").write_text("file,action,why\nkept.png,keep,good\n", encoding="utf-8")
    ocr = FakeOcr({(3, 3, 3): "很 长的一段话", (4, 4, 4): ""}, default="字")
    filters = {"min_side": 64, "max_aspect_ratio": 4, "max_text_chars": 5, "needs_text": True}
    report, memes = build(root, ocr, curation="c.csv", filters=filters)
    assert [m.origin for m in memes] == ["fits.png", "kept.png"], "a person's word goes before all filters"
    assert reasons(root) == {
        "broken.png": "not an image (PNG, JPEG, GIF, WEBP, BMP, TIFF are read)",
        "page.png": "6 characters of text (max_text_chars 5)",
        "silent.png": "no text could be read (needs_text)",
        "small.png": "shorter side of 63 pixels (min_side 64)",
        "strip.png": "sides as 4.17 to 1 (max_aspect_ratio 4)",
        "twin.png": "exact duplicate of small.png",
    }
    assert (report.filtered, report.kept, report.found) == (4, 2, 8)
    assert ocr.calls == 4, "what is out by its size is never read"
    table = read_funnel(report.funnel)
    assert dict(zip(table.step + table.reason, table.files, strict=True)) == {
        "found": 8, "undecodablenot an image": 1, "exact duplicate": 1, "filtermax_aspect_ratio": 1,
        "filtermax_text_chars": 1, "filtermin_side": 1, "filterneeds_text": 1, "near duplicate": 0,
        "dropped by curation": 0, "not sampled": 0, "kept": 2,
    }  # fmt: skip
    assert table.left.tolist()[-1] == 2 and table.left.is_monotonic_decreasing
    page = report.contact_sheet.read_text(encoding="utf-8")
    assert '<div class="choice" data-file="page.png">' in page, "a filter can be overruled on the page"
    assert '<div class="choice" data-file="broken.png">' not in page


@pytest.mark.parametrize("limit", [None, 9])
@pytest.mark.slow
def test_several_processes_make_the_same_library(root, limit):
    folder = root / "memes"
    for number in range(16):
        save(folder / f"{number:02}.png", seed=number, corner=(number, 0, 0))
    save(folder / "near.png", seed=3, corner=(3, 0, 1))
    save(folder / "strip.png", seed=30, size=(96, 500))
    (folder / "twin.png").write_bytes((folder / "05.png").read_bytes())
    # Copies of what is broken follow at once, while the first is still on its way.
    for name in ("06b.png", "06c.png", "zz.png"):
        (folder / name).write_bytes(b"GIF89a, says this text")
    (folder / "gone.png").symlink_to(root / "nothing.png")
    (root / "c.csv").write_text("file,action,why\nstrip.png,keep,\n02.png,drop,\n", encoding="utf-8")
    ocr = FakeOcr({(n, 0, 0): f"字{n}" for n in range(12)} | {(3, 0, 1): "字3", (15, 0, 0): "长" * 40})
    values = {
        "curation": "c.csv",
        "max_memes": limit,
        "filters": {"max_aspect_ratio": 4, "max_text_chars": 20},
    }
    caches = []
    for workers in (1, 3):
        caches.append(MemoryCache())
        report = build_library(profile(**values), root / "a run", ocr, caches[-1], workers)
        made = snapshot(root / "a run")
        if workers == 1:
            alone, whole = report, made
        assert (report, made) == (alone, whole)
        assert list(caches[-1].items()) == list(caches[0].items()), "texts are kept in the same order"
    if limit is None:
        broken = "broken image data: the header cannot be read"
        assert [e.split(":")[0] for e in reasons_of(root / "a run").values()].count(broken.split(":")[0]) == 3
        assert (alone.rejected, alone.exact_duplicates, alone.near_duplicates, alone.filtered) == (4, 1, 1, 1)
    assert report.kept == (limit or alone.kept)
    again = build_library(profile(**values), root / "a run", FakeOcr(default="别的"), caches[0], 2)
    assert again == alone and snapshot(root / "a run") == whole, "recorded texts are not read again"


@pytest.mark.parametrize("recorded", [False, True])
def test_wrapped_lines_are_one_text_and_recordings_stay_as_they_are(root, recorded):
    path = save(root / "memes" / "a.png")
    key, read = (
        cache_key(hashlib.sha256(path.read_bytes()).hexdigest(), FakeOcr.ocr_id),
        "不想上 班的 Monday morning",
    )
    cache = MemoryCache({key: read} if recorded else {})
    ocr = FakeOcr(default=read)
    _, memes = build(root, ocr, cache)
    assert [m.text for m in memes] == ["不想上班的 Monday morning"]
    assert cache == {key: read} and ocr.calls == (not recorded)


def test_without_worker_processes_the_library_is_made_here(root, monkeypatch):
    def refuse(*_):
        raise reading.WorkersUnavailable("no process")

    monkeypatch.setattr(reading, "Workers", refuse)
    save(root / "memes" / "a.png")
    with pytest.warns(UserWarning, match="no process; images are read in this process alone"):
        report = build_library(profile(), root / "run", FakeOcr(default="字"), workers=2)
    assert report.kept == 1


def test_an_interrupted_run_gives_the_same_result(root):
    for number in range(6):
        save(root / "memes" / f"{number}.png", seed=number)

    class Stops(FakeOcr):
        def read_text(self, image):
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().read_text(image)

    build(root)
    whole = snapshot(root / "run")
    (root / "run" / "memes.parquet").unlink()
    cache = MemoryCache()
    with pytest.raises(KeyboardInterrupt):
        build_library(profile(), root / "run", Stops(default="字"), cache)
    assert not (root / "run" / "memes.parquet").exists()
    (root / "run" / "memes" / "0123456789ab.png").write_bytes(b"left behind")
    ocr = FakeOcr(default="字")
    build(root, ocr, cache)
    assert ocr.calls == 3
    assert snapshot(root / "run") == whole


def test_the_rows_of_the_funnel_add_up_and_name_every_step(tmp_path):
    exits = {
        "a": undecodable("too small: 9 x 12 (least side 16)"),
        "b": undecodable("too small: 2 x 2"),
        "c": undecodable("not an image (PNG, JPEG are read)"),
        "d": Exit(library_build.NEAR, "near duplicate of x"),
        "e": Exit(library_build.CURATION, "dropped"),
        "f": Exit(reading.FILTER, "9 characters", "max_text_chars"),
        "g": Exit(library_build.LINK_OUT, "leads out"),
    }
    filters = Filters(min_side=20, max_text_chars=0)
    write_funnel(tmp_path / "funnel.csv", 21, exits, 4, 10, filters)
    assert read_funnel(tmp_path / "funnel.csv").values.tolist() == [
        ["found", "", 21, 21],
        ["link out of the source", "", 1, 20],
        ["undecodable", "not an image", 1, 19],
        ["undecodable", "too small", 2, 17],
        ["exact duplicate", "", 0, 17],
        ["filter", "max_text_chars", 1, 16],
        ["filter", "min_side", 0, 16],
        ["near duplicate", "", 1, 15],
        ["dropped by curation", "", 1, 14],
        ["not sampled", "", 4, 10],
        ["kept", "", 10, 10],
    ]
    with pytest.raises(ValueError, match="21 files found, 10 left after all steps, but 11 kept"):
        write_funnel(tmp_path / "other.csv", 21, exits, 4, 11, filters)
    assert not (tmp_path / "other.csv").exists()


def test_missing_and_empty_sources_are_named(root):
    with pytest.raises(LibraryError, match="memes does not exist"):
        build(root)
    (root / "memes").mkdir()
    with pytest.raises(LibraryError, match="memes holds no image"):
        build(root)
    (root / "memes" / "a.png").write_bytes(b"text")
    with pytest.raises(LibraryError, match=r"no meme is left of 1 files.*a\.png: not an image"):
        build(root)
    assert (root / "run" / "rejected.csv").is_file()


def test_example_memes_keep_id_and_known_text(root, monkeypatch):
    table = root / "memes.csv"
    columns = ["meme_id", "caption_top", "caption", "pictures", "layout", "picture_note", "gloss"]
    rows = [
        ("x1", "上面的", "下面的", "1F634", "top_bottom", "一张脸", "above / below"),
        ("x2", "", "一起走吧", "1F431 1F436", "duo", "一猫一狗", "Let's go"),
    ]
    with table.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([columns, *rows])
    (root / "memes").mkdir()
    for seed, (name, *_) in enumerate(rows):
        save(root / "memes" / f"{name}.webp", seed, format="WEBP", lossless=True)
    monkeypatch.setattr(paths, "example", root)
    ocr = FakeOcr(default="上面的")
    _, memes = build(root, ocr, sources=["example"])
    assert ocr.calls == 0
    assert [m.meme_id for m in memes] == ["x1", "x2"]
    first = memes[0]
    assert (first.text, first.text_source, first.source) == ("上面的 下面的", "known", "drawn"), "as it is"
    assert (first.picture_note, first.gloss) == ("一张脸", "above / below")
    assert first.licence == "CC BY-SA 4.0 (OpenMoji)"
    written = (root / "run" / first.file).read_bytes()
    assert written == pictures.png_bytes(Image.open(io.BytesIO(written))), "in normal form already"
    # A user's copy of an example meme does not replace it.
    (root / "mine").mkdir()
    (root / "mine" / "a.webp").write_bytes((root / "memes" / "x1.webp").read_bytes())
    _, both = build(root, ocr, sources=["mine", "example"])
    assert [m.meme_id for m in both] == ["x1", "x2"]
    assert reasons(root) == {"a.webp": "exact duplicate of x1"}


def test_the_contact_sheet_escapes_strangers_text(root):
    evil = "<script>alert(1)</script>"
    save(root / "memes" / "a b&#'.png")
    (root / "memes" / "<img src=x onerror=y>.png").write_bytes(b"text")
    (root / "c.csv").write_text('file,action,why\n"a b&#\'.png",keep,</script><b>\n', encoding="utf-8")
    report, _ = build(root, FakeOcr(default=evil), curation="c.csv")
    page = report.contact_sheet.read_text(encoding="utf-8")
    assert evil not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<img src=x" not in page
    assert "</script><b>" not in page
    assert page.count("<script>") == 1


@pytest.fixture
def corpus():
    if not CORPUS.is_dir():
        pytest.skip(f"no real memes at {CORPUS}")
    with (CORPUS / "index.csv").open(encoding="utf-8", newline="") as handle:
        return {row["path"]: row for row in csv.DictReader(handle)}


def likeness(meme):
    """How alike the text read and the file's name are, 0-1."""
    name = PurePosixPath(meme.origin).stem
    return library.similarity(*map(library.normalise_text, (meme.text, name)))


@pytest.mark.slow
@pytest.mark.corpora
def test_real_memes_and_real_ocr(root, corpus):
    run = root / "run"
    report = build_library(profile(sources=[str(CORPUS)], max_memes=40), run, RapidOcr())
    memes = files.read_parquet(run / "memes.parquet", schemas.Meme)
    assert (report.kept, report.rejected) == (40, 0)
    # In these folders the name is a time stamp, an act or a feeling; in all others mostly the caption.
    captioned = [m for m in memes if m.origin.split("/")[0] not in ("表情", "小鹦鹉", "滑稽", "合体字")]
    shares = [likeness(meme) for meme in captioned]
    assert len(captioned) > 25 and np.median(shares) > 0.95 and np.mean(np.array(shares) > 0.8) > 0.6
