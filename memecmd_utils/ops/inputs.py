"""What each stage of a run reads from outside the project's own files, and what it wrote: for make to see.

Make goes by the times of files. So at every `resolve` a small file a stage says what the stage would read now
(pictures, news, weights, ratings ...); it is written only where that changed, and is made new where something
that the stage wrote is gone. The rule of the stage depends on it.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from memecmd_utils.core import paths, storage
from memecmd_utils.core.fingerprints import Fingerprints
from memecmd_utils.runs import OUTPUTS, REPORTED, Run
from memecmd_utils.settings import Profile

Read = tuple[str, list[Path], Path]
"""What is read: its name, the files that are there, and the folder from which they are named."""
INPUTS, WRITTEN = "inputs", "outputs"
"""Folders in a run's folder, with a file for each stage."""
COLLECTION = "news collected"
RECORDED_IN = {
    "02_annotation": ("annotation",),
    "03_dialogue_generation": ("scenario", "dialogue_generation"),
    "05_evaluation": ("evaluation",),
    "05b_studies": ("studies",),
    "07_template_memes": ("template_annotation",),
}
"""Folders of recordings that a stage replays. OCR and vectors are not among them: every run adds to those."""


def stages(templates: bool) -> list[str]:
    """The stages of `make reproduce`, or of `make templates`."""
    return [stage for stage in OUTPUTS if stage.startswith(("07", "08")) == templates]


def read_by(profile: Profile, stage: str) -> Iterator[Read]:
    """What a stage reads from outside: what keys of the profile name, and what users put in place."""
    writes = [profile.models.local_model] if profile.models.llm == "local" else []
    match stage.split("_")[0]:
        case "01":
            for source in profile.library.sources:
                if source != "example":
                    yield _pictures(source)
            yield from _files(curation=profile.library.curation)
        case "02":
            yield from _weights(writes, profile)
        case "03":
            if profile.dialogue.n_news:
                yield from _news(profile)
            yield from _weights(writes, profile)
            yield from _models(profile.models.embedder)
        case "04":
            yield from _models(profile.models.embedder)
        case "05":
            yield _below("ratings", paths.raw / "ratings" / profile.name, "*.csv")
            judges = [judge for judge in profile.evaluation.judges if judge.llm == "local"]
            yield from _weights(
                [judge.local_model or profile.models.local_model for judge in judges], profile
            )
            yield from _models(profile.models.consistency_embedder)
            if profile.evaluation.consistency == "cn_clip":
                yield from _files(clip_checkpoint=profile.models.clip_checkpoint)
        case "05b":
            yield from _weights(
                [profile.models.local_model] if profile.evaluation.other_summaries else [], profile
            )
        case "07":
            matching, metrics = profile.cm50.matching, profile.cm50.metrics
            yield from _weights(writes, profile)
            yield from _models(matching.clip, metrics.bertscore, metrics.bleurt)
            yield from _files(lpips=matching.lpips)
        case "08":
            chosen = profile.mtrclip
            yield from _models(chosen.model, *chosen.baselines)
    if profile.models.mode == "recorded":
        for name in RECORDED_IN.get(stage, ()):
            yield _below(f"recordings {name}", paths.raw / "recordings" / profile.name / name, "[!.]*.jsonl")


def _files(**keys: str | None) -> Iterator[Read]:
    """Files that keys of the profile name."""
    for key, value in keys.items():
        if value:
            path = paths.of_user(value)
            yield f"{key} {value}", [path] if path.is_file() else [], path.parent


def _below(name: str, folder: Path, pattern: str) -> Read:
    return name, [path for path in folder.glob(pattern) if path.is_file()], folder


def _pictures(source: str) -> Read:
    """All images of a source, and what describes them; links that are not followed are in the name."""
    from memecmd_utils.core import images
    from memecmd_utils.library import sources

    folder, name = paths.of_user(source), f"source {source}"
    try:
        there = images.look_through(folder)
    except images.LibraryError:
        there = images.Found([], [])  # stage 01 says why
    if there.links_out:
        links = (images.readable(link.relative_to(folder)) for link in there.links_out)
        name += f" without {', '.join(links)}"
    described = (folder / file for file in sources.DESCRIBED_IN)
    return name, [*there.images, *(path for path in described if path.is_file())], folder


