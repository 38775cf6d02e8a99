"""Structured replies: the schema that is asked for, and the checked value or line out of a model's text.

Whatever a text is, reading it raises nothing but `UnusableReply`, which says why.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from memecmd_utils.llm.types import Reply, UnusableReply

T = TypeVar("T", bound=BaseModel)
TOKEN = (
    r"<\|[^|<>\n]{1,40}\|?>|<[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?s>|</?(?:end|start|begin)_of_\w+>"
    r"|<(?:eos|bos|pad|unk|eot)>|\[/?(?:INST|EOS|BOS|PAD|DONE)\]"
)
"""Control tokens of models: an own token, which a server should not send, ends a text."""
LEADING = re.compile(rf"\A(?:\s*(?:{TOKEN})(?:assistant|model|user)?)+")
_THOUGHT = r"(?:seed:)?think(?:ing)?|thoughts?|reason(?:ing)?|reflection|analysis|scratchpad"
OPEN, CLOSE = (re.compile(rf"(?i)<{end}(?:{_THOUGHT})>|\[{end}THINK\]") for end in ("", "/"))
"""What stands before and after a thought; the first is missing where the chat template wrote it already."""
FINAL = re.compile(r"<\|channel\|>final[^\n]{0,60}?<\|message\|>|\Aanalysis[\s\S]*assistantfinal")
"""Before the reply in harmony's channels."""
MAX_CHARS, MAX_BRACES = 50_000, 100
"""The ratings of 17 memes are 4,600 characters at most, with 18 braces."""
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters and halves of surrogate pairs: neither a file nor a page takes them."""
PAIRS = {"“": "”", "‘": "’", "「": "」", "『": "』", '"': '"', "'": "'"}
"""Quotes that may stand around an utterance; not 《》, which names a title."""
PAGE = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml)\b", re.IGNORECASE)
STRICT_KEYWORDS = {"type", "properties", "items", "enum", "const", "anyOf", "$ref", "$defs"}


def without_thoughts(text: str) -> str:
    """The reply in a model's text: without thoughts and control tokens.

    After a thought, also one in an unknown tag, the reply begins; the first control token after that ends it.
    """
    text = FINAL.split(text)[-1]
    *thoughts, rest = CLOSE.split(text)
    if thoughts and not rest.strip():
        rest = OPEN.split(text)[0]
    rest = OPEN.split(rest)[0]
    tagged = None if PAGE.match(rest) else re.match(r"\s*<([^\W\d][\w:-]*)>([\s\S]*?)</\1>", rest)
    if tagged:
        rest = rest[tagged.end() :] if rest[tagged.end() :].strip() else tagged[2]
    if rest.lstrip().startswith("<|channel|>"):  # of harmony a thought alone came
        return ""
    return re.split(TOKEN, LEADING.sub("", rest))[0].strip()


@lru_cache(maxsize=64)
def strict_schema(model: type[BaseModel]) -> dict[str, Any] | None:
    """JSON schema within OpenAI's strict subset, or None where the subset cannot say it.

    Every key is required and nothing additional allowed; bounds and formats are left to our own check of
    the reply. Free-form mappings, tuples and an alternative at the root have no form there.
    """

    def tighten(node: dict[str, Any]) -> dict[str, Any]:
        out = {key: value for key, value in node.items() if key in STRICT_KEYWORDS}
        for group in [name for name in ("properties", "$defs") if name in out]:
            out[group] = {name: tighten(inner) for name, inner in out[group].items()}
        if "items" in out:
            out["items"] = tighten(out["items"])
        if "anyOf" in out:
            out["anyOf"] = [tighten(inner) for inner in out["anyOf"]]
        if out.get("type") == "object":
            out |= {"required": list(out["properties"]), "additionalProperties": False}
        return out

    schema = model.model_json_schema()
    if schema.get("type") != "object" or '"prefixItems"' in json.dumps(schema):
        return None
    try:
        return tighten(schema)
    except KeyError:  # an object without properties: a free-form mapping
        return None


def garbled(text: str) -> bool:
    """Whether a text is a web page, or was read with another code page than it was written in."""
    if PAGE.match(text) or "锟斤拷" in text:
        return True
    for codec in ("latin-1", "cp1252"):
        with suppress(UnicodeError):
            if text.encode(codec).decode() != text:
                return True
    return False


def structured(reply: Reply, schema: type[T]) -> T:
    """Parse JSON of `schema` out of a reply: code fences and prose around it are fine.

    The last object counts: drafts stand before it. What is not whole is not mended, but asked for again.
    """
    text = without_thoughts(reply.text)
    if len(text) > MAX_CHARS or text.count("{") > MAX_BRACES:
        raise UnusableReply("too long")
    if objects := _objects(text):
        return _checked(objects[-1], schema)
    if reply.finish_reason == "length" or any(text.count(a) > text.count(b) for a, b in ("{}", "[]")):
        raise UnusableReply("cut off")
    raise UnusableReply("no JSON object")


def _objects(text: str) -> list[dict[str, Any]]:
    """Whole JSON objects in a text, outermost ones only."""
    decoder, start, objects = json.JSONDecoder(strict=False), 0, []
    while (start := text.find("{", start)) >= 0:
        try:
            value, start = decoder.raw_decode(text, start)
            objects.append(value)
        except (ValueError, RecursionError):
            start += 1
    return objects


def _checked(value: dict[str, Any], schema: type[T]) -> T:
    try:
        model = schema.model_validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:4]
        fields = (".".join(map(str, fault["loc"])) + ": " + fault["msg"] for fault in faults)
        raise UnusableReply("wrong fields", ", ".join(fields)) from error
    for text in _texts(model.model_dump()):
        _check_text(text)
        if text and not _visible(text):
            raise UnusableReply("empty text")
    return model


def _check_text(text: str) -> None:
    if CONTROL.search(text) or "\ufffd" in text:  # which stands where something was lost
        raise UnusableReply("unreadable text")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def utterance_text(reply: Reply, names: tuple[str, ...]) -> str:
    """Take the one line a speaker says: the first with words, without name before or quotes around it.

    A line that the token limit cut off is unusable: it ends in mid-sentence.
    """
    if len(reply.text) > MAX_CHARS:
        raise UnusableReply("too long")
    label = re.compile(r"(?:{})\s*[:：]\s*".format("|".join(map(re.escape, (*names, "A", "B", "甲", "乙")))))
    for line in without_thoughts(reply.text).splitlines(keepends=True):
        text = _unquoted(line.strip())
        name_before = label.match(text)
        if name_before:
            text = _unquoted(text[name_before.end() :])
        if not _visible(text) or text.startswith("```"):
            continue
        if reply.finish_reason == "length" and line.splitlines() == [line]:  # no line break after it
            raise UnusableReply("cut off")
        _check_text(text)
        return text
    return ""


def _visible(text: str) -> bool:
    """Whether there is more than marks without width, such as those for the direction of writing."""
    return any(map(str.isprintable, text))


def _unquoted(text: str) -> str:
    """Take away quotes around the whole text; not those inside it."""
    partner = PAIRS.get(text[:1])
    if len(text) > 1 and text[-1] == partner and partner not in text[1:-1]:
        return text[1:-1].strip()
    return text
