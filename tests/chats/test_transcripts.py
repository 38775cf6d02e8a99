import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_transcripts import BELOW, BESIDE, RULE, TALK, below, beside

from memecmd_utils.chats import formats, readers, transcripts
from memecmd_utils.chats.messages import ChatError
from memecmd_utils.chats.readers import MEME_COLUMNS

MEME = dict(zip(MEME_COLUMNS, ("m1", "o_memes/m1.png", 0.5, -1.25, -2.0, "greedy"), strict=True))


def read(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "chat.txt"
    path.write_bytes(text.encode(encoding))
    return readers.read(path)


def said(export) -> list[list[tuple[str, str]]]:
    return [[(m.speaker, m.text) for m in chat.messages] for chat in export.chats]


@pytest.mark.parametrize("form", [*BELOW.values(), *BESIDE.values()], ids=[*BELOW, *BESIDE])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_who_said_what(tmp_path, form, newline) -> None:
    export = read(tmp_path, form.format(*(text for _, text in TALK)).replace("\n", newline))
    assert [[pair for pair in chat if pair[0]] for chat in said(export)] == [TALK]


UNMARKED = {name: form for name, form in {**BELOW, **BESIDE}.items() if not name.startswith("plain")}


@pytest.mark.parametrize("form", UNMARKED.values(), ids=UNMARKED)
@pytest.mark.parametrize("second", ["明天 10:30 见", "https://a.example/b?c=1:2", "注意: 带伞", "明天 10:30"])
def test_a_message_may_have_several_lines(tmp_path, form, second) -> None:
    export = read(tmp_path, form.format("在吗", f"在\n{second}", "爬山去不去"))
    assert [pair for chat in said(export) for pair in chat if pair[0]] == [
        ("小王", "在吗"),
        ("小李", f"在\n{second}"),
        ("小王", "爬山去不去"),
    ]


TIMES = (("12:30", 0), ("12:31", 1), ("1:32", 0))


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("小王2", "user 5"), below("{0} 12:30", "{1} 12:31", "{0} 12:40")),
        (("3班:小王", "3班:小李"), below("{0} 12:30", "{1} 12:31", "{0} 12:40")),
        (("A:B", "C:D"), below("12:30 {0}", "12:31 {1}", "12:40 {0}")),
        (("A:B", "3班"), below("2024-05-01 12:30 {0}", "2024-05-01 12:31 {1}", "2024-05-01 12:40 {0}")),
        (("A:B", "3班"), beside(*(f"[5/1/24 {at} PM] {{{i}}}: " for at, i in TIMES))),
        (("A:B", "王 2024"), below(*(f"2024-05-01 {at}:11 {{{i}}}({12345 + i})" for at, i in TIMES))),
        (("小王（产品）", "10号"), below(*(f"{{{i}}} 2024/5/1 {at}:11" for at, i in TIMES))),
        (("小王（产品）", "小李（研发）"), beside("{0}：", "{1}：", "{0}：", "{1}：")),
        (("user1", "user2"), beside("{0}: 100", "{1}: 30", "{0}: ")),
        (("12345678", "小王"), beside("{0}: ", "{1}: ", "{0}: ")),
    ],
)
def test_names_with_digits_colons_and_brackets(tmp_path, names, form) -> None:
    export = read(tmp_path, form.replace("{}", "好").format(*names))
    assert [speaker for speaker, _ in said(export)[0]][:3] == [names[0], names[1], names[0]]
    assert len({speaker for speaker, _ in said(export)[0]}) == 2


@pytest.mark.parametrize("form", ["{who} 12:3{i}:11\n{i}\n", "12:3{i}\t{who}\t{i}\n"])
def test_a_name_in_brackets_may_come_once(tmp_path, form) -> None:
    who = ["小雨", "小雨", "阿杰(前端)", "小雨"]
    text = "".join(form.format(who=name, i=i) for i, name in enumerate(who))
    assert [name for name, _ in said(read(tmp_path, text))[0]] == who


def test_a_name_with_a_colon_before_a_colon(tmp_path) -> None:
    rows = "3班：小王：在吗\n3班：小王：人呢\n阿杰：来了：真的\n3班：小王：走\n"
    assert said(read(tmp_path, rows)) == [
        [("3班：小王", "在吗"), ("3班：小王", "人呢"), ("阿杰", "来了：真的"), ("3班：小王", "走")]
    ]


