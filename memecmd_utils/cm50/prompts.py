"""The prompts of CM50 by name: Table 5, and every row of Tables 9, 10 and 11 (2501.13851, Appendices A to E).

Each has a file `prompts/template_<name>.j2`; rows that differ only in the data or in the context they were
tried with include the same text. Tasks, order, labels and JSON keys are the paper's. The wording is ours
throughout. The few-shot rows are built from their description, with examples that are made up.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from memecmd_utils.llm import prompts as llm_prompts
from memecmd_utils.llm import replies
from memecmd_utils.llm.messages import Image, Message, Reply
from memecmd_utils.schemas import TemplateInfo, TemplateMeme, Text
from memecmd_utils.settings import ProfileError

DEVICES = (
    "sarcasm", "allegory", "alliteration", "allusion", "amplification", "anagram", "analogy",
    "anthropomorphism", "antithesis", "chiasmus", "circumlocution", "euphemism", "hyperbole", "imagery",
    "metaphor", "onomatopoeia", "oxymoron", "paradox", "personification", "portmanteau", "pun", "satire",
    "simile", "symbolism",
)  # fmt: skip
"""The 24 devices that the captioning prompt offers (Table 5), in its order."""
FIGMEMES_DEVICES = ("allusion", "exaggeration", "irony", "anthropomorphism", "metaphor", "contrast")
"""The six devices that the prompts of Tables 7 and 8 define, in their order."""
TWELVE_DEVICES = (
    "irony", "sarcasm", "anthropomorphism", "personification", "contrast", "paradox", "oxymoron", "metaphor",
    "simile", "exaggeration", "amplification", "allusion",
)  # fmt: skip
"""The 12 labels of the published annotation: Table 12's left column down to allusion, without antithesis.

Antithesis stands in two of its rows. Without it the column has the 12 mapped labels that Section 3.1 counts,
and with the 14 of the row "None" its 26.
"""
DISREGARDED = (
    "anagram", "pun", "allegory", "alliteration", "analogy", "antithesis", "chiasmus", "circumlocution",
    "euphemism", "imagery", "onomatopoeia", "portmanteau", "symbolism", "satire",
)  # fmt: skip
"""The last row of Table 12: labels that FigMemes has nothing for."""
EMOTIONS = (
    "fear", "anger", "joy", "sadness", "surprise", "disgust", "guilt", "contempt", "shame", "embarrassment",
    "envy", "jealousy", "love", "hate", "interest",
)  # fmt: skip
"""The 15 emotion words of Table 5."""
NONE = "none"
"""The word for "nothing fits", among devices and among emotions."""

FIGMEMES_LABELS = ("allusion", "exaggeration", "irony", "anthrop", "metaphor", "contrast")
"""The labels of FigMemes as its files spell them, in the order of `FIGMEMES_DEVICES`."""
Variant = Literal["paper", "code"]
# Hyperbole is offered by Table 5 and stands in no row of Table 12; the definitions of Tables 7 and 8 call
# exaggeration similar to it.
TABLE_12: dict[str, str | None] = {
    "irony": "irony", "sarcasm": "irony",
    "anthropomorphism": "anthrop", "personification": "anthrop",
    "contrast": "contrast", "paradox": "contrast", "oxymoron": "contrast",
    "metaphor": "metaphor", "simile": "metaphor",
    "exaggeration": "exaggeration", "amplification": "exaggeration", "hyperbole": "exaggeration",
    "allusion": "allusion",
    **dict.fromkeys(DISREGARDED),
}  # fmt: skip
"""Device -> label of FigMemes, None where it has none. Antithesis is disregarded, as its last row says."""
CODE_TABLE = {**TABLE_12, "antithesis": "contrast"}
"""The same as the paper's code corrects labels: antithesis is a contrast, as the third row says."""

SPELLINGS = {"anthrop": "anthropomorphism", "n/a": NONE, "": NONE}
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")


class Words(NamedTuple):
    """What was understood of an annotator's words."""

    labels: list[str]
    """Known devices, lower case, each once, in the order given; empty where "none" was said."""
    unknown: list[str]
    """Words that are no device, as they were given."""


def word(text: str) -> str:
    """A label as it is compared: lower case, without blanks, quotes or a full stop around it."""
    bare = _AROUND.sub("", text).lower()
    return SPELLINGS.get(bare, bare)


