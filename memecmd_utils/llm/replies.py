"""Structured replies: the schema that is asked for, and parsers from a model's text to a checked value.

Whatever a text is, parsers are soon done, raise nothing but `UnusableReply`, which says why, and return what
can be written down.
"""

import json
import math
import re
from collections.abc import Iterator
from functools import lru_cache, reduce
from operator import getitem
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from memecmd_utils.llm.messages import CutReply, Reply, UnusableReply

T = TypeVar("T", bound=BaseModel)
# The opening tag is missing where the chat template has written it already.
THINK = re.compile(r"<think>.*?(?:</think>|\Z)|\A(?:(?!<think>).)*?</think>", re.DOTALL)
# Bounds on work. The ratings of 17 memes are 4,600 characters at most, with 18 braces and 450 signs.
MAX_CHARS, MAX_BRACES, MAX_LINE_CHARS = 50_000, 100, 2_000
MAX_REPAIR_CHARS, MAX_REPAIR_SIGNS, MAX_REPAIR_BRACKETS = 6_000, 600, 40  # it goes back and forth a lot

SIGNS = str.maketrans("０１２３４５６７８９：，｛｝［］．－＋", "0123456789:,{}[].-+")
SIGNS_ONLY = re.compile(r"[\s!-~０-９：，｛｝［］．－＋]+")
NUMBER_FAULTS = {"int_parsing", "float_parsing"}
OPENING = re.compile("(?P<brace>[{｛])")
# Strings and braces. In quotes other than JSON's a string stands between JSON's signs, so that a quotation
# inside a text is none. One that is never closed runs to the end.
PIECE = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+(?:"|\\?\Z))
    |(?<=[{\[,:｛［，：])\s*(?P<other>
        '(?:[^'\\]|\\.)*+(?:'(?=\s*[}\],:｝］，：])|\\?\Z) | “[^“”]*+(?:”(?=\s*[}\],:｝］，：])|\Z))
    |(?P<brace>[{}｛｝])""",
    re.DOTALL | re.VERBOSE,
)
SIGN = re.compile(r"[^\w\s。，、；：！？（）《》…—]")
# A number with another one in its place, of which the repair would take the first: 8 5, 80~90, 1,000, 85:90.
TWO_NUMBERS = re.compile(r"(?<![\d.])\d++(?:\.\d*+)?+(?:[eE][+-]?\d++)?+(?:[^\d}\]:]+\d|\s*:)")
# What may follow a text: a closing brace, a comment or the next key.
AFTER_TEXT = r"""[\s,;，；]*(?:[}\]｝］#]|//|/\*|(?:["'“‘][^"'“”‘’\n]{1,60}["'”’]|[A-Za-z_]\w*)\s*[:：])"""
# A text that may stand without quotes: nothing in it looks like its end, and it is no word of JavaScript.
BARE = re.compile(r"""(?!(?i:undefined|nan|[+-]?infinity|none|nil)\Z)[^"'“”‘’「」{}\[\]\n]+""")
# Neither a file nor a page takes these, and U+FFFD stands where something was lost. Line breaks are fine.
UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffd]")
PAIRS = {"“": "”", "‘": "’", "「": "」", "『": "』", '"': '"', "'": "'"}
"""Quotes that may stand around an utterance; not 《》, which names a title."""

CHINESE = re.compile(rb"[\xe2-\xe9\xef][\x80-\xbf]{2}")
"""Chinese characters and signs in UTF-8."""
PAGE = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml)\b", re.IGNORECASE)


STRICT_DEPTH = 10
STRICT_KEYWORDS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref",
    "$defs",
}  # fmt: skip
OMITTED_KEYWORDS = {
    "title", "description", "default", "format", "pattern", "examples", "minLength", "maxLength", "minItems",
    "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
}  # fmt: skip


