"""Rules that every utterance must keep (paper, Section 4.1.3), checked in code."""

import difflib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

TASK_TALK = Path(__file__).resolve().parent / "task_talk.txt"
"""How a small model talks about the task instead of the chat."""
STARTER_CHARS = 2
STARTER_WINDOW = 6
"""Turns back in which a sentence starter must not come again; beyond it two people may both say 那你."""
COPY_RATIO = 0.85
REPEATED_CHARS = 6
"""Characters in a row from an earlier turn that count as saying it again; a name or an echo is shorter."""
BORROWED_CHARS = 5
"""So many characters in a row from a worked example are no accident: a small model lifts them."""

# Pictographs, dingbats, flags, variation selectors and keycaps, but not CJK or its punctuation.
EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\ufe0f\u20e3\u2190-\u21ff\u203c\u2049\u200d"
    "\u231a\u231b\u23e9-\u23fa\u3297\u3299\U000e0020-\U000e007f]"
)
# Signs of faces that stand in no ordinary message: strokes, eyes and mouths of ╮(╯▽╰)╭, (≧◡≦), ಠ_ಠ, (；´Д｀).
FACE_SIGNS = "\u0300-\u036f\u250c-\u254b\u256d-\u2573\uff61-\uff9f▽△▿◕◔◡◠◉ᴗ‿﹏﹃︿︶ಠಥʕʔᴥツ≧≦⊙⌒∀∇ωДд´¯๑٩۶"
FACES = re.compile(
    "|".join(
        (
            f"[{FACE_SIGNS}]",
            # Two eyes and a mouth: T_T, ^_^, -_-, @_@, QAQ; o_O, >_<, ^^.
            r"(?<![A-Za-z0-9])(?!---)([TQxXoOuU^=;@~+\-•・])\s?[_.oOwWvV\-]\s?\1(?![A-Za-z0-9])",
            r"(?<![A-Za-z0-9])(?:[oO][_.][oO]|0_0)(?![A-Za-z0-9])|[>＞]\s?[_.\-]?\s?[<＜]|\^\^|=\s=|一_一",
            r"(?<![A-Za-z])(?i:orz|otz|q[auw]q|t[a^]t|[ou]w[ou]|0[vw]0)(?![A-Za-z])",
            # Smileys: :) ;-) at the end of words, :D XD :3 apart from them.
            r"[:;][\-~^']?[)(）（](?=$|[\s，。！？~…,.!?])",
            r"(?<![\w）)])(?:[:;=][\-~^']?[DPpOo3]|[xX]D+)(?![A-Za-z0-9])",
            # Brackets that hold signs: neither a word nor a number, and more than . or ?
            r"[(（](?![^()（）]*(?:[1-9\u4e00-\u9fff]|[A-Za-z]{2}))(?=[^()（）]*[^\w\s?!？！.。…,，、~～])[^()（）]{2,14}[)）]",
        )
    )
)
ASIDES = re.compile(
    r"(?P<round>[(（]([^()（）]{1,20})(?P<closed>[)）]|$))"
    r"|[\[［【〔]([\u4e00-\u9fff]{1,6}|[A-Za-z]{2,12})[\]］】〕]"
    r"|(?<![\d*＊])[*＊]{1,2}(?=[^\s*＊])([^*＊\d]{1,20})[*＊]{1,2}"
)
"""What stands in brackets or between asterisks. 【】 and [] also hold the names of a chat program's faces."""
ACTING = re.compile(
    "[笑哭泣叹嘻嘿哼咳嗽呜捂挠摊耸眨瞪瞥翻皱撇抿嘟怒羞愣惊汗囧晕吐抖颤喘跪扶抱拥吻歪凑递掏搓]"
    "|[摇点低抬仰转回]过?头|[转起]身|[站坐跑走]过?[起来下去到]|[挥摆招伸举拍握][了着起出]?[手拳桌肩]"
    "|[看望盯指拿放端][着向了起出下]|沉默|停顿|沉思|思考|发呆|无奈|尴尬|得意|委屈|激动|兴奋|[开伤]心|高兴|难过|生气|害怕|紧张"
    "|疑惑|不解|认真|严肃|[小大轻低]声|声音|悄悄|偷偷|默默|缓缓|慢慢|语气|语音|表情|动作|眼神|内心|心想|旁白|狗头|手动|划掉"
    "|不是$|误$|逃$|(?i:haha|hehe|bushi|doge|lol)"
)
"""Acts, feelings and tones, as a stage direction names them."""
REMARK = re.compile(
    r"[\dA-Za-z]|^(?:不?[含包限]|除|约|共|即|就是|比如|如果|要是|大概|可能|应该|顺便|其实|虽然|不过|或者|加上|真的|对)"
    r"|[店站楼路街号室家口边旁区里内外上下前后门院校点分月日天年岁元块钱价费折个只位次那这种人版]$"
)
"""Remarks on place, time, number or condition, which people do put into brackets: 那家店（楼下那家）."""
SENTENCE_SIGN = re.compile(r"[\s，。！？；…~～,.!?;]")
LABELS = "[AB甲乙丙丁]"
ROLES = (
    r"用户|助手|助理|人类|机器人|系统|旁白|客服|AI|User|Assistant|Human|Bot|System|Narrator"
    r"|(?:角色|说话人|发言人)\w?"
)
WEIGHTS = {
    "谈到了任务本身": 30,
    "重复了前面说过的话": 6,
    "照搬了例子": 6,
    "前面已经说过": 4,
    "写了人名前缀": 3,
    "写了括号动作": 3,
    "用了颜文字": 2,
    "用了表情符号": 2,
    "太长": 1,
    "开头": 1,
}
"""How bad a broken rule is, by the words in which the model is told of it. Talk about the task is worse than
all others together: it is no utterance. What was said before adds nothing to the dialogue; a prefix,
an act or a face can be read over; a long sentence or a common beginning is only less good."""

