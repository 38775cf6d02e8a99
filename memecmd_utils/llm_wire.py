"""What goes over the wire to an OpenAI-compatible endpoint, and what comes back: translation only."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic import BaseModel

from memecmd_utils.llm import Message, Reply

MAX_WAIT_S = 60.0
# The opening tag is missing where the chat template has written it already.
THINK = re.compile(r"<think>.*?(?:</think>|\Z)|\A(?:(?!<think>).)*?</think>", re.DOTALL)


class EmptyReply(ValueError):
    """A reply without a message."""


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema within OpenAI's strict subset: every key required, nothing additional, no formats."""

    def tighten(node: Any) -> Any:
        if isinstance(node, list):
            return [tighten(item) for item in node]
        if not isinstance(node, dict):
            return node
        node = {
            key: tighten(value)
            for key, value in node.items()
            if key not in ("title", "default", "minLength", "maxLength", "minimum", "maximum", "description")
            or isinstance(value, dict)
        }
        if node.get("type") == "object" and "properties" in node:
            node["required"] = list(node["properties"])
            node["additionalProperties"] = False
        return node

    return tighten(model.model_json_schema())


def wire_message(message: Message) -> dict[str, Any]:
    """A message as the API takes it; images go as data URLs."""
    if not message.images:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.text}]
    parts += [{"type": "image_url", "image_url": {"url": image.data_url}} for image in message.images]
    return {"role": message.role, "content": parts}


def read_reply(raw: Any) -> Reply:
    """Turn the SDK's object into a `Reply`. `<think>` blocks are taken out and counted."""
    choices = getattr(raw, "choices", None)
    message = getattr(choices[0], "message", None) if choices else None
    text = getattr(message, "content", None) or ""
    if message is None or not isinstance(text, str):
        raise EmptyReply("no choices")
    choice, usage = choices[0], raw.usage
    first = None
    if choice.logprobs and choice.logprobs.content:
        first = {top.token: top.logprob for top in choice.logprobs.content[0].top_logprobs or []}
    return Reply(
        text=THINK.sub("", text).strip(),
        finish_reason=choice.finish_reason or "stop",
        refusal=bool(getattr(message, "refusal", None)),
        tokens_in=(usage.prompt_tokens or 0) if usage else 0,
        tokens_out=(usage.completion_tokens or 0) if usage else 0,
        think_characters=sum(len(found.group()) for found in THINK.finditer(text)),
        first_token=first,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait (`Retry-After` as seconds or as a date), at most a minute."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_WAIT_S)
