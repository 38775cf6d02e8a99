"""Replies of models gone wrong: seeded mutations of good ones, and a list of nasty ones by name."""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence

Mutation = Callable[[str, random.Random], str]
MEMBER = re.compile(r'"\w+"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d[\d.]*)')
NUMBER = re.compile(r"(?<![\w\"])-?\d[\d.]*")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
WIDE_DIGITS = {code: wide for code, wide in WIDE.items() if chr(code).isdigit()}
WIDE_SIGNS = {ord(sign): WIDE[ord(sign)] for sign in ":,"}
INSERTS = (
    *("\x00", "\x07", "\x1b[31m", "\r", "\x85", "\u2028", "\u202e", "\u2066", "\u200b", "\ufeff", "\ufffd"),
    *("\ud83d", "\ude00", "\\ud83d", "\\ude00\\ud83d", "\\u0000", "\\u12", "\\", "\\q", "\\/", "\n", "\t"),
    *('"', "'", "“", "”", "「", "{", "}", "[", "]", ":", ",", "：", "，", "(", "`", "//", "/*", "#", "<!--"),
    *("```", "<think>", "</think>", "<br>", "&nbsp;", "{{ 7*7 }}", "%s", "😂", "分", "1e999", "null", "..."),
)
VALUES = (
    *("null", "true", "false", "[]", "{}", '""', '" "', "-1", "101", "1e999", "-1e999", "NaN", "Infinity"),
    *("-Infinity", "1e-400", "0x1F", "085", "1_0", "85分", '"85分"', '"８５"', "８５", '"八十五"', "８ ５"),
    *("8 5", "1,000", "85/100", "85%", '["开心"]', '{"text": "开心"}', "undefined", "None", '"\\ud83d"'),
    '"\\u0000"',
    *("9" * 5000, '"' + "9" * 5000 + '"', "0." + "3" * 5000, "[" * 60 + "]" * 60),
)  # fmt: skip
PROSE = (
    *("好的，这是结果：\n", "Here's the result:\n", "他说“可以”，", '字段 "mood" 如下：', "说明 [1]："),
    *("格式 {mood}：", "<think>先想一想 {不急}</think>\n", "<p>", "\n\n希望对你有帮助！"),
    *(" 其中 {a} 指情绪", "\n```", "// 完", "]"),
)


def _span(text: str, rng: random.Random, most: int = 8) -> tuple[int, int]:
    start = rng.randrange(len(text) + 1)
    return start, min(len(text), start + rng.randint(1, most))


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _cut_front(text: str, rng: random.Random) -> str:
    return text[rng.randrange(len(text) + 1) :]


def _delete(text: str, rng: random.Random) -> str:
    start, end = _span(text, rng)
    return text[:start] + text[end:]


def _double(text: str, rng: random.Random) -> str:
    start, end = _span(text, rng, most=40)
    return text[:end] + text[start:]


def _swap(text: str, rng: random.Random) -> str:
    start, end = _span(text, rng, most=2)
    return text[:start] + text[start:end][::-1] + text[end:]


def _insert(text: str, rng: random.Random) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + rng.choice(INSERTS) + text[start:]


def _delete_byte(text: str, rng: random.Random) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    start = rng.randrange(len(raw) + 1)
    # Servers replace what is not UTF-8; a client may also hand it on as surrogates.
    return (raw[:start] + raw[start + 1 :]).decode(
        "utf-8", rng.choice(["replace", "surrogateescape", "ignore"])
    )


def _delete_sign(text: str, rng: random.Random) -> str:
    places = [i for i, character in enumerate(text) if character in "\"'{}[]:,"]
    if not places:
        return text
    place = rng.choice(places)
    return text[:place] + text[place + 1 :]


def _wide(text: str, rng: random.Random) -> str:
    return text.translate(rng.choice([WIDE, WIDE_DIGITS, WIDE_SIGNS, WIDE_DIGITS | WIDE_SIGNS]))


def _new_value(text: str, rng: random.Random) -> str:
    found = list(MEMBER.finditer(text))
    if not found:
        return text
    start, end = rng.choice(found).span(1)
    return text[:start] + rng.choice(VALUES) + text[end:]


def _double_member(text: str, rng: random.Random) -> str:
    found = list(MEMBER.finditer(text))
    if not found:
        return text
    one, other = rng.choice(found), rng.choice(found)
    return f"{text[: other.start()]}{one.group()}, {text[other.start() :]}"


def _fence(text: str, rng: random.Random) -> str:
    return f"```{rng.choice(['json', 'JSON', '', 'python'])}\n{text}\n{rng.choice(['```', ''])}"


def _prose(text: str, rng: random.Random) -> str:
    return rng.choice(PROSE) + text if rng.random() < 0.5 else text + rng.choice(PROSE)


def _twice(text: str, rng: random.Random) -> str:
    return text + rng.choice(["", "\n", ",", "\n或者：\n"]) + text


def _wrap(text: str, rng: random.Random) -> str:
    depth = rng.choice([1, 2, 30])
    opening, closing = rng.choice([("[", "]"), ('{"result": ', "}"), ("(", ")"), ("{", "}")])
    return opening * depth + text + closing * depth


def _python(text: str, rng: random.Random) -> str:
    try:
        return repr(json.loads(text))
    except (ValueError, RecursionError):
        return text.replace('"', "'")


def _other_quotes(text: str, rng: random.Random) -> str:
    opening, closing = rng.choice(["''", "“”", "””", "「」", "‘’", "``"])
    return QUOTED.sub(lambda found: opening + found[1] + closing, text)


