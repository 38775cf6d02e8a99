"""What the annotation of template memes will ask for, before it runs: calls, tokens, money, hours."""

from collections.abc import Iterable, Sequence

import pandas as pd

from memecmd_utils import cost
from memecmd_utils.budget import BATCH_DISCOUNT
from memecmd_utils.llm import Image
from memecmd_utils.profiles import Profile
from memecmd_utils.template_annotation import Passes, reading_request, sample_of
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
    rows = []
    for spec in Passes.of(settings).prompts:
        some = sample_of(memes, LOOKED_AT, profile.seed)
        requests = [
            reading_request(spec, meme, about.get(meme.template), settings, 0, shown) for meme in some
        ]
        said = [message for request in requests for message in request.messages]
        characters = sum(len(message.text) for message in said)
        images = sum(len(message.images) for message in said)
        each = characters * TOKENS_PER_CHARACTER + images * cost.tokens_per_image(endpoint)
        t_in = asked * each / max(1, len(some))
        rows.append(_row(profile, spec, asked * spec.calls, round(t_in), asked * _reply_tokens(spec)))
    table = pd.DataFrame(rows)
    total = {"stage": "total", "model": ""} | table.iloc[:, 2:].sum().to_dict()
    return pd.concat([table, pd.DataFrame([total])], ignore_index=True)


def _reply_tokens(spec: PromptSpec) -> int:
    compared = len(spec.devices) if issubclass(spec.schema, ThreeStepReply) else 0
    return REPLY_TOKENS[spec.kind] + TOKENS_PER_COMPARISON * compared


def _row(profile: Profile, spec: PromptSpec, calls: int, t_in: int, t_out: int) -> dict[str, object]:
    endpoint = profile.endpoints.annotator or profile.endpoints.generator
    usd, seconds = 0.0, 0.0
    if profile.llm == "authored":
        model, calls, t_in, t_out = "nobody", 0, 0, 0
    elif profile.llm == "local":
        model = profile.local_model
        seconds = t_in / cost.LOCAL_TOKENS_IN_PER_S + t_out / cost.LOCAL_TOKENS_OUT_PER_S
    else:
        model = (endpoint.model or "(no model named)") + (" (batch)" if profile.batch else "")
        usd_in, usd_out = endpoint.usd_per_million_in or 0.0, endpoint.usd_per_million_out or 0.0
        usd = (t_in * usd_in + t_out * usd_out) / 1e6 * (BATCH_DISCOUNT if profile.batch else 1.0)
        each = cost.REMOTE_SECONDS_PER_CALL / profile.concurrency
        seconds = cost.BATCH_WINDOW_S if profile.batch and calls else calls * each
    return {
        "stage": f"07 {spec.name}",
        "model": model,
        "calls": calls,
        "tokens_in": t_in,
        "tokens_out": t_out,
        "usd": usd,
        "hours": seconds / 3600,
    }
