import json
from pathlib import Path

import pytest
from PIL import Image

from memecmd_utils.files import paths
from memecmd_utils.report import tracked
from memecmd_utils.runs import StageMissing

HEAD = "dialogue_id,turn,speaker,strategy,meme_id,rank,score\n"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1.0, 1.0 + 9e-7),
        (0.293275, 0.293274),  # one unit of the last decimal, and more than 1e-6 in binary
        (3, 3.0),
        (float("nan"), float("nan")),
        ({"x": [1, "a", None, True]}, {"x": [1, "a", None, True]}),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}),
    ],
)
def test_equal_values(a, b) -> None:
    assert tracked.differences(a, b) == []


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (1.0, 1.0 + 2e-6, ": 1.0 and 1.000002"),
        (1000.0, 1000.001, ": 1000.0 and 1000.001"),  # the tolerance is absolute
        ("m01", "m02", ": 'm01' and 'm02'"),
        (None, 0.0, ": None and 0.0"),
        (2.5, "", ": 2.5 and ''"),
        (float("nan"), 1.0, ": nan and 1.0"),
        (True, 1, ": True and 1"),
        ([1, 2], [1], ": 2 and 1 entries"),
        ([1], {"x": 1}, ": [1] and {'x': 1}"),
        ({"x": 1}, {"x": 1, "y": 2}, ".y: only in one"),
        ({"x": {"y": [0, {"z": 1.0}]}}, {"x": {"y": [0, {"z": 2.0}]}}, ".x.y[1].z: 1.0 and 2.0"),
    ],
)
def test_differences(a, b, said) -> None:
    assert tracked.differences(a, b) == [said]


def write_run(folder: Path, csv: str, numbers: dict, colour=(10, 20, 30), size=(20, 10)) -> None:
    (folder / "figures").mkdir(parents=True)
    (folder / "numbers.json").write_text(json.dumps(numbers), encoding="utf-8")
    (folder / "placements.csv").write_text(HEAD + csv, encoding="utf-8")
    for name in tracked.PICTURES:
        target = folder / name if name == "chat.png" else folder / "figures" / name
        Image.new("RGB", size, colour).save(target)


