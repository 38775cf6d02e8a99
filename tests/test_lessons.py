"""The notebooks as lessons: exercises with solutions that fit the notebook, stay folded away, and run."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from stage_run import project

from memecmd_utils.files import paths
from memecmd_utils.run_notebook import without_exercises
from memecmd_utils.runs import STAGES

NOTEBOOKS = sorted(paths.notebooks.glob("*.ipynb"))
FEWEST_EXERCISES = 3
HEAD = re.compile(r"^\*\*(\d+)\.(?: [^*\n]+)?\*\* \S", re.MULTILINE)
# Blank lines around a fold's text: without them Markdown takes it for a part of the raw HTML.
FOLD = re.compile(
    r"^<details><summary>(Hint|Solution|Discussion)</summary>\n\n(.+?)\n</details>$", re.MULTILINE | re.DOTALL
)
FENCE = re.compile(r"(?:^|(?<=\n\n))```python\n(.+?)\n```(?=\n\n|$)", re.DOTALL)
PRINTED = re.compile(r"(?<=\n\n)```text\n(.+?)\n```(?=\n\n|$)", re.DOTALL)
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
LESSONS = [path for path in NOTEBOOKS if not STAGES[path.stem].templates]  # the others are appendices
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


class Exercise(NamedTuple):
    number: int
    text: str
    task: str
    """Code of its cell, whose `assert` fails until it is solved; empty where there is none."""
    folds: list[tuple[str, str]]
    """Heading and text of what is folded away."""

    def _of_solution(self, block: re.Pattern[str]) -> str:
        return "\n".join(
            part for head, text in self.folds if head == "Solution" for part in block.findall(text)
        )

    @property
    def code(self) -> str:
        """Of its solution."""
        return self._of_solution(FENCE)

    @property
    def printed(self) -> str:
        """What that code prints, as the fold shows it."""
        return self._of_solution(PRINTED)


def exercises(notebook: nbformat.NotebookNode) -> list[Exercise]:
    """The exercises between their heading and what a session showed, in order."""
    marked = [
        f"\x00{cell.source}\x00" if "exercise" in cell.metadata.get("tags", []) else cell.source
        for cell in notebook.cells
        if cell.cell_type == "markdown" or "exercise" in cell.metadata.get("tags", [])
    ]
    part = "\n".join(re.findall(r"\n## Exercises.*?\n(.*?)\n## What ", "\n\n".join(marked), re.DOTALL))
    heads = list(HEAD.finditer(part))
    ends = [*(head.start() for head in heads[1:]), len(part)]
    found = []
    for head, end in zip(heads, ends, strict=False):
        text = part[head.start() : end]
        task = "\n".join(re.findall("\x00(.*?)\x00", text, re.DOTALL))
        found.append(Exercise(int(head[1]), text, task, FOLD.findall(text)))
    return found


@cache
def load(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def prose(notebook: nbformat.NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@each_notebook
def test_exercises_are_numbered_folded_away_and_answered_once(path: Path) -> None:
    notebook = load(path)
    assert "large language model" in prose(notebook), "who wrote the texts"
    made = exercises(notebook)
    if path in LESSONS:
        ends = re.findall(r"^## .+$", prose(notebook), re.MULTILINE)[-2:]
        assert ends == ["## Exercises", "## What we learned"]
        assert len(made) >= FEWEST_EXERCISES and any(exercise.task for exercise in made)
        assert [exercise.number for exercise in made] == list(range(1, len(made) + 1))
    for exercise in made:
        start, heads = exercise.text[:60], [head for head, _ in exercise.folds]
        (answer,) = [head for head in heads if head != "Hint"]
        assert exercise.code or answer == "Discussion", f"a solution without code: {start}"
        assert "Hint" in heads or not exercise.task, start
        # Code and no words is no answer, and what is asked shows no code of the answer.
        assert all(len(FENCE.sub("", text).split()) >= 5 for _, text in exercise.folds), start
        assert "```" not in FOLD.sub("", exercise.text), start
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        assert "exercise" not in tags or "raises-exception" in tags, "`Run All` goes on below it"


def checks(task: str) -> str:
    """The task without what a reader has to write: its asserts and what they need."""
    tree = ast.parse(task)
    tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    return ast.unparse(tree)


@each_lesson
def test_a_lesson_opens_with_a_question_a_guess_its_length_and_what_you_change(path: Path) -> None:
    opening, *cells = load(path).cells
    question = opening.source.split("\n")[2]
    assert question.endswith(("?", ".")) and "](" not in question, "it stands in the list of lessons as it is"
    kinds = re.findall(r"^- \*\*(.+?):\*\* \S", opening.source, re.MULTILINE)
    assert kinds == ["Guess first", "Time", "You change"]
    for cell in cells:  # JupyterLab folds the code that sets up and draws
        folded = {"remove-cell", "hide-input"} & set(cell.metadata.get("tags", []))
        assert bool(folded) == cell.metadata.get("jupyter", {}).get("source_hidden", False), cell.id


# --- every solution runs ----------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch, finished):
    """A checkout of its own that reads the finished example run of this one."""
    root = project(tmp_path / "checkout", finished)
    monkeypatch.setenv("MEMECMD_ROOT", str(root))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    return root


def run_by_hand(notebook: nbformat.NotebookNode, checkout: Path) -> None:
    from nbclient import NotebookClient

    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": checkout}}
    ).execute()


@each_notebook
def test_every_solution_runs_after_the_last_cell(path: Path, checkout: Path) -> None:
    notebook = without_exercises(nbformat.from_dict(load(path)))
    if path.stem > "08b":  # `make reproduce` leaves 07b out, whose memes 08b reads
        memes = load(path.with_stem("07b_templates_with_data"))
        run_by_hand(without_exercises(nbformat.from_dict(memes)), checkout)
    unsolved, solved = [], []
    for exercise in exercises(load(path)):
        if not exercise.code:
            continue
        solved.append((exercise, new_code_cell(exercise.code)))
        notebook.cells.append(solved[-1][1])
        if exercise.task:
            unsolved.append(new_code_cell(exercise.task, metadata={"tags": ["raises-exception"]}))
            notebook.cells.insert(-1, unsolved[-1])
            # An assert that fails ends the run.
            notebook.cells.append(new_code_cell(checks(exercise.task)))
    run_by_hand(notebook, checkout)
    for cell in unsolved:
        kinds = [output.output_type for output in cell.outputs]
        assert "error" in kinds, f"solved before anybody wrote a line: {cell.source[:60]}"
    assert [cell.source for one, cell in solved if not one.task and not cell.outputs] == [], "shows nothing"
    for exercise, cell in solved if path in LESSONS else ():
        told = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
        assert told.strip("\n") == exercise.printed, f"exercise {exercise.number} prints something else"
