"""The prompts of CM50 and their replies: Tables 5 and 9 to 11 (2501.13851, Appendices A to E).

`data/paper/cm50_prompts.csv` lists all rows of these tables; rows that differ only in the data or in the
context share a file `prompts/template_<file>.j2`. Tasks, order, labels and JSON keys are the paper's, the
wording is ours.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, WithJsonSchema, create_model, model_validator

from memecmd_utils.llm import prompts as llm_prompts
from memecmd_utils.llm.types import Image, Message
from memecmd_utils.schemas import TemplateMeme, Text

DEVICES = (
    "sarcasm", "allegory", "alliteration", "allusion", "amplification", "anagram", "analogy",
    "anthropomorphism", "antithesis", "chiasmus", "circumlocution", "euphemism", "hyperbole", "imagery",
    "metaphor", "onomatopoeia", "oxymoron", "paradox", "personification", "portmanteau", "pun", "satire",
    "simile", "symbolism",
)  # fmt: skip
"""The 24 devices that the captioning prompt offers (Table 5), in its order."""
SIX_DEVICES = ("allusion", "exaggeration", "irony", "anthropomorphism", "metaphor", "contrast")
"""The six devices that the prompts of Tables 7 and 8 define, in their order."""
TWELVE_DEVICES = (
    "irony", "sarcasm", "anthropomorphism", "personification", "contrast", "paradox", "oxymoron", "metaphor",
    "simile", "exaggeration", "amplification", "allusion",
)  # fmt: skip
"""The 12 labels of the published annotation: Table 12's left column down to allusion, without antithesis."""
EMOTIONS = (
    "fear", "anger", "joy", "sadness", "surprise", "disgust", "guilt", "contempt", "shame", "embarrassment",
    "envy", "jealousy", "love", "hate", "interest",
)  # fmt: skip
"""The 15 emotion words of Table 5."""
NONE = "none"
"""The word for "nothing fits", among devices and among emotions."""

KNOWN = frozenset((*DEVICES, *SIX_DEVICES, *TWELVE_DEVICES))
SPELLINGS = {"anthrop": "anthropomorphism", "n/a": NONE, "": NONE}


def word(text: str) -> str:
    """A label as it is compared: lower case, without blanks, quotes or a full stop around it."""
    bare = re.sub(r"^[\W_]+|[\W_]+$", "", text).lower()
    return SPELLINGS.get(bare, bare)


def known(words: Iterable[str]) -> list[str]:
    """The devices among an annotator's words, in lower case, each once, in the order given."""
    return list(dict.fromkeys(label for text in words if (label := word(text)) in KNOWN))


LEAST_WORDS = 4
"""Words that an image caption or meme caption needs, as in the paper's code; a Chinese character is one."""


def _long_enough(text: str) -> str:
    if len(re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text)) < LEAST_WORDS:
        raise ValueError(f"needs at least {LEAST_WORDS} words")
    return text


def _one_of(*offered: str) -> Any:
    """A type: a word on offer, in any case; the schema lists them."""

    def check(text: str) -> str:
        if word(text) not in offered:
            raise ValueError(f"{text[:40]!r} is not one of: {', '.join(offered)}")
        return text

    return Annotated[str, AfterValidator(check), WithJsonSchema({"type": "string", "enum": list(offered)})]


KEYS = {
    "image_caption": "visual elaboration", "embedded_text": "detected text",
    "meme_caption": "meaning of the meme", "devices": "literary device", "emotion": "emotion word",
    "chosen": "multiple choice", "extracted": "extraction of answer",
    "compared": "choice by choice comparison",
}  # fmt: skip
"""Fields of replies and their keys in CM50's records and in the paper's prompts, blanks and all."""


class TemplateReply(BaseModel):
    """Base of all replies. A word that is not on offer makes one unusable, so that it is asked for again."""

    # Checks of texts compare the aliases, which are the keys of the reply.
    model_config = ConfigDict(
        populate_by_name=True, serialize_by_alias=True, alias_generator=lambda name: KEYS.get(name, name)
    )

    def labels(self) -> list[str]:
        """The literary devices that the reply supports, each once; words of LLaVA's form as they were said.

        `NONE` is none of them.
        """
        if isinstance(self.devices, list):
            return known(self.devices)
        several = [self.devices] if word(self.devices) == NONE else re.split("[,;/]", self.devices)
        return [label for label in dict.fromkeys(map(word, several)) if label != NONE]

    def fields(self) -> dict[str, Any]:
        """Fields of `MemeReading` by name."""
        texts = ("image_caption", "embedded_text", "meme_caption")
        said = {name: value.strip() for name, value in self if name in texts}
        said |= {name: word(value) for name, value in self if name == "emotion"}
        return said | {"literary_devices": self.labels()}


