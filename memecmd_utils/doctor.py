"""What this machine lacks for a profile, and the command that mends it. Nothing is loaded, fetched or asked.

A stage names a missing folder or file itself before its first call; here stands what would be found out only
after something was paid: keys, models, addresses, prices and weights.
"""

import os
import platform
from collections.abc import Iterator

from memecmd_utils import dialogue, drawing, news, runs
from memecmd_utils.chats import load_dialogues
from memecmd_utils.embedders import embedder_of
from memecmd_utils.files import MemecmdError
from memecmd_utils.llm import authored, local_model
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend, address, api_key
from memecmd_utils.settings import Endpoint, Profile, ProfileError, load_profile, parse_settings


class NotReady(MemecmdError, RuntimeError):
    """Something that a later stage needs is missing; the message names all of it, each with what to do."""


def lacks(profile: Profile, templates: bool = False) -> list[str]:
    """All that is missing and what to do about it, each thing once; a replay needs its inputs alone."""
    missing = []
    for what, load in {} if templates else {"dialogues": load_dialogues, "news": _plan_news}.items():
        try:
            load(profile)
        except MemecmdError as error:
            missing.append(f"{what}: {error}")
    if profile.models.mode == "recorded":
        return missing
    for (role, _), model in runs.models_asked(profile, templates).items():
        if model.llm == "openai":
            missing += _lacks_of(model.endpoint, profile, is_embedder=role == "embedder")
        else:
            missing += local_model.missing(model.local_model)
    return list(dict.fromkeys(missing))


def _plan_news(profile: Profile) -> None:
    """Read the news of a run's start as stage 03 does; feeds, which it would ask, are left to it."""
    if profile.dialogue.news != "feeds":
        dialogue.plan(news.load_news(profile), [], profile)


def _lacks_of(endpoint: Endpoint, profile: Profile, is_embedder: bool) -> Iterator[str]:
    """What an endpoint lacks: a model with an address, a key, a price."""
    looks = (
        lambda: embedder_of(profile, "endpoint") if is_embedder else None,
        lambda: OpenAIBackend(endpoint, key=NO_KEY),
        lambda: address(endpoint),
        # As the embedder has it, a server with an address of its own may need no key.
        lambda: None if is_embedder and address(endpoint) else api_key(endpoint),
        lambda: runs.check_price(endpoint, profile, reads_only=is_embedder),
    )
    for look in looks:
        try:
            look()
        except MemecmdError as error:
            yield str(error)
            if not endpoint.model:  # what else it lacks shows when one is named
                return


def check(profile: Profile, templates: bool = False) -> None:
    """Raise `NotReady` where anything is missing for `make reproduce`, or for `make templates`."""
    if missing := lacks(profile, templates):
        head = [f"{len(missing)} things are missing:"] if len(missing) > 1 else []
        raise NotReady("\n- ".join(head + missing))


def _checks(profile_name: str, settings: str) -> Iterator[tuple[str, str]]:
    """A sign (`[--]` for what is optional and absent) and words, of each check."""
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
    ends = [model.endpoint for model in runs.models_asked(profile).values() if model.llm == "openai"]
    for name in sorted({endpoint.key_env for endpoint in ends or [profile.models.endpoints.generator]}):
        is_set = bool(os.environ.get(name))
        yield "[OK]" if is_set else "[--]", f"key in ${name}: {'set' if is_set else 'not set'}"
    for lack in lacks(profile):
        yield "[FAIL]", lack


def report(profile_name: str, settings: str) -> tuple[str, bool]:
    """All checks as text, and whether none failed."""
    rows = list(_checks(profile_name, settings))
    return "\n".join(f"{sign:<6} {words}" for sign, words in rows), all(sign != "[FAIL]" for sign, _ in rows)
