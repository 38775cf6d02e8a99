"""The notebooks from top to bottom: the example from recordings alone; its pages and site need no network."""

import json
import re
import shutil
from pathlib import Path
from urllib.parse import quote, unquote

import browser
import filelock
import pytest
import tracked

from memecmd_utils import benchmark, release, report, run_notebook, runs

pytestmark = pytest.mark.slow

RUN = "example"
STAGES = [name for name, stage in runs.STAGES.items() if not stage.templates]


def test_the_example_profile_runs_from_recordings_alone(finished):
    assert tracked.compare() == []
    folder, data = finished / "reports" / RUN, finished / "data" / "processed" / RUN
    assert release.check_release(data / "release")["counts"]["dialogues"] == 47
    assert {p.stem for p in (folder / "figures").glob("fig*.png")} == set(report.FIGURES)
    assert not list((finished / "data").glob("raw/recordings/**/*.jsonl")), "a strict replay records nothing"
    usage = [json.loads(p.read_text()) for p in (data / "usage").glob("*.json") if "keys" not in p.name]
    assert sum(u["calls"] for u in usage if u["source"] != "authored") == 0


def test_pages_need_no_network_and_no_sideways_scrolling_on_a_phone(finished, open_browser) -> None:
    pages = sorted((finished / "reports" / RUN).glob("*.html"))
    assert {page.stem for page in pages} >= {*STAGES, "index", "lessons", "rating_form"}
    with open_browser() as driver:
        for page in pages:
            assert page.stat().st_size < 2_600_000, page.name
            assert browser.on_a_phone(driver, page.as_uri()) == 0, page.name
            assert browser.asked_elsewhere(driver) == [], page.name
            assert browser.errors(driver) == [], page.name


# --- The site


@pytest.fixture(scope="module")
def site(finished, tmp_path_factory) -> Path:
    """A copy of the site, which another process of the tests may write anew, with the tracked leaderboard."""
    rows = benchmark.load(finished / "reports")
    with filelock.FileLock(finished / "reports" / ".site.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "load", lambda folder: rows)
        made = run_notebook.build_site(finished / "reports" / RUN)
        return shutil.copytree(made, tmp_path_factory.mktemp("site") / "site")


def test_every_link_of_a_site_leads_somewhere(site: Path) -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    for name in ("leaderboard", "release-README", "reports-README", "notebooks-GLOSSARY", "data-README"):
        assert f"{name}.html" in pages
    reached, todo = set(), ["index.html"]
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached.add(name)
        text = re.sub(r"<(script|style)\b.*?</\1>", "", pages[name], flags=re.DOTALL)
        assert text.count('<nav class="site-bar"') == 1 and 'src="http' not in text, name
        for link in re.findall(r'<(?:a|img|form)\b[^>]*? (?:href|src|action)="([^":]+)"', text):
            to, _, anchor = unquote(link).partition("#")
            assert (site / (to or name)).is_file(), f"{name} leads to {link}"
            if anchor.startswith("chat="):  # the page's script opens it
                assert f'"id":"{anchor[5:]}"' in pages["index.html"], link
            elif anchor and (to or name) in pages:
                assert f'id="{anchor}"' in pages[to or name], f"{name} leads to {link}"
            todo += [to] if to in pages else []
        assert name == "index.html" or 'href="#"' not in text.partition("</nav>")[2], name
    assert reached == pages.keys()
    for table in re.findall(r"<table.*?</table>", pages["index.html"], flags=re.DOTALL):
        rows = [re.findall(r"<t[hd]\b", row) for row in re.findall(r"<tr.*?</tr>", table, flags=re.DOTALL)]
        assert len({len(row) for row in rows}) == 1 and "&lt;t" not in table, table[:500]
    assert "This lesson has not run here" in pages["notebooks-07b_templates_with_data.html"]
    bar = pages["index.html"].partition("</nav>")[0]
    assert all(f'href="{page}.html"' in bar for page in ("README", "README.zh-CN", "reports-README"))
    listed = pages["lessons.html"]
    assert "</a></b><p>" in listed and "](http" not in listed, "what a lesson asks is Markdown"
    lesson = pages["04_retrieval.html"]
    assert "Your turn:" in lesson and "<math" in lesson, "an exercise is text, a formula MathML"
    assert "leave them as they are" not in lesson and "# a profile in data/profiles" not in lesson
    first = [lesson.index(words) for words in ("<h1", "<p>Which meme fits", "What it reads and writes")]
    assert first == sorted(first), "a lesson begins with title, question and idea"


def test_a_site_is_searched_as_one_types_light_or_dark_and_fits_a_phone(site: Path, open_browser) -> None:
    """In both languages and without a network."""
    with open_browser(*browser.PHONE) as driver:
        driver.get((site / "index.html").as_uri())
        driver.find_element("css selector", ".site-search").click()
        field = driver.switch_to.active_element  # one can type at once
        for words, page in (("nDCG", "GLOSSARY"), ("聊天记录", "README"), ("阈值", "GLOSSARY")):
            field.clear()
            field.send_keys(words)
            script = "return [...document.querySelectorAll('#found a')].map(a => a.href)"
            assert any(page in link for link in driver.execute_script(script)), words
        for words, told in (("paper threshold", "places on"), ("qzx threshold", "No place has all")):
            field.clear()
            field.send_keys(words)
            assert told in driver.find_element("id", "count").text
        script = "return [...document.querySelectorAll('#found > li > h2')].map(page => page.textContent)"
        assert len(set(driver.execute_script(script))) == len(driver.execute_script(script)) > 5
        assert quote(words) in driver.current_url, "the way back from a page leads to what was found"
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        for wanted in ("light", "dark"):
            media = {"features": [{"name": "prefers-color-scheme", "value": wanted}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            for page in ("04_retrieval.html", "leaderboard.html", "README.html"):
                assert browser.on_a_phone(driver, (site / page).as_uri()) <= 0, page
                style = "getComputedStyle(document.body)"
                colours = driver.execute_script(f"return [{style}.backgroundColor, {style}.color]")
                ground, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
                assert (ground < text) == (wanted == "dark") and abs(ground - text) > 400, page
        driver.get((site / "leaderboard.html").as_uri())
        widths = "return [...document.querySelectorAll('td:first-child')].map(cell => cell.clientWidth)"
        assert min(driver.execute_script(widths)) > 50, "a name is no column of letters"
        driver.get((site / "04_retrieval.html").as_uri())
        boxes = "document.querySelectorAll('math[display=block], .jp-RenderedMarkdown pre')"
        wider = f"return [...{boxes}].filter(box => box.scrollWidth > box.clientWidth + 1).length"
        assert driver.execute_script(wider) == 0, "a formula or an exercise is cut off"