class ThreeSteps(TemplateReply):
    """Three-step reasoning (Table 8): choose, extract, compare one by one, conclude.

    The labels of the reading are worked out from the second and third step: those that were inferred from
    the meme and that, held against it, could explain it ("validated from both directions"). What the reply
    concludes is not trusted to be that. A label that was extracted and not compared makes it unusable.
    """

    @model_validator(mode="after")
    def _all_compared(self) -> "ThreeSteps":
        missing = sorted(set(known(self.extracted)) - {word(c.label) for c in self.compared})
        if missing:
            raise ValueError(f"no choice by choice comparison of: {', '.join(missing)}")
        return self

    def labels(self) -> list[str]:
        """The devices that hold in both directions; a label that is compared twice has to hold twice."""
        refuted = {word(c.label) for c in self.compared if word(c.explains) != "yes"}
        return [label for label in known(self.extracted) if label not in refuted]


def _reply(name: str, base: type[BaseModel] = TemplateReply, **fields: Any) -> Any:
    """The reply of this name, whose fields have these types, in this order."""
    return create_model(name, __base__=base, **{field: (kind, ...) for field, kind in fields.items()})


def _three_steps(name: str, compared: str, offered: Sequence[str]) -> Any:
    """Three-step reasoning over the labels on offer."""
    some, label = list[_one_of(*offered, NONE)], _one_of(*offered)
    one = _reply(compared, BaseModel, label=label, why=str, explains=_one_of("yes", "no"))
    return _reply(name, ThreeSteps, chosen=some, extracted=some, compared=list[one], devices=some)


class Form(NamedTuple):
    """The reply that a prompt file asks for, the labels on offer (none: any word will do), and whether the
    picture is shown where there is one, or the text alone."""

    schema: type[TemplateReply]
    devices: tuple[str, ...] = ()
    sees: bool = True


Sentence, SomeOfSix = Annotated[Text, AfterValidator(_long_enough)], list[_one_of(*SIX_DEVICES, NONE)]
TASKS = {"explanation": Text, "image_caption": Sentence, "embedded_text": str, "meme_caption": Sentence}
LISTED = {"devices": _one_of(*DEVICES, NONE), "emotion": _one_of(*EMOTIONS, NONE)}
BASELINE = _reply("BaselineReply", embedded_text=str, explanation=Text, devices=SomeOfSix)
FORMS = {
    "gpt4o": Form(_reply("FiveTasksReply", **TASKS, **LISTED), DEVICES),  # Table 5
    "llava": Form(_reply("FreeWordsReply", **TASKS, devices=Text, emotion=Text)),  # Table 5: any word will do
    "baseline": Form(BASELINE, SIX_DEVICES),  # Table 7
    "baseline_definitions": Form(BASELINE, SIX_DEVICES),
    "few_shot_ocr_pairs": Form(_reply("DevicesReply", devices=SomeOfSix), SIX_DEVICES, sees=False),  # Table 7
    "three_step": Form(_three_steps("ThreeStepReply", "SixCompared", SIX_DEVICES), SIX_DEVICES),
    "three_step_12": Form(_three_steps("ThreeStep12Reply", "TwelveCompared", TWELVE_DEVICES), TWELVE_DEVICES),
}


def message(file: str, meme: TemplateMeme, about: str, context: bool, image: Image | None) -> Message:
    """What a prompt file asks about one meme.

    With `context` the template's "about" text is given, or it is said that there is none. Without `image` the
    model gets the template's name and the texts on the meme instead. Names, texts and "about" are fenced:
    they come from outside.
    """
    form, written = FORMS[file], meme.text or "(no text is known)"
    seen = [image] if image is not None and form.sees else []
    text = llm_prompts.render(
        f"template_{file}",
        about=about.strip() if context else "",
        with_context=context,
        has_image=bool(seen),
        text_only=not form.sees,
        known=f"Template: {meme.template}\n{written}" if form.sees else written,
        devices=form.devices,
        emotions=EMOTIONS,
    )
    return Message(role="user", text=text, images=seen)
