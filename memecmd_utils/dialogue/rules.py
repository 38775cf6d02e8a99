"""Rules that every utterance must keep (paper, Section 4.1.3), checked in code."""

import difflib
import re
from collections.abc import Sequence

# Talk about the task instead of the chat: what a model says of itself, its last reply and what it was asked.
# Small models answer a correction instead of the chat ("抱歉，我之前的回答重复了前面的话"). An ordinary
# apology (抱歉来晚了), a promise (好的，我会带伞) and a word on somebody's message (你刚才的回复我没看到) are
# no such talk: every pattern needs a word of the task, or the manner in which a new version is announced.
REPLY = "(?:回复|回答|答复|答案|输出|表述|措辞|发言|台词|句子|语句|版本)"
CHANGED = "(?:修改|修正|更正|改正|改写|重写|调整|优化|润色|精简|缩短)"
SIGNS = "(?:表情符号|颜文字|括号|前缀)"
LAST_REPLY = "(?:回复|回答|答复|输出|表述|措辞|发言|句子|语句)"
ASKED = "(?:要求|指令|指示|提示|规则|格式|字数|设定|反馈)"
BEFORE = "(?:之前|刚才|刚刚|上次|前面|先前|上述|上面)"
SORRY = "(?:抱歉|对不起|不好意思|道歉|致歉|见谅)"
NOT_YOURS = "(?<![你您他她们])"
BEGIN, END = r"(?:^|[，,。.！!]\s*)", r"(?=[：:，,。.！!~…]|$)"

