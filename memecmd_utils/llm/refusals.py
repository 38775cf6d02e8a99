"""What a server means by an error: its words, wherever they stand, its kind, and the wait it asks for."""

import email.utils
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

_MONEY = r"(?<![a-z])(?:balance|credits?|funds?|free[ _-](?:tier|trial)|余额|额度|资源包)(?![a-z])"
_SHORT = r"insufficient|not\b.{0,12}(?:enough|sufficient)|too\slow|negative|不足|用尽|用完|耗尽|为负"
_SPENT = r"exhausted|depleted|used\s(?:up|all)|r[ua]n\sout|out\sof"
MEANINGS = {
    "credit": re.compile(
        rf"""(?ix) \A402\  | (?:{_MONEY}|quota) [^.]{{0,40}} (?:{_SHORT})
        | (?:{_SHORT}) [^.]{{0,40}} (?:{_MONEY}|quota) | {_MONEY} [^.]{{0,40}} (?:{_SPENT})
        | (?:{_SPENT}) [^.]{{0,40}} {_MONEY} | \bno\ (?:more\ |remaining\ )?(?:credits?|balance|funds)\b
        | billing[ _]hard[ _]limit | (?:spending|credit)\ limit | exceeded_current_quota | limit:\ 0\b
        | (?<![a-z])arrear | overdue | payment\ required | 欠费"""
    ),
    "model": re.compile(
        r"""(?ix) \A404\  | \A4(?!29)\d\d\ .*(?:
          model\b.{0,60}(?:not\ (?:exist|found|a\ valid)|decommissioned|不存在)
          | (?:invalid|unknown|no\ such)\ model\b | not\ a\ valid\ model | 模型不存在 )"""
    ),
    "key": re.compile(r"(?i)\A401 |\A400 .*api[ _-]?key"),
    "busy": re.compile(r"\A(?:408|409|425|429|5\d\d) "),
    "json": re.compile(
        r"(?i)json_validate_failed|failed_generation"
        r"|(?:fail|unable|not)\w* (?:to )?(?:generat|output|produc)\w* .{0,9}json"
    ),
    "filter": re.compile(
        r"""(?ix) filter | (?:content|usage|data|ai)[\W_]?polic | usage\ guideline | data_?inspection
        | moderat | (?<!case[ -])sensitive | responsible_?ai | censor | safety | unsafe | inappropriate
        | flagged | high[ -]risk | 敏感 | 不安全 | 违规 | 违法 | 审核"""
    ),
}
"""Kinds of errors, the first that fits a line of status, words and codes. A quota that is exhausted may be
one a minute. Some services tell of a content filter, or of a model that wrote no JSON, in this way."""
CODES = re.compile(
    r'\\?"(?:code|type|status)\\?"\s*:\s*\\?"?([^",}\\]+)|"(contentFilter|flagged_input|failed_generation)"'
)
WORDS = ("message", "msg", "status_msg", "error", "detail")
"""Fields that hold an error's words, the usual ones first."""
UNITS = {"ms": 0.001, "毫": 0.001, "s": 1, "秒": 1, "m": 60, "分": 60, "h": 3600, "小": 3600}
_UNIT = r"ms|[smh](?![a-z])|(?:milli)?sec(?:ond)?s?|min(?:ute)?s?|h(?:ou)?rs?|毫?秒|分钟?|小时"
_TIME = rf"(\d+(?:\.\d+)?)[ ]?({_UNIT})"
ASKED = re.compile(
    rf"""(?ix) (?:\b(?:in|after|wait|for|within)\b|retry\w*|等待?) ["':=\s]{{0,5}}
        (?:at\ least\ |about\ |another\ )? (?P<before>(?:{_TIME}\s*)+)
    | (?P<after>(?:{_TIME}\s*)+)[之以]?后
    | "retry_?(?:after|delay)(?:_?seconds)?"\s*:\s*"?(?P<bare>\d+(?:\.\d+)?)\b"""
)
"""A wait: "try again in 1m20s", "after 1 seconds", "20 秒后重试", `"retry_after": 3`."""


class Refusal(NamedTuple):
    """What a server's answer means."""

    status: int
    """200 for what is no error; an error that was sent with 200 has the status that it tells of."""
    kind: str = ""
    """A name in `MEANINGS`, or none."""
    reason: str = ""
    """The server's own words."""
    wait: float | None = None
    """Seconds that a rate limit asks to wait for (`asked_wait`)."""


def read(status: int, headers: Mapping[str, str], text: str) -> Refusal:
    """What an answer means by status, headers and body."""
    try:
        body = json.loads(text)
        error = error_of(body)
        reason = reason_of(error or body) or text
    except (ValueError, RecursionError, TypeError, AttributeError):
        error, reason = None, text
    if status < 400:
        if error is None:
            return Refusal(200)
        told = error if isinstance(error, dict) else {}
        codes = (str(told.get(name)) for name in ("code", "status", "status_code"))
        known = [int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)]
        status = known[0] if known else 400 if _kind(400, reason, text) == "filter" else 502
    wait = asked_wait(headers, text) if status == 429 else None
    return Refusal(status, _kind(status, reason, text), reason, wait)


def _kind(status: int, reason: str, text: str) -> str:
    """Only words and codes count: a body may repeat the request, and chats are about money, too."""
    codes = [part for found in CODES.findall(text) for part in found if part]
    told = " ".join(" ".join([str(status), reason, *codes]).split())
    return next((name for name, words in MEANINGS.items() if words.search(told)), "")


def reason_of(body: Any) -> str:
    """The first text in an error's body, in whatever way a server nests it; the usual fields come first.

    A service in between has the words of the one behind it in `metadata.raw`, or as JSON in a text.
    """
    if isinstance(body, str) and body.lstrip()[:1] == "{":
        with suppress(ValueError, RecursionError):
            return reason_of(json.loads(body))
    if isinstance(body, dict):
        behind = body.get("metadata")
        parts = [*(body[name] for name in WORDS if name in body), *body.values()]
        found = reason_of(parts), reason_of(behind.get("raw")) if isinstance(behind, dict) else ""
        return ": ".join(dict.fromkeys(filter(None, found)))
    if isinstance(body, list):
        return next(filter(None, map(reason_of, body)), "")
    return body.strip() if isinstance(body, str) else ""


def error_of(body: Any) -> Any:
    """The error that a body sent with 200 is about, its own or that of its first choice; else None."""
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    base = body.get("base_resp") or {}
    if error := body.get("error") or choice.get("error") or (base.get("status_code") and base):
        return error
    if choice.get("finish_reason") == "error" and not (choice.get("message") or {}).get("content"):
        return {"message": "finish_reason: error"}
    return body if not (choices or body.get("data")) and any(body.get(name) for name in WORDS) else None


def asked_wait(headers: Mapping[str, str], text: str) -> float | None:
    """Seconds that a refusal asks to wait for, by its header or in its words; None where it names none."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return unit * float(value)
        with suppress(TypeError, ValueError, OverflowError):  # no date
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    if (found := ASKED.search(text)) is None:
        return None
    parts = re.findall(rf"(?i){_TIME}", found["before"] or found["after"] or "")
    return sum((float(n) * _unit(unit.lower()) for n, unit in parts), float(found["bare"] or 0))


def _unit(word: str) -> float:
    return UNITS["ms"] if word.startswith(("ms", "milli")) else UNITS[word[0]]
