import pytest

from memecmd_utils.report import tracked

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
