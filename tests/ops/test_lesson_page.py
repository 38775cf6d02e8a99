"""Executed notebooks as pages: formulas without a script, nothing loaded, links from lesson to lesson."""

import re
from pathlib import Path

import nbformat
import pytest

from memecmd_utils.core import paths
from memecmd_utils.ops import lesson_page
from memecmd_utils.ops.lesson_page import MathRenderer, lessons, to_html, write_contents

NOTEBOOKS = sorted(paths.notebooks.glob("*.ipynb"))
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+?)\$", re.DOTALL)


def page(markdown: str, name: str = "04_retrieval") -> str:
    return to_html(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(markdown)]), name)


def test_formulas_are_mathml_in_a_font_that_the_page_brings() -> None:
    shown = page("A turn $S_t$ and\n\n$$T = w_1 \\alpha + w_2 \\delta$$\n\nand `code $x$`.")
    assert shown.count("<math") == 2 and 'display="block"' in shown
    assert "$$" not in shown and "code $x$" in shown
    assert "data:font/woff;base64," in shown


def test_a_page_loads_nothing() -> None:
    shown = page("$$x$$ [a paper](https://arxiv.org/abs/2507.00891)")
    loaded = re.findall(r"""(?:src|import|url)\s*[=(]\s*["']?((?:https?:)?//[^"')\s]+)""", shown)
    assert loaded == [] and "<script" not in shown.replace('<script type="application', "")
    assert 'href="https://arxiv.org/abs/2507.00891"' in shown, "a link is no load"


def test_lessons_lead_to_each_other() -> None:
    names = [lesson.name for lesson in lessons()]
    assert names == [path.stem for path in NOTEBOOKS]
    shown = page("See [the next](05_evaluation.ipynb#table).")
    assert 'href="05_evaluation.html#table"' in shown
    for link in ("03_dialogue_generation.html", "05_evaluation.html", "lessons.html"):
        assert f'href="{link}"' in shown
    first, last = page("x", names[0]), page("x", names[-1])
    assert 'rel="prev"' not in first and 'rel="next"' in first
    assert 'rel="prev"' in last and 'rel="next"' not in last
    assert 'rel="prev"' not in page("x", "someone's own")


def test_the_list_of_lessons_links_those_that_ran(tmp_path: Path) -> None:
    (tmp_path / "04_retrieval.html").touch()
    write_contents(tmp_path)
    text = (tmp_path / lesson_page.CONTENTS).read_text(encoding="utf-8")
    assert re.findall(r'href="(\w+)\.html"', text) == ["04_retrieval"]
    assert all(lesson.title in text for lesson in lessons())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_formula_of_a_notebook_can_be_drawn(path: Path) -> None:
    """What the library does not know it writes as text: `&`, or a command with its backslash."""
    prose = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"]
    for block, inline in FORMULA.findall(re.sub(r"```.*?```|`[^`\n]*`", "", "\n\n".join(prose), flags=re.S)):
        drawn = MathRenderer().block_math(block) if block else MathRenderer().inline_math(inline)
        shown = re.sub(r"<[^>]+>", "", drawn)
        assert "\\" not in shown and not re.search(r"&(?!#)", shown), block or inline