@pytest.fixture
def reports(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(paths, "reports", tmp_path)
    write_run(tmp_path / "example", "d1,2,B,greedy,12e456789012,1,0.250000\n", {"x": 1.0})
    return tmp_path


def test_refresh_and_compare(reports) -> None:
    copied = tracked.refresh()
    assert {p.name for p in copied} == {*tracked.TEXT_FILES, *tracked.PICTURES}
    assert tracked.compare(tracked=reports) == []


@pytest.mark.parametrize(
    ("csv", "where"),
    [
        ("d1,2,B,greedy,34e456789012,1,0.250000\n", "placements[1][4]"),  # both are infinite as numbers
        ("d1,2,B,greedy,12e456789012,,0.250000\n", "placements[1][5]"),
        ("d1,2,B,greedy,12e456789012,1,0.250003\n", "placements[1][6]"),
        ("d1,2,B,greedy,12e456789012,1,\n", "placements[1][6]"),
        ("", "placements: 2 and 1 entries"),
    ],
)
def test_a_changed_placement_is_found(reports, csv, where) -> None:
    tracked.refresh()
    (reports / "example" / "placements.csv").write_text(HEAD + csv, encoding="utf-8")
    found = tracked.compare(tracked=reports)
    assert len(found) == 1 and found[0].startswith(where)


def test_changed_numbers_and_pictures_are_found(reports) -> None:
    tracked.refresh()
    (reports / "example" / "numbers.json").write_text('{"x": 1.1}', encoding="utf-8")
    Image.new("RGB", (20, 10), (200, 20, 30)).save(reports / "example" / "figures" / "fig3_scores.png")
    found = tracked.compare(tracked=reports)
    assert found[0] == "numbers.x: 1.0 and 1.1" and found[1].startswith("fig3_scores.png: pictures differ")
    assert len(found) == 2


def test_a_run_that_was_not_made_says_what_to_do(reports) -> None:
    (reports / "example" / "chat.png").unlink()
    with pytest.raises(StageMissing, match=r"chat\.png: run `make reproduce` first"):
        tracked.refresh()


def test_picture_difference_by_hand(tmp_path) -> None:
    """Half of the pixels go from black to white: .5. One channel of three by 51 of 255: .2 / 3."""
    black = Image.new("RGB", (10, 10))
    black.save(tmp_path / "black.png")
    half = black.copy()
    half.paste((255, 255, 255), (0, 0, 5, 10))
    half.save(tmp_path / "half.png")
    Image.new("RGB", (10, 10), (51, 0, 0)).save(tmp_path / "red.png")
    Image.new("RGB", (10, 11)).save(tmp_path / "taller.png")
    difference = tracked.picture_difference
    assert difference(tmp_path / "black.png", tmp_path / "black.png") == 0
    assert difference(tmp_path / "black.png", tmp_path / "half.png") == pytest.approx(0.5)
    assert difference(tmp_path / "black.png", tmp_path / "red.png") == pytest.approx(0.2 / 3)
    assert difference(tmp_path / "black.png", tmp_path / "taller.png") == 1


PAGE = (
    '<a href="01_a.html">a</a> <a class="x" href="../../data/x/release/">the data</a> <a href="#top">top</a> '
    '<a href="https://example.org/x">web</a> <a href="/etc/x">root</a> <a href="file:///x">file</a>'
    "<script>text = '<a href=\"gone.html\">';</script>"
)


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "reports" / "example"
    (folder / "figures").mkdir(parents=True)
    (folder / "tables").mkdir()
    (folder / "index.html").write_text(PAGE, encoding="utf-8")
    (folder / "01_a.html").write_text(
        '<a href="02_b.ipynb#end">next</a><a href="09_c.ipynb">字</a>', encoding="utf-8"
    )
    (folder / "02_b.html").write_text("<p>字</p>", encoding="utf-8")
    (folder / "02_b.ipynb").write_text("{}", encoding="utf-8")
    (folder / "numbers.json").write_text("{}", encoding="utf-8")
    (folder / "figures" / "fig.png").write_bytes(b"png")
    (folder / "tables" / "t.csv").write_text("a\n", encoding="utf-8")
    return folder


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_site_holds_pages_figures_and_tables(report) -> None:
    target = tracked.build(report)
    assert target == report / "site"
    wanted = [
        ".nojekyll",
        "01_a.html",
        "02_b.html",
        "figures/fig.png",
        "index.html",
        "numbers.json",
        "tables/t.csv",
    ]
    assert files(target) == wanted
    assert (report / "index.html").read_text(encoding="utf-8") == PAGE  # the run's own page is left alone


def test_links_lead_somewhere_in_the_site_or_are_text(report) -> None:
    target = tracked.build(report)
    page = (target / "index.html").read_text(encoding="utf-8")
    assert (
        '<a href="01_a.html">' in page
        and '<a href="#top">' in page
        and 'href="https://example.org/x"' in page
    )
    assert '<a class="x" data-not-here>the data</a>' in page
    assert "<a data-not-here>root</a>" in page and "<a data-not-here>file</a>" in page
    assert "text = '<a href=\"gone.html\">'" in page  # a script is no page
    notebook = (target / "01_a.html").read_text(encoding="utf-8")
    assert notebook == '<a href="02_b.html#end">next</a><a data-not-here>字</a>'


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("index.html", True),
        ("figures/fig.png?x=1#y", True),
        ("./01%5Fa.html", True),
        ("figures/", False),
        ("../numbers.json", False),
        ("javascript:x", False),
        ("data:text/html,x", False),
        ("mailto:a@example.org", True),
        ("", True),
    ],
)
def test_where_an_address_leads(report, address, good) -> None:
    assert tracked.leads_somewhere(address, tracked.build(report)) is good


def test_a_site_is_made_anew_and_nothing_else_is_overwritten(report, tmp_path) -> None:
    target = tracked.build(report)
    (target / "old.html").touch()
    assert "old.html" not in files(tracked.build(report))
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").touch()
    with pytest.raises(tracked.SiteError, match="not a site"):
        tracked.build(report, other)
    assert files(other) == ["thesis.txt"]
    assert not list(report.glob(".site-*"))
    assert tracked.build(report, tmp_path / "a" / "b").is_dir()
