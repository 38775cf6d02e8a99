"""Only notebooks that are out of date run; they become pages, and a site that needs no network."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import browser
import made_up
import nbformat
import pytest

from memecmd_utils import benchmark, files, run_notebook, runs
from memecmd_utils.files import TERMINAL_VARIABLE, paths
from memecmd_utils.run_notebook import NotebookFailed
from memecmd_utils.runs import STAGES, Stage
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
    """A run of three made-up notebooks: `two` and `three` follow `one`."""
    monkeypatch.setattr(paths, "notebooks", tmp_path / "notebooks")
    paths.notebooks.mkdir()
    made = {"one": Stage((), ("memes.parquet",)), "two": Stage(("one",)), "three": Stage(("one",))}
    monkeypatch.setattr(run_notebook, "STAGES", made)
    run_notebook.lessons.cache_clear()
    for name in made:
        notebook(name, "from memecmd_utils import schemas\nprint(run_name)")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "memes.parquet").touch()
    run = runs.Run("made", load_profile("example"), tmp_path / "run", tmp_path / "report")
    (run.folder / "profile.yaml").touch()
    run_notebook.note_inputs(run)
    yield run
    run_notebook.lessons.cache_clear()


def test_all_notebooks_are_stages_and_follow_what_they_read() -> None:
    assert sorted(STAGES) == sorted(path.stem for path in paths.notebooks.glob("*.ipynb"))
    order = list(STAGES)
    assert all(order.index(other) < order.index(name) for name in STAGES for other in STAGES[name].after)


def test_what_is_older_than_what_it_reads_runs_again_and_nothing_else(run: runs.Run) -> None:
    assert run_notebook.out_of_date(run) == ["one", "two", "three"]
    run_notebook.run_stages(run, ["one", "two", "three"], PARAMETERS)
    assert run_notebook.out_of_date(run) == []
    (run.folder / "memes.parquet").rename(run.folder / "moved")
    assert run_notebook.out_of_date(run) == ["one", "two", "three"], "what it wrote is gone"
    (run.folder / "moved").rename(run.folder / "memes.parquet")
    executed = nbformat.read(run.report / "two.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "made\n" and "papermill" not in executed.metadata
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
    order: list[str] = []

    def second() -> None:
        with run_notebook.held(tmp_path / "run"):
            order.append("second")

    with run_notebook.held(tmp_path / "run"):
        other = threading.Thread(target=second)
        other.start()
        shown = ""
        while "waiting" not in shown:
            shown += capsys.readouterr().err
        order.append("first")
    other.join(timeout=60)
    assert shown.startswith("run run is being made by another process") and order == ["first", "second"]


# --- The site


def licensed(licence: str) -> Meme:
    return made_up.meme("m1").model_copy(update={"licence": licence})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site of a made-up run with one lesson; all documents and the other lessons are the project's."""
    made = tmp_path_factory.mktemp("site")
    folder, release = made / "a run", made / "processed/a run/release"
    for path in (folder / "tables", folder / "figures", release):
        path.mkdir(parents=True)
    for name in ("chat", "fig3_scores"):
        (folder / "figures" / f"{name}.png").write_bytes(b"png")
    run_notebook.lessons.cache_clear()
    card = "---\nlanguage: [zh]\n---\n# The card\n\n[Licence](LICENSE.md)\n\n## What is in it\n\n聊天记录\n"
    card += "\n| a | b |\n|---|---|\n| one cell | another |\n"
    (release / "README.md").write_text(card, encoding="utf-8")
    (release / "LICENSE.md").write_text("# Licence\n", encoding="utf-8")
    files.write_parquet(release.parent / "memes.parquet", [licensed("CC BY-SA 4.0")], Meme)
    row = {"system": "popular", "kind": "package", "turns": 9, "dialogues": 3, "split": "untouched"}
    shares = ("rate", "specificity", "ungraded", "judged@5", benchmark.GRADED, benchmark.BY_CHANCE)
    row |= dict.fromkeys(shares, 0.25) | {"p Holm": None, "above chance": "no"}
    estimate = {"kind": "measure", "value": 0.25, "low": 0.2, "high": 0.3}
    nothing = {**estimate, "value": None}
    row |= {"nDCG@5": estimate, "difference": nothing, benchmark.NET: nothing, "lands": nothing}
    rows = [row, {"system": "a row of an earlier version"}]
    (folder / "leaderboard.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    links = ["04_retrieval.html", "../processed/a%20run/release/", "gone.html", "../../../etc/passwd"]
    policy = "default-src 'none'; img-src data: 'self' file:; style-src 'unsafe-inline'; form-action 'none'"
    page = (
        "<!doctype html><html><head><title>Run &amp; all</title>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"></head><body class="run"><h1>Run</h1>'
        + "".join(f'<a href="{link}">there</a>' for link in [*links, "https://arxiv.org/x#y"])
        + "".join(f'<img src="data:image/{kind};base64,/9j+" alt="a {kind}">' for kind in ("webp", "png"))
        + '<img src="figures/chat.png" alt="a chat"><img src="figures/fig3_scores.png" alt="a chart">'
        + "</body></html>"
    )
    (folder / "04_retrieval.ipynb").write_bytes((paths.notebooks / "04_retrieval.ipynb").read_bytes())
    run_notebook.write_page(folder / "04_retrieval.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "processed", made / "processed")
        patch.setattr(files, "git", lambda *_: "https://me:secret@host.example/x.git")
        with pytest.raises(runs.StageMissing, match="make reproduce"):
            run_notebook.build_site(folder)
        (folder / "index.html").write_text(page, encoding="utf-8")
        yield run_notebook.build_site(folder)


@pytest.mark.slow
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
            if anchor and (to or name) in pages:
                assert f'id="{anchor}"' in pages[to or name], f"{name} leads to {link}"
            todo += [to] if to in pages else []
        assert name == "index.html" or 'href="#"' not in text.partition("</nav>")[2], name
    assert reached == pages.keys()
    index, card = pages["index.html"], pages["release-README.html"]
    assert index.count("<a>there</a>") == 2 and "passwd" not in index
    assert 'href="release.zip"' in card and "language: [zh]" not in card
    assert "This lesson has not run here" in pages["notebooks-07_template_memes.html"]
    bar = index.partition("</nav>")[0]
    assert all(f'href="{page}.html"' in bar for page in ("README", "README.zh-CN", "reports-README"))
    assert 'href="https://host.example/x.git"' in bar and "secret" not in index
    listed = pages["lessons.html"]
    assert "</a></b><p>" in listed and "](http" not in listed, "what a lesson asks is Markdown"
    lesson = pages["04_retrieval.html"]
    assert "Your turn:" in lesson and "<math" in lesson, "an exercise is text, a formula MathML"
    assert "leave them as they are" not in lesson and "# a profile in data/profiles" not in lesson
    first = [lesson.index(words) for words in ("<h1", "<p>Which meme fits", "What it reads and writes")]
    assert first == sorted(first), "a lesson begins with title, question and idea"


@pytest.mark.slow
def test_memes_without_a_licence_stay_out_of_a_site(site: Path, tmp_path, monkeypatch, capsys) -> None:
    shutil.copytree(site.parents[1], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    folder, memes = tmp_path / site.parent.name, [licensed(""), licensed("CC BY-SA 4.0")]
    files.write_parquet(paths.processed / folder.name / "memes.parquet", memes, Meme)
    shown = {}
    for pictures in (False, True):
        capsys.readouterr()
        made = run_notebook.build_site(folder, pictures)
        shown[pictures] = (made / "index.html").read_text(encoding="utf-8")
        assert (made / "figures-chat.png").is_file() == pictures and (
            made / "figures-fig3_scores.png"
        ).is_file()
        said = capsys.readouterr().out
        assert pictures == (not said) and (
            pictures or said.startswith("1 of 2 memes have no licence, so the")
        )
    assert 'src="data:," alt="a webp"' in shown[False] and "image/png;base64,/9j+" in shown[False]
    assert shown[True] == (site / "index.html").read_text(encoding="utf-8")


def test_a_site_is_searched_as_one_types_in_both_languages_without_a_network(
    site: Path, open_browser
) -> None:
    with open_browser(390, 844) as driver:
        driver.get((site / "index.html").as_uri())
        driver.find_element("css selector", ".site-search").click()
        field = driver.switch_to.active_element  # one can type at once
        for words, page in (("nDCG", "GLOSSARY"), ("聊天记录", "release-README"), ("阈值", "GLOSSARY")):
            field.clear()
            field.send_keys(words)
            found = driver.execute_script(
                "return [...document.querySelectorAll('#found a')].map(a => a.href)"
            )
            assert any(page in link for link in found), words
        field.clear()
        field.send_keys("one cell")  # of a table: the next cell's words are not glued to it
        assert "one cell another" in driver.find_element("id", "found").text
        assert quote("one cell") in driver.current_url, "the way back from a page leads to what was found"
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("dark", ["light", "dark"])
def test_pages_are_light_or_dark_as_the_reader_wants(site: Path, dark: str, open_browser) -> None:
    with open_browser(1280, 900) as driver:
        wanted = {"features": [{"name": "prefers-color-scheme", "value": dark}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        for page in ("04_retrieval.html", "leaderboard.html", "README.html"):
            driver.get((site / page).as_uri())
            script = "return ['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])"
            lights = [
                sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in driver.execute_script(script)
            ]
            assert (lights[0] < lights[1]) == (dark == "dark") and abs(lights[0] - lights[1]) > 400, page


def test_markdown_shows_a_graph_as_lines_and_a_formula_as_mathml() -> None:
    graph = "```mermaid\nflowchart LR\n  A[A <cat>] --> B{Is it?}\n  B -->|yes| C[Send]\n```"
    html = run_notebook.markdown()(f"# A *head*\n\n$x$\n\n{graph}")
    assert "<li>A &lt;cat&gt; → Is it?</li>" in html and "<li>Is it? → yes: Send</li>" in html
    assert '<h1 id="a-head">' in html and "<math" in html and "flowchart" not in html


def test_formulas_exercises_and_tables_fit_on_a_phone(site: Path, open_browser) -> None:
    wider = (
        "return [...document.querySelectorAll(arguments[0])].filter(m => m.scrollWidth > m.clientWidth + 1)"
    )
    with open_browser() as driver:
        assert browser.on_a_phone(driver, (site / "04_retrieval.html").as_uri()) <= 0
        assert not driver.execute_script(f"{wider}.length", "math[display=block], .jp-RenderedMarkdown pre")
        assert browser.on_a_phone(driver, (site / "leaderboard.html").as_uri()) <= 0
        widths = "return [...document.querySelectorAll('td:first-child')].map(cell => cell.clientWidth)"
        assert min(driver.execute_script(widths)) > 50, "a name is no column of letters"