def test_all_chats_of_qq_and_accounts_that_change_their_name(tmp_path) -> None:
    block = f"{RULE}\n消息分组:我的好友\n{RULE}\n消息对象:{{}}\n{RULE}\n\n"
    texts = [
        "消息记录\n\n" + block.format("同学群"),
        "2024-05-01 12:30:11 【群主】小王(12345678)\n在吗\n\n",
        "2024-05-01 12:30:12 小王(87654321)\n我也叫小王\n\n",
        "2024-05-01 12:31:11 王总(12345678)\n改名了\n\n",
        "2024-05-01 12:32:11 系统消息(10000)\n小李加入\n\n",
        block.format("小李"),
        "2024-05-02 12:30:11 (55555555)\n喂\n\n",
    ]
    text = "".join(texts)
    export = read(tmp_path, text, "gb18030")
    assert [chat.name for chat in export.chats] == ["同学群", "小李"]
    assert said(export) == [
        [("小王", "在吗"), ("小王 (87654321)", "我也叫小王"), ("小王", "改名了"), ("", "小李加入")],
        [("55555555", "喂")],
    ]


@pytest.mark.parametrize("position", ["before", "after"])
@pytest.mark.parametrize("form", [*BELOW.values(), *BESIDE.values()], ids=[*BELOW, *BESIDE])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_memes_are_lines_of_the_text_and_are_replaced(tmp_path, form, position, newline) -> None:
    text = form.format(*(text for _, text in TALK)).replace("\n", newline)
    export = read(tmp_path, text)
    places = [i for i, (speaker, _) in enumerate(said(export)[0]) if speaker]
    out = export.render({(0, places[1]): MEME, (0, places[2]): MEME}, position).decode()
    lines = out.splitlines()
    memes = [i for i, line in enumerate(lines) if line.endswith("[meme m1: o_memes/m1.png]")]
    texts = [next(i for i, line in enumerate(lines) if line.endswith(text)) for _, text in TALK[1:]]
    assert len(memes) == 2 and all(
        (m < t) is (position == "before") for m, t in zip(memes, texts, strict=True)
    )
    again = read(tmp_path, out)
    assert said(again) == said(export)
    assert again.render({}).decode().rstrip() == text.rstrip()


def test_what_is_said_may_look_like_names(tmp_path) -> None:
    notice = "通知\n时间：周五\n地点：操场\n对象：全体\n备注：带伞"
    text = "".join(f"2024-05-01 12:3{i}:11 {who}({12345 + i})\n{notice}\n\n" for i, who in enumerate("甲乙"))
    assert said(read(tmp_path, text)) == [[("甲", notice), ("乙", notice)]]
    text = "小雨：明天 2024-05-02 10:30\n阿杰：好\n小雨：改到 2024-05-03 11:00\n阿杰：嗯 11:00\n"
    assert [who for who, _ in said(read(tmp_path, text))[0]] == ["小雨", "阿杰"] * 2


@pytest.mark.parametrize(
    "line",
    ["会议 2024-05-02 10:00", "2024-05-02 10:00 例会", "时间：2024-05-02 10:00", "例会 2024/5/2 10:00:00"],
)
@pytest.mark.parametrize("between", ["", "\n"], ids=["beside", "below"])
def test_a_time_in_one_message_begins_none_where_names_do(tmp_path, line, between) -> None:
    """Of eight messages one says when a meeting is, on a line of its own."""
    words = ["看通知", "好", "一起去", "行", "几点出门", "九点半", "好的", "见"]
    text = "".join(f"{'小雨阿杰'[i % 2 * 2 :][:2]}：{between}{word}\n" for i, word in enumerate(words))
    text = text.replace("看通知\n", f"看通知\n{line}\n地点三楼\n")
    [chat] = said(read(tmp_path, text))
    assert chat[-7:] == [("阿杰小雨"[i % 2 * 2 :][:2], word) for i, word in enumerate(words[1:])]
    assert chat[0][0] == "小雨" and chat[0][1].startswith("看通知")


@pytest.mark.parametrize(
    "form", ["{} 12:3{}\n", "{} 2024/5/1 12:3{}:11\n", "{}: 05-01 12:3{}:11\n", "12:3{1} {0}: "]
)
@pytest.mark.parametrize("line", ["会议 14:00", "例会 8:30", "14:00 散会: 走"])
def test_a_time_out_of_order_begins_no_message(tmp_path, form, line) -> None:
    texts = ["在吗", f"看通知\n{line}", "好", "走吧"]
    text = "".join(form.format("甲乙"[i % 2], i) + f"{words}\n" for i, words in enumerate(texts))
    assert said(read(tmp_path, text)) == [[("甲乙"[i % 2], words) for i, words in enumerate(texts)]]


@pytest.mark.parametrize("gap", [" ", "\t", "星期三 ", "2024-", "1 ", "[", "-"])
def test_a_long_line_takes_no_long_time(gap) -> None:
    """Minutes, where a pattern tries every way to cut a gap into parts."""
    text = f"a{gap * 3000}b\n小王{gap * 3000}12:30{gap * 3000}x\n" * 3
    began = time.process_time()
    transcripts.parse(text)
    formats.moments(text.splitlines())
    assert time.process_time() - began < 5


