"""Talk about the task instead of the chat: what a model says of itself, its last reply and what it was asked.

Small models answer a correction instead of the chat ("抱歉，我之前的回答重复了前面的话"). An ordinary
apology (抱歉来晚了), a promise (好的，我会带伞) and a word on somebody's message (你刚才的回复我没看到) are
no such talk: every pattern needs a word of the task, or the manner in which a new version is announced.
"""

import re

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
    found = PATTERN.search(text)
    return None if found is None else found.group().strip("，,。！! ")