def normalise(words: Iterable[str]) -> Words:
    """Sort an annotator's words into known devices and others; "none" is dropped.

    >>> normalise(["Irony.", "none", "humor", "irony"])
    Words(labels=['irony'], unknown=['humor'])
    """
    labels: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for text in words:
        label = word(text)
        if label in TABLE_12:
            labels[label] = None
        elif label != NONE:
            unknown[text] = None
    return Words(list(labels), list(unknown))


def to_figmemes(labels: Iterable[str], variant: Variant = "paper") -> list[str]:
    """Map devices to the labels of FigMemes (Table 12), each once, in the order of `FIGMEMES_LABELS`.

    `variant` says what antithesis counts as: nothing (`paper`), or a contrast (`code`). FigMemes' own labels
    map to themselves. Raises ValueError with the words that are no device.
    """
    table = TABLE_12 if variant == "paper" else CODE_TABLE
    devices, unknown = normalise(labels)
    if unknown:
        raise ValueError(f"no literary devices of Tables 5 or 12: {', '.join(map(repr, unknown))}")
    mapped = {table[device] for device in devices}
    return [label for label in FIGMEMES_LABELS if label in mapped]


LEAST_WORDS = 4
"""Words that an image caption or meme caption needs, as in the paper's code."""
# A Chinese character counts as a word.
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+")


def _long_enough(text: str) -> str:
    if len(_WORD.findall(text)) < LEAST_WORDS:
        raise ValueError(f"needs at least {LEAST_WORDS} words")
    return text


def _one_of(*offered: str) -> Any:
    """A type: a word on offer, in any case; the schema lists them."""

    def check(text: str) -> str:
        # Checked and kept as it was said: what a repaired reply says must stand in its text.
        if word(text) not in offered:
            raise ValueError(f"{text[:40]!r} is none of: {', '.join(offered)}")
        return text

    return Annotated[str, AfterValidator(check), WithJsonSchema({"type": "string", "enum": list(offered)})]


Sentence = Annotated[Text, AfterValidator(_long_enough)]
Device = _one_of(*DEVICES, NONE)
Emotion = _one_of(*EMOTIONS, NONE)
OneOfSix, OneOfSixOrNone = _one_of(*FIGMEMES_DEVICES), _one_of(*FIGMEMES_DEVICES, NONE)
YesOrNo = _one_of("yes", "no")
OneOfTwelve, OneOfTwelveOrNone = _one_of(*TWELVE_DEVICES), _one_of(*TWELVE_DEVICES, NONE)


class TemplateReply(BaseModel, ABC):
    """Base of all replies; `fields` are those of a `MemeReading` that it fills.

    The keys are those of CM50's records and of the paper's prompts, blanks and all. A word that is not on
    offer makes a reply unusable, so that it is asked for again; what is on offer stands in the schema.
    """

    # Checks of texts compare keys of the reply with keys of the model: both are the aliases.
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Fields of `MemeReading` by name."""


class MeaningReply(TemplateReply):
    """The meme caption alone (Table 10, zero-shot and few-shot)."""

    meaning: Sentence = Field(alias="meaning of the meme")

    def fields(self) -> dict[str, Any]:
        """The meme caption."""
        return {"meme_caption": self.meaning}


class FiveTasksReply(TemplateReply):
    """The explanation and the five tasks of Table 5, GPT-4o's form: words from the lists."""

    explanation: Text
    elaboration: Sentence = Field(alias="visual elaboration")
    detected: str = Field(alias="detected text")
    meaning: Sentence = Field(alias="meaning of the meme")
    device: Device = Field(alias="literary device")
    emotion: Emotion = Field(alias="emotion word")

    def fields(self) -> dict[str, Any]:
        """All five; the device is a list of at most one."""
        return {
            "image_caption": self.elaboration,
            "embedded_text": self.detected.strip(),
            "meme_caption": self.meaning,
            "literary_devices": self._devices(),
            "emotion": word(self.emotion),
        }

    def _devices(self) -> list[str]:
        return normalise([self.device]).labels


class FreeWordsReply(FiveTasksReply):
    """The same in LLaVA's form (Table 5): no list is given, any word is kept as it was said."""

    device: Text = Field(alias="literary device")
    emotion: Text = Field(alias="emotion word")

    def _devices(self) -> list[str]:
        devices = dict.fromkeys(map(word, re.split("[,;/]", self.device)))
        return [device for device in devices if device != NONE]