@pytest.mark.parametrize("text", ["好\n不好\n", "12:30\n13:00\n", "2：1 赢了\n10:30见\n", "小王：\n"])
def test_a_text_without_names_is_refused(tmp_path, text) -> None:
    with pytest.raises(ChatError, match=r"chat\.txt: a table is expected.*or a chat as text"):
        read(tmp_path, text)


@given(st.text(alphabet="小王12:： \n[]()-/月日昨天下午AMm,\t\r", max_size=80))
def test_any_text_is_split_without_loss(text) -> None:
    assert "".join(transcripts.split(text)) == text
    found = transcripts.parse(text)
    if found is not None:
        assert [m.first for m in found.messages] == sorted({m.first for m in found.messages})
        assert all(a.end <= b.first for a, b in zip(found.messages, found.messages[1:], strict=False))


# --- a pasted chat

PASTED = {
    "小雨：去不去\n阿杰: 下雨\n小雨:那算了": "小雨=去不去|阿杰=下雨|小雨=那算了",
    # Without names lines alternate; among names one without is the other's.
    "去不去\n下雨\n\n  那算了  ": "甲=去不去|乙=下雨|甲=那算了",
    "小雨：去不去\n下雨\n小雨：那算了": "小雨=去不去|甲=下雨|小雨=那算了",
    "去不去\n小雨：下雨": "甲=去不去|小雨=下雨",
    "小雨：去\n小雨：不去\n阿杰：嗯": "小雨=去 不去|阿杰=嗯",
    "小雨:\n去不去\n\n阿杰：\n下雨": "小雨=去不去|阿杰=下雨",
    "\ufeff小雨：去\r\n阿杰：好\r\n": "小雨=去|阿杰=好",
    # A colon does not make a name.
    **{line: f"甲={line}" for line in (
        "10:30见", "明天 10:30 见", "看 https://a.example/b", "他说，好的：走", "2：1 赢了", "：没有名字", "http://x"
    )},
    "小雨: 明天 10:30 见\n阿杰：看 https://a.example": "小雨=明天 10:30 见|阿杰=看 https://a.example",
    # Names and times that look alike.
    "user1: 100块\nuser2: 30行不": "user1=100块|user2=30行不",
    "小王2：10块\n小王3：好\n小王2：走": "小王2=10块|小王3=好|小王2=走",
    "12345678: 在吗\n小王: 在": "12345678=在吗|小王=在",
    "3班：王：在\n3班：王：吗\n杰：来\n3班：王：走": "3班：王=在 吗|杰=来|3班：王=走",
    "小王（产品）：在吗\n好\n小王（产品）：走": "小王（产品）=在吗|甲=好|小王（产品）=走",
    "小雨：几点\n12:30\n阿杰：一点\n5月1日\n小雨：好": "小雨=几点|阿杰=一点|小雨=好",
    "几点\n12:30\n好": "甲=几点|乙=12:30|甲=好",
    "几点\n一点\n昨天 12:30\n好": "甲=几点|乙=一点|甲=好",
    "小雨：明天 10:30\n阿杰：好\n小雨：改到 11:00": "小雨=明天 10:30|阿杰=好|小雨=改到 11:00",
    "小王 12:30\n[图片]\n小李 12:31\n好": "小王=[图片]|小李=好",
    "小王 12:30\n在\n明天 10:30\n小李 12:31\n好": "小王=在 明天 10:30|小李=好",
    **{form.format(*(text for _, text in TALK)): "|".join(map("=".join, TALK))
       for form in (*BELOW.values(), *BESIDE.values())},
}  # fmt: skip
"""Pasted text to what was read, name=text."""


@pytest.mark.parametrize(("text", "expected"), PASTED.items())
def test_who_said_what_in_a_pasted_chat(text, expected) -> None:
    chat = transcripts.read_pasted(text)
    assert "|".join(map("=".join, chat.lines)) == expected
    assert chat.turn == len(chat.lines) + 1 and chat.next_speaker != chat.lines[-1][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to read"), ("  \n\t\n", "nothing to read"), ("小雨：", "nothing to read"),
        ("甲：一\n乙：二\n丙：三", "line 3: '丙' would be a third person"),
        ("小王 12:30\n在吗\n小李 12:31\n在\n小张 12:32\n我", "line 5: '小张' would be a third person"),
        ("好" * 20_001, "20,001 characters"), ("甲：一\n乙：二\n" * 101, "202 turns"),
    ],
)  # fmt: skip
def test_a_pasted_chat_that_cannot_be_read_says_why(text, message) -> None:
    with pytest.raises(ChatError, match=message):
        transcripts.read_pasted(text)