@lru_cache(maxsize=64)
def strict_schema(model: type[BaseModel]) -> dict[str, Any] | None:
    """JSON schema within OpenAI's strict subset, or None where the subset cannot say it.

    Every key is required and nothing additional allowed; bounds and formats are left to our own check of
    the reply. Free-form mappings, tuples and an alternative at the root have no form there, nor have more
    than ten levels.
    """

    def tighten(node: dict[str, Any], depth: int) -> dict[str, Any]:
        if depth > STRICT_DEPTH or set(node) - STRICT_KEYWORDS - OMITTED_KEYWORDS:
            raise ValueError("outside the strict subset")
        out = {key: value for key, value in node.items() if key in STRICT_KEYWORDS}
        for group in [name for name in ("properties", "$defs") if name in out]:
            out[group] = {name: tighten(inner, depth + 1) for name, inner in out[group].items()}
        if "items" in out:
            out["items"] = tighten(out["items"], depth + 1)
        if "anyOf" in out:
            out["anyOf"] = [tighten(inner, depth + 1) for inner in out["anyOf"]]
        if out.get("type") == "object":
            if "properties" not in out or isinstance(out.get("additionalProperties"), dict):
                raise ValueError("a free-form mapping")
            out |= {"required": list(out["properties"]), "additionalProperties": False}
        return out

    try:
        schema = tighten(model.model_json_schema(), 0)
    except ValueError:
        return None
    return schema if schema.get("type") == "object" else None


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
        characters, high_bytes = CHINESE.findall(raw), sum(byte > 127 for byte in raw)
        if len(set(characters)) >= 3 and 3 * len(characters) >= high_bytes / 2:
            return True
    return False


def structured(reply: Reply, schema: type[T]) -> T:
    """Parse JSON of `schema` out of a reply: code fences and prose around it are fine.

    The first object that fits counts, and of a doubled key the last. Full-width digits and signs are read
    outside of texts and small faults repaired; texts stay as they are. A reply that was cut off is never
    repaired: its last text would end anywhere.
    """
    if len(reply.text) > MAX_CHARS or sum(map(reply.text.count, "{｛")) > MAX_BRACES:
        raise UnusableReply("回复太长")
    first: UnusableReply | None = None
    for value, source in _candidates(reply):
        try:
            return _checked(value, schema, source)
        except UnusableReply as error:
            first = first or error
    raise first or UnusableReply("回复不是 JSON 对象")


def _candidates(reply: Reply) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Objects in a reply, surest first; those that are not plain JSON with the text they were read from."""
    # What is left of a thought may hold drafts of the object.
    text = THINK.sub("", reply.text, count=1) if reply.text.lstrip().startswith("<think>") else reply.text
    start = min((i for i in map(text.find, "{｛[") if i >= 0), default=-1)
    if start < 0:
        raise UnusableReply("回复不是 JSON")
    text, any_object = text[start:], False
    for value in _objects(text):
        any_object = True
        yield value, None
    plain, closed, sound = _plain(text)
    if plain != text:
        for value in _objects(plain):
            any_object = True
            yield value, text
    if reply.finish_reason == "length":
        if closed and any_object:
            return
        raise CutReply("回复被截断")
    if not closed:
        raise CutReply("回复被截断，或引号、括号不成对")
    plain = plain[: plain.rfind("}") + 1]
    if not sound or len(plain) > MAX_REPAIR_CHARS or len(SIGN.findall(plain)) > MAX_REPAIR_SIGNS:
        return
    if sum(map(plain.count, "{[(")) > MAX_REPAIR_BRACKETS:
        return
    import json_repair  # only what is no JSON needs it

    try:
        repaired = json_repair.loads(plain, skip_json_loads=True)
    except Exception:  # a library of heuristics: whatever stops it, this is no JSON
        return
    # Prose with braces around the object makes a list of both.
    for value in repaired if isinstance(repaired, list) else [repaired]:
        if isinstance(value, dict):
            yield value, text


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Whole JSON objects in a text, outermost ones only."""
    decoder, start = json.JSONDecoder(strict=False), 0
    while (start := text.find("{", start)) >= 0:
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
        else:
            yield value


def _plain(text: str) -> tuple[str, bool, bool]:
    """Text with JSON's own signs and quotes, whether all in it is closed, and whether its numbers are whole.

    Texts inside of strings stay as they are, and so does prose.
    """
    parts, depth, end, sound = [], 0, 0, True
    while match := (PIECE if depth else OPENING).search(text, end):
        between, kind = text[end : match.start()], match.lastgroup
        piece = match[kind]
        if depth and SIGNS_ONLY.fullmatch(between):
            between = between.translate(SIGNS)
        sound = sound and not (depth and TWO_NUMBERS.search(between))
        if kind == "brace":
            piece = piece.translate(SIGNS)
            depth += 1 if piece == "{" else -1
        elif kind == "other" and "\\" not in piece:
            piece = '"' + piece[1:-1].replace('"', '\\"') + '"'
        parts += [between, piece]
        end = match.end()
    return "".join([*parts, text[end:]]), depth == 0, sound