OF_ITSELF = [
    r"(?:作为|身为|(?<!不)我只?是)(?:一[个名位款])?"
    r"(?:AI|人工智能|(?:大型?)?语言模型|大模型|聊天机器人|(?:(?:虚拟|智能|AI)助[手理]))",
    r"作为(?:一[个名位款])?助手",
    r"(?i:\b(?:as|am|i'm) an? (?:ai|(?:large )?language model|(?:ai )?assistant)\b)",
]
A_NEW_VERSION = [
    rf"(?:以下|下面|这里?)就?(?:是|为).{{0,8}}(?:{CHANGED}|重新\w{{1,2}})(?:之?后|过|好)?的",
    rf"(?:以下|下面)就?(?:是|为)(?:我的?|新的?|符合.{{0,4}}|一[句条个段]|这[句条])*(?:{REPLY}|内容|要求|[：:])",
    rf"{CHANGED}(?:之?后|过)的?(?:{REPLY}|内容|文本|一句)|{CHANGED}(?:之?后|如下|版)?\s*[：:]",
    rf"(?:{REPLY}|{CHANGED})如下",
    rf"^(?:新的?|最终|正确的?)?{LAST_REPLY}\s*[：:]",
    rf"{BEGIN}(?:那|好的?|嗯|行)?(?:请?[让容]我|我)?(?:会|将|来|先)?"
    rf"(?:重新(?:说|讲|组织|生成|{LAST_REPLY})|再(?:组织|生成|{LAST_REPLY}))"
    rf"(?:一[下遍次句个])?(?:语言|措辞|回复|一下)?{END}|我?重新写(?:一[遍次句个])?[：:]",
    r"换一?个(?:不同的?)?(?:开头|措辞|表述)|我(?:会|将)换一?[种个].{0,3}(?:说法|表达)",
    rf"这是我?的?新的?(?:回复|回答|答复|输出)|下面我.{{0,3}}(?:[写说讲]|{LAST_REPLY}).{{0,3}}[：:]",
    rf"^[（(【\[]?{CHANGED}后[）)】\]]|已经?(?:更正|改正|修正){END}",
    rf"{BEGIN}(?:那|好的?|嗯|行)?我?(?:改[为成]|换一?句|再[试写]一[次遍下句])[：:]",
    r"(?i:\b(?:here(?:'s| is)|revised|corrected|updated|rewritten)\b.{0,12}"
    r"\b(?:reply|response|version|answer|message|line|sentence)\b)",
]
OF_WHAT_WAS_ASKED = [
    rf"(?:根据|按照?|遵[照循]|依照|符合|满足)[您你]?的?(?:上述|以上|题目|任务)?的?{ASKED}"
    rf"(?=[，,。：:！!]|$|我|重|修|改|回|生|输|调|的{REPLY})",
    rf"{BEGIN}我(?:会|将|这就|马上)?(?:严格)?(?:遵[守照循]|按照?|根据|依照|注意|控制|检查)"
    rf"(?:[您你]的|这些|以上|一下)*{ASKED}",
    rf"我(?:会|将|来|这就|马上|现在|已经?|重新|再次){{1,2}}(?:{CHANGED}|生成|输出)(?:我?的|一下)?"
    rf"(?:{REPLY}|内容|格式|如下|{END})",
    r"我(?:会|将|尽量|一定)(?:注意|尽量)*(?:避免|不再|不会再?|不)"
    r"(?:再?使用|再?重复|[用出].{0,3}(?:相同|一样|表情|颜文字|开头))",
    r"我(?:会|将|尽量)(?:[用以]|尽量|保持)*更?(?:口语|简洁|简短|精简)(?:化|[些点]|一[些点])?",
    r"我(?:会|将)(?:继续)?(?:扮演|[用以].{1,6}的?(?:身份|口吻|角色))",
    rf"(?:符合|遵守|违反)了?[您你]?的?(?:上述|以上|这些)?{ASKED}",
    rf"(?:不会再?|不再|避免)(?:使用|出现|用).{{0,2}}{SIGNS}|我(?:会|将|尽量)+避免.{{0,4}}开头",
    rf"(?:理解|明白|了解|收到|清楚|误解)了?您的(?:要求|指示|意思|反馈|需求)|您说得对.{{0,3}}{CHANGED}",
    r"这句话(?:没有?|不)?(?:超过|一共|共)\d+个?字|告诉我下一句",
    r"以\w{1,6}的(?:口吻|身份|语气)[：:]|作为\w{1,6}[，,]我会(?:说|回复|回答)[：:“]",
    r"用户(?:希望|要求|让我|想让|需要我)|只输出|只写一句|现在轮到.{1,6}说话",
    r"(?i:\b(?:sure|certainly|of course|understood)[,!.] (?:here|i)\b|\bas requested\b)",
]
OF_THE_LAST_REPLY = [
    rf"{SORRY}.{{0,10}}(?:话|句).{{0,2}}(?:太长|超字|重复|一样)|{SORRY}.{{0,12}}用了.{{0,2}}{SIGNS}",
    rf"{NOT_YOURS}{BEFORE}我?的{LAST_REPLY}|{NOT_YOURS}上一?[次条轮句](?:我?的)?{LAST_REPLY}",
    rf"{SORRY}.{{0,4}}我的{LAST_REPLY}(?!.{{0,3}}[晚迟慢])",
    rf"{SORRY}.{{0,10}}(?:重复了?(?:[前之上说]|.{{0,2}}内容)|[没未]能?有?按|违反|{ASKED})",
    r"(?:没有?|不会?再?|避免)重复(?:[前之上]面?|说过)|(?:不会再?|避免)重复(?=$|[，,。！])",
    r"(?i:\b(?:sorry|apologi[sz]e)\b.{0,24}\b(?:reply|response|answer|repe\w+|confusion|mistake)\b"
    r"|\bmy (?:previous|last|earlier) (?:reply|response|answer)\b)",
]
OF_A_HELP_DESK = [
    r"有什么(?:可以|能)(?:帮|为您)|提供更多(?:具体)?的?(?:信息|上下文|背景|细节)|[乐愿]意为您|很?高兴为您",
    rf"感谢[您你]的(?:反馈|指正)|给您带来.{{0,2}}不便|{SORRY}.{{0,4}}(?:不能|无法)(?:回答|讨论|参与|继续)",
    r"希望(?:这|以上|对[您你]).{0,8}(?:有所?帮助|符合|满足)",
    r"无法(?:生成|协助|提供此类|满足您|继续.{0,4}(?:对话|话题))",
    r"(?i:\bi(?:'m| am)? (?:can't|cannot|can not|unable to) (?:help|assist|comply|generate|continue)\b)",
    r"(?:根据|从|结合)(?:上面|以上|前面|这段|上述)?的?(?:聊天记录|对话内容|上下文|背景资料)",
]
PATTERN = re.compile(
    "|".join([*OF_ITSELF, *A_NEW_VERSION, *OF_WHAT_WAS_ASKED, *OF_THE_LAST_REPLY, *OF_A_HELP_DESK])
)


def task_talk(text: str) -> str | None:
    """Return the words of `text` that talk about the task, or None."""
    match = PATTERN.search(text)
    return match and match.group().strip("，,。！! ")


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
