"""A made-up survey: readings that no system gave, and answers that nobody gave."""

from datetime import UTC, datetime

from PIL import Image

from memecmd_utils import files
from memecmd_utils.cm50 import survey as cm50_survey
from memecmd_utils.cm50.survey import QUESTIONS, SurveyAnswer
from memecmd_utils.schemas import MemeReading

SYSTEMS = ("first-system", "second-system", "third-system")
NASTY = '</script><script>alert(1)</script> "quoted", & <b>bold</b>'
AT = datetime(2026, 1, 2, tzinfo=UTC)


def readings(system: str, memes: int = 4, **changes) -> list[MemeReading]:
    """All systems name the same emotion; the third says the same text as the second, in other case."""
    text = {"second-system": "TOP text", "third-system": "top  TEXT"}.get(system, NASTY)
    return [
        MemeReading(
            **{
                "source": "made up",
                "meme_id": f"secret-{i}",
                "template": "T",
                "image_caption": f"seen by {i} {text}",
                "embedded_text": text,
                "meme_caption": f"meant {SYSTEMS.index(system)}{i}",
                "literary_devices": ["pun", "irony"][: 1 + SYSTEMS.index(system)],
                "emotion": "joy",
            }
            | changes
        )
        for i in range(memes)
    ]


def survey(n_memes: int = 3, seed: int = 1):
    return cm50_survey.choose({name: readings(name) for name in SYSTEMS}, n_memes, seed)


def pictures(folder) -> dict:
    found = {}
    for i in range(4):
        found[f"secret-{i}"] = folder / f"{i}.png"
        Image.new("RGBA", (900, 500), (40 * i, 90, 160, 255)).save(found[f"secret-{i}"])
    return found


def write_answers(path, model, given):
    """Write answers in the form's own columns, as its page saves them."""
    rows = (
        {**a.model_dump(mode="json", exclude={"source"}), "made_up": int(a.source == "made up")}
        for a in given
    )
    return files.write_csv(path, model.columns, rows)


def answers(key, rater: str = "r1", prefers: str = SYSTEMS[0], **changes) -> list[SurveyAnswer]:
    """One rater who always chooses the answers of one system."""
    found = {}
    for row in key:
        found.setdefault((row.item, row.subtask), [])
        if row.system == prefers:
            found[row.item, row.subtask].append(row.option)
    return [
        SurveyAnswer(
            **{
                "source": "made up",
                "form": key[0].form,
                "item": item,
                "rater": rater,
                "subtask": subtask,
                "options": " ".join(sorted(chosen)),
                "at": AT,
            }
            | changes
        )
        for (item, subtask), chosen in found.items()
        if subtask in QUESTIONS
    ]
