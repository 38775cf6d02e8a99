"""What this machine lacks for a profile, and the command that mends it. Nothing is loaded, fetched or asked.

A stage names a missing folder or file itself before its first call; here stands what would be found out only
after something was paid: keys, models, prices and weights.
"""

import os
import platform
from collections.abc import Iterator
from functools import partial

from memecmd_utils import drawing, models, runs
from memecmd_utils import local_model as local
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import authored
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend, api_key
from memecmd_utils.settings import Profile, ProfileError, load_profile, parse_settings


class NotReady(MemecmdError, RuntimeError):
    """Something that a later stage needs is missing; the message names all of it, each with what to do."""


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


def _checks(profile_name: str, settings: str) -> Iterator[tuple[str, str]]:
    """A sign (`[--]` for what is optional and absent) and what was found, of each check."""
    yield "[OK]", f"Python {platform.python_version()}"
    yield "[OK]", f"Chinese font: {drawing.cjk_font_path().name}"
    if changed := authored.changed_texts():
        yield "[FAIL]", f"example texts differ from their frozen hashes: {', '.join(changed)}"
    else:
        yield "[OK]", "example texts as frozen"
    try:
        profile = load_profile(profile_name, parse_settings(settings))
    except ProfileError as error:
        yield "[FAIL]", str(error)
        return
    yield "[OK]", f"profile {profile.name}: llm={profile.models.llm}, mode={profile.models.mode}"
    if profile.models.mode == "recorded":
        for model in local_models(profile):
            ready = not local.missing(model)
            yield "[OK]" if ready else "[--]", f"local model {model} (only live runs need it)"
    ends = profile.models.endpoints
    for name in sorted({endpoint.key_env for endpoint in (ends.generator, *ends.judges)}):
        is_set = bool(os.environ.get(name))
        yield "[OK]" if is_set else "[--]", f"key in ${name}: {'set' if is_set else 'not set'}"
    for lack in lacks(profile):
        yield "[FAIL]", lack


def report(profile_name: str, settings: str) -> tuple[str, bool]:
    """All checks as text, and whether none failed."""
    rows = list(_checks(profile_name, settings))
    return "\n".join(f"{sign:<6} {found}" for sign, found in rows), all(sign != "[FAIL]" for sign, _ in rows)
