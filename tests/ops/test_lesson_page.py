"""Executed notebooks as pages: formulas without a script, nothing loaded, links from lesson to lesson."""

import base64
import re
from pathlib import Path

import browser
import nbformat
import pandas as pd
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


@pytest.fixture(scope="module")
def phone():
    with browser.open_browser() as driver:
        yield driver


def too_wide(driver, folder: Path, text: str) -> int:
    (folder / "page.html").write_text(text, encoding="utf-8")
    return browser.on_a_phone(driver, (folder / "page.html").as_uri())


def test_on_a_phone_nothing_wide_moves_the_page(phone, tmp_path: Path) -> None:
    formula = "$$" + " + ".join(f"w_{{{n}}} \\alpha_{{{n}}}" for n in range(30)) + "$$"
    prose = nbformat.v4.new_markdown_cell(f"A `{'long' * 40}` word.\n\n{formula}\n\n    {'code ' * 60}")
    wide = pd.DataFrame({f"column {n}": ["a cell of some words"] for n in range(30)})
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="2000" height="9"></svg>'
    picture = f'<img src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'
    outputs = [
        nbformat.v4.new_output("display_data", {"text/html": shown}) for shown in (wide.to_html(), picture)
    ] + [nbformat.v4.new_output("stream", name="stdout", text="a line of print " * 30)]
    code = nbformat.v4.new_code_cell("print('a line of code ' * 30)" + "  # words" * 30, outputs=outputs)
    lesson = to_html(nbformat.v4.new_notebook(cells=[prose, code]), "04_retrieval")
    assert too_wide(phone, tmp_path, lesson) == 0
    assert len(phone.find_elements("css selector", "td")) == 30
    assert browser.asked_elsewhere(phone) == [] and browser.errors(phone) == []


def test_a_wide_page_and_a_request_are_noticed(phone, tmp_path: Path) -> None:
    head = '<meta name="viewport" content="width=device-width">'
    page = f'{head}<div style="width: 900px">x</div><img src="http://127.0.0.1:9/x.png">'
    assert too_wide(phone, tmp_path, page) > 500
    assert browser.asked_elsewhere(phone) == ["http://127.0.0.1:9/x.png"]
    assert browser.errors(phone)


def test_lessons_lead_to_each_other() -> None:
    names = [lesson.name for lesson in lessons()]
    assert names == [path.stem for path in NOTEBOOKS]
    shown = page("See [the next](05_evaluation.ipynb#table).")
    assert 'href="05_evaluation.html#table"' in shown
    for link in ("03_dialogue_generation.html", "04b_learned_placement.html", "lessons.html"):
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
