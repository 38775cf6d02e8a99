"""A panel over made-up dialogues, memes and pictures: enough for a gate with two halves."""

from pathlib import Path

import made_up
from memecmd_utils.panel.explorer import Explorer
from PIL import Image

from memecmd_utils import retrieval, runs
from memecmd_utils.chats import insertion
from memecmd_utils.chats.insertion import Library
from memecmd_utils.core import storage
from memecmd_utils.panel import widgets

N_MEMES = 40


def talk(name: str, kind: str, unscored: tuple[int, ...] = ()):
    """A dialogue of 18 turns whose summaries all differ; those at the turns `unscored` are missing."""
    base = made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, 19)))
    summaries = []
    for s in base.summaries:
        texts = {part: f"{name} {part} {s.turn}" for part in ("scenario", "emotion", "motivation")}
        if s.turn in unscored:
            texts = dict.fromkeys(texts, "") | {"unscored": "unusable: not JSON"}
        summaries.append(s.model_copy(update=texts))
    return base.model_copy(update={"kind": kind, "summaries": summaries})


ALL = tuple(range(2, 19))
DIALOGUES = [talk(f"news-{i}", "news") for i in range(3)] + [
    talk("role-0", "role", unscored=(2, 7, 18)),
    talk("role-1", "role"),
    talk("role-2", "role", unscored=ALL),
]
ANNOTATIONS = [
    made_up.annotation(f"m{i:02d}", **{part: f"meme {i} {part}" for part in retrieval.MEME_SIDE})
    for i in range(N_MEMES)
]


def scored_with(dialogues=DIALOGUES, annotations=ANNOTATIONS, **changes):
    profile = made_up.profile(n_turns=18, **changes)
    index = retrieval.index_library(annotations, made_up.vectors, profile)
    return retrieval.score_dialogues(dialogues, index, made_up.vectors, profile), index, profile


def memes(folder: Path) -> tuple[dict, dict[str, Path]]:
    """The annotated memes and their pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    found, files = {}, {}
    for number, annotation in enumerate(ANNOTATIONS):
        name = annotation.meme_id
        files[name] = folder / f"{name}.png"
        Image.new("RGB", (60, 48), (6 * number, 250 - 6 * number, 90)).save(files[name])
        texts = {"meme_id": name, "text": f"<b>{name}</b>", "file": f"memes/{name}.png"}
        found[name] = made_up.meme(name).model_copy(update=texts)
    return found, files


def tab(folder: Path, dialogues=DIALOGUES, **changes) -> widgets.DialogueTab:
    scored, index, profile = scored_with(dialogues, **changes)
    return widgets.DialogueTab(Explorer(scored, index, profile), *memes(folder / "memes"))


def paste(folder: Path, **changes) -> tuple[widgets.PasteTab, widgets.DialogueTab]:
    first = tab(folder, **changes)
    explorer = first.explorer
    run = runs.Run("made", explorer.profile, folder / "run", folder / "report")
    storage.write_jsonl(run.write("dialogues.jsonl"), list(explorer.dialogues.values()))
    encode = insertion.unrecorded(run, run)
    library = Library(run, memes(folder / "memes")[0], explorer.index, encode)
    return widgets.PasteTab(library, first), first
