"""Parsers of replies: from a model's text to a checked value, or `UnusableReply` with the reason."""

import json
import re
from typing import Any, TypeVar

import json_repair
from pydantic import BaseModel, ValidationError

from memecmd_utils.llm import Reply, UnusableReply

T = TypeVar("T", bound=BaseModel)
FULL_WIDTH = str.maketrans("０１２３４５６７８９", "0123456789")
COLON = re.compile(r'(?<=["”])\s*：\s*')  # full-width signs between the parts of JSON
COMMA = re.compile(r'(?<=[\d"”\]}])\s*，\s*(?=["“{])')
PAIRS = {"“": "”", "‘": "’", "「": "」", "『": "』", '"': '"', "'": "'"}
"""Quotes that may stand around an utterance; not 《》, which names a title."""


def structured(reply: Reply, schema: type[T]) -> T:
    """Parse JSON of `schema` out of a reply: code fences, prose around it and full-width digits are fine.

    Small faults are repaired, but a reply that was cut off is unusable: its last text would end anywhere.
    """
    text = reply.text.translate(FULL_WIDTH)
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        raise UnusableReply("回复不是 JSON")
    objects = _objects(text, start)
    if not objects:
        if reply.finish_reason == "length" or text.count("{") > text.count("}"):
            raise UnusableReply("回复被截断")
        value = json_repair.loads(COMMA.sub(", ", COLON.sub(": ", text[start:])))
        # Prose with braces around the object makes a list of both.
        objects = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
    if not objects:
        raise UnusableReply("回复不是 JSON 对象")
    first: ValidationError | None = None
    for value in objects:
        try:
            return schema.model_validate(value)
        except ValidationError as error:
            first = first or error
    fields = ", ".join(".".join(map(str, e["loc"])) + ": " + e["msg"] for e in first.errors()[:4])
    raise UnusableReply(f"JSON 的字段不对：{fields}") from first


def _objects(text: str, start: int) -> list[dict[str, Any]]:
    """Whole JSON objects in a text, outermost ones only."""
    decoder, found = json.JSONDecoder(strict=False), []
    while (start := text.find("{", start)) >= 0:
        try:
            value, start = decoder.raw_decode(text, start)
            found.append(value)
        except ValueError:
            start += 1
    return found


def utterance_text(reply: Reply, names: tuple[str, ...]) -> str:
    """Take the one line a speaker says: the first with words, without name before or quotes around it."""
    label = re.compile(r"(?:{})\s*[:：]\s*".format("|".join(map(re.escape, (*names, "A", "B", "甲", "乙")))))
    for line in reply.text.splitlines():
        text = _unquoted(line.strip())
        found = label.match(text)
        if found:
            text = _unquoted(text[found.end() :])
        if text and not text.startswith("```"):
            return text
    return ""


def _unquoted(text: str) -> str:
    """Take away quotes around the whole text, or one whose partner is missing; not those inside it."""
    opening, closing = text[:1], text[-1:]
    if opening in PAIRS and len(text) > 1:
        partner = PAIRS[opening]
        if closing == partner and partner not in text[1:-1]:
            return text[1:-1].strip()
        if partner not in text[1:]:
            return text[1:].strip()
    if closing in PAIRS.values():
        opener = next(key for key, value in PAIRS.items() if value == closing)
        if opener not in text[:-1]:
            return text[:-1].strip()
    return text
