"""What the annotation of template memes will ask for, before it runs: calls, tokens, money, hours."""

from collections.abc import Iterable, Sequence

import pandas as pd

from memecmd_utils import prices
from memecmd_utils.ledger import Ledger
from memecmd_utils.llm import Image
from memecmd_utils.profiles import Profile
from memecmd_utils.template_annotation import STAGE, Passes, reading_request, sample_of
from memecmd_utils.template_prompts import PromptSpec
from memecmd_utils.template_replies import ThreeStepReply
from memecmd_utils.template_schemas import TemplateInfo, TemplateMeme

TOKENS_PER_CHARACTER = 0.25
"""Of English text; the profile's own figure is for Chinese."""
REPLY_TOKENS = {"five tasks": 220, "meme caption": 60, "literary devices": 60}
TOKENS_PER_COMPARISON = 30
"""Of one label held against a meme: its name, a reason in a few words, yes or no."""
LOOKED_AT = 200
"""Memes whose prompts are rendered for the mean length."""


def estimate(
    profile: Profile, memes: Sequence[TemplateMeme], infos: Iterable[TemplateInfo], pictures: bool = False
) -> pd.DataFrame:
    """A row per prompt and a total for the profile's sample of `memes`, in the columns of `make cost`.

    `pictures`: whether they are shown. No call is made; what is recorded costs nothing and is not looked at.
    """
    settings, about = profile.template_annotation, {info.template: info for info in infos}
    endpoint = profile.endpoints.annotator or profile.endpoints.generator
    asked = len(sample_of(memes, settings.sample, profile.seed))
    shown = Image(image_id="estimate", load=lambda: "") if pictures else None
    rows, ledger = [], (STAGE, "annotation")
    for spec in Passes.of(settings).prompts:
        some = sample_of(memes, LOOKED_AT, profile.seed)
        requests = [
            reading_request(spec, meme, about.get(meme.template), settings, 0, shown) for meme in some
        ]
        said = [message for request in requests for message in request.messages]
        characters = sum(len(message.text) for message in said)
        images = sum(len(message.images) for message in said)
        each = characters * TOKENS_PER_CHARACTER + images * prices.tokens_per_image(endpoint)
        t_in, t_out = round(asked * each / max(1, len(some))), asked * _reply_tokens(spec)
        stage, calls = f"07 {spec.name}", asked * spec.calls
        rows.append(prices.line(stage, ledger, profile, profile.llm, endpoint, calls, t_in, t_out))
    return prices.beside(pd.DataFrame(rows), Ledger())


def _reply_tokens(spec: PromptSpec) -> int:
    compared = len(spec.devices) if issubclass(spec.schema, ThreeStepReply) else 0
    return REPLY_TOKENS[spec.kind] + TOKENS_PER_COMPARISON * compared
