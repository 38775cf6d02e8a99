import re
import tomllib

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from memecmd_utils.files import paths

PROJECT = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]


def extra(name: str) -> list[Requirement]:
    """What an extra asks for; an extra of ours that it names stands for what that one asks for."""
    found = []
    for wanted in map(Requirement, PROJECT["optional-dependencies"][name]):
        own = wanted.name == PROJECT["name"]
        found += [inner for other in sorted(wanted.extras) for inner in extra(other)] if own else [wanted]
    return found


DEV = extra("dev")


def locked() -> list[tuple[Requirement, int]]:
    """Every entry of the lock with its number of hashes."""
    text = (paths.root / "requirements.lock").read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    lines = [line for line in text.split("\n") if line.strip()]
    return [(Requirement(line.split("--hash")[0].strip()), line.count("--hash=sha256:")) for line in lines]


LOCK = locked()


def test_conda_gets_the_lock_and_no_second_list() -> None:
    environment = yaml.safe_load((paths.root / "environment.yml").read_text(encoding="utf-8"))
    assert environment["dependencies"] == ["python>=3.11", "pip", {"pip": ["-r requirements.lock"]}]


def test_makefile_asks_for_the_same_python() -> None:
    version = tuple(map(int, re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"]).groups()))
    makefile = (paths.root / "Makefile").read_text(encoding="utf-8")
    assert f"sys.version_info < {version}" in makefile
    assert f"--python-version {version[0]}.{version[1]} " in makefile


def test_every_entry_of_the_lock_is_pinned_and_hashed() -> None:
    assert len(LOCK) > 50
    assert [str(r) for r, hashes in LOCK if not hashes] == []
    assert [str(r) for r, _ in LOCK if not re.fullmatch(r"==[^,*]+", str(r.specifier))] == []


def test_the_lock_names_no_index() -> None:
    text = (paths.root / "requirements.lock").read_text(encoding="utf-8")
    assert (
        re.findall(r"^\s*(?:-i|--index-url|--extra-index-url|--find-links|-e)\b.*|https?://\S+", text, re.M)
        == []
    )


def test_the_lock_satisfies_the_project() -> None:
    for wanted in (*CORE, *DEV):
        found = [r for r, _ in LOCK if canonicalize_name(r.name) == canonicalize_name(wanted.name)]
        assert found, f"{wanted.name} is not in requirements.lock: `make lock`"
        for entry in found:
            version = str(entry.specifier).removeprefix("==")
            assert wanted.specifier.contains(version, prereleases=True), f"{entry} against {wanted}"


@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_one_version_of_each_on_every_python(python: str, system: str) -> None:
    here = default_environment() | {
        "python_version": python,
        "python_full_version": f"{python}.4",
        "sys_platform": system,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[system],
        "os_name": "posix",
    }
    names = [canonicalize_name(r.name) for r, _ in LOCK if r.marker is None or r.marker.evaluate(here)]
    assert sorted(names) == sorted(set(names))
    wanted = [r for r in (*CORE, *DEV) if r.marker is None or r.marker.evaluate(here)]
    assert {canonicalize_name(r.name) for r in wanted} <= set(names)


def test_optional_engines_stay_out_of_the_lock() -> None:
    names = {canonicalize_name(r.name) for r, _ in LOCK}
    assert not names & {"torch", "torchvision", "sentence-transformers", "cn-clip", "xllamacpp"}
