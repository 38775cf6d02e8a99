"""What this machine lacks for a profile, and the command that mends it. Nothing is loaded, fetched or asked.

A stage names a missing folder or file itself before its first call; here stands what would be found out only
after something was paid: keys, models, prices and weights.
"""

import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import NamedTuple

from memecmd_utils import drawing, models, runs
from memecmd_utils import local_model as local
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import authored
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend, api_key
from memecmd_utils.settings import Profile, ProfileError, load_profile, parse_settings


class NotReady(MemecmdError, RuntimeError):
    """Something that a later stage needs is missing; the message names all of it, each with what to do."""


class Check(NamedTuple):
    """One line: `ok`, `info` (optional and absent) or `fail`."""

    state: str
    text: str


def models_asked(profile: Profile, templates: bool = False) -> list[tuple[runs.Role, int, str]]:
    """Who is asked: role, number and kind of model. `make templates` asks the annotator and nobody else."""
    asked: list[tuple[runs.Role, int, str]] = []
    if profile.models.llm != "authored":
        asked += [("generator", 0, profile.models.llm), ("annotator", 0, profile.models.llm)]
    asked += [("judge", number, judge.llm) for number, judge in enumerate(profile.evaluation.judges)]
    return [one for one in asked if one[0] == "annotator" or not templates]


def local_models(profile: Profile, templates: bool = False) -> list[str]:
    """Names of the local models that are asked, each once."""
    judges = profile.evaluation.judges
    own = [
        judges[number].local_model if role == "judge" else None
        for role, number, llm in models_asked(profile, templates)
        if llm == "local"
    ]
    return list(dict.fromkeys(name or profile.models.local_model for name in own))


def lacks(profile: Profile, templates: bool = False) -> list[str]:
    """All that is missing and what to do about it, each thing once; a replay needs nothing."""
    if profile.models.mode == "recorded":
        return []
    missing = []
    run = runs.Run(profile.name, profile, paths.processed, paths.reports)
    asked = [
        (run.endpoint(role, number), False)
        for role, number, llm in models_asked(profile, templates)
        if llm == "openai"
    ]
    if profile.models.embedder == "endpoint" and profile.models.endpoints.embedder:
        asked.append((profile.models.endpoints.embedder, True))
    for endpoint, reads_only in asked:
        price = partial(models.prices, profile=profile, reads_only=reads_only)
        for look in (partial(OpenAIBackend, key=NO_KEY), api_key, price):
            try:
                look(endpoint)
            except MemecmdError as error:
                missing.append(str(error))
    for model in local_models(profile, templates):
        missing += local.missing(model)
    return list(dict.fromkeys(missing))


def check(profile: Profile, templates: bool = False) -> None:
    """Raise `NotReady` where anything is missing for `make reproduce`, or for `make templates`."""
    if missing := lacks(profile, templates):
        head = [f"{len(missing)} things are missing:"] if len(missing) > 1 else []
        raise NotReady("\n- ".join(head + missing))


def checks(profile_name: str, settings: str) -> Iterator[Check]:
    """Yield all checks of this machine for a profile."""
    version = platform.python_version()
    yield Check("ok" if sys.version_info >= (3, 11) else "fail", f"Python {version} (3.11 or later)")
    project = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in project["dependencies"]]
    missing = [name for name in needed if not _installed(name)]
    if missing:
        yield Check("fail", f"packages missing: {', '.join(missing)}; delete .venv and run make again")
    else:
        yield Check("ok", "all core packages installed")
    yield Check("ok", f"Chinese font: {drawing.cjk_font_path().name}")
    if changed := authored.changed_texts():
        yield Check("fail", f"example texts differ from their frozen hashes: {', '.join(changed)}")
    else:
        yield Check("ok", "example texts as frozen")
    free = shutil.disk_usage(paths.root).free / 1e9
    yield Check("ok" if free > 3 else "fail", f"{free:.0f} GB free (3 needed)")
    found = [name for name in ("chromium", "chromedriver") if shutil.which(name)]
    yield Check(
        "ok" if len(found) == 2 else "info", "Chromium and its driver (only tests of pages need them)"
    )
    try:
        profile = load_profile(profile_name, parse_settings(settings))
    except ProfileError as error:
        yield Check("fail", str(error))
        return
    yield Check("ok", f"profile {profile.name}: llm={profile.models.llm}, mode={profile.models.mode}")
    if profile.models.mode == "recorded":
        for model in local_models(profile):
            ready = not local.missing(model)
            yield Check("ok" if ready else "info", f"local model {model} (only live runs need it)")
    keys = {run_endpoint.key_env for run_endpoint in profile.models.endpoints.judges}
    for name in sorted(keys | {profile.models.endpoints.generator.key_env}):
        is_set = bool(os.environ.get(name))
        yield Check("ok" if is_set else "info", f"key in ${name}: {'set' if is_set else 'not set'}")
    for lack in lacks(profile):
        yield Check("fail", lack)


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