PUNCTUATION = re.compile(r"[\s，。！？、；：…—~～·,.!?;:\"'“”‘’（）()《》【】\-]+")


def bare(text: str) -> str:
    """Text without punctuation and blanks."""
    return PUNCTUATION.sub("", text)


def starter(text: str) -> str:
    """The first characters that a reader would notice as the same beginning."""
    return bare(text)[:STARTER_CHARS]


def violations(text: str, earlier: Sequence[str], max_chars: int, names: Sequence[str] = ()) -> list[str]:
    """Return what is wrong with an utterance, in Chinese as it is told to the model; empty if nothing.

    `earlier` are the utterances of the dialogue so far, oldest first; `names` are those of the speakers.
    """
    broken = []
    if not bare(text):
        return ["空的回复"]
    if len(text) > max_chars:
        broken.append(f"太长（{len(text)}字，最多{max_chars}字）")
    if EMOJI.search(text):
        broken.append("用了表情符号")
    if FACES.search(text):
        broken.append("用了颜文字")
    if prefix := name_prefix(text, names):
        broken.append(f"写了人名前缀（{prefix}）")
    elif act := stage_direction(text):
        broken.append(f"写了括号动作（{act}）")
    if talk := task_talk(text):
        broken.append(f"谈到了任务本身（{talk}）")
    if starter(text) in {starter(other) for other in earlier[-STARTER_WINDOW:]}:
        broken.append(f"开头“{starter(text)}”和前面的话一样")
    if any(is_copy(text, other) for other in earlier):
        broken.append("重复了前面说过的话")
    elif run := shared_run(text, earlier, REPEATED_CHARS):
        broken.append(f"“{run}”前面已经说过")
    return broken


def severity(broken: Sequence[str]) -> int:
    """How bad the broken rules that `violations` names are together; fewer and milder ones make it less."""
    return sum(next((weight for words, weight in WEIGHTS.items() if words in rule), 5) for rule in broken)


def task_talk(text: str) -> str | None:
    """Return the words of `text` that talk about the task, or None."""
    match = _task_talk_patterns().search(text)
    return match and match.group().strip("，,。！! ")


@cache
def _task_talk_patterns() -> re.Pattern[str]:
    """The lines of `task_talk.txt` as one pattern."""
    words: dict[str, str] = {}
    patterns = []
    for line in TASK_TALK.read_text(encoding="utf-8").splitlines():
        name, assigned, value = line.partition(" = ")
        if assigned and name.isupper():
            words[name] = value
        elif line and not line.startswith("#"):
            patterns.append(re.sub(r"\{([A-Z_]+)\}", lambda match: words[match[1]], line))
    return re.compile("|".join(patterns))


def stage_direction(text: str) -> str | None:
    """The act, feeling or tone that `text` puts in brackets or between asterisks, or None.

    At either end of a sentence anything is one but a remark on place, time or number; inside it, what
    names an act.
    """
    for aside in ASIDES.finditer(text):
        inside = next(aside[number] for number in (2, 4, 5) if aside[number])
        if not aside["round"] or ACTING.search(inside):
            return aside.group()
        if len(bare(inside)) < 2 or not aside["closed"] or FACES.search(aside.group()):
            continue
        begins = not aside.start() or SENTENCE_SIGN.match(text[aside.start() - 1])
        if (begins or not bare(text[aside.end() :])) and not REMARK.search(inside):
            return aside.group()
    return None


def name_prefix(text: str, names: Sequence[str] = ()) -> str | None:
    """The name before a speaker's words, as in 甲： or 【外婆】, also before a second speaker's; or None."""
    known = "|".join([*map(re.escape, filter(None, names)), LABELS])
    end = r"[\s\]］】)）*＊]*(?:[(（][^()（）]{1,10}[)）])?"
    match = re.search(
        rf"(?:^|(?<=[。！？!?…~\s]))[\s\[［【(（*＊#]*(?:(?:{known}){end}(?:说|道|回复?|问|答)?|(?:{ROLES}){end})\s*[：:]"
        rf"|^[\[［【(（](?:{known}|{ROLES})[\]］】)）]",
        text,
        re.IGNORECASE,
    )
    return match and match.group().strip()


def shared_run(text: str, others: Sequence[str], length: int) -> str | None:
    """The first `length` characters in a row that `text` has from one of `others`, or None."""
    words = bare(text)
    known = [bare(other) for other in others]
    runs = (words[start : start + length] for start in range(len(words) - length + 1))
    return next((run for run in runs if any(run in other for other in known)), None)


def borrowed(text: str, examples: Sequence[str], own: Sequence[str] = ()) -> str | None:
    """Return a run of characters that `text` has from a worked example of the prompt, or None.

    What already stands in the dialogue's own texts may be said again.
    """
    run = shared_run(text, examples, BORROWED_CHARS)
    return None if run is None or shared_run(run, own, BORROWED_CHARS) else run


def is_copy(text: str, other: str) -> bool:
    """Whether two utterances say the same words, punctuation aside."""
    a, b = bare(text), bare(other)
    if a == b:
        return True
    # No more characters can match than stand in both: most pairs need no closer look.
    letters = set(b)
    if min(len(a), len(b)) < 4 or 2 * sum(c in letters for c in a) < COPY_RATIO * (len(a) + len(b)):
        return False
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.quick_ratio() >= COPY_RATIO and matcher.ratio() >= COPY_RATIO
