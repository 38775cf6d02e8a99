"""The runner is strict where papermill is not: most failures here pass papermill in silence."""

import io
import os

import nbformat
import pytest

from memecmd_utils.ops import runner
from memecmd_utils.ops.runner import NotebookFailed, run_notebook


def notebook(path, *cells, parameters="seed: int = 13  # the run's seed"):
    made = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    first = nbformat.v4.new_code_cell(parameters)
    first.metadata.tags = ["parameters"]
    made.cells = [first, *(nbformat.v4.new_code_cell(source) for source in cells)]
    nbformat.write(made, path)
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out" / "made.ipynb"


def run(source, out, parameters=None, timeout=60):
    return run_notebook(source, out, parameters, cell_timeout=timeout)


def test_a_good_notebook_leaves_a_copy_and_a_page_without_times(tmp_path, out):
    source = notebook(tmp_path / "made.ipynb", "print('seed is', seed)")
    run(source, out, {"seed": 7})
    text = out.read_text(encoding="utf-8")
    assert "seed is 7" in text and "seed is 7" in out.with_suffix(".html").read_text(encoding="utf-8")
    assert "start_time" not in text and "iopub" not in text
    assert [p.name for p in sorted(out.parent.iterdir())] == ["lessons.html", "made.html", "made.ipynb"]


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path, out):
    source = notebook(tmp_path / "made.ipynb", f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(NotebookFailed, match="unknown parameter 'sed'; made takes: seed"):
        run(source, out, {"sed": 7})
    assert not out.exists() and not (tmp_path / "ran").exists()


def test_a_cell_that_raises_names_cell_and_error_and_keeps_what_ran(tmp_path, out):
    source = notebook(tmp_path / "made.ipynb", "1 / 0", "print('never')")
    out.parent.mkdir()
    out.write_text("old", encoding="utf-8")
    with pytest.raises(NotebookFailed, match=r"cell \d+ raised ZeroDivisionError"):
        run(source, out)
    assert out.read_text(encoding="utf-8") == "old" and out.with_name("made.failed.ipynb").exists()


MENDABLE = """
from memecmd_utils.core.errors import MemecmdError
class Missing(MemecmdError, RuntimeError): pass
def inner(): raise Missing("give the file")
inner()
"""


@pytest.mark.parametrize(
    ("cell", "says", "traceback"),
    [
        (MENDABLE, "raised Missing: give the file", False),
        (f"%xmode Verbose\n{MENDABLE}", "raised Missing: give the file", True),
        ("open('/proc/none/x', 'w')", "No such file or directory: '/proc/none/x'", False),
        ("def inner(): return 1 / 0\ninner()", "raised ZeroDivisionError: division by zero", True),
    ],
)
def test_only_a_bug_shows_its_traceback(cell, says, traceback, tmp_path, out):
    with pytest.raises(NotebookFailed) as caught:
        run(notebook(tmp_path / "made.ipynb", cell), out)
    told = str(caught.value)
    assert says in told.splitlines()[0]
    assert ("Traceback" in told, "inner()" in told, "\x1b" in told) == (traceback, traceback, False)
    if not traceback and says.startswith("raised"):
        left = out.with_name("made.failed.ipynb").read_text(encoding="utf-8")
        assert "Missing: give the file" in left and "Traceback" not in left


@pytest.mark.parametrize("short", [runner.__dict__.get("SHORT_FOLDERS", ()), ()], ids=["short", "none"])
def test_a_long_folder_for_temporary_files_is_no_obstacle(short, tmp_path, out, monkeypatch):
    """A socket's path has about a hundred bytes, which such a folder alone may fill."""
    long = tmp_path / ("t" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setattr(runner, "SHORT_FOLDERS", short, raising=False)
    run(notebook(tmp_path / "made.ipynb", "print('seed is', seed)"), out, {"seed": 7})
    assert "seed is 7" in out.read_text(encoding="utf-8") and list(long.iterdir()) == []


def test_sys_exit_zero_is_not_success(tmp_path, out):
    source = notebook(tmp_path / "made.ipynb", "import sys; sys.exit(0)", "print('never ran')")
    with pytest.raises(NotebookFailed):
        run(source, out)
    assert not out.exists()


def test_a_kernel_that_dies_says_the_last_thing_it_printed(tmp_path, out, capfd):
    words = "import os; os.write(2, b'no memory left\\n'); os._exit(1)"
    with pytest.raises(NotebookFailed, match=r"kernel died \(see .*made.failed.ipynb\)\n  no memory left$"):
        run(notebook(tmp_path / "made.ipynb", words), out)
    assert "no memory" not in capfd.readouterr().err, "told once"
    assert [p.name for p in out.parent.iterdir()] == ["made.failed.ipynb"]


def test_a_kernel_that_does_not_start_says_why(tmp_path, out, monkeypatch):
    (tmp_path / "ipykernel_launcher.py").write_text(
        "raise SystemExit('half an installation')", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NotebookFailed, match=r"^made: Kernel died before .*\n  half an installation$"):
        run(notebook(tmp_path / "made.ipynb", "print('never ran')"), out)
    assert list(out.parent.iterdir()) == []


def test_a_time_out_fails_though_papermill_would_save_completed(tmp_path, out):
    source = notebook(tmp_path / "made.ipynb", "import time; time.sleep(60)")
    with pytest.raises(NotebookFailed, match="longer than 2 s"):
        run(source, out, timeout=2)
    assert not out.exists()


def test_check_complete_finds_a_cell_that_never_ran():
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1")])
    with pytest.raises(NotebookFailed, match="cell 0 never ran"):
        runner.check_complete(made, "made")


def test_the_live_line_of_a_kernel_reaches_the_terminal(tmp_path, out):
    """What a long loop writes to the status file is printed while the notebook runs, and at its end."""
    cell = (
        "import os, pathlib\nfrom memecmd_utils.llm.chat import duration\n"
        "line = f'turns 3/9 · {duration(7500)} left'\n"
        "pathlib.Path(os.environ['MEMECMD_STATUS']).write_text(line, encoding='utf-8')"
    )
    shown = io.StringIO()
    run_notebook(notebook(tmp_path / "made.ipynb", cell), out, status=shown)
    assert shown.getvalue() == "made: turns 3/9 · 2 h 05 min left\n"
    assert "MEMECMD_STATUS" not in os.environ
