"""What make needs to know of a run: whether another works on it, and what its stages read and wrote.

One `make reproduce` at a time works on a run: it locks the run's folder. The lock belongs to an open file,
which the stages that make starts inherit: stages of one call run side by side, and the lock is gone when the
last of them is, however they end. A notebook run by hand writes to a folder of its own and takes no lock.

Make goes by the times of files. So at every `resolve` a small file a stage says what the stage would read now
(pictures, news, weights, ratings ...); it is written only where that changed, and is made new where something
that the stage wrote is gone. The rule of the stage depends on it.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from memecmd_utils.core import paths, storage
from memecmd_utils.settings import Profile

if TYPE_CHECKING:  # `hold` starts make without them, a third of a second sooner
    from memecmd_utils.core.fingerprints import Fingerprints
    from memecmd_utils.runs import Run

LOCK = ".lock"
VARIABLE = "MEMECMD_RUN_LOCK"
"""Descriptor of the open file, for the processes that inherit it."""
Source = tuple[str, list[Path], Path]
"""What a stage reads: its name, files that may be there, and the folder from which they are named."""
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


def locked(folder: Path) -> AbstractContextManager[Any]:
    """Hold a run's folder until the block ends; first wait, with a word, for another process that has it.

    Where the process that started this one holds it already, it stays held afterwards.
    """
    path = folder / LOCK
    with suppress(KeyError, ValueError, OSError):
        if os.path.samestat(os.fstat(int(os.environ[VARIABLE])), path.stat()):
            return nullcontext()
    has_spoken = False
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not has_spoken:
                has_spoken = True
                handle.seek(0)
                holder = handle.read().strip() or "another process"
                waits = "waiting until that has ended (Ctrl-C ends only the waiting)"
                print(f"run {folder.name} is being made by {holder}: {waits}", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Meanwhile `make clean` may have put the folder away.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                break
        handle.close()
    handle.truncate(0)
    print(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M')}", file=handle, flush=True)
    return handle


def hold(folder: Path, command: Sequence[str]) -> NoReturn:
    """Become `command` with the folder held for it and all that it starts."""
    held = locked(folder)
    if not isinstance(held, nullcontext):
        os.set_inheritable(held.fileno(), True)
        os.environ[VARIABLE] = str(held.fileno())
    os.execvp(command[0], list(command))


def stages(templates: bool) -> list[str]:
    """The stages of `make reproduce`, or of `make templates`."""
    from memecmd_utils.runs import OUTPUTS

    return [stage for stage in OUTPUTS if stage.startswith(("07", "08")) == templates]


def sources_of(profile: Profile, stage: str) -> Iterator[Source]:
    """What a stage reads from outside: what keys of the profile name, and what users put in place."""
    llm = [profile.models.local_model] if profile.models.llm == "local" else []
    match stage.split("_")[0]:
        case "01":
            for source in profile.library.sources:
                if source != "example":
                    yield _pictures(source)
            yield from _files(curation=profile.library.curation)
        case "02":
            yield from _weights(llm, profile)
            yield from _models(profile.models.embedder)
        case "03":
            yield from _files(dialogues=profile.dialogue.dialogues)
            if profile.dialogue.n_news:
                yield from _news(profile)
            yield from _weights(llm, profile)
            yield from _models(profile.models.embedder)
        case "04":
            yield from _models(profile.models.embedder)
        case "05":
            yield _below("ratings", paths.raw / "ratings" / profile.name, "*.csv")
            judges = [judge.local_model for judge in profile.evaluation.judges if judge.llm == "local"]
            yield from _weights([model or profile.models.local_model for model in judges], profile)
            yield from _models(profile.models.consistency_embedder)
            if profile.evaluation.consistency == "cn_clip":
                yield from _files(clip_checkpoint=profile.models.clip_checkpoint)
        case "05b":
            if profile.evaluation.other_summaries:
                yield from _weights([profile.models.local_model], profile)
        case "07":
            matching, metrics = profile.cm50.matching, profile.cm50.metrics
            yield from _weights(llm, profile)
            yield from _models(matching.clip, metrics.bertscore, metrics.bleurt)
            yield from _files(lpips=matching.lpips)
        case "08":
            chosen = profile.mtrclip
            yield from _models(chosen.model, *chosen.baselines)
    if profile.models.mode == "recorded":
        for name in RECORDED_IN.get(stage, ()):
            yield _below(f"recordings {name}", paths.raw / "recordings" / profile.name / name, "[!.]*.jsonl")


def _files(**keys: str | None) -> Iterator[Source]:
    """Files that keys of the profile name."""
    for key, value in keys.items():
        if value:
            path = paths.user_path(value)
            yield f"{key} {value}", [path], path.parent


def _below(name: str, folder: Path, pattern: str) -> Source:
    return name, list(folder.glob(pattern)), folder


def _pictures(source: str) -> Source:
    """All images of a source, and what describes them; links that are not followed are in the name."""
    from memecmd_utils.core import images
    from memecmd_utils.library import sources

    folder, name = paths.user_path(source), f"source {source}"
    try:
        pictures = images.look_through(folder)
    except images.LibraryError:
        pictures = images.FolderContents([], [])  # stage 01 says why
    if pictures.links_out:
        links = (images.readable(link.relative_to(folder)) for link in pictures.links_out)
        name += f" without {', '.join(links)}"
    return name, [*pictures.images, *(folder / file for file in sources.DESCRIBED_IN)], folder


def _news(profile: Profile) -> Iterator[Source]:
    if profile.dialogue.news == "feeds":
        from memecmd_utils import news

        yield from _files(feeds=next((feed for feed in profile.dialogue.feeds if "=" not in feed), None))
        folder = news.collection_folder(profile)
        yield COLLECTION, [folder / "news.jsonl"], folder
    elif profile.dialogue.news != "example":
        yield from _files(news=profile.dialogue.news)


def _models(*names: str | None) -> Iterator[Source]:
    """Folders of weights; what is fetched from a hub is named by its version."""
    from memecmd_utils.core.encoders import weights

    for name in dict.fromkeys(filter(None, names)):
        folder = weights.folder_of(name)
        if folder is not None:
            counted = [path for path in folder.rglob("*") if path.suffix in weights.COUNTED]
            yield f"model {name}", counted, folder


def _weights(models: list[str], profile: Profile) -> Iterator[Source]:
    """Weights of local models: a replay goes by their names, unless they are a file of the user's own."""
    from memecmd_utils.core.llm import local

    own = os.environ.get("MEMECMD_GGUF")
    for model in dict.fromkeys(models):
        if own or profile.models.mode != "recorded":
            path = Path(own) if own else local.weights_path(model)
            yield f"weights {model}", [path], path.parent


