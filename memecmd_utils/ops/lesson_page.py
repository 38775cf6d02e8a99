"""An executed notebook as a page that needs no network, and the list of all lessons beside it."""

import base64
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from traitlets.config import Config

from memecmd_utils.core import html, paths, storage
from memecmd_utils.core.drawing import fonts

CONTENTS = "lessons.html"


class MathRenderer(IPythonRenderer):
    """Markdown as JupyterLab reads it, with formulas as MathML: no script has to draw them."""

    def block_math(self, body: str) -> str:
        """A formula on lines of its own."""
        return convert(body.strip(), display="block")

    def inline_math(self, body: str) -> str:
        """A formula in a line of text."""
        return convert(body.strip())

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link; one to a notebook leads to its page."""
        return super().link(text, re.sub(r"^([\w-]+)\.ipynb(?=$|#)", r"\1.html", url), title)


class LessonExporter(HTMLExporter):
    """nbconvert's page, in the template `html/lesson_page`."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """The parent's filter with another renderer; notebooks have no attachments."""
        renderer = MathRenderer(escape=False, anchor_link_text=self.anchor_link_text, **self.lexer_options)
        return MarkdownWithMath(renderer=renderer).render(source)


class Lesson(NamedTuple):
    """A notebook as the list of lessons names it."""

    name: str
    title: str
    question: str


@cache
def lessons() -> tuple[Lesson, ...]:
    """All notebooks in order: the title and the question of each head cell."""
    found = []
    for path in sorted(paths.notebooks.glob("*.ipynb")):
        head = nbformat.read(path, as_version=4).cells[0].source.split("\n")
        found.append(Lesson(path.stem, head[0].removeprefix("# "), head[2]))
    return tuple(found)


def to_html(notebook: Any, name: str) -> str:
    """Render an executed notebook; cells tagged `remove-cell` and inputs tagged `hide-input` go."""
    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_cell_tags = ("remove-cell", "injected-parameters-hidden")
    config.TagRemovePreprocessor.remove_input_tags = ("hide-input",)
    exporter = LessonExporter(
        config=config, template_name="lesson_page", extra_template_basedirs=[str(html.TEMPLATES)]
    )
    known = lessons()
    place = next((i for i, lesson in enumerate(known) if lesson.name == name), None)
    before = known[place - 1] if place else None
    after = known[place + 1] if place is not None and place + 1 < len(known) else None
    font = base64.b64encode(fonts.math_font_path().read_bytes()).decode()
    resources = {"metadata": {"name": name}, "before": before, "after": after, "math_font": font}
    return exporter.from_notebook_node(notebook, resources=resources)[0]


def write_contents(folder: Path) -> None:
    """Write the list of lessons beside their pages; those that did not run yet have no link."""
    rows = [{**one._asdict(), "there": (folder / f"{one.name}.html").is_file()} for one in lessons()]
    page = html.environment().get_template("lessons.html.j2")
    text = page.render(lessons=rows, page=(folder / "index.html").is_file())
    storage.write_text(folder / CONTENTS, text)
