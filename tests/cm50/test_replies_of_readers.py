import pytest

from memecmd_utils.cm50 import prompts as form
from memecmd_utils.core.llm.messages import Reply, UnusableReply
from memecmd_utils.core.storage import dumps

FIVE = {
    "explanation": "He asks for too much.",
    "visual elaboration": "A man looks into the camera.",
    "detected text": " so it goes ",
    "meaning of the meme": "The poster gives up on it.",
    "literary device": "Irony.",
    "emotion word": "Sadness",
}


def read(schema, **changes):
    return form.parse(Reply(text=dumps(FIVE | changes)), schema)


def steps(extracted: list[str], compared: dict[str, str], final: list[str] | None = None) -> str:
    reply = {
        "multiple choice": extracted,
        "extraction of answer": extracted,
        "choice by choice comparison": [
            {"label": label, "why": "because", "explains": verdict} for label, verdict in compared.items()
        ],
        "literary device": final if final is not None else extracted,
    }
    return dumps(reply)


def test_five_tasks_fill_a_reading() -> None:
    assert read(form.FiveTasksReply, **{"literary device": "Pun."}) == {
        "image_caption": "A man looks into the camera.",
        "embedded_text": "so it goes",
        "meme_caption": "The poster gives up on it.",
        "literary_devices": ["pun"],
        "emotion": "sadness",
    }
    assert read(form.FiveTasksReply, **{"literary device": "None"})["literary_devices"] == []
    assert read(form.FiveTasksReply, **{"literary device": "pun", "detected text": ""})["embedded_text"] == ""


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("literary device", "humor", "none of: sarcasm"),
        ("literary device", "irony", "none of: sarcasm"),  # offered by the second prompt only
        ("emotion word", "amusement", "none of: fear"),
        ("meaning of the meme", "He gives up.", "at least 4 words"),
        ("visual elaboration", "…", "at least 4 words"),
        ("explanation", "", "explanation"),
        ("detected text", "\x07", "控制字符"),
    ],
)
def test_what_cannot_be_used_is_said(field: str, value: str, why: str) -> None:
    with pytest.raises(UnusableReply, match=why):
        read(form.FiveTasksReply, **{"literary device": "pun", field: value})


def test_free_words_are_kept_as_they_are() -> None:
    read_free = read(
        form.FreeWordsReply, **{"literary device": "Humor, Irony; humor", "emotion word": "Fun!"}
    )
    assert read_free["literary_devices"] == ["humor", "irony"] and read_free["emotion"] == "fun"
    assert read(form.FreeWordsReply, **{"literary device": "None"})["literary_devices"] == []


def test_a_small_fault_of_json_is_mended_and_capitals_stay() -> None:
    text = '{"detected text": "one", "explanation": "It says so.", "literary device": ["Irony"],}'
    assert form.parse(Reply(text=text), form.BaselineReply) == {
        "embedded_text": "one",
        "literary_devices": ["irony"],
    }


def test_only_labels_that_hold_in_both_directions_are_kept() -> None:
    text = steps(["Irony", "contrast", "irony"], {"irony": "yes", "contrast": "No", "allusion": "yes"})
    assert form.parse(Reply(text=text), form.ThreeStepReply) == {"literary_devices": ["irony"]}
    # What the reply concludes is worked out again, be it too much or too little.
    for final in (["contrast", "irony", "allusion"], ["none"]):
        text = steps(["irony"], {"irony": "yes", "contrast": "no", "allusion": "yes"}, final)
        assert form.parse(Reply(text=text), form.ThreeStepReply) == {"literary_devices": ["irony"]}
    assert form.parse(Reply(text=steps(["none"], {})), form.ThreeStepReply) == {"literary_devices": []}
    twice = steps(["irony"], {"irony": "yes", "Irony": "no"})
    assert form.parse(Reply(text=twice), form.ThreeStepReply) == {"literary_devices": []}


def test_an_extracted_label_that_is_not_compared_is_asked_for_again() -> None:
    with pytest.raises(UnusableReply, match="no choice by choice comparison of: contrast"):
        form.parse(Reply(text=steps(["irony", "contrast"], {"irony": "yes"})), form.ThreeStepReply)
    with pytest.raises(UnusableReply, match="none of: yes, no"):
        form.parse(Reply(text=steps(["irony"], {"irony": "maybe"})), form.ThreeStepReply)


def test_six_and_twelve_labels_are_kept_apart() -> None:
    text = steps(["sarcasm"], {"sarcasm": "yes"})
    assert form.parse(Reply(text=text), form.ThreeStep12Reply) == {"literary_devices": ["sarcasm"]}
    with pytest.raises(UnusableReply, match="'sarcasm' is none of: allusion"):
        form.parse(Reply(text=text), form.ThreeStepReply)