def note_inputs(run: "Run", wanted: Iterable[str]) -> None:
    """Write down what stages of a run would read now, where it is not what was noted before.

    The file of a stage that has run, and whose outputs are not all there any more, is made new.
    """
    from memecmd_utils.core.fingerprints import Fingerprints

    with Fingerprints() as known:
        for stage in wanted:
            target = _file(run, INPUTS, stage)
            inputs = _digests(sources_of(run.profile, stage), known)
            if _json(target) != inputs:
                storage.write_json(target, inputs)
            elif (run.report / f"{stage}.ipynb").is_file() and not _all_there(run, stage):
                os.utime(target)


def note_outputs(run: "Run", stage: str) -> None:
    """Write down what a stage that just ended has written, and the news that it collected by itself."""
    from memecmd_utils.core.fingerprints import Fingerprints

    storage.write_json(_file(run, WRITTEN, stage), _written(run, stage))
    target = _file(run, INPUTS, stage)
    noted = _json(target)
    with Fingerprints() as known:
        collected = [source for source in sources_of(run.profile, stage) if source[0] == COLLECTION]
        if noted is not None and (fresh := {**noted, **_digests(collected, known)}) != noted:
            storage.write_json(target, fresh)
            os.utime(run.report / f"{stage}.ipynb")


def _file(run: "Run", kind: str, stage: str) -> Path:
    return run.folder / kind / f"{stage}.json"


def _digests(sources: Iterable[Source], known: "Fingerprints") -> dict[str, str]:
    there = ((name, [path for path in files if path.is_file()], base) for name, files, base in sources)
    return {name: known.files(files, base) for name, files, base in there if files}


def _json(path: Path) -> Any:
    """What a file of ours holds; None where it is not there, or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _written(run: "Run", stage: str) -> dict[str, list[str]]:
    """Files of a stage, below the run's folder (`data`) and its report, that no other stage has written."""
    from memecmd_utils.runs import OUTPUTS, REPORTED

    files = {
        "data": _matching(run.folder, OUTPUTS.get(stage, ())),
        "report": _matching(run.report, (*REPORTED.get(stage, ()), f"{stage}.html")),
    }
    for other in OUTPUTS:
        theirs = _json(_file(run, WRITTEN, other)) if other != stage else None
        if isinstance(theirs, dict):
            files = {kind: files[kind] - set(theirs.get(kind, ())) for kind in files}
    return {kind: sorted(names) for kind, names in files.items()}


def _matching(folder: Path, patterns: Iterable[str]) -> set[str]:
    matches = (path for pattern in patterns for path in folder.glob(pattern))
    files = (path for path in matches if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix() for path in files}


def _all_there(run: "Run", stage: str) -> bool:
    """Whether everything is still there that the stage wrote when it last ended."""
    written = _json(_file(run, WRITTEN, stage))
    if not isinstance(written, dict):
        return True  # nothing is known of it
    folders = {"data": run.folder, "report": run.report}
    return all((folders[kind] / name).exists() for kind in folders for name in written.get(kind, ()))
