"""A panel over made-up dialogues, memes and pictures."""

from pathlib import Path

import explorer_data
import made_up
from PIL import Image

from memecmd_utils import runs
from memecmd_utils.chats import insertion
from memecmd_utils.chats.insertion import Library
from memecmd_utils.core import storage
from memecmd_utils.panel import widgets
from memecmd_utils.panel.explorer import Explorer


def memes(folder: Path) -> tuple[dict, dict[str, Path]]:
    """The memes of `explorer_data` and their pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    found, files = {}, {}
    for number, annotation in enumerate(explorer_data.ANNOTATIONS):
        name = annotation.meme_id
        files[name] = folder / f"{name}.png"
        Image.new("RGB", (60, 48), (6 * number, 250 - 6 * number, 90)).save(files[name])
        texts = {"meme_id": name, "text": f"<b>{name}</b>", "file": f"memes/{name}.png"}
        found[name] = made_up.meme(name).model_copy(update=texts)
    return found, files


def tab(folder: Path, dialogues=explorer_data.DIALOGUES, **changes) -> widgets.DialogueTab:
    scored, index, profile = explorer_data.scored_with(dialogues, **changes)
    return widgets.DialogueTab(Explorer(scored, index, profile), *memes(folder / "memes"))


def paste(folder: Path, **changes) -> tuple[widgets.PasteTab, widgets.DialogueTab]:
    first = tab(folder, **changes)
    explorer = first.explorer
    run = runs.Run("made", explorer.profile, folder / "run", folder / "report")
    storage.write_jsonl(run.write("dialogues.jsonl"), list(explorer.dialogues.values()))
    encode = insertion.unrecorded(run, run)
    library = Library(run, memes(folder / "memes")[0], explorer.index, encode)
    return widgets.PasteTab(library, first), first