def _checked(value: dict[str, Any], schema: type[T], source: str | None) -> T:
    """Validate an object; what it says must be writable, and stand in `source` if it is not plain JSON."""
    try:
        model = _validated(value, schema)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:4]
        fields = ", ".join(".".join(map(str, fault["loc"])) + ": " + fault["msg"] for fault in faults)
        raise UnusableReply(f"JSON 的字段不对：{fields}") from error
    for given, parsed in _leaves(value, model.model_dump()):
        if isinstance(given, bool) and not isinstance(parsed, bool):
            raise UnusableReply("JSON 的字段不对：需要数字，收到 true 或 false")
        if isinstance(parsed, float) and not math.isfinite(parsed):
            raise UnusableReply("JSON 的字段不对：数字太大或不是数字")
        if isinstance(parsed, str) and UNWRITABLE.search(parsed):
            raise UnusableReply("文字里有乱码或控制字符")
        if isinstance(parsed, str) and parsed and not _visible(parsed):
            raise UnusableReply("空的文字")
        if isinstance(parsed, str) and source is not None and not _stands_in(parsed, source):
            raise UnusableReply("JSON 的引号或逗号不对")
    return model


def _validated(value: dict[str, Any], schema: type[T]) -> T:
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        # A number as text in full-width digits.
        wide = [fault for fault in error.errors(include_url=False) if fault["type"] in NUMBER_FAULTS]
        if not wide:
            raise
        for fault in wide:
            *path, last = fault["loc"]
            reduce(getitem, path, value)[last] = str(fault["input"]).translate(SIGNS)
        return schema.model_validate(value)


def _leaves(given: Any, parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of a value that was given and what the schema made of it."""
    if isinstance(parsed, dict) and isinstance(given, dict):
        for key in parsed.keys() & given.keys():
            yield from _leaves(given[key], parsed[key])
    elif isinstance(parsed, list) and isinstance(given, list):
        for one, other in zip(given, parsed, strict=False):
            yield from _leaves(one, other)
    else:
        yield given, parsed


def _stands_in(text: str, source: str) -> bool:
    """Whether a text stands in `source` from its beginning to its end, as a guess of the repair may not."""
    forms = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)}
    if "\\" not in text:
        forms |= {text, text.replace("'", "\\'")}
    body = "|".join(map(re.escape, sorted(forms)))
    begin = rf"""["'“‘]\s*(?:{body})\s*["'”’]"""
    if BARE.fullmatch(text):
        begin = rf"(?:{begin}|[:：]\s*(?:{body}))"
    return re.search(begin + AFTER_TEXT, source) is not None


def utterance_text(reply: Reply, names: tuple[str, ...]) -> str:
    """Take the one line a speaker says: the first with words, without name before or quotes around it.

    A line that the token limit cut off is unusable: it ends in mid-sentence.
    """
    if len(reply.text) > MAX_CHARS:
        raise UnusableReply("回复太长")
    label = re.compile(r"(?:{})\s*[:：]\s*".format("|".join(map(re.escape, (*names, "A", "B", "甲", "乙")))))
    for line in THINK.sub("", reply.text).splitlines(keepends=True):
        text = _unquoted(line.strip())
        name_before = label.match(text)
        if name_before:
            text = _unquoted(text[name_before.end() :])
        if not _visible(text) or text.startswith("```"):
            continue
        if reply.finish_reason == "length" and line.splitlines() == [line]:  # no line break after it
            raise CutReply("回复被截断")
        if len(text) > MAX_LINE_CHARS:
            raise UnusableReply("回复太长")
        if UNWRITABLE.search(text):
            raise UnusableReply("文字里有乱码或控制字符")
        return text
    return ""


def _visible(text: str) -> bool:
    """Whether there is more than marks without width, such as those for the direction of writing."""
    return any(map(str.isprintable, text))


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
