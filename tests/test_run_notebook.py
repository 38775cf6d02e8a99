"""Only notebooks that are out of date run; they become pages, and a site that needs no network."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import made_up
import nbformat
import pytest

from memecmd_utils import files, run_notebook, runs
from memecmd_utils.files import TERMINAL_VARIABLE, paths
from memecmd_utils.run_notebook import NotebookFailed
from memecmd_utils.runs import Stage
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import Profile, load_profile

PARAMETERS = {"profile": "example", "settings": "", "run_name": "made"}


def notebook(name: str, *cells: str, parameters: str = 'profile = ""\nsettings = ""\nrun_name = ""') -> None:
    head = nbformat.v4.new_markdown_cell(f"# {name}\n\nWhat is asked?")
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    made = nbformat.v4.new_notebook(cells=[head, first, *map(nbformat.v4.new_code_cell, cells)])
    made.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(made, paths.notebooks / f"{name}.ipynb")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> runs.Run:
    """A run of three made-up notebooks: `two`, the longer one, and `three` follow `one`."""
    monkeypatch.setattr(paths, "notebooks", tmp_path / "notebooks")
    paths.notebooks.mkdir()
    made = {"one": Stage((), ("memes.parquet",)), "two": Stage(("one",)), "three": Stage(("one",))}
    monkeypatch.setattr(run_notebook, "STAGES", made)
    run_notebook.lessons.cache_clear()
    for name in made:
        pieces = "for part in run_name, '\\n':\n    print(part, end='', flush=True)\n    time.sleep(0.2)"
        notebook(name, f"import time\nfrom memecmd_utils import schemas\n{pieces}{'#' * (name == 'two') * 9}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "memes.parquet").touch()
    run = runs.Run("made", load_profile("example"), tmp_path / "run", tmp_path / "report")
    (run.folder / "profile.yaml").touch()
    run_notebook.note_inputs(run)
    yield run
    run_notebook.lessons.cache_clear()


def test_what_is_older_than_what_it_reads_runs_again_and_nothing_else(run: runs.Run) -> None:
    assert run_notebook.out_of_date(run) == ["one", "two", "three"]
    run_notebook.run_stages(run, ["one", "two", "three"], PARAMETERS)
    assert run_notebook.out_of_date(run) == []
    (run.folder / "memes.parquet").rename(run.folder / "moved")
    assert run_notebook.out_of_date(run) == ["one", "two", "three"], "what it wrote is gone"
    (run.folder / "moved").rename(run.folder / "memes.parquet")
    executed = nbformat.read(run.report / "two.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "made\n" and "papermill" not in executed.metadata
    assert len(executed.cells[-1].outputs) == 1, "what is printed in two pieces is one output"
    assert executed.cells[2].id == "injected-parameters", "a drawn id would make two equal runs differ"
    later = time.time() + 100
    os.utime(paths.notebooks / "two.ipynb", (later, later))
    assert run_notebook.out_of_date(run) == ["two"]
    os.utime(run.report / "one.ipynb", (later, later))
    assert run_notebook.out_of_date(run) == ["two", "three"], "a notebook before it ran anew"
    os.utime(run.folder / "profile.yaml", (later + 1, later + 1))
    assert run_notebook.out_of_date(run) == ["one", "two", "three"]
    page = (run.report / "two.html").read_text(encoding="utf-8")
    tags = [cell.metadata.get("tags", []) for cell in executed.cells]
    assert ["parameters"] in tags and ["injected-parameters"] in tags
    assert "# Parameters" in executed.cells[2].source and "# Parameters" not in page
    assert "What is asked?" in page and 'href="three.html"' in page.split("</nav>")[0]
    assert 'href="three.html"' in (run.report / "lessons.html").read_text(encoding="utf-8")


def test_stages_run_side_by_side_after_what_they_follow_and_say_how_far_they_are(run, monkeypatch, capsys):
    together = threading.Barrier(2, timeout=60)

    def kernel(run: runs.Run, name: str, parameters: dict) -> float:
        if name != "one":
            together.wait()
        with Path(os.environ[TERMINAL_VARIABLE]).open("a") as log:
            print(f"{name}: 3 of 24", file=log, flush=True)
        return 1.0

    monkeypatch.setattr(run_notebook, "run_notebook", kernel)
    monkeypatch.setattr(run_notebook, "write_page", lambda path: None)
    run_notebook.run_stages(run, ["one", "two", "three"], PARAMETERS)
    out, err = capsys.readouterr()
    assert out.splitlines()[:4] == ["one ...", "one done in 1 s", "two ...", "three ..."]
    assert sorted(err.splitlines()) == [f"{name}: 3 of 24" for name in ("one", "three", "two")]


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("1 / 0", "cell 3 raised ZeroDivisionError"),
        ('raise OSError(28, "No space left on device")', r"cell \d raised OSError: .*No space left"),
        ("import sys; sys.exit(0)", "never ran|kernel died|SystemExit"),
        ("import os; os._exit(1)", "kernel died"),
    ],
)
def test_a_notebook_that_does_not_end_well_fails(run: runs.Run, cell: str, why: str) -> None:
    notebook("one", cell, "1")
    with pytest.raises(NotebookFailed, match=why) as told:
        run_notebook.run_notebook(run, "one", PARAMETERS)
    assert ("Traceback" in str(told.value)) == ("ZeroDivision" in why), "a full disk is told without one"
    left = run.report / "one.failed.ipynb"
    assert not (run.report / "one.ipynb").exists() and left.exists() == ("died" not in str(told.value))
    notebook("one", "1", parameters="profile = 1")
    with pytest.raises(NotebookFailed, match="no parameter 'run_name'"):
        run_notebook.run_notebook(run, "one", PARAMETERS)


def test_a_kernel_that_dies_is_started_again_once(run: runs.Run, tmp_path, monkeypatch, capfd) -> None:
    """As where another program takes one of its ports before it binds them, here three times."""
    script = f'echo >> {tmp_path}/starts; [ $(wc -l < {tmp_path}/starts) -gt 3 ] || exit 1; exec "$@"'
    kernel = f"{sys.executable} -m ipykernel_launcher -f {{connection_file}}"
    argv = ["/bin/sh", "-c", script, "sh", *kernel.split()]
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": argv, "display_name": "dies", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    notebook("one", "1")
    with pytest.raises(NotebookFailed, match="one: the kernel died twice"):
        run_notebook.run_notebook(run, "one", PARAMETERS)
    assert not (run.report / "one.ipynb").exists()
    run_notebook.run_notebook(run, "one", PARAMETERS)
    assert capfd.readouterr().out == "one: the kernel died; it is started again\n" * 2
    assert (run.report / "one.ipynb").exists()


def test_a_run_ends_where_its_kernel_is_dead_and_nobody_notices(run: runs.Run) -> None:
    code = (
        "import subprocess, time\nfrom memecmd_utils import run_notebook, runs\n"
        "run_notebook.WATCH_S = 0.2\n"
        "def forgets(*_):\n    child = subprocess.Popen(['true'])\n    time.sleep(600)\n"
        "run_notebook.run_notebook = forgets\n"
        "run_notebook.run_stages(runs.open_run('example'), ['01_library_build'], {})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "error: a kernel died (01_library_build): run again\n")


READ = ("html/page.css.j2", "prompts/a.j2", "llm/chat.py")
LEFT_OUT = ("__pycache__/chat.cpython-311.pyc", ".ipynb_checkpoints/a.py", "llm/chat.py~")
DATA = ("local_models.yaml", "example/recordings/a.jsonl.gz")
NO_DATA = ("profiles/other.yaml", "raw/a/b", "processed/other/memes.parquet", ".DS_Store")


def test_the_newest_file_is_one_of_the_package_or_its_data(tmp_path: Path, monkeypatch) -> None:
    """Whatever a stage may read counts; what runs, users, Python and editors write beside it does not."""
    monkeypatch.setattr(run_notebook, "__file__", str(tmp_path / "memecmd_utils" / "run_notebook.py"))
    for name in ("data", "raw", "interim", "processed", "profiles"):
        monkeypatch.setattr(paths, name, tmp_path / "data" / (name if name != "data" else ""))
    files = [tmp_path / "memecmd_utils" / name for name in (*READ, *LEFT_OUT)]
    files += [tmp_path / "data" / name for name in (*DATA, *NO_DATA)]
    (tmp_path / "data").mkdir()
    for time_ns, file in enumerate(files, start=1):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, ns=(time_ns, time_ns))
        newest = max(n for n, f in enumerate(files[:time_ns], 1) if str(f).endswith((*READ, *DATA)))
        assert run_notebook.newest_file() == newest, file


def test_new_pictures_and_ratings_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    profile = Profile(name="mine", library={"sources": [str(pictures)]})
    assert run_notebook.outside_inputs(profile) == {}
    (pictures / "a.png").write_bytes(b"one")
    one = run_notebook.outside_inputs(profile)
    (pictures / "b.png").write_bytes(b"two")
    ratings = paths.raw / "ratings" / "mine" / "r.csv"
    ratings.parent.mkdir(parents=True)
    ratings.write_text("x", encoding="utf-8")
    two = run_notebook.outside_inputs(profile)
    assert one[str(pictures)][:2] == [1, 3] and two[str(pictures)][:2] == [2, 6] and len(two) == 2


def test_a_second_process_says_that_it_waits_and_then_goes_on(tmp_path: Path, capsys) -> None:
    order, taken = [], threading.Event()

    def first() -> None:
        with run_notebook.held(tmp_path / "run"):
            taken.set()
            time.sleep(0.5)
            order.append("first")

    threading.Thread(target=first).start()
    taken.wait(timeout=60)
    with run_notebook.held(tmp_path / "run"):
        assert order == ["first"]
    assert capsys.readouterr().err.startswith("run run is being made by another process")


# --- The site


def test_a_site_leaves_out_what_is_not_the_project_s_and_memes_without_a_licence(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(paths, "root", tmp_path)  # no documents are there
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    monkeypatch.setattr(files, "git", lambda *_: "https://me:secret@host.example/x.git")
    folder, release = tmp_path / "a run", tmp_path / "processed" / "a run" / "release"
    for path in (folder / "tables", folder / "figures", release):
        path.mkdir(parents=True)
    memes = [made_up.meme("m1", licence) for licence in ("", "CC BY-SA 4.0")]
    files.write_parquet(release.parent / "memes.parquet", memes, Meme)
    files.write_text(release / "README.md", "---\nlanguage: [zh]\n---\n# The card\n")
    files.write_text(folder / "leaderboard.json", '{"rows": [{"system": "of an earlier version"}]}')
    with pytest.raises(runs.StageMissing, match="make reproduce"):
        run_notebook.build_site(folder)
    links = ["../processed/a%20run/release/", "gone.html", "../../../etc/passwd", "https://arxiv.org/x#y"]
    shown = [f'<a href="{link}">x</a>' for link in links]
    shown += [f'<img src="data:image/{kind};base64,/9j+">' for kind in ("webp", "png")]
    for name in ("chat", "fig3_scores"):
        (folder / "figures" / f"{name}.png").write_bytes(b"png")
        shown.append(f'<img src="figures/{name}.png">')
    files.write_text(folder / "index.html", f"<html><title>Run</title><body>{''.join(shown)}</body></html>")
    for pictures in (False, True):
        site = run_notebook.build_site(folder, pictures)
        index = (site / "index.html").read_text(encoding="utf-8")
        led = '<a href="release-README.html">x</a><a>x</a><a>x</a><a href="https://arxiv.org/x#y">'
        assert led in index and 'href="https://host.example/x.git"' in index and "secret" not in index
        assert (site / "figures-chat.png").is_file() == ("data:image/webp" in index) == pictures
        assert (site / "figures-fig3_scores.png").is_file() and "data:image/png;base64,/9j+" in index
    card = (site / "release-README.html").read_text(encoding="utf-8")
    assert 'href="release.zip"' in card and "language: [zh]" not in card and "The card" in card


def test_markdown_shows_a_heading_with_an_anchor_and_a_formula_as_mathml() -> None:
    html = run_notebook.markdown()("# A *head*\n\n$x$")
    assert '<h1 id="a-head">' in html and "<math" in html