class DevicesReply(TemplateReply):
    """The six labels of FigMemes alone (Table 7, few-shot examples)."""

    devices: list[OneOfSixOrNone] = Field(alias="literary device")

    def fields(self) -> dict[str, Any]:
        """The devices, each once."""
        return {"literary_devices": normalise(self.devices).labels}


class BaselineReply(TemplateReply):
    """The text, the explanation, and the six labels that follow from it (Table 7, baseline)."""

    detected: str = Field(alias="detected text")
    explanation: Text
    devices: list[OneOfSixOrNone] = Field(alias="literary device")

    def fields(self) -> dict[str, Any]:
        """The embedded text and the devices; the explanation is a step on the way."""
        return {
            "embedded_text": self.detected.strip(),
            "literary_devices": normalise(self.devices).labels,
        }


class SixCompared(BaseModel):
    """One choice of six compared with the meme: whether the label could explain it."""

    label: OneOfSix
    why: str
    explains: YesOrNo


class TwelveCompared(SixCompared):
    """One choice of twelve compared with the meme."""

    label: OneOfTwelve


class ThreeStepReply(TemplateReply):
    """Three-step reasoning (Table 8) over six labels: choose, extract, compare one by one, conclude.

    The labels of the reading are worked out from the second and third step: those that were inferred from
    the meme and that, held against it, could explain it ("validated from both directions"). What the reply
    concludes is not trusted to be that. A label that was extracted and not compared makes it unusable.
    """

    chosen: list[OneOfSixOrNone] = Field(alias="multiple choice")
    extracted: list[OneOfSixOrNone] = Field(alias="extraction of answer")
    compared: list[SixCompared] = Field(alias="choice by choice comparison")
    devices: list[OneOfSixOrNone] = Field(alias="literary device")

    @model_validator(mode="after")
    def _all_compared(self) -> "ThreeStepReply":
        missing = sorted(set(normalise(self.extracted).labels) - {word(c.label) for c in self.compared})
        if missing:
            raise ValueError(f"no choice by choice comparison of: {', '.join(missing)}")
        return self

    def fields(self) -> dict[str, Any]:
        """The devices that hold in both directions; a label that is compared twice has to hold twice."""
        refuted = {word(c.label) for c in self.compared if word(c.explains) != "yes"}
        return {"literary_devices": [d for d in normalise(self.extracted).labels if d not in refuted]}


class ThreeStep12Reply(ThreeStepReply):
    """Three-step reasoning over the 12 labels of the published annotation."""

    chosen: list[OneOfTwelveOrNone] = Field(alias="multiple choice")
    extracted: list[OneOfTwelveOrNone] = Field(alias="extraction of answer")
    compared: list[TwelveCompared] = Field(alias="choice by choice comparison")
    devices: list[OneOfTwelveOrNone] = Field(alias="literary device")


def parse(reply: Reply, schema: type[TemplateReply]) -> dict[str, Any]:
    """Fields of a `MemeReading` from a reply; raises `UnusableReply` with what is wrong."""
    return replies.structured(reply, schema).fields()


F1, BLEURT, VOTES = "macro F1", "BLEURT, best match", "votes in the survey, with context"
"""What the published score of a prompt is: Tables 9 and 11, Table 10, Table 6."""
Kind = Literal["five tasks", "meme caption", "literary devices"]


@dataclass(frozen=True)
class PromptSpec:
    """A prompt, the row that it stands for, and what was published about it."""

    name: str
    table: int
    row: str
    """The row as it is printed, "prompt type: details"; of Table 5 the model."""
    kind: Kind
    schema: type[TemplateReply]
    metric: str
    published: float
    data: str
    """What the score was measured on."""
    context: bool | None
    """Whether the row has the template's "about" text; None: tried with and without."""
    devices: tuple[str, ...] = ()
    """Labels on offer; empty where any word may be given, or none is asked for."""
    definitions: bool = False
    """Whether the labels are defined."""
    examples: Literal["", "text", "pictures"] = ""
    """The row's; ours are made up, and of those with pictures described."""
    sees: bool = True
    """Whether the meme's picture is shown, where there is one; rows on OCR text have the text alone."""

    printed: bool = True
    """Whether the paper prints the prompt, with these or other labels; others it only names."""

    @property
    def file(self) -> str:
        """Name of the prompt file, as `llm.prompts` knows it."""
        return f"template_{self.name}"

    @property
    def asks_for_devices(self) -> bool:
        """Whether it is asked for literary devices alone, in the second pass."""
        return self.kind == "literary devices"


