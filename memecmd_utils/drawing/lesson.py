"""What notebooks show of chats and memes: bubbles with English below, cards, rows, two things side by side.

Each function returns an `IPython.display.HTML` that needs no network; texts come out escaped.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from memecmd_utils import files
from memecmd_utils.drawing.chat_html import Thumbnails
from memecmd_utils.drawing.palette import BLUE, GREEN, PURPLE, RED
from memecmd_utils.drawing.text import initials
from memecmd_utils.files import paths
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary

if TYPE_CHECKING:
    from IPython.display import HTML


BANDS = (BLUE, GREEN, PURPLE, RED)
MEME_SIDE = {
    "s_plus": ("S⁺  when it fits", GREEN),
    "s_minus": ("S⁻  when it does not", RED),
    "emotion": ("E  what it feels like", BLUE),
    "motivation": ("Ψ  why one sends it", PURPLE),
}
"""Heading and colour of the four texts of a meme (2507.00891, Eq. 1)."""
TURN_SIDE = {
    "scenario": ("S  where the chat stands", GREEN),
    "emotion": ("E  what would suit the next message", BLUE),
    "motivation": ("Ψ  what a meme would be sent for", PURPLE),
}
"""Heading and colour of the three texts of a turn (Eq. 16)."""


Case = Literal["lands", "typical", "fails"]


def teaching_dialogue(dialogues: Sequence[Dialogue], case: Case = "lands") -> Dialogue:
    """The dialogue that lessons walk through, chosen by the rule in `data/example/teaching_dialogues.json`.

    A run that does not have it shows its first dialogue.
    """
    name = json.loads((paths.example / "teaching_dialogues.json").read_text(encoding="utf-8"))[case]
    return next((one for one in dialogues if one.dialogue_id == name), dialogues[0])


def show_chat(
    dialogue: Dialogue,
    picks: Mapping[int, Meme],
    files: Mapping[str, Path],
    *,
    turns: range | None = None,
    english: bool = True,
    notes: Mapping[int, str] | None = None,
    bands: Mapping[int, str] | None = None,
    meme_position: str = "before",
) -> "HTML":
    """The dialogue as bubbles, with the meme of each turn in `picks`; A stands right.

    `turns` cuts it, for example `range(9, 17)`. `english` writes glosses below the Chinese. `notes` are small
    print below a turn. `bands` names a part of the chat for each turn: where the name changes, it is written
    between the bubbles, in a colour that marks its turns.
    """
    pictures, bands, notes = Thumbnails(files, 150), bands or {}, notes or {}
    colours = dict(zip(dict.fromkeys(bands.values()), BANDS * (1 + len(bands) // len(BANDS)), strict=False))
    names = {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"}
    shown = []
    for turn in dialogue.turns:
        if turns is not None and turn.turn not in turns:
            continue
        meme, band = picks.get(turn.turn), bands.get(turn.turn, "")
        shown.append(
            {
                "number": turn.turn,
                "side": "right" if turn.speaker == "A" else "left",
                "name": names[turn.speaker],
                "text": turn.text,
                "english": turn.gloss if english else "",
                "note": notes.get(turn.turn, ""),
                "band": band,
                "colour": colours.get(band, ""),
                "meme": meme,
                "picture": pictures[meme.meme_id] if meme else None,
                "caption": caption_of(meme) if meme else "",
                "meme_english": meme.gloss if meme and english else "",
            }
        )
    return _display(_parts().chat(shown, meme_position))


def show_memes(memes: Sequence[Meme], files: Mapping[str, Path], labels: Sequence[str] = ()) -> "HTML":
    """Memes in a row, each with its caption, its gloss and a label below."""
    pictures = Thumbnails(files, 160)
    given = [*labels, *[""] * (len(memes) - len(labels))]
    return _display(_parts().row([_card(m, pictures, label) for m, label in zip(memes, given, strict=True)]))


def show_meme(meme: Meme, files: Mapping[str, Path], annotation: Annotation) -> "HTML":
    """A card: the meme beside its four texts, each with its English below where the package has it."""
    boxes = _boxes(annotation, MEME_SIDE, meme.meme_id)
    return _display(_parts().card(_card(meme, Thumbnails(files, 180)), boxes))


def show_summary(dialogue_id: str, summary: Summary) -> "HTML":
    """What the summary agent says of a turn: three boxes, in the colours of the meme's texts they meet."""
    return _display(_parts().boxes(_boxes(summary, TURN_SIDE, f"{dialogue_id}/{summary.turn}")))


def show_texts(annotations: Sequence[Annotation], field: str, labels: Sequence[str] = ()) -> "HTML":
    """One of the four texts of several memes without their pictures, each under its label."""
    _, colour = MEME_SIDE[field]
    given = [*labels, *[""] * len(annotations)]
    boxes = [
        _box(record, field, label, colour, record.meme_id)
        for record, label in zip(annotations, given, strict=False)
    ]
    return _display(_parts().boxes(boxes))


def _boxes(
    record: Annotation | Summary, sides: Mapping[str, tuple[str, str]], key: str
) -> list[dict[str, str]]:
    return [_box(record, field, title, colour, key) for field, (title, colour) in sides.items()]


def _box(record: Annotation | Summary, field: str, title: str, colour: str, key: str) -> dict[str, str]:
    return {
        "title": title,
        "colour": colour,
        "text": getattr(record, field),
        "english": english_of(record, key).get(field, ""),
    }


def english_of(record: Annotation | Summary, key: str) -> dict[str, str]:
    """The English of an authored record by field: of all memes, and of the summaries of five dialogues.

    `key` is the meme's id, or `DIALOGUE/TURN`. What a model wrote in a run has none: the dict is empty.
    """
    return _english().get(key, {}) if record.source == "authored" else {}


@lru_cache(maxsize=1)
def _english() -> dict[str, dict[str, str]]:
    rows = [
        json.loads(line)
        for name in ("annotation_glosses.jsonl", "summary_glosses.jsonl")
        for line in (paths.example / name).read_text(encoding="utf-8").splitlines()
    ]
    return {row.get("meme_id") or f"{row['dialogue_id']}/{row['turn']}": row for row in rows}


def show_beside(**parts: "HTML") -> "HTML":
    """What the other functions return, side by side under their names (`_` in a name is a blank)."""
    named = [(name.replace("_", " "), Markup(part.data)) for name, part in parts.items()]
    return _display(_parts().beside(named), styled=False)


def caption_of(meme: Meme) -> str:
    """What stands on a meme, or what is known of its picture."""
    return meme.text or meme.picture_note or meme.meme_id


def _card(meme: Meme, pictures: Thumbnails, label: str = "") -> dict[str, Any]:
    return {"meme": meme, "picture": pictures[meme.meme_id], "caption": caption_of(meme), "label": label}


@lru_cache(maxsize=1)
def _parts() -> Any:
    return files.templates(initials=initials).get_template("lesson.html.j2").module


def _display(markup: str, styled: bool = True) -> "HTML":
    from IPython.display import HTML

    return HTML((str(_parts().styles()) if styled else "") + str(markup))
