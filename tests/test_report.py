"""The numbers and tables of the READMEs, the tracked results, and where pages lead."""

import csv
import re
from pathlib import Path

import pytest
import tracked
from PIL import Image

from memecmd_utils import files, report
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
    assert not tracked.value_of("effects.greedy.difference.low > 9", TRACKED)
    with pytest.raises(MemecmdError, match="nobody"):
        tracked.value_of("effects.nobody.difference.low > 0", TRACKED)


# --- Tracked results


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
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
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
