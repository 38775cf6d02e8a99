"""The lock holds what the project asks for, conda gets the same lock, and torch stays out of it."""

import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from memecmd_utils.files import paths

PROJECT = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def wanted(texts: list[str]) -> list[Requirement]:
    """Requirements; an extra of ours stands for what it asks for."""
    found = []
    for requirement in map(Requirement, texts):
        own = requirement.name == PROJECT["name"]
        found += wanted([t for e in requirement.extras for t in EXTRAS[e]]) if own else [requirement]
    return found


def locked() -> dict[str, list[str]]:
    """Versions in the lock by name; of some there is one for each system."""
    text = (paths.root / "requirements.lock").read_text(encoding="utf-8")
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;\\]+)", text, re.M):
        versions.setdefault(canonicalize_name(name), []).append(version)
    return versions


def test_the_lock_satisfies_the_project_leaves_optional_engines_out_and_names_no_index() -> None:
    versions = locked()
    for requirement in wanted([*PROJECT["dependencies"], *EXTRAS["dev"]]):
        found = versions.get(canonicalize_name(requirement.name), [])
        assert found, f"{requirement.name} is not in requirements.lock: `make lock`"
        assert all(requirement.specifier.contains(version, prereleases=True) for version in found), found
    assert not {"torch", "torchvision", "sentence-transformers", "xllamacpp"} & versions.keys()
    text = (paths.root / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(?:-i|--index-url|--extra-index-url|--find-links|-e)\b|https?://", text, re.M)


def test_conda_gets_the_lock_and_the_makefile_asks_for_the_same_python() -> None:
    environment = yaml.safe_load((paths.root / "environment.yml").read_text(encoding="utf-8"))
    assert environment["dependencies"] == ["python>=3.11", "pip", {"pip": ["-r requirements.lock"]}]
    version = tuple(map(int, re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"]).groups()))
    makefile = (paths.root / "Makefile").read_text(encoding="utf-8")
    assert f"sys.version_info < {version}" in makefile
    assert f"--python-version {version[0]}.{version[1]} " in makefile
