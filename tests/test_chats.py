"""Chats of one's own: every tool's export gives the right people and words, to insert memes and as dialogues of a
run, and comes back as it stood; anything else is refused in one line."""

import csv
import io
import json
import re
from pathlib import Path

import made_up
import pytest

from memecmd_utils import chats, cost
from memecmd_utils.chats import readers
from memecmd_utils.chats.formats import MEME_COLUMNS
from memecmd_utils.chats.turns import ChatError, missing
from memecmd_utils.settings import Profile, ProfileError, load_profile, parse_settings

TALK = [
    ("小林", "今天面试怎么样"),
    ("阿泽", "别提了，等了两个小时"),
    ("小林", "然后呢"),
    ("阿泽", "然后他记错日子了"),
]
MEME = dict(zip(MEME_COLUMNS, ("m1", "out_memes/m1.png", 0.5, 1.25, 0.75, "greedy"), strict=True))


@pytest.fixture
def read(tmp_path: Path):
    def read_file(name: str, content, fields: str = "") -> readers.Export:
        path = tmp_path / name
        if not isinstance(content, str | bytes):
            content = json.dumps(content, ensure_ascii=False)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return readers.read(path, readers.parse_fields(fields))

    return read_file


def table(columns: str, rows, delimiter: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows([columns.split(","), *rows])
    return out.getvalue()


def turns(export: readers.Export) -> list[tuple[str, str]]:
    return [(turn.speaker, turn.text) for chat in export.chats for turn in chat.spoken]


def lines(form: str) -> str:
    """The talk as text, each message in this form."""
    return "".join(form.format(n=n, name=name, text=text) for n, (name, text) in enumerate(TALK))


def records(fields, *more) -> list:
    """The talk as records, `fields(n, name, text)` of each message, and what is no message of it."""
    return [*(fields(n, name, text) for n, (name, text) in enumerate(TALK)), *more]


XML = '<?xml version="1.0"?>\n<msg><img aeskey="00" md5="0123" /></msg>'
WECHATMSG = "localId,Type,SubType,IsSender,CreateTime,StrContent,Remark,NickName,Sender"


def wechatmsg(names, *more) -> str:
    rows = records(
        lambda n, name, text: (n, 1, 0, int(name == "小林"), 1709265600 + n, text, "", names[name], "w"),
        *more,
    )
    return "\ufeff" + table(WECHATMSG, rows)


def telegram(n: int, name: str, text: str) -> dict:
    return {
        "id": n,
        "type": "message",
        "date_unixtime": f"{1709265600 + n}",
        "from": name,
        "from_id": name,
        "text": text,
    }


QCE = records(
    lambda n, name, text: {
        "seq": str(n), "timestamp": 1709265600000 + n, "sender": {"uid": f"u_{name}", "name": name},
        "content": {"text": text, "elements": []}, "recalled": False, "system": False,
    }
)  # fmt: skip


def onebot(message, **more):
    """The talk as a bot's log, with what a listener hears beside it: a heartbeat, a poke."""
    heard = ({"post_type": "meta_event", "self_id": 1}, {"post_type": "notice", "user_id": 2, "self_id": 1})
    rows = records(
        lambda n, name, text: {
            "self_id": 1, "user_id": len(name) + n % 2, "time": 1709265600 + n, "message_id": n, "post_type": "message",
            "group_id": 7, "sender": {"user_id": 1, "nickname": "x", "card": name}, "message": message(text), **more,
        },
        *heard,
    )  # fmt: skip
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def slack(n: int, name: str, text: str) -> dict:
    named = {"user_profile": {"real_name": name, "display_name": ""}} if n > 1 else {}
    return {"type": "message", "user": f"U{n % 2}", "text": text, "ts": f"{1709265600 + n}.000100", **named}


def feishu(n: int, name: str, kind: str, content: dict, **more) -> dict:
    body = {
        "body": {"content": json.dumps(content, ensure_ascii=False)},
        "sender": {"id": name, "id_type": "open_id"},
    }
    return {
        "msg_type": kind,
        "create_time": f"{1709265600000 + n}",
        "chat_id": "oc",
        "deleted": False,
        **body,
        **more,
    }


def element(n: int, name: str, body: str, kind: str = "m.text", **more) -> dict:
    content = {"msgtype": kind, "body": body, **more}
    return {
        "type": "m.room.message",
        "sender": f"@{name}:x.invalid",
        "content": content,
        "origin_server_ts": 1709265600000 + n,
    }


RULE = "=" * 62
DAY = "*" * 20 + "2024-03-01" + "*" * 20
EXPORTS = {
    "Slack": ("2024-03-01.json", records(
        slack,
        {"type": "message", "subtype": "channel_join", "user": "U0", "text": "<@U0> has joined", "ts": "1709265602.5"},
        {"type": "message", "subtype": "bot_message", "username": "ci", "text": "red", "ts": "1709265603.5"},
    )),
    "OneBot, segments": ("a.jsonl", onebot(lambda text: [
        {"type": "reply", "data": {"id": "1"}}, {"type": "text", "data": {"text": text}}, {"type": "face", "data": {"id": "1"}},
    ])),
    "OneBot, CQ codes": ("a.jsonl", onebot(lambda text: f"[CQ:at,qq=1] {text}[CQ:image,file=a.jpg,summary=[动画表情]]")),
    "OneBot, history of a group": ("a.json", {"status": "ok", "data": {"messages": [
        json.loads(line) for line in onebot(lambda text: [{"type": "text", "data": {"text": text}}]).splitlines()
    ]}}),
    "MemoTrace text": (
        "a.txt",
        lines("2024-03-01 12:0{n}:00 {name}\n{text}\n\n").replace("然后呢", "然后呢\n引用：阿泽：等了")
        + '2024-03-01 12:08:00\n"阿泽" 拍了拍我\n\n2024-03-01 12:09:00 阿泽\n[图片]\n',
    ),
    "MemoTrace text for AI": ("a.txt", f"\n\n{DAY}\n" + lines("\n{name}:{text}\n") + f"\n\n{DAY}\n[图片]\n"),
    "MemoTrace JSON": ("a.json", records(
        lambda n, name, text: {
            "type": "1", "is_send": name == "小林", "timestamp": 1709265600 + n, "server_id": f"{n}", "display_name": name, "text": text,
        },
        {"type": "8589934592049", "is_send": False, "timestamp": 1709266000, "server_id": "9", "display_name": "阿泽", "text": "发起转账"},
    )),
    "Feishu": ("a.json", {"code": 0, "data": {"has_more": False, "items": records(
        lambda n, name, text: feishu(n, name, "text", {"text": text}),
        feishu(8, "阿泽", "sticker", {"file_key": "k"}),
        feishu(9, "小林", "text", {"text": "撤回的"}, deleted=True),
    )}}),
    "Feishu, events": ("a.jsonl", "\n".join(json.dumps({"event": {
        "sender": {"sender_id": {"open_id": name}},
        "message": {"chat_id": "oc", "message_type": "text", "content": json.dumps({"text": text})},
    }}) for name, text in TALK)),
    "Element": ("a.json", {"room_name": "x", "messages": [
        {"type": "m.room.member", "sender": "@小林:x.invalid", "content": {"membership": "join"}, "origin_server_ts": 1},
        *records(
            lambda n, name, text: element(n, name, f"> <@x:x.invalid> hm\n\n{text}" if n else text),
            element(8, "阿泽", "cat.png", "m.image"),
            element(9, "阿泽", "* 改了", **{"m.relates_to": {"rel_type": "m.replace"}}),
        ),
    ]}),
    "Discord text": (
        "a.txt",
        f"{RULE}\nGuild: g\nChannel: a / b\n{RULE}\n\n"
        + lines("[03/01/2024 12:0{n}] {name}\n{text}\n\n{{Reactions}}\n😭 (2)\n\n\n")
        + "[03/01/2024 12:08] 阿泽 (pinned)\n\n{Stickers}\nhttps://x.invalid/s.png\n\n\n"
        + f"[03/01/2024 12:09] 阿泽\nJoined the server.\n\n{RULE}\nExported 6 message(s)\n{RULE}\n",
    ),
    "Discord CSV": ("a.csv", table("AuthorID,Author,Date,Content,Attachments,Reactions", records(
        lambda n, name, text: (name, name, f"2024-03-01T12:0{n}:00.0000000+00:00", text, "", ""),
        ("阿泽", "阿泽", "2024-03-01T12:09:00.0000000+00:00", "Joined the server.", "", ""),
    ))),
    "KakaoTalk on a computer": (
        "a.txt",
        "하루 님과 카카오톡 대화\n저장한 날짜 : 2024-03-02 10:00:00\n\n--------------- 2024년 3월 1일 금요일 ---------------\n"
        + lines("[{name}] [오후 2:3{n}] {text}\n") + "[阿泽] [오후 2:38] 이모티콘\n阿泽님이 나갔습니다.\n",
    ),
    "KakaoTalk in English": (
        "a.txt",
        "x with KakaoTalk Chats\nDate Saved : 2024-03-02 10:00:00\n\n--------------- Friday, March 1, 2024 ---------------\n"
        + lines("[{name}] [2:3{n} PM] {text}\n") + "[阿泽] [2:38 PM] Photo\n",
    ),
    "KakaoTalk on Android": (
        "a.txt",
        "하루 님과 카카오톡 대화\n저장한 날짜 : 2024년 3월 2일 오전 10:00\n\n2024년 3월 1일 오후 2:30\n"
        + lines("2024년 3월 1일 오후 2:3{n}, {name} : {text}\n") + "2024년 3월 1일 오후 2:38, 阿泽님이 나갔습니다.\n",
    ),
    "KakaoTalk on Android in English": (
        "a.txt",
        "x KakaoTalk Chats\nDate Saved: March 2, 2024 at 9:00 AM\n\n\nMarch 1, 2024 at 2:30 PM\n"
        + lines("March 1, 2024 at 2:3{n} PM, {name} : {text}\n") + "March 1, 2024 at 2:38 PM, 阿泽 left.\n",
    ),
    "KakaoTalk on iPhones": (
        "a.txt",
        "Talk_2024.3.2 10:00-1.txt\n저장한 날짜 : 2024. 3. 2. 오전 10:00\n\n2024년 3월 1일 금요일\n"
        + lines("2024. 3. 1. 오후 2:3{n}, {name} : {text}\n") + "2024. 3. 1. 오후 2:38: 阿泽님이 나갔습니다.\n",
    ),
    "KakaoTalk CSV": ("a.csv", table("Date,User,Message", records(
        lambda n, name, text: (f"2024-03-01 12:0{n}:00", name, text), ("2024-03-01 12:09:00", "阿泽", "사진 3장"),
    ))),
    "SillyTavern": ("a.jsonl", "\n".join(json.dumps(row) for row in (
        {"user_name": "小林", "character_name": "阿泽", "chat_metadata": {}},
        *records(
            lambda n, name, text: {"name": name, "is_user": not n % 2, "is_system": False, "send_date": "March 1, 2024", "mes": text},
            {"name": "小林", "is_user": True, "is_system": True, "send_date": "", "mes": "hidden"},
        ),
    ))),
    "chatlog CSV": ("a.csv", table("Time,SenderName,Sender,TalkerName,Talker,Content", records(
        lambda n, name, text: (f"2024-03-01 12:0{n}:00", name, f"wxid_{n % 2}", "阿泽", "wxid_1", text),
        ("2024-03-01 12:08:00", "", "wxid_0", "阿泽", "wxid_1", "![图片](http://127.0.0.1/image/1)"),
        ("2024-03-01 12:09:00", "", "系统消息", "阿泽", "wxid_1", "撤回了一条消息"),
    ))),
    "WeChat, copied": ("a.txt", lines("{name} [2024-03-01 12:0{n}:00]\n{text}\n\n") + "阿泽 [2024-03-01 12:09:00]\n[图片]\n"),
    "WeChat, copied in lines": ("a.txt", "[2024年3月1日 11:58]\n" + lines("[12:0{n}] {name}：{text}\n")),
    "WeChat, times behind names": ("a.txt", lines("{name}：[12:0{n}] {text}\n")),
    "names and times in brackets": ("a.txt", lines("[{name}][2024-03-01 12:0{n}:00] {text}\n")),
    "WeChat, copied with round brackets": ("a.txt", lines("{name}（2024年3月1日 12:0{n}）：{text}\n")),
    "WeChat, times between lines": ("a.txt", lines("[12:0{n}]\n{name}: {text}\n")),
    "WeChat, mailed": ("a.txt", "—————  2024-03-01  —————\n\n\n" + lines("{name}  下午12:0{n}\n\n{text}\n\n\n")),
    "AstrBot's memory of a group": ("a.txt", lines("[{name}/12:0{n}:00]: {text}\n")),
    "QQ, copied": ("a.txt", lines("{name}: 03-01 12:0{n}:00\n{text}\n\n")),
    "Telegram, copied": (
        "a.txt", lines("{name}, [01.03.2024 12:0{n}]\n{text}\n\n").replace("然后呢", "[In reply to x]\n然后呢") + "阿泽, [01.03.2024 12:09]\n[ Photo ]\n",
    ),
    "WhatsApp with files": (
        "a.txt",
        lines("01.03.24, 12:0{n} - {name}: 00ff11ee22dd33cc44bb55aa66998877.jpg (Datei angehängt)\n{text}\n")
        + "01.03.24, 12:07 - 阿泽: Mein Brief.pdf (Datei angehängt)\n01.03.24, 12:08 - 阿泽: STK-20240301-WA0003.webp (fichier ajouté)\n"
        + "01.03.24, 12:08 - 阿泽: UMFRAGE:\nPizza?\nOPTION: ja (1 Stimme)\nOPTION: nein (0 Stimmen)\n"
        + "01.03.24, 12:09 - 阿泽: Diese Nachricht wurde gelöscht.\n",
    ),
    "WhatsApp, iPhone with files": (
        "a.txt",
        lines("\u200e[01/03/2024 12:0{n}:00] {name}: {text} \u200e<pièce jointe : 00000012-PHOTO-2024.jpg>\n")
        + "\u200e[01/03/2024 12:09:00] 阿泽: notes.pdf • \u200e3 pages \u200e<pièce jointe : 00000014-notes.pdf>\n",
    ),
    "LINE, Japanese": (
        "a.txt",
        "[LINE] 阿泽とのトーク履歴\n保存日時：2024/03/02 10:00\n\n2024/03/01(金)\n"
        + lines("午後12:0{n}\t{name}\t{text}\n").replace("了\n", "了\n午後12:05\t\t阿泽がメッセージの送信を取り消しました\n")
        + "12:09\t阿泽\t[สติกเกอร์]\n12:09\t阿泽\t[アルバム] 夏\n12:10\t阿泽\t☎ 通話時間 0:32\n",
    ),
    "LINE on a computer": ("a.txt", "[LINE] x\n\n2024.03.01 星期五\n" + lines("12:0{n} {name} {text}\n") + "12:09 阿泽 貼圖\n"),
    "bold names": ("a.txt", lines("**{name}**: {text}\n")),
    "bold names and colons": ("a.txt", lines("- **{name}：** {text}\n")),
    "WeChatMsg": ("a.csv", wechatmsg({"小林": "小林", "阿泽": "阿泽"})),
    "PyWxDump": (
        "a.csv",
        table("id,MsgSvrID,type_name,is_sender,talker,room_name,msg,src,CreateTime", records(
            lambda n, name, text: (n, 7, "文本", int(name == "小林"), name, "room", text, "", f"2024-03-01 12:0{n}:00"),
            (9, 7, "图片", 0, "阿泽", "room", "图片", "x.dat", "2024-03-01 12:02:30"),
        )),
    ),
    "WeFlow's sheet as CSV": (
        "a.csv",
        "会话信息,,,\n微信ID,wxid,昵称,阿泽\n\n" + table(
            "序号,时间,发送者昵称,发送者微信ID,发送者备注,发送者身份,消息类型,内容",
            records(lambda n, name, text: (n, f"2024-03-01 12:0{n}:00", name, "wxid", "", name, "文本消息", text)),
        ),
    ),
    "WeFlow JSON": (
        "a.json",
        {"weflow": {"version": "1.0.3"}, "session": {"displayName": "阿泽"}, "messages": records(
            lambda n, name, text: {
                "createTime": 1709265600 + n, "type": "文本消息", "content": text, "isSend": int(name == "小林"),
                "senderUsername": "wxid", "senderDisplayName": name,
            },
            {"createTime": 1, "type": "图片消息", "content": "[图片]", "isSend": 0, "senderDisplayName": "阿泽"},
        )},
    ),
    "WeFlow text": ("a.txt", lines("2024-03-01 12:0{n}:00 '{name}'\n{text}\n\n")),
    "qq-chat-exporter JSON": ("a.json", {"metadata": {}, "chatInfo": {"name": "阿泽"}, "messages": QCE}),
    "qq-chat-exporter text": (
        "a.txt",
        "[QQChatExporter V5 / https://example.invalid]\n\n====\n聊天名称: 阿泽\n导出时间: 2024-03-02 10:00:00\n\n\n"
        + lines("{name}:\n时间: 2024-03-01 12:0{n}:00\n内容: {text}\n\n\n")
        + "阿泽:\n时间: 2024-03-01 12:09:00\n内容: [图片: a.png]\n资源: 1 个文件\n  - image: a.png\n\n====\n导出完成\n",
    ),
    "QQ's own text": (
        "a.txt",
        "消息记录（此消息记录为文本格式，不支持重新导入）\n\n====\n消息分组:我的好友\n====\n消息对象:阿泽\n====\n\n"
        + lines("2024-03-01 12:0{n}:00 {name}(10001)\n{text}\n\n"),
    ),
    "QQNT_Export": ("a.json", records(
        lambda n, name, text: {"time": f"2024-03-01 12:0{n}:00", "sender": name, "contents": [[text, "text"]]},
        {"time": "2024-03-01 12:09:00", "sender": "阿泽", "contents": [["[图片]", "x.png"]]},
    )),
    "chatlog JSON": ("a.json", records(
        lambda n, name, text: {
            "time": f"2024-03-01T12:0{n}:00+08:00", "talker": "wxid_ze", "talkerName": "阿泽", "senderName": name,
            "isSelf": name == "小林", "type": 1, "subType": 0, "content": text,
        },
        {"talker": "wxid_ze", "sender": "系统消息", "isSelf": False, "type": 10000, "subType": 0, "content": "撤回"},
    )),
    "chatlog text": ("a.txt", lines("{name}(wxid_1) 03-01 12:0{n}:00\n{text}\n\n")),
    "Telegram": ("a.json", {"name": "阿泽", "id": 1, "messages": records(
        telegram, {"id": 9, "type": "service", "actor": "阿泽", "action": "pin_message", "text": ""},
    )}),
    "Telegram, whole account": ("a.json", {"about": "x", "chats": {"list": [{"name": "阿泽", "messages": records(telegram)}]}}),
    "Messenger, newest first and read as Latin-1": ("a.json", {"title": "x", "messages": records(
        lambda n, name, text: {
            "sender_name": name.encode().decode("latin-1"), "timestamp_ms": 1709265600000 + n,
            "content": text.encode().decode("latin-1"),
        },
    )[::-1]}),
    "Discord": ("a.json", {"guild": {"name": "g"}, "channel": {"name": "闲聊"}, "messages": records(
        lambda n, name, text: {
            "type": "Default", "timestamp": f"2024-03-01T12:0{n}:00+00:00", "content": text,
            "author": {"name": "x", "nickname": name},
        },
        {"type": "GuildMemberJoin", "timestamp": "", "content": "Joined.", "author": {"name": "x", "nickname": "阿泽"}},
    )}),
    "ChatLab": ("a.json", {"chatlab": {"version": "0.0.2"}, "meta": {"name": "阿泽"}, "messages": records(
        lambda n, name, text: {"sender": "1", "accountName": name, "timestamp": 1709265600 + n, "type": 0, "content": text},
        {"sender": "1", "accountName": "阿泽", "timestamp": 1709269999, "type": 1, "content": "pic.jpg"},
    )}),
    "WhatsApp, Android": (
        "a.txt", "2024/3/1 12:00 - 消息和通话已进行端到端加密。\n" + lines("2024/3/1 12:0{n} - {name}: {text}\n") + "2024/3/1 12:09 - 阿泽: <Media omitted>\n",
    ),
    "WhatsApp, iPhone": ("a.txt", lines("[3/1/24, 12:0{n}:00 PM] {name}: {text}\n") + "\u200e[3/1/24, 12:09:00 PM] 阿泽: \u200eimage omitted\n"),
    "WhatsApp, German": ("a.txt", lines("31.12.23, 21:15 - {name}: {text}\n") + '31.12.23, 21:17 - 阿泽 hat die Gruppe in "a: b" umbenannt\n'),
    "WhatsApp, Arabic": ("a.txt", lines("٣١\u200f/١٢\u200f/٢٠٢٣، ٩:١٥ م - {name}: {text}\n")),
    "LINE": ("a.txt", "[LINE] 与阿泽的聊天记录\n保存日期：2024/03/02 10:00\n\n2024/03/01（五）\n" + lines("12:0{n}\t{name}\t{text}\n")),
    "name: text": ("a.txt", lines("{name}：{text}\n")),
    "messages of roles": ("a.json", {"messages": [
        {"role": "system", "content": "你是助手"},
        *records(lambda _, name, text: {"role": name, "content": [{"type": "text", "text": text}]}),
    ]}),
    "ShareGPT lines": ("a.jsonl", json.dumps({"id": "1", "conversations": records(lambda _, name, text: {"from": name, "value": text})})),
    "dialogue": ("a.json", [{"dialogue_id": "d1", "dialogue": records(lambda _, name, text: {"speaker": name, "text": text})}]),
    "list beside an object": ("a.json", {"about": {"people": [{"name": "x"}]}, "data": records(lambda n, a, b: {"speaker": a, "text": b})}),
    "plain table": ("a.csv", table("speaker,text", TALK)),
    "plain table, semicolons, GB18030": ("a.csv", table("发送人,内容", TALK, ";").encode("gb18030")),
    "separator line": ("a.csv", "sep=;\r\n" + table("发送人,内容", TALK, ";")),
    "title lines": ("a.csv", "与阿泽的聊天记录,,\n导出时间:,2024-03-02,\n" + table("发送人,时间,内容", [(a, "2024-03-01 12:00", b) for a, b in TALK])),
    "plain table with kinds": ("a.csv", table("发送人,类型,内容", [*((a, "文本", b) for a, b in TALK), ("阿泽", "视频", XML)])),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_each_tools_export_gives_its_people_and_words_and_takes_memes(name: str, read, tmp_path) -> None:
    export = read(*EXPORTS[name])
    assert turns(export) == TALK and "2 speakers (" in export.taken
    asking = Profile(name="p").replace(llm="openai", dialogues=str(tmp_path / EXPORTS[name][0]))
    ((own,), _) = chats.load_dialogues(asking)
    names = {"A": own.name_a, "B": own.name_b}
    assert [(names[turn.speaker], turn.text) for turn in own.turns] == TALK
    place = next(i for i, message in enumerate(export.chats[0].messages) if message.text == TALK[2][1])
    written = export.render({(0, place): MEME})
    again = read(EXPORTS[name][0], written)
    assert turns(again) == TALK and written.count(b"out_memes/m1.png") == 1
    assert again.render({(0, place): MEME}) == written, "the same command over its own output changes nothing"
    assert b"out_memes" not in again.render({})


def test_who_speaks_is_a_flag_where_every_row_has_the_others_name(read) -> None:
    other = wechatmsg({"小林": "阿泽", "阿泽": "阿泽"})
    assert turns(read("a.csv", other)) == [({"小林": "我"}.get(name, name), text) for name, text in TALK]
    messages_db = table("is_from_me,text,date", [(int(name == "小林"), text, "") for name, text in TALK])
    assert [name for name, _ in turns(read("b.csv", messages_db))] == ["我", "对方"] * 2


def test_a_group_with_flags_and_ids_has_all_its_people_and_texts_of_nobody_are_counted(read) -> None:
    group = [(1, "w1", "在吗"), (0, "w2", "在"), (0, "w3", "我也在"), (0, "", "有人加入了群聊")]
    export = read("a.csv", table("is_sender,wxid,text", group))
    assert [name for name, _ in turns(export)][:3] == ["w1", "w2", "w3"]
    rows = [("小林", "在吗"), ("", "还在吗"), ("阿泽", "在")]
    assert (
        "1 of 3 texts without a speaker, such as '还在吗'" in read("b.csv", table("speaker,text", rows)).taken
    )


def test_xml_notices_and_quotes_are_no_words(read) -> None:
    kinds = ((47, 0, XML), (3, 0, XML), (10000, 0, "你撤回了一条消息"), (49, 57, "这个好"))
    rows = [(9, kind, sub, 0, 1709266690, text, "", "阿泽", "w") for kind, sub, text in kinds]
    told = turns(read("a.csv", wechatmsg({"小林": "小林", "阿泽": "阿泽"}, *rows)))
    assert told[-1] == ("阿泽", TALK[-1][1] + " 这个好")
    quoted = "我 03-01 12:00:00\n在吗\n\n阿泽(wxid_ze) 03-01 12:01:00\n在\n\n我 03-01 12:02:00\n> 阿泽(wxid_ze) 03-01 12:01:00\n> 在\n截图了\n\n"
    assert turns(read("b.txt", quoted)) == [("我", "在吗"), ("阿泽", "在"), ("我", "截图了")]
    reply = QCE[1] | {"content": {"text": "[回复 小林: 然后呢]\n就这样"}}
    assert turns(read("c.json", [*QCE, reply, QCE[0] | {"recalled": True}]))[1][1].endswith("就这样")


MEMOTRACE = (
    "【图片】", "【表情包】 开心", "【文件】a.pdf 0.12 MB C:\\a.pdf pdf d41d", "【红包】: 恭喜", "【分享链接】\n标题：一\n描述：二\n链接: https://x\n应用：三\n",
    "【音视频通话】\n通话时长 00:30", "【合并转发的聊天记录】\n\n    - 2024-03-01 11:00:00 某人: 旧话\n", "【名片】\n微信号:a\n昵称: b\n",
)  # fmt: skip


def test_what_memotrace_writes_for_things_is_no_text(read) -> None:
    said = [*(("阿泽", thing) for thing in MEMOTRACE), ("阿泽", "【语音】在路上\n引用：小林: 【图片】")]
    written = lines("2024-03-01 12:0{n}:00 {name}\n{text}\n\n")
    written += "".join(f"2024-03-01 12:1{n}:00 {name}\n{text}\n\n" for n, (name, text) in enumerate(said))
    last = ("阿泽", TALK[-1][1] + " 在路上")
    assert turns(read("a.txt", written)) == [*TALK[:-1], last]
    for_models = (
        f"\n\n{DAY}\n" + lines("\n{name}:{text}\n") + "\n".join(text for _, text in said) + "\n走吧\n"
    )
    *before, (who, words) = turns(read("b.txt", for_models))
    assert (*before, (who, " ".join(words.split()))) == (*TALK[:-1], ("阿泽", last[1] + " 走吧"))


def test_files_captions_and_quotes_leave_the_words(read) -> None:
    """What stands beside the words of one message, in the ways of several tools."""
    said = {
        "[LINE] x\n\n2024/03/01(金)\n12:00\t甲\t在\n12:01\t乙\t\"明天\n12:30 集合\n\"\"早\"\"\"\n": '明天\n12:30 集合\n"早"',
        "[LINE] 山田 太郎とのトーク履歴\n\n2024.03.01 金曜日\n12:00 山田 太郎 一\n12:01 山田 太郎 二 三\n12:02 山田 太郎 四\n12:03 乙 五\n": "五",
        "甲: 他怎么说\n乙: 他说：“走吧。”\n": "他说：“走吧。”",
        "甲 [12:00]\n在\n\n乙 [12:01]\n[捂脸]\n好\n": "[捂脸]\n好",
        "01/03/24, 9:15 p. m. - 甲: 在\n01/03/24, 9:16 p. m. - 乙: <Multimedia omitido>\nmira\n": "mira",
        "01/03/24, 9:15 p. m. - 甲: 在\n01/03/24, 9:16 p. m. - 乙: vale <Se editó este mensaje.>\n": "vale",
        f"{RULE}\nGuild: g\n{RULE}\n\n[1-Mar-24 12:00 PM] 甲\n在\n\n[1-Mar-24 12:01 PM] 乙\n一\n\n二\n\n{{Embed}}\nx\n\ny\n": "一\n\n二",
        f"\n\n{DAY}\n\n甲:在\n\n乙:一\n\n\n{DAY}\n二\n[语音]\n": "一\n\n\n\n二",
    }  # fmt: skip
    for content, words in said.items():
        messages = read("a.txt", content).chats[0].messages
        assert messages[-1][:2] == ("乙", words), content
        assert {m.speaker for m in messages} - {"乙"} in ({"甲"}, {"山田 太郎"})


def test_marks_of_programs_are_written_out_or_left_out(read) -> None:
    marked = slack(3, "阿泽", "&lt;3 <@U0> <!here> <#C1|闲聊> <https://x.invalid|这个> &amp;")
    assert turns(read("a.json", [slack(2, "小林", "在"), marked]))[1][1] == "<3 @小林 @here #闲聊 这个 &"
    post = {
        "title": "",
        "content": [[{"tag": "text", "text": "看 @_user_1"}], [{"tag": "img", "image_key": "k"}]],
    }
    named = {"mentions": [{"key": "@_user_1", "name": "小林"}]}
    items = [feishu(1, "a", "text", {"text": "在"}), feishu(2, "b", "post", post, **named)]
    assert turns(read("b.json", {"data": {"items": items}}))[1] == ("b", "看 @小林")
    raw = table(
        "nickname,raw_message", [("甲", "A&amp;B[CQ:face,id=1]"), ("乙", "[CQ:image,file=a]"), ("甲", "在")]
    )
    assert turns(read("c.csv", raw)) == [("甲", "A&B"), ("甲", "在")]
    attached = table("is_from_me,text", [(1, "\ufffc"), (0, "看\ufffc"), (1, "在")])
    assert turns(read("d.csv", attached)) == [("对方", "看"), ("我", "在")]
    pictured = read("e.csv", table("speaker,text", [*TALK, ("小林", "[pic:1.png]"), ("小林", "好[at:1]")]))
    assert (
        turns(pictured)[-1] == ("小林", "好[at:1]")
        and "1 text with a code such as '[at:1]'" in pictured.taken
    )


def test_a_bots_private_chat_is_read_and_a_log_of_several_is_refused(read) -> None:
    def said(user: int, target: int, text: str) -> str:
        row = {"self_id": 1, "user_id": user, "target_id": target, "message_id": 1, "message": text}
        return json.dumps(row | {"sender": {"nickname": f"n{user}"}})

    assert turns(read("a.jsonl", "\n".join([said(3, 1, "一"), said(1, 3, "二")]))) == [
        ("n3", "一"),
        ("n1", "二"),
    ]
    with pytest.raises(ChatError, match="private chats with 2 people: split the log by `user_id`"):
        read("b.jsonl", "\n".join([said(3, 1, "一"), said(1, 3, "三"), said(1, 4, "四")]))


def test_accounts_and_names_that_do_not_go_together_are_said(read) -> None:
    people = [("user1", "小林"), ("user2", "小林"), ("user3", "阿泽"), ("user1", "林")]
    group = [
        row | {"from_id": who, "from": name}
        for row, (who, name) in zip(records(telegram), people, strict=True)
    ]
    export = read("a.json", {"name": "x", "messages": group})
    assert [who for who, _ in turns(export)] == ["小林", "阿泽", "林"]
    assert (
        "2 accounts called '小林' are read as one speaker; account 'user1' has 2 names, each" in export.taken
    )
    nameless = read("b.json", {"messages": [*group[:1], group[2], group[0] | {"from": None}]})
    assert nameless.chats[0].people == ["小林", "阿泽"] and "account" not in nameless.taken
    written = "2024-03-01 12:00:00 小林(10001)\n一\n\n2024-03-01 12:01:00 小林(10002)\n二\n"
    assert "2 accounts called '小林'" in read("c.txt", written).taken


def test_times_count_with_their_offsets_or_it_is_said(read) -> None:
    def in_order(*times: str) -> tuple[list[str], str]:
        export = read(
            "a.csv", table("speaker,text,time", [("甲乙"[n % 2], str(n), t) for n, t in enumerate(times)])
        )
        return [m.text for m in export.chats[0].messages], export.taken

    offsets = ("2024-01-01T10:00:00+08:00", "2024-01-01T03:00:00Z", "2024-01-01 10:30:00 +0800")
    assert in_order(*offsets)[0] == ["0", "2", "1"]
    order, said = in_order("2024-01-01 08:00", "2024-01-01 10:00", "2024-01-01 09:00", "10:03", "")
    assert (
        order == ["0", "2", "1", "3", "4"]
        and "2 messages without a time that can be read, such as '10:03'" in said
    )
    unread = read("b.csv", table("speaker,text,sent_on_date", [(*row, "2024-01-01") for row in TALK])).taken
    assert "'sent_on_date' is not read as time" in unread
    order, said = in_order("12/31/2024 23:59", "1/1/2024 00:01")
    assert (
        order == ["0", "1"]
        and "2 messages without a time that can be read, such as '12/31/2024 23:59'" in said
    )


THINGS = [
    "[图片: screenshot.png]", "[语音 7秒]", "![图片](http://127.0.0.1/i/0)", "[链接|看这个](https://x.invalid)", "[表情包：加油]", "[GIF表情]",
    "[转账|发送 ¥5.20]", "<Media omitted>", "[動畫貼圖]", "[Sticker]", "[图片][图片]", "[スタンプ]", "[ Voice message ]", "［图片］", "Loved “好的”", "‎image omitted", "<媒体内容已忽略>", "[位置: 人民广场]",
]  # fmt: skip


def test_what_stands_for_a_picture_is_no_text_and_words_like_it_stay(read) -> None:
    pictures = table("speaker,text", [*TALK, *(("小林", thing) for thing in THINGS)])
    assert turns(read("a.csv", pictures)) == TALK
    long = "好" * 200_000  # a cell may be as long as the file
    kept = [*zip("甲乙" * 3, ("[图片里的人是谁]", "哈哈[捂脸]", "<3", "2 < 3 > 1", long), strict=False)]
    assert turns(read("a.csv", table("speaker,text", kept))) == kept


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        ("a.txt", "Sender: 小林\nTime: 12:00\nMessage: 在吗\n\nSender: 阿泽\nTime: 12:01\nMessage: 在\n", "label"),
        ("a.csv", table("speaker,text", [("小林", text) for _, text in TALK]), "all 4 messages"),
        ("a.csv", table("speaker,text", [*TALK, ("阿泽", XML)]), "xml"),
        ("a.csv", "speaker,text\n小林,在,吗\n", "3 cells under 2 columns"),
        ("a.csv", "speaker,text,text\n小林,在,吗\n阿泽,在,的\n", "line 1: two columns are called 'text'"),
        ("a.jsonl", '{"speaker": "小林", "text": "在", "text": "吗"}\n', "line 1: .* a key stands twice in one object"),
        ("a.json", [{"speaker": name, "text": text} for name, text in [*TALK[:2], *[("", "x")] * 3]], "3 of 5 texts without a speaker"),
        ("a.json", [{"who": {"nm": "a"}, "words": "b"}], "there are: who.nm, words; name its columns"),
        ("a.json", {"code": 0, "data": {"more": []}}, "no list of messages .* there are: code, data.more"),
        ("a.json", [{"speaker": "a", "text": None, "body": {"words": "b"}}], "both a speaker and a text.* there are: speaker, text, body.words"),
        ("a.csv", table("speaker,text", [(name, json.dumps([{"type": "text"}])) for name, _ in TALK]), "which nobody says"),
        ("a.csv", table("speaker,text", [(name, f"[pic:{n}] 好") for n, (name, _) in enumerate(TALK)]), r"a text holds '\[pic:0\]'"),
        ("a.txt", lines("{name}: {text} [12:0{n}]\n"), r"a text holds '\[12:00\]'"),
        ("a.txt", "走吧，天黑了。\n好，等等我。\n快点，要下雨了。\n", "this form is not known"),
        ("a.txt", "他说：“走吧。”\n她笑道：“好。”\n他说：“快一点。”\n", "this form is not known"),
        ("a.txt", "姓名: 小美\n年龄: 20\n电话: 1234\n地址: 北京\n邮箱: a\n", "this form is not known"),
        ("a.txt", "[12:00] <小林> 在吗\n[12:01] <阿泽> 在\n", "this form is not known"),
        ("a.csv", table("發送人,內容", [("小林", "這個週末我們還要練習嗎"), ("阿澤", "讓我想想，應該會吧")]).encode("big5"), "encoding=big5"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_what_was_seen(name: str, content, seen: str, read) -> None:
    with pytest.raises(ChatError, match=seen) as caught:
        read(name, content)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert ("FIELDS='speaker" in str(caught.value)) <= (not name.endswith(".txt")), (
        "it cannot help for lines of text"
    )


def test_fields_name_what_no_layout_knows(read) -> None:
    rows = [{"who": {"name": name}, "what": {"body": text}} for name, text in TALK]
    assert turns(read("a.json", rows, "speaker=who.name,text=what.body")) == TALK
    assert turns(read("a.csv", table("x,y", TALK), "speaker=x,text=y")) == TALK
    inner = [{"who": name, "what": json.dumps({"body": text})} for name, text in TALK]
    assert turns(read("a.json", inner, "speaker=who,text=what.body")) == TALK
    with pytest.raises(ChatError, match=r"there are: who, what\.body; name its columns"):
        read("a.json", inner)
    traditional = [("小林", "這個週末還要練習嗎"), ("阿澤", "應該會吧")]
    big5 = table("發送人,內容", traditional).encode("big5")
    assert turns(read("a.csv", big5, "encoding=big5")) == traditional
    spaced = {"甲乙": TALK, "甲乙 ": TALK[:2]}  # names that differ by a blank are two chats
    chats_read = read(
        "a.json", {name: [{"speaker": a, "text": b} for a, b in talk] for name, talk in spaced.items()}
    )
    assert [chat.name for chat in chats_read.chats] == ["甲乙", "甲乙 #2"]
    with pytest.raises(ChatError, match="part=column"):
        readers.parse_fields("who=x")


def test_summaries_in_columns_need_no_model(read) -> None:
    rows = [(name, text, f"s{n}", f"e{n}", f"p{n}") for n, (name, text) in enumerate(TALK)]
    export = read("a.csv", table("speaker,text,S,E,Psi", rows))
    assert [m.summary.motivation for m in export.chats[0].messages] == ["p0", "p1", "p2", "p3"]
    labels = table("speaker,text,emotion", [(a, b, "joy") for a, b in TALK])
    assert read("b.csv", labels).chats[0].messages[0].summary is None, "a label is no summary"


def test_cells_numbers_and_lines_stay_as_they_stood(read) -> None:
    content = 'speaker,"text",id\r\n小林,"在,吗",7.00E+18\r\n\r\n阿泽,"=1+1",007\r\n'
    written = read("a.csv", content).render({(0, 1): MEME}).decode()
    head, *rows = written.split("\n")
    assert head == "speaker,text,id," + ",".join(MEME_COLUMNS)
    assert rows[0] == '小林,"在,吗",7.00E+18,,,,,,' and rows[1] == ""
    assert rows[2] == "阿泽,=1+1,007,m1,out_memes/m1.png,0.5,1.25,0.75,greedy"
    lines = '{"speaker": "a", "text": "在吗",   "n": 1.50}\n{"speaker": "b", "text": "在", "n": 1e3, "meme_id": "mine"}\n'
    first, second = read("a.jsonl", lines).render({(0, 1): MEME}).decode().splitlines()
    assert first == '{"speaker": "a", "text": "在吗", "n": 1.50}'
    assert '"n": 1e3' in second and json.loads(second)["meme_id"] == "m1"
    text = "小林: 在吗\n[meme cat: haha.jpg]\n阿泽: 在\n小林: 好\n"
    assert "[meme cat: haha.jpg]" in read("a.txt", text).render({(0, 1): MEME}).decode()


def test_turns_join_what_one_person_says_in_a_row(read) -> None:
    rows = [("a", "一"), ("a", "二"), ("system", "x"), ("b", "[图片]"), ("a", "三"), ("b", "四")]
    (chat,) = read("a.csv", table("speaker,text", rows)).chats
    assert [(t.turn, t.speaker, t.text) for t in chat.spoken] == [
        (1, "a", "一 二"),
        (2, "a", "三"),
        (3, "b", "四"),
    ]
    context = list(missing(chat))[-1]
    assert context.lines == [("a", "一 二"), ("a", "三")] and context.next_speaker == "b"


def test_messages_without_a_time_leave_the_others_in_order(read) -> None:
    """Newest first, a notice and an old message have no time: the rest is sorted, they stand where they stood."""
    rows = [(f"2024-03-01 12:0{n}:00", name, text) for n, (name, text) in enumerate(TALK)]
    untimed = [rows[3], ("", "阿泽", "[图片]"), rows[2], ("上午", "system", "x"), rows[1], rows[0]]
    export = read("a.csv", table("time,speaker,text", untimed))
    texts = [TALK[0][1], TALK[1][1], "x", TALK[2][1], "", TALK[3][1]]
    assert [message.text for message in export.chats[0].messages] == texts


# --- dialogues of a run from a file

TOLD = {"scenario": "在聊天", "emotion": "开心", "motivation": "想笑"}
OWN = {
    "dialogue_id": "chat-1",
    "turns": [
        {"speaker": "小美" if n % 3 == 0 else "阿强", "text": text}
        for n, text in enumerate(("到家了吗", "堵车", "还在桥上", "那我先吃了"))
    ],
    "summaries": [{"turn": turn, **TOLD} for turn in (2, 3, 4)],
}


def load(path: Path, content, **settings):
    if not isinstance(content, bytes):
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in content).encode()
    path.write_bytes(content)
    return chats.load_dialogues(Profile(name="p").replace(dialogues=str(path), **settings))


def test_who_speaks_first_is_a_and_messages_in_a_row_are_one_turn(tmp_path: Path) -> None:
    ((made,), taken) = load(tmp_path / "own.jsonl", [OWN])
    assert (made.kind, made.name_a, made.name_b, made.complete) == ("own", "小美", "阿强", True)
    assert [turn.text for turn in made.turns] == ["到家了吗", "堵车 还在桥上", "那我先吃了"]
    assert [(s.turn, s.speaker, s.scenario) for s in made.summaries] == [
        (2, "B", "在聊天"),
        (3, "A", "在聊天"),
    ]
    assert {record.source for record in (made, *made.turns, *made.summaries)} == {"user dialogue"}
    assert taken == "form of a release; 4 messages of 2 speakers (小美, 阿强) in 1 chat"
    assert chats.load_dialogues(Profile(name="p")) == ([], "")
    (foreign,), _ = load(tmp_path / "own.jsonl", [OWN | {"kind": "chitchat", "title": 7, "source": None}])
    assert foreign == made, "another data set may mean something else by these fields"


def test_a_release_gives_the_dialogues_that_it_was_made_of(tmp_path: Path) -> None:
    """Also with a byte order mark, a blank line and an unscored summary; it is no other dialogue than it was."""
    made = made_up.dialogue("news-1")
    bad = made.summaries[-1].model_copy(update={"unscored": "refused", "scenario": ""})
    lines = [made.model_copy(update={"summaries": [*made.summaries[:-1], bad]}), made_up.dialogue("news-2")]
    content = "\ufeff" + "\n\n".join(line.model_dump_json() for line in lines)
    again, _ = load(tmp_path / "dialogues.jsonl", content.encode(), llm="openai", mode="auto")
    of_turns = {"turns": {"__all__": {"speaker", "text", "source"}}}
    for one, before in zip(again, lines, strict=True):
        for parts in (of_turns, {"dialogue_id", "kind", "title", "name_a", "name_b"}):
            assert one.model_dump(include=parts) == before.model_dump(include=parts)
    told = [(s.turn, s.speaker, s.scenario) for s in made.summaries]
    assert [[(s.turn, s.speaker, s.scenario) for s in one.summaries] for one in again] == [told[:-1], told]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"turns": [*OWN["turns"], {"speaker": "路人", "text": "让让"}]}, "'chat-1' has 3: 小美, 阿强, 路人"),
        ({"dialogue_id": "chat-0"}, "dialogue_id 'chat-0' must name one dialogue"),
        ({"summaries": []}, "2 turns in own.jsonl have no summary, and profile 'p' has no model"),
        ({"summaries": ["x"]}, "line 2: summaries.0: Input should be a valid dictionary"),
    ],
)
def test_what_is_no_dialogue_of_two_is_refused_in_one_line(tmp_path: Path, change: dict, what: str) -> None:
    with pytest.raises((ProfileError, ChatError), match=re.escape(what)) as caught:
        load(tmp_path / "own.jsonl", [OWN | {"dialogue_id": "chat-0"}, OWN | change])
    assert "\n" not in str(caught.value) and "http" not in str(caught.value)