def _news(profile: Profile) -> Iterator[Read]:
    if profile.dialogue.news == "feeds":
        from memecmd_utils.dialogue import news

        listed = news.list_file(profile.dialogue.feeds)
        yield from _files(feeds=str(listed) if listed else None)
        collected = news.collection_folder(profile) / "items.jsonl"
        yield COLLECTION, [collected] if collected.is_file() else [], collected.parent
    elif profile.dialogue.news != "example":
        yield from _files(news=profile.dialogue.news)


def _models(*names: str | None) -> Iterator[Read]:
    """Folders of weights; what is fetched from a hub is named by its version."""
    from memecmd_utils.core.encoders import weights

    for name in dict.fromkeys(filter(None, names)):
        folder = weights.folder_of(name)
        if folder is not None:
            counted = [path for path in folder.rglob("*") if path.suffix in weights.COUNTED]
            yield f"model {name}", [path for path in counted if path.is_file()], folder


def _weights(models: list[str], profile: Profile) -> Iterator[Read]:
    """Weights of local models: a replay goes by their names, unless they are a file of the user's own."""
    from memecmd_utils.core.llm import local

    own = os.environ.get("MEMECMD_GGUF")
    for model in dict.fromkeys(models):
        if own or profile.models.mode != "recorded":
            path = Path(own) if own else local.weights_path(model)
            yield f"weights {model}", [path] if path.is_file() else [], path.parent


def note(run: Run, wanted: Iterable[str]) -> None:
    """Write down what stages of a run would read now, where it is not what was noted before.

    The file of a stage that has run, and whose outputs are not all there any more, is made new.
    """
    with Fingerprints() as known:
        for stage in wanted:
            target = _inputs(run, stage)
            said = _said(read_by(run.profile, stage), known)
            if _json(target) != said:
                storage.write_json(target, said)
            elif (run.report / f"{stage}.ipynb").is_file() and not _all_there(run, stage):
                os.utime(target)


def done(run: Run, stage: str) -> None:
    """Write down what a stage that just ended has written, and the news that it collected by itself."""
    storage.write_json(_outputs(run, stage), _written(run, stage))
    target = _inputs(run, stage)
    said = _json(target)
    with Fingerprints() as known:
        own = [read for read in read_by(run.profile, stage) if read[0] == COLLECTION]
        if said is not None and (fresh := {**said, **_said(own, known)}) != said:
            storage.write_json(target, fresh)
            os.utime(run.report / f"{stage}.ipynb")


def _inputs(run: Run, stage: str) -> Path:
    return run.folder / INPUTS / f"{stage}.json"


def _outputs(run: Run, stage: str) -> Path:
    return run.folder / WRITTEN / f"{stage}.json"


def _said(read: Iterable[Read], known: Fingerprints) -> dict[str, str]:
    return {name: known.files(files, base) for name, files, base in read if files}


def _json(path: Path) -> Any:
    """What a file of ours holds; None where it is not there, or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _written(run: Run, stage: str) -> dict[str, list[str]]:
    """Files of a stage, below the run's folder (`data`) and its report, that no other stage has written."""
    files = {
        "data": _found(run.folder, OUTPUTS.get(stage, ())),
        "report": _found(run.report, (*REPORTED.get(stage, ()), f"{stage}.html")),
    }
    for other in OUTPUTS:
        theirs = _json(_outputs(run, other)) if other != stage else None
        if isinstance(theirs, dict):
            files = {
                kind: [name for name in names if name not in theirs.get(kind, ())]
                for kind, names in files.items()
            }
    return files


def _found(folder: Path, patterns: Iterable[str]) -> list[str]:
    found = (path for pattern in patterns for path in folder.glob(pattern))
    files = (path for path in found if path.is_file() and not path.name.startswith("."))
    return sorted({path.relative_to(folder).as_posix() for path in files})


def _all_there(run: Run, stage: str) -> bool:
    """Whether everything is still there that the stage wrote when it last ended."""
    written = _json(_outputs(run, stage))
    if not isinstance(written, dict):
        return True  # nothing is known of it
    folders = {"data": run.folder, "report": run.report}
    return all((folders[kind] / name).exists() for kind in folders for name in written.get(kind, ()))
