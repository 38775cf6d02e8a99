"""Checks of the machine: what works, what is missing, and the command that mends it."""

import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from memecmd_utils import freeze, local_llm, paths, readiness
from memecmd_utils.profiles import ProfileError, load_profile, parse_settings


class Check(NamedTuple):
    """One line: `ok`, `info` (optional and absent) or `fail`."""

    state: str
    text: str


def checks(profile_name: str, settings: str) -> Iterator[Check]:
    """Yield all checks for a profile."""
    version = platform.python_version()
    yield Check("ok" if sys.version_info >= (3, 11) else "fail", f"Python {version} (3.11 or later)")
    missing = [name for name in _core_requirements() if not _installed(name)]
    if missing:
        yield Check("fail", f"packages missing: {', '.join(missing)}; delete .venv and run make again")
    else:
        yield Check("ok", "all core packages installed")
    try:
        from memecmd_utils import fonts

        yield Check("ok", f"Chinese font: {fonts.cjk_font_path().name}")
    except Exception as error:
        yield Check("fail", f"no Chinese font: {error}")
    changed = freeze.changed_texts()
    text = (
        f"example texts differ from their frozen hashes: {', '.join(changed)}"
        if changed
        else "example texts as frozen"
    )
    yield Check("fail" if changed else "ok", text)
    free = shutil.disk_usage(paths.root).free / 1e9
    yield Check("ok" if free > 3 else "fail", f"{free:.0f} GB free (3 needed)")
    try:
        profile = load_profile(profile_name, parse_settings(settings))
    except ProfileError as error:
        yield Check("fail", str(error))
        return
    yield Check("ok", f"profile {profile.name}: llm={profile.llm}, mode={profile.mode}")
    live = profile.mode != "recorded"
    for model in readiness.local_models(profile):
        lacking = local_llm.missing(model)
        words = "; ".join(lacking) or "ready"
        if lacking and not live:
            words += " (needed for live runs only)"
        yield Check(
            "fail" if live and lacking else "info" if lacking else "ok", f"local model {model}: {words}"
        )
    missing = set()
    if profile.llm == "openai" or any(judge.llm == "openai" for judge in profile.judges):
        for name in sorted(_key_names(profile)):
            given = bool(os.environ.get(name))
            state = "ok" if given else "fail" if live else "info"
            missing |= {name} if state == "fail" else set()
            yield Check(state, f"key in ${name}: {'set' if given else 'not set'}")
    for lack in readiness.lacks(profile):
        if lack.kind == "other" or (lack.kind == "key" and not missing & set(lack.text.split())):
            yield Check("fail", lack.text)


def _key_names(profile) -> set[str]:
    endpoints = profile.endpoints
    named = [endpoints.generator, endpoints.annotator, *endpoints.judges]
    return {endpoint.key_env for endpoint in named if endpoint is not None}


def _core_requirements() -> list[str]:
    # A shared environment holds the packages and not this project, so its own file says what it needs.
    project = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in project["dependencies"]]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def report(profile_name: str, settings: str) -> tuple[str, bool]:
    """All checks as text, and whether none failed."""
    rows = list(checks(profile_name, settings))
    signs = {"ok": "[OK]  ", "info": "[--]  ", "fail": "[FAIL]"}
    return "\n".join(f"{signs[row.state]} {row.text}" for row in rows), all(r.state != "fail" for r in rows)