@pytest.mark.parametrize("codec", ["utf-8-sig", "gb18030", "utf-16", "utf-16-le", "utf-16-be"])
def test_dialogues_are_read_in_the_encodings_that_editors_write(codec: str, tmp_path: Path) -> None:
    release = "".join(json.dumps(OWN | {"dialogue_id": name}, ensure_ascii=False) + "\r\n" for name in "ab")
    own, _ = load(tmp_path / "own.jsonl", release.encode(codec))
    assert [one.dialogue_id for one in own] == ["a", "b"] and own[0].turns[0].text == "到家了吗"
    (plain,), _ = load(tmp_path / "a.txt", lines("{name}：{text}\n").encode(codec), llm="openai")
    assert [turn.text for turn in plain.turns] == [text for _, text in TALK]


def test_one_nul_makes_no_utf_16(tmp_path: Path) -> None:
    (own,), taken = load(
        tmp_path / "a.csv", table("speaker,text", [*TALK, ("小林", "好\0吧")]).encode(), llm="openai"
    )
    assert own.turns[-1].text == "好吧" and "utf-16" not in taken


def test_what_is_wrong_with_the_file_is_told_before_any_stage(tmp_path: Path) -> None:
    """One sentence of `make reproduce` and `make doctor`, also in a replay; nothing to generate is named beside."""
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"speaker": "A", "text": "x"}\n{')
    for file, what in (("nowhere.jsonl", "No such file"), ("a.jsonl", "line 2: not JSON")):
        profile = Profile(name="p").replace(dialogues=str(tmp_path / file))
        (lack,) = cost.lacks(profile)
        assert lack.startswith("dialogues: ") and file in lack and what in lack and "\n" not in lack
    own = load_profile("local", parse_settings("dialogues=a.csv n_news=0 n_dialogues=3")).dialogue
    assert (own.n_news, own.n_role_pairs) == (0, 0), "the profile's own numbers do not count"


def test_groups_among_several_chats_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [("a/b", *row) for row in TALK] + [("群", name, "在") for name in "甲乙丙"]
    rows += [("a b", *row) for row in TALK]
    content = table("chat,speaker,text", rows).encode("gb18030")
    own, taken = load(tmp_path / "a.csv", content, llm="openai")
    assert [(one.dialogue_id, one.title) for one in own] == [("a-b", "a/b"), ("a-b-2", "a b")]
    assert taken.endswith("in 3 chats; gb18030; left out: 1 chat not of two speakers")
