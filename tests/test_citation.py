"""What is said of all files: one version, a licence each, one lock, one place for a copy's addresses."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import citation
import pytest
import yaml

from memecmd_utils import __version__
from memecmd_utils.files import paths

CFF = citation.cited()
HOSTED = {
    "repository-code": "https://github.com/someone/memes.git",
    "url": "https://someone.example/memes/",
    "doi": "10.1234/abc.5",
}


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


def test_the_lock_leaves_optional_engines_out_and_names_no_index_and_conda_gets_it_too() -> None:
    lock = read("requirements.lock")
    assert not re.search(r"^(torch|torchvision|sentence-transformers|xllamacpp)==", lock, re.M)
    assert not re.search(r"^\s*(?:-i|--index-url|--extra-index-url|--find-links|-e)\b|https?://", lock, re.M)
    environment = yaml.safe_load(read("environment.yml"))
    assert environment["dependencies"] == ["python>=3.11", "pip", {"pip": ["-r requirements.lock"]}]
    assert tomllib.loads(read("pyproject.toml"))["project"]["requires-python"] == ">=3.11"
    makefile = read("Makefile")
    assert "sys.version_info < (3, 11)" in makefile and "--python-version 3.11 " in makefile
