"""Parsers of replies: from a model's text to a checked value, or `UnusableReply` with the reason."""

import re
from typing import TypeVar

import json_repair
from pydantic import BaseModel, ValidationError

from memecmd_utils.llm import Reply, UnusableReply

T = TypeVar("T", bound=BaseModel)
FULL_WIDTH = str.maketrans("０１２３４５６７８９", "0123456789")
QUOTES = "\"'“”‘’「」『』《》 \t"
LABEL = re.compile(r"^\s*[\w（）()]{1,12}\s*[:：]\s*")


def structured(reply: Reply, schema: type[T]) -> T:
    """Parse JSON of `schema` out of a reply: code fences, prose around it and full-width digits are fine.

    A reply that was cut off (finish reason `length`) is repaired only if every field is then there.
    """
    text = reply.text.translate(FULL_WIDTH)
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        raise UnusableReply("回复不是 JSON")
    if reply.finish_reason == "length":
        raise UnusableReply("回复被截断")
    value = json_repair.loads(text[start:])
    if isinstance(value, list):  # prose with braces after the object makes a list of both
        value = next((item for item in value if isinstance(item, dict)), None)
    if not isinstance(value, dict):
        raise UnusableReply("回复不是 JSON 对象")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, e["loc"])) + ": " + e["msg"] for e in error.errors()[:4])
        raise UnusableReply(f"JSON 的字段不对：{fields}") from error


def utterance_text(reply: Reply, names: tuple[str, ...]) -> str:
    """Take the one line a speaker says: the first non-empty one, without name before or quotes around it."""
    line = next((line.strip() for line in reply.text.splitlines() if line.strip()), "")
    label = LABEL.match(line)
    if label and label.group().strip().rstrip(":：").strip() in (*names, "A", "B", "甲", "乙"):
        line = line[label.end() :]
    return line.strip(QUOTES)
