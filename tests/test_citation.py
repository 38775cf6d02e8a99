"""What is said of all files: one version, a licence each, and one place for a hosted copy's addresses."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import citation
import pytest

from memecmd_utils import __version__
from memecmd_utils.files import paths

CFF = citation.cited()
HOSTED = {
    "repository-code": "https://github.com/someone/memes.git",
    "url": "https://someone.example/memes/",
    "doi": "10.1234/abc.5",
}
PLACEHOLDER = re.compile(
    r"<(?:this|your|the) [\w -]+>|<(?:owner|org|user|username|repo|repository|url|doi)>|<本[^<>\n]{1,12}>"
    r"|github\.com/(?:owner|org|user|username|you|your[\w-]*|example)\b|10\.5281/zenodo\.(?:x+|0+)\b",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=paths.root, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    return [name for name in listed.stdout.split("\0") if (paths.root / name).is_file()]


def read(name: str) -> str:
    return (paths.root / name).read_text(encoding="utf-8")


def test_every_file_that_names_the_version_names_the_same() -> None:
    released = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", read("CHANGELOG.md"), re.M)
    named = {
        "pyproject.toml": tomllib.loads(read("pyproject.toml"))["project"]["version"],
        "CITATION.cff": CFF["version"],
        "CHANGELOG.md": released[1],
        **{name: json.loads(read(name))["version"] for name in (".zenodo.json", "codemeta.json")},
    }
    assert named == dict.fromkeys(named, __version__)
    assert CFF["date-released"] == released[2]


@pytest.mark.parametrize("name", [".zenodo.json", "codemeta.json", *citation.LINKS])
def test_what_repeats_the_citation_agrees_with_it(name: str) -> None:
    assert read(name) == citation.made(CFF)[name], "run `make refresh-tracked`"


def test_a_hosted_copy_fills_in_its_addresses_in_one_place() -> None:
    bare = {key: value for key, value in CFF.items() if key not in HOSTED}
    found = citation.made({**bare, **HOSTED})
    for name in citation.LINKS:
        links, clone = re.findall(r"<!-- hosted: \w+ -->\n(.*?)<!-- end -->", found[name], re.DOTALL)
        assert clone == "```sh\ngit clone https://github.com/someone/memes.git memecmd && cd memecmd\n```\n"
        assert re.findall(r"\]\((.*?)\)", links) == [
            HOSTED["url"], "https://codespaces.new/someone/memes", "https://doi.org/10.1234/abc.5",
        ]  # fmt: skip
        assert "hosted: " in found[name] and "git clone" not in citation.made(bare)[name]
    codemeta = json.loads(found["codemeta.json"])
    assert [codemeta[key] for key in ("codeRepository", "url", "identifier")] == [*HOSTED.values()]


def test_nothing_holds_a_placeholder(tracked_files: list[str]) -> None:
    for kind in ("<this repository>", "<本仓库>", "github.com/OWNER/x", "10.5281/zenodo.XXXXXXX"):
        assert PLACEHOLDER.search(kind), kind
    texts = [name for name in tracked_files if Path(name).suffix in {
        ".md", ".toml", ".yml", ".yaml", ".json", ".cff", ".py", ".j2", ".ipynb"
    } and name != "tests/test_citation.py"]  # fmt: skip
    assert [(name, found[0]) for name in texts for found in PLACEHOLDER.finditer(read(name))] == []


def test_graders_and_markers_are_called_runs_of_one_model(tracked_files: list[str]) -> None:
    """They are no two models; plans stay as they were written."""
    wrong = re.compile(
        r"two LLM|LLM graders|sessions? of (?:a|one|the same) |两个大语言模型|模型的(?:两个)?会话",
        re.IGNORECASE,
    )
    texts = [
        name
        for name in tracked_files
        if Path(name).suffix in {".md", ".j2", ".ipynb"} and "_PLAN" not in name
    ]
    assert wrong.search("Two LLM graders") and wrong.search("sessions of a large language model")
    assert [(name, found[0]) for name in texts for found in wrong.finditer(read(name))] == []


def licence_of(name: str, annotations: list[dict]) -> str:
    """The licence by REUSE.toml: of several entries the last one counts; `**` also crosses folders."""
    found = ""
    for entry in annotations:
        globs = [entry["path"]] if isinstance(entry["path"], str) else entry["path"]
        for glob in globs:
            pattern = re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
            found = entry["SPDX-License-Identifier"] if re.fullmatch(pattern, name) else found
    return found


def test_every_file_has_the_licence_of_its_kind_and_every_licence_its_text(tracked_files: list[str]) -> None:
    reuse = tomllib.loads(read("REUSE.toml"))
    given = {name: licence_of(name, reuse["annotations"]) for name in tracked_files}
    assert reuse["version"] == 1 and all(given.values())
    assert {path.stem for path in (paths.root / "LICENSES").iterdir()} == set(given.values())
    for name, licence in given.items():
        if Path(name).suffix in {".webp", ".png", ".gif", ".jpg"}:
            assert licence == "CC-BY-SA-4.0", name
        elif Path(name).suffix in {".woff", ".woff2", ".ttf", ".otf"}:
            assert licence not in ("MIT", "CC-BY-4.0"), name
        elif name.startswith(("data/example/", "data/live/")):
            assert licence == "CC-BY-4.0", name
        elif Path(name).suffix in {".py", ".j2", ".ipynb"}:
            assert licence == "MIT", name


def test_a_container_opens_the_lesson_that_the_readme_names_first() -> None:
    text = re.sub(r"^\s*//.*$", "", read(".devcontainer/devcontainer.json"), flags=re.M)
    container = json.loads(text)
    (lesson,) = container["customizations"]["codespaces"]["openFiles"]
    assert (paths.root / lesson).is_file() and f"begin with {Path(lesson).stem}" in read("README.md")
    made = re.search(r"^reproduce:", read("Makefile"), re.M)
    assert made and container["updateContentCommand"] == "make reproduce"
    python = tuple(map(int, re.search(r"python:(\d+)\.(\d+)", container["image"]).groups()))
    assert python >= (3, 11)
