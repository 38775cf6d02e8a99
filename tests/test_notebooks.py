"""The notebooks from top to bottom: the example from recordings alone; their pages need no network."""

import json

import browser
import lesson_shape
import pytest
import tracked

from memecmd_utils import release, runs

pytestmark = pytest.mark.slow

RUN = "example"
STAGES = [name for name, stage in runs.STAGES.items() if not stage.templates]


def test_the_example_profile_runs_from_recordings_alone(finished):
    assert tracked.compare() == []
    folder, data = finished / "reports" / RUN, finished / "data" / "processed" / RUN
    assert release.check_release(data / "release")["counts"]["dialogues"] == 47
    numbers = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
    assert numbers["dialogues"]["turns"] == 846 and numbers["memes"] == 200
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "authored" in page and "Table 1" in page
    assert {p.name for p in (folder / "figures").glob("fig*.png")} == {
        "fig2_keywords.png",
        "fig3_scores.png",
        "fig4_consistency.png",
        "fig5_cases.png",
    }
    assert not list((finished / "data").glob("raw/recordings/**/*.jsonl")), "a strict replay records nothing"
    usage = [json.loads(p.read_text()) for p in (data / "usage").glob("*.json") if "keys" not in p.name]
    assert sum(u["calls"] for u in usage if u["source"] != "authored") == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_notebook_soon_shows_a_picture_and_no_large_table(finished, stage: str) -> None:
    notebook = finished / "reports" / RUN / f"{stage}.ipynb"
    lesson_shape.check(notebook)
    assert notebook.with_suffix(".html").stat().st_size < 2_500_000


def test_pages_need_no_network_and_no_sideways_scrolling_on_a_phone(finished, open_browser) -> None:
    pages = sorted((finished / "reports" / RUN).glob("*.html"))
    assert {page.stem for page in pages} >= {*STAGES, "index", "lessons", "rating_form"}
    with open_browser() as driver:
        for page in pages:
            assert browser.on_a_phone(driver, page.as_uri()) == 0, page.name
            assert browser.asked_elsewhere(driver) == [], page.name
            assert browser.errors(driver) == [], page.name