def _comma(text: str, rng: random.Random) -> str:
    return re.sub(r"(?=[}\]])", rng.choice([",", "，", ", ,", ";"]), text)


def _comment(text: str, rng: random.Random) -> str:
    return text.replace(",", rng.choice([", // 备注\n", " /* 备注 */,", ", # 备注\n", ", <!-- 备注 -->"]))


def _spread(text: str, rng: random.Random) -> str:
    return re.sub(r"(?<=[{,\[])", rng.choice(["\n  ", "\r\n\t", "\u3000", "\xa0"]), text)


MUTATIONS: tuple[Mutation, ...] = (
    *(_cut, _cut, _cut_front, _delete, _double, _swap, _insert, _insert, _insert, _delete_byte, _delete_sign),
    *(_delete_sign, _wide, _new_value, _new_value, _double_member, _fence, _prose, _twice, _wrap, _python),
    *(_other_quotes, _comma, _comment, _spread),
)
SHAPES: tuple[Mutation, ...] = (
    *(_fence, _prose, _twice, _wrap, _python, _other_quotes, _comma, _comment, _spread),
)
"""Mutations that leave the texts as they are."""


def mutated(
    good: Sequence[str], n: int, seed: int, mutations: Sequence[Mutation] = MUTATIONS, most: int = 4
) -> Iterator[str]:
    """Yield `n` mutations of `good` replies: one to `most` steps each; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(n):
        text = rng.choice(good)
        for _ in range(rng.randint(1, most)):
            text = rng.choice(mutations)(text, rng)
        yield text


def nasty(good: str) -> dict[str, str]:
    """Replies by name that have stopped parsers before, some of them made from a `good` one."""
    deep = 10_000
    return {
        "empty": "",
        "blank": " \n\t\u3000",
        "one brace": "{",
        "braces": "{" * deep,
        "closing braces": "{" + "}" * deep,
        "brackets": "[" * deep,
        "bracket in an object": '{"a":' + "[" * deep,
        "nested lists": '{"a":' + "[" * deep + "]" * deep + "}",
        "nested objects": '{"a":' * deep + "1" + "}" * deep,
        "nested, short": '{"a":' * 90 + "1" + "}" * 90,
        "good, nested deeply": "[" * deep + good + "]" * deep,
        "parentheses": '{"a":' + "(" * 7_000 + "}",
        "parentheses, spread": '{"a":' + "(" * 580 + " " * 5_300 + "}",
        "parentheses, escaped": '{"a":' + "(\\" * 290 + "0" * 5_300 + "}",
        "quotes": '{"a": ' + '"' * 7_000 + "}",
        "open strings": '{"a": "b' + '", "c' * 1_500 + "}",
        "no quotes": "{" + "a:b," * 1_900 + "}",
        "no quotes, few": "{" + "a:b," * 299 + " " * 4_700 + "}",
        "pieces of objects": '[{"a":' + '}"a":`' * 90 + '}"' + "哈" * 5_300 + "}",
        "apostrophes, few": '{"a":[' + "a'" * 290 + "a" * 5_300 + "}",
        "words": "{a b" + " c" * 3_900 + "}",
        "backslashes": '{"a": "' + "\\" * 7_001 + '"}',
        "apostrophes": "{'a': '" + "x'y" * 2_500 + "'}",
        "chinese quotes": "{“a”：" + "“x”，" * 1_900 + "}",
        "open chinese quotes": "{" + "：“" * 3_900 + "}",
        "open apostrophes": "{" + ",'" * 20_000 + "}",
        "blanks": "{" + " " * 7_000 + '"a"' + " " * 900 + "}",
        "marks and blanks": "{" + ":  " * 2_500 + "}",
        "comments": "{" + "/*" * 3_900 + "}",
        "line comments": "{" + "//\n" * 2_600 + "}",
        "fences": "{" + "```json " * 990 + "}",
        "half escapes": '{"a":"' + "\\u12" * 1_900 + '",}',
        "many objects": "{}" * 2_000,
        "numbers": '{"ratings": [' + "1," * 20_000 + "1]}",
        "huge number": good.replace("85", "9" * 5_000),
        "long text": "哈" * 200_000,
        "long text after": good + "哈" * 200_000,
        "long string": '{"mood": "' + "哈" * 200_000 + '"}',
        "long lines": "哈哈\n" * 50_000,
        "long in the limit": '{"mood": "' + "哈" * 49_000,
        "open in the limit": '{"a":"b",' * 1 + '"c":"d",' * 6_000,
        "open objects": '{"a":[0,0,0,0,' * 99 + "0," * 20_000,
        "lone surrogate": good.replace("：", "\ud83d"),
        "surrogates": "\ud83d" * 100,
        "escaped surrogate": '{"mood": "\\ud83d"}',
        "nul": "\x00" * 100,
        "controls": "".join(map(chr, range(32))),
        "think": "<think>" * 10_000 + good,
        "closed thoughts": "</think>" * 10_000 + good,
        "html": f"<html><body><pre>{good}</pre></body></html>",
        "xml": f"<?xml version='1.0'?><reply>{good}</reply>",
        "error page": "<html><head><title>502 Bad Gateway</title></head></html>",
        "byte order mark": "\ufeff" + good,
        "only a number": "85",
        "only null": "null",
        "only a string": '"开心"',
        "as a string": json.dumps(good),
    }