WHOLE_FIGMEMES, ELEVEN = "FigMemes test set (1,542)", "11 memes of FigMemes"
FIGMEMES_TEMPLATES, MEMECAP_TEMPLATES = "46 templatic memes of FigMemes", "42 templatic memes of MemeCap"
WHOLE_MEMECAP, SURVEY = "MemeCap test set (559)", "5 memes, 5 questions each"
BASE, FEW, THREE = "Baseline", "Few-Shot Learning", "Three-Step-Reasoning prompt"
_SIX = {"kind": "literary devices", "metric": F1, "devices": FIGMEMES_DEVICES}
_BASE = {**_SIX, "table": 9, "schema": BaselineReply, "context": False}
_FEW = {**_SIX, "table": 9, "schema": DevicesReply, "context": False, "data": ELEVEN,
        "definitions": True}  # fmt: skip
_THREE = {**_SIX, "schema": ThreeStepReply, "definitions": True}
_TWELVE = {**_THREE, "schema": ThreeStep12Reply, "devices": TWELVE_DEVICES, "definitions": False,
           "table": 11, "context": True, "data": FIGMEMES_TEMPLATES}  # fmt: skip
_FIVE = {"kind": "five tasks", "schema": FiveTasksReply, "devices": DEVICES}
_CAPTION = {"kind": "meme caption", "schema": MeaningReply, "table": 10, "metric": BLEURT,
            "data": MEMECAP_TEMPLATES}  # fmt: skip
_FIVE_10 = {**_FIVE, "table": 10, "metric": BLEURT, "data": MEMECAP_TEMPLATES}

_SPECS = (
    PromptSpec("gpt4o", 5, "GPT-4o", metric=VOTES, published=49, data=SURVEY, context=None, **_FIVE),
    PromptSpec("llava", 5, "LlaVA-1.6", metric=VOTES, published=44, data=SURVEY, context=None,
               **_FIVE | {"schema": FreeWordsReply, "devices": ()}),
    # Table 9: literary devices on FigMemes
    PromptSpec("baseline_whole_set", row=f"{BASE}: With literary device definitions on the whole test set",
               published=0.39, data=WHOLE_FIGMEMES, definitions=True, **_BASE),
    PromptSpec("baseline_definitions", row=f"{BASE}: With literary device definitions", published=0.40,
               data=ELEVEN, definitions=True, **_BASE),
    PromptSpec("baseline", row=f"{BASE}: Without literary device definitions", published=0.31, data=ELEVEN,
               **_BASE),
    PromptSpec("few_shot_explanations", row=f"{FEW}: With meme explanation examples", published=0.27,
               examples="text", printed=False, **_FEW),
    PromptSpec("few_shot_explanation_pairs", published=0.28, examples="text", printed=False,
               row=f"{FEW}: With explanation and literary device pairs examples", **_FEW),
    PromptSpec("few_shot_image_pairs", published=0.31, examples="pictures", printed=False,
               row=f"{FEW}: With meme image and literary device pairs examples", **_FEW),
    PromptSpec("few_shot_explanations_by_device", published=0.25, examples="text", printed=False,
               row=f"{FEW}: With explanation examples for each literary device examples", **_FEW),
    PromptSpec("few_shot_ocr_pairs", row=f"{FEW}: With OCR and literary device pairs examples",
               published=0.35, examples="text", sees=False, **_FEW),
    PromptSpec("few_shot_ocr_by_device", published=0.36, examples="text", sees=False, printed=False,
               row=f"{FEW}: With OCR text examples for each literary device examples", **_FEW),
    PromptSpec("three_step", 9, f"{THREE}: base", published=0.39, data=ELEVEN, context=False, **_THREE),
    PromptSpec("three_step_critical", 9, f"{THREE}: With a critical personality", published=0.34,
               data=ELEVEN, context=False, printed=False, **_THREE),
    # Table 10: meme captions on MemeCap
    PromptSpec("caption_few_shot_context", row="Text-only few-shot with the template context",
               published=0.352, context=True, examples="text", printed=False, **_CAPTION),
    PromptSpec("caption_few_shot", row="Text-only few-shot without the template context", published=0.344,
               context=False, examples="text", printed=False, **_CAPTION),
    PromptSpec("caption_zero_shot_context", row="Zero-shot with the template context", published=0.286,
               context=True, printed=False, **_CAPTION),
    PromptSpec("caption_zero_shot", row="Zero-shot without the template context", published=0.290,
               context=False, printed=False, **_CAPTION),
    PromptSpec("five_tasks_whole_set", row="Zero-shot with 5 tasks on the whole test set", published=0.525,
               context=False, **_FIVE_10 | {"data": WHOLE_MEMECAP}),
    PromptSpec("five_tasks_context", row="Zero-shot on 5 tasks with the template context", published=0.523,
               context=True, **_FIVE_10),
    PromptSpec("five_tasks", row="Zero-shot on 5 tasks without the template context", published=0.540,
               context=False, **_FIVE_10),
    # Table 11: literary devices on templatic memes of FigMemes
    PromptSpec("three_step_context", 11, f"{THREE}: With the template context and the label definitions",
               published=0.33, context=True, data=FIGMEMES_TEMPLATES, **_THREE),
    PromptSpec("three_step_no_context", 11, published=0.32, context=False, data=FIGMEMES_TEMPLATES, **_THREE,
               row=f"{THREE}: Without the template context but with the label definitions"),
    PromptSpec("three_step_12", published=0.25, **_TWELVE,
               row=f"{THREE}: With the template context and 12 literary devices"),
    PromptSpec("three_step_12_less_irony", published=0.26, printed=False, **_TWELVE,
               row=f"{THREE}: With the template context and 12 literary devices and with the emphasis on "
               "avoiding generating “sarcasm” and “irony”"),
)  # fmt: skip
PROMPTS: dict[str, PromptSpec] = {spec.name: spec for spec in _SPECS}
"""All prompts by name, in the order of the paper's tables."""


