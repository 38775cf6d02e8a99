"""What goes over the wire to an OpenAI-compatible endpoint, and what comes back: translation only."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from memecmd_utils.llm_types import Message, Reply

MAX_WAIT_S = 60.0
# The opening tag is missing where the chat template has written it already.
THINK = re.compile(r"<think>.*?(?:</think>|\Z)|\A(?:(?!<think>).)*?</think>", re.DOTALL)


STRICT_DEPTH = 10
KEPT_KEYWORDS = {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf"}
KEPT_KEYWORDS |= {"$ref", "$defs"}
DROPPED_KEYWORDS = {"title", "description", "default", "format", "pattern", "examples"}
DROPPED_KEYWORDS |= {"minLength", "maxLength", "minItems", "maxItems"}
DROPPED_KEYWORDS |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters and halves of surrogate pairs: they cannot be written or shown."""
CHINESE = re.compile(rb"[\xe2-\xe9\xef][\x80-\xbf]{2}")
"""Chinese characters and signs in UTF-8."""
PAGE = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml)\b", re.IGNORECASE)


WHOLE = {
    "", "null", "none", "stop", "stop_sequence", "stop_token", "eos", "eos_token", "endoftext", "end_of_text",
    "end", "end_turn", "complete", "completed", "finish", "finished", "done", "normal",
}  # fmt: skip
"""Finish reasons of a whole reply, as servers write them: nothing at all, OpenAI's word, a stop word or the
end of the text reached (TGI, Together, AI21), Anthropic's, Cohere's and Titan's words, Qianfan's `normal`."""
FILTERED = re.compile(
    "filter|safety|sensitive|moderat|blocklist|prohibited|toxic|guardrail|recitation|spii|inspection|"
    "policy|policies|violation"
)
"""Finish reasons and error codes of a content filter: OpenAI, Zhipu, Gemini, Cohere, Bedrock, DashScope."""


class EmptyReply(ValueError):
    """A reply without a message."""


@lru_cache(maxsize=64)
def strict_schema(model: type[BaseModel]) -> dict[str, Any] | None:
    """JSON schema within OpenAI's strict subset, or None where the subset cannot say it.

    Every key is required and nothing additional allowed; bounds and formats are left to our own check of
    the reply. Free-form mappings, tuples and an alternative at the root have no form there, nor have more
    than ten levels.
    """

    def tighten(node: dict[str, Any], depth: int) -> dict[str, Any]:
        if depth > STRICT_DEPTH or set(node) - KEPT_KEYWORDS - DROPPED_KEYWORDS:
            raise ValueError("outside the strict subset")
        out = {key: value for key, value in node.items() if key in KEPT_KEYWORDS}
        for group in ("properties", "$defs"):
            if group in out:
                out[group] = {name: tighten(inner, depth + 1) for name, inner in out[group].items()}
        if "items" in out:
            out["items"] = tighten(out["items"], depth + 1)
        if "anyOf" in out:
            out["anyOf"] = [tighten(inner, depth + 1) for inner in out["anyOf"]]
        if out.get("type") == "object":
            if "properties" not in out or isinstance(out.get("additionalProperties"), dict):
                raise ValueError("a free-form mapping")
            out["required"] = list(out["properties"])
            out["additionalProperties"] = False
        return out

    try:
        schema = tighten(model.model_json_schema(), 0)
    except ValueError:
        return None
    return schema if schema.get("type") == "object" else None


def wire_message(message: Message) -> dict[str, Any]:
    """A message as the API takes it; images go as data URLs."""
    if not message.images:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.text}]
    parts += [{"type": "image_url", "image_url": {"url": image.load()}} for image in message.images]
    return {"role": message.role, "content": parts}


def read_reply(body: Any) -> Reply:
    """Turn the body of a chat completion into a `Reply`. `<think>` blocks are taken out and counted.

    Raises `EmptyReply` for a body that is no chat completion, also an error sent with status 200.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise EmptyReply("no choices")
    text = message.get("content")
    if isinstance(text, list):  # some servers send parts, as in requests
        text = "".join(str(part.get("text") or "") for part in text if isinstance(part, dict))
    if not isinstance(text, str | None):
        raise EmptyReply("no text")
    text = CONTROL.sub("", text or "")
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    finish = _finish_reason(choice.get("finish_reason"))
    return Reply(
        text=THINK.sub("", text).strip(),
        finish_reason="stop" if finish == "refusal" else finish,
        refusal=bool(message.get("refusal")) or finish == "refusal",
        tokens_in=_count(usage.get("prompt_tokens")),
        tokens_out=_count(usage.get("completion_tokens")),
        think_characters=sum(len(found.group()) for found in THINK.finditer(text))
        + (len(thought) if isinstance(thought, str) else 0),
        first_token=_first_token(choice.get("logprobs")),
    )


def _finish_reason(value: Any) -> str:
    """`stop`, `content_filter`, `refusal` or, for whatever else a server may say, `length`: a cut."""
    if value is None:
        return "stop"
    if not isinstance(value, str):
        return "length"
    word = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_").removeprefix("finish_reason_")
    if word in WHOLE:
        return "stop"
    if word == "refusal":
        return "refusal"
    return "content_filter" if FILTERED.search(word) else "length"


def garbled(text: str) -> bool:
    """Whether a text is a web page, or was read with another code page than it was written in."""
    if PAGE.match(text) or "锟斤拷" in text:
        return True
    for codec in ("latin-1", "cp1252", "gb18030"):
        try:
            other = text.encode(codec).decode()
        except UnicodeError:
            other = text
        # The bytes of a few Chinese characters may be UTF-8 by chance (笑, 一), those of six hardly ever.
        if other != text and (codec != "gb18030" or sum(not c.isascii() for c in text) >= 6):
            return True
        # Whoever read it may have left out what the code page does not have, or the blank at its end.
        raw = text.encode(codec, "ignore")
        whole, high = CHINESE.findall(raw), sum(byte > 127 for byte in raw)
        if len(set(whole)) >= 3 and 3 * len(whole) >= high / 2:
            return True
    return False


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0


def _first_token(logprobs: Any) -> dict[str, float] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not (isinstance(content, list) and content and isinstance(content[0], dict)):
        return None
    tops = content[0].get("top_logprobs")
    return {
        CONTROL.sub("", str(top["token"])): min(float(top["logprob"]), 0.0)
        for top in (tops if isinstance(tops, list) else [])
        if isinstance(top, dict) and "token" in top and _is_probability(top.get("logprob"))
    }


def _is_probability(value: Any) -> bool:
    # At most 0 but for rounding; infinities and what is not a number cannot be written as JSON.
    return isinstance(value, int | float) and -1e6 < value < 1.0


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
