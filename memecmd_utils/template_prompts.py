"""The prompts of CM50 by name: Table 5, and every row of Tables 9, 10 and 11 (2501.13851, Appendices A to E).

Each has a file `prompts/template_<name>.j2`; rows that differ only in the data or in the context they were
tried with include the same text. Tasks, order, labels and JSON keys are the paper's. The wording is ours
throughout. The few-shot rows are built from their description, with examples that are made up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from memecmd_utils import prompting
from memecmd_utils import template_replies as form
from memecmd_utils.literary_devices import DEVICES, EMOTIONS, FIGMEMES_DEVICES, TWELVE_DEVICES
from memecmd_utils.llm import Image, Message
from memecmd_utils.profiles import ProfileError
from memecmd_utils.template_schemas import TemplateInfo, TemplateMeme

F1, BLEURT, VOTES = "macro F1", "BLEURT, best match", "votes in the survey, with context"
"""What the published score of a prompt is: Tables 9 and 11, Table 10, Table 6."""
Kind = Literal["five tasks", "meme caption", "literary devices"]


class PictureExample(NamedTuple):
    """A picture that a few-shot prompt shows, and the literary devices of the meme in it."""

    image: Image
    devices: list[str]


@dataclass(frozen=True)
class PromptSpec:
    """A prompt, the row that it stands for, and what was published about it."""

    name: str
    table: int
    row: str
    """The row as it is printed, "prompt type: details"; of Table 5 the model."""
    kind: Kind
    schema: type[form.TemplateReply]
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
    sees: bool = True
    """Whether the meme's picture is shown, where there is one; rows on OCR text have the text alone."""
    calls: int = 1
    """Calls for one meme: the three steps of reasoning are one call, as Table 8 prints them."""
    printed: bool = True
    """Whether the paper prints the prompt, with these or other labels; others it only names."""

    @property
    def file(self) -> str:
        """Name of the prompt file, as `prompting` knows it."""
        return f"template_{self.name}"


WHOLE_FIGMEMES, ELEVEN = "FigMemes test set (1,542)", "11 memes of FigMemes"
FIGMEMES_TEMPLATES, MEMECAP_TEMPLATES = "46 templatic memes of FigMemes", "42 templatic memes of MemeCap"
WHOLE_MEMECAP, SURVEY = "MemeCap test set (559)", "5 memes, 5 questions each"
BASE, FEW, THREE = "Baseline", "Few-Shot Learning", "Three-Step-Reasoning prompt"
_SIX = {"kind": "literary devices", "metric": F1, "devices": FIGMEMES_DEVICES}
_BASE = {**_SIX, "table": 9, "schema": form.BaselineReply, "context": False}
_FEW = {**_SIX, "table": 9, "schema": form.DevicesReply, "context": False, "data": ELEVEN,
        "definitions": True}  # fmt: skip
_THREE = {**_SIX, "schema": form.ThreeStepReply, "definitions": True}
_TWELVE = {**_THREE, "schema": form.ThreeStep12Reply, "devices": TWELVE_DEVICES, "definitions": False,
           "table": 11, "context": True, "data": FIGMEMES_TEMPLATES}  # fmt: skip
_FIVE = {"kind": "five tasks", "schema": form.FiveTasksReply, "devices": DEVICES}
_CAPTION = {"kind": "meme caption", "schema": form.MeaningReply, "table": 10, "metric": BLEURT,
            "data": MEMECAP_TEMPLATES}  # fmt: skip
_FIVE_10 = {**_FIVE, "table": 10, "metric": BLEURT, "data": MEMECAP_TEMPLATES}

_SPECS = (
    PromptSpec("gpt4o", 5, "GPT-4o", metric=VOTES, published=49, data=SURVEY, context=None, **_FIVE),
    PromptSpec("llava", 5, "LlaVA-1.6", metric=VOTES, published=44, data=SURVEY, context=None,
               **_FIVE | {"schema": form.FreeWordsReply, "devices": ()}),
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
    examples: Sequence[PictureExample] = (),
) -> list[Message]:
    """What is asked about one meme.

    With `context` the template's "about" text is given, or it is said that there is none; a row without
    context never has it. Without `image` the model gets the template's name and the texts on the meme
    instead. `examples` are the pictures of a few-shot prompt that shows some; without them, or without
    `image`, it describes made-up ones. Names, texts and "about" are fenced: they come from outside.
    """
    seen = image if spec.sees else None
    shown = list(examples) if spec.examples == "pictures" and seen is not None else []
    with_context = gives_context(spec, context)
    written = meme.text or "(no text is known)"
    text = prompting.render(
        spec.file,
        about=info.about.strip() if with_context and info is not None else "",
        with_context=with_context,
        has_image=seen is not None,
        pictures=[example.devices or ["none"] for example in shown],
        text_only=not spec.sees,
        known=f"Template: {meme.template}\n{written}" if spec.sees else written,
        devices=spec.devices,
        emotions=EMOTIONS,
        fence=prompting.fence,
    )
    images = [example.image for example in shown] + ([seen] if seen is not None else [])
    return [Message(role="user", text=text, images=images)]


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
            "calls": spec.calls,
            "schema": spec.schema.__name__,
            "printed": spec.printed,
            "metric": spec.metric,
            "published": spec.published,
            "measured on": spec.data,
        }
        for spec in PROMPTS.values()
    ]
    return pd.DataFrame(rows).set_index("name")