def prompt(name: str) -> PromptSpec:
    """The prompt of a name; ValueError lists those that there are."""
    if name not in PROMPTS:
        raise ProfileError(f"no prompt {name!r} for template memes; there are: {', '.join(PROMPTS)}")
    return PROMPTS[name]


def messages(
    spec: PromptSpec,
    meme: TemplateMeme,
    info: TemplateInfo | None,
    context: bool = True,
    image: Image | None = None,
) -> list[Message]:
    """What is asked about one meme.

    With `context` the template's "about" text is given, or it is said that there is none; a row without
    context never has it. Without `image` the model gets the template's name and the texts on the meme
    instead. Names, texts and "about" are fenced: they come from outside.
    """
    seen = image if spec.sees else None
    with_context = gives_context(spec, context)
    written = meme.text or "(no text is known)"
    text = llm_prompts.render(
        spec.file,
        about=info.about.strip() if with_context and info is not None else "",
        with_context=with_context,
        has_image=seen is not None,
        text_only=not spec.sees,
        known=f"Template: {meme.template}\n{written}" if spec.sees else written,
        devices=spec.devices,
        emotions=EMOTIONS,
        fence=llm_prompts.fence,
    )
    return [Message(role="user", text=text, images=[seen] if seen is not None else [])]


def gives_context(spec: PromptSpec, context: bool) -> bool:
    """Whether a prompt asks with context: where it is wanted, and the row is not one without."""
    return context and spec.context is not False


def prompt_table() -> pd.DataFrame:
    """All named prompts, a row each, in the order of the paper's tables, with the scores it prints."""
    rows = [
        {
            "name": spec.name,
            "table": spec.table,
            "row": spec.row,
            "asks for": spec.kind,
            "labels": len(spec.devices) or ("any" if spec.kind == "five tasks" else ""),
            "definitions": spec.definitions,
            "context": {True: "yes", False: "no", None: "both"}[spec.context],
            "examples": spec.examples,
            "picture": spec.sees,
            "schema": spec.schema.__name__,
            "printed": spec.printed,
            "metric": spec.metric,
            "published": spec.published,
            "measured on": spec.data,
        }
        for spec in PROMPTS.values()
    ]
    return pd.DataFrame(rows).set_index("name")
