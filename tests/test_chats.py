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


def js(form: str, *more: str) -> str:
    """The talk as JSON Lines, each message in this form, and what is no message of it; %(i)d is 0 or 1."""
    said = (form % {"n": n, "i": n % 2, "name": name, "text": text} for n, (name, text) in enumerate(TALK))
    return "\n".join([*said, *more])


def array(form: str, *more: str, around: str = "%s") -> str:
    """The same as a list, in an object `around` it."""
    return around % f"[{js(form, *more)}]".replace("\n", ",\n")


XML = '<?xml version="1.0"?>\n<msg><img aeskey="00" md5="0123" /></msg>'
BOTH = {"小林": "小林", "阿泽": "阿泽"}
WECHATMSG = "localId,Type,SubType,IsSender,CreateTime,StrContent,Remark,NickName,Sender"


def wechatmsg(names, *more) -> str:
    said = [
        (n, 1, 0, int(name == "小林"), 1709265600 + n, text, "", names[name], "w")
        for n, (name, text) in enumerate(TALK)
    ]
    return "\ufeff" + table(WECHATMSG, [*said, *more])


def rows(form: str, *more: str) -> str:
    """The talk as lines of a table, in which no cell needs quotes."""
    return "\n".join([lines(form + "\n").rstrip(), *more]) + "\n"


ONEBOT = (
    '{"self_id": 1, "user_id": 2%(i)d, "time": 170926560%(n)d, "message_id": 1, "post_type": "message", "group_id": 7,'
    ' "sender": {"user_id": 1, "nickname": "x", "card": "%(name)s"}, "message": MESSAGE}'
)
HEARD = ('{"post_type": "meta_event", "self_id": 1}', '{"post_type": "notice", "user_id": 2, "self_id": 1}')
TELEGRAM = '{"type": "message", "date_unixtime": "170926560%(n)d", "from": "%(name)s", "from_id": "%(name)s", "text": "%(text)s"}'
FEISHU = '"create_time": "170926560%(n)d000", "chat_id": "oc"'
RULE = "=" * 62
DAY = "*" * 20 + "2024-03-01" + "*" * 20
EXPORTS = {
    "Slack": ("2024-03-01.json", array(
        '{"type": "message", "user": "U%(i)d", "text": "%(text)s", "ts": "170926560%(n)d.0001", "user_profile": {"real_name": "%(name)s", "display_name": ""}}',
        '{"type": "message", "subtype": "channel_join", "user": "U0", "text": "<@U0> has joined", "ts": "1709265602.5"}',
        '{"type": "message", "subtype": "bot_message", "username": "ci", "text": "red", "ts": "1709265603.5"}',
    ).replace("user_profile", "not_named", 2)),
    "OneBot, segments": ("a.jsonl", js(ONEBOT.replace("MESSAGE", (
        '[{"type": "reply", "data": {"id": "1"}}, {"type": "text", "data": {"text": "%(text)s"}}, {"type": "face", "data": {"id": "1"}}]'
    )), *HEARD)),
    "OneBot, CQ codes": ("a.jsonl", js(ONEBOT.replace("MESSAGE", '"[CQ:at,qq=1] %(text)s[CQ:image,file=a.jpg,summary=[动画表情]]"'), *HEARD)),
    "MemoTrace text": ("a.txt", lines("2024-03-01 12:0{n}:00 {name}\n{text}\n\n").replace("然后呢", "然后呢\n引用：阿泽：等了")
        + '2024-03-01 12:08:00\n"阿泽" 拍了拍我\n\n2024-03-01 12:09:00 阿泽\n[图片]\n'),
    "MemoTrace text for AI": ("a.txt", f"\n\n{DAY}\n" + lines("\n{name}:{text}\n") + f"\n\n{DAY}\n[图片]\n"),
    "MemoTrace JSON": ("a.json", array(
        '{"type": "1", "is_send": %(i)d, "timestamp": 170926560%(n)d, "server_id": "9", "display_name": "%(name)s", "text": "%(text)s"}',
        '{"type": "8589934592049", "is_send": 1, "timestamp": 1709266000, "server_id": "9", "display_name": "阿泽", "text": "发起转账"}',
    )),
    "Feishu": ("a.json", array(
        '{"msg_type": "text", "deleted": false, "body": {"content": "{\\"text\\": \\"%(text)s\\"}"}, "sender": {"id": "%(name)s"}, ' + FEISHU + "}",
        '{"msg_type": "sticker", "deleted": false, "body": {"content": "{\\"file_key\\": \\"k\\"}"}, "sender": {"id": "阿泽"}}',
        '{"msg_type": "text", "deleted": true, "body": {"content": "{\\"text\\": \\"撤回的\\"}"}, "sender": {"id": "小林"}}',
        around='{"code": 0, "data": {"has_more": false, "items": %s}}',
    )),
    "Feishu, events": ("a.jsonl", js(
        '{"event": {"sender": {"sender_id": {"open_id": "%(name)s"}}, "message": {"message_type": "text", "content": "{\\"text\\": \\"%(text)s\\"}"}}}'
    )),
    "Element": ("a.json", array(
        '{"type": "m.room.message", "sender": "@%(name)s:x.invalid", "content": {"msgtype": "m.text", "body": "> <@x:x.invalid> hm\\n\\n%(text)s"}, "origin_server_ts": 170926560%(n)d000}',
        '{"type": "m.room.member", "sender": "@小林:x.invalid", "content": {"membership": "join"}, "origin_server_ts": 1709265609000}',
        '{"type": "m.room.message", "sender": "@阿泽:x.invalid", "content": {"msgtype": "m.image", "body": "cat.png"}, "origin_server_ts": 1709265609000}',
        '{"type": "m.room.message", "sender": "@阿泽:x.invalid", "content": {"msgtype": "m.text", "body": "* 改了", "m.relates_to": {"rel_type": "m.replace"}}, "origin_server_ts": 1709265609000}',
        around='{"room_name": "x", "messages": %s}',
    )),
    "Discord text": ("a.txt", f"{RULE}\nGuild: g\nChannel: a / b\n{RULE}\n\n"
        + lines("[03/01/2024 12:0{n}] {name}\n{text}\n\n{{Reactions}}\n😭 (2)\n\n\n")
        + "[03/01/2024 12:08] 阿泽 (pinned)\n\n{Stickers}\nhttps://x.invalid/s.png\n\n\n"
        + f"[03/01/2024 12:09] 阿泽\nJoined the server.\n\n{RULE}\nExported 6 message(s)\n{RULE}\n"),
    "Discord CSV": ("a.csv", "AuthorID,Author,Date,Content,Attachments,Reactions\n" + rows(
        "{name},{name},2024-03-01T12:0{n}:00.0000000+00:00,{text},,", "阿泽,阿泽,2024-03-01T12:09:00.0000000+00:00,Joined the server.,,"
    )),
    "KakaoTalk on a computer": ("a.txt", "하루 님과 카카오톡 대화\n저장한 날짜 : 2024-03-02 10:00:00\n\n--------------- 2024년 3월 1일 금요일 ---------------\n"
        + lines("[{name}] [오후 2:3{n}] {text}\n") + "[阿泽] [오후 2:38] 이모티콘\n阿泽님이 나갔습니다.\n"),
    "KakaoTalk on Android in English": ("a.txt", "x KakaoTalk Chats\nDate Saved: March 2, 2024 at 9:00 AM\n\n\nMarch 1, 2024 at 2:30 PM\n"
        + lines("March 1, 2024 at 2:3{n} PM, {name} : {text}\n") + "March 1, 2024 at 2:38 PM, 阿泽 left.\n"),
    "KakaoTalk CSV": ("a.csv", "Date,User,Message\n" + rows("2024-03-01 12:0{n}:00,{name},{text}", "2024-03-01 12:09:00,阿泽,사진 3장")),
    "SillyTavern": ("a.jsonl", '{"user_name": "小林", "character_name": "阿泽", "chat_metadata": {}}\n' + js(
        '{"name": "%(name)s", "is_user": true, "is_system": false, "send_date": "March 1, 2024", "mes": "%(text)s"}',
        '{"name": "小林", "is_user": true, "is_system": true, "send_date": "", "mes": "hidden"}',
    )),
    "chatlog CSV": ("a.csv", "Time,SenderName,Sender,TalkerName,Talker,Content\n" + rows(
        "2024-03-01 12:0{n}:00,{name},wxid_{name},阿泽,wxid_1,{text}",
        "2024-03-01 12:08:00,,wxid_小林,阿泽,wxid_1,![图片](http://127.0.0.1/image/1)",
        "2024-03-01 12:09:00,,系统消息,阿泽,wxid_1,撤回了一条消息",
    )),
    "WeChat, copied in lines": ("a.txt", "[2024年3月1日 11:58]\n" + lines("[12:0{n}] {name}：{text}\n")),
    "WeChat, times behind names": ("a.txt", lines("{name}：[12:0{n}] {text}\n")),
    "names and times in brackets": ("a.txt", lines("[{name}][2024-03-01 12:0{n}:00] {text}\n")),
    "WeChat, copied with round brackets": ("a.txt", lines("{name}（2024年3月1日 12:0{n}）：{text}\n")),
    "WeChat, times between lines": ("a.txt", lines("[12:0{n}]\n{name}: {text}\n")),
    "WeChat, mailed": ("a.txt", "—————  2024-03-01  —————\n\n\n" + lines("{name}  下午12:0{n}\n\n{text}\n\n\n")),
    "AstrBot's memory of a group": ("a.txt", lines("[{name}/12:0{n}:00]: {text}\n")),
    "QQ, copied": ("a.txt", lines("{name}: 03-01 12:0{n}:00\n{text}\n\n")),
    "Telegram, copied": ("a.txt", lines("{name}, [01.03.2024 12:0{n}]\n{text}\n\n").replace("然后呢", "[In reply to x]\n然后呢") + "阿泽, [01.03.2024 12:09]\n[ Photo ]\n"),
    "WhatsApp, with files and notes": ("a.txt", '01.03.24, 12:00 - 阿泽 hat die Gruppe in "a: b" umbenannt\n'
        + lines("01.03.24, 12:0{n} - {name}: 00ff11ee22dd33cc44bb55aa66998877.jpg (Datei angehängt)\n{text}\n")
        + "01.03.24, 12:07 - 阿泽: Mein Brief.pdf (Datei angehängt)\n01.03.24, 12:08 - 阿泽: STK-20240301-WA0003.webp (fichier ajouté)\n"
        + "01.03.24, 12:08 - 阿泽: UMFRAGE:\nPizza?\nOPTION: ja (1 Stimme)\nOPTION: nein (0 Stimmen)\n"
        + "01.03.24, 12:09 - 阿泽: Diese Nachricht wurde gelöscht.\n01.03.24, 12:09 - 阿泽: <Media omitted>\n"),
    "WhatsApp, iPhone with files": ("a.txt", lines("\u200e[01/03/2024 12:0{n}:00] {name}: {text} \u200e<pièce jointe : 00000012-PHOTO-2024.jpg>\n")
        + "\u200e[01/03/2024 12:09:00] 阿泽: notes.pdf • \u200e3 pages \u200e<pièce jointe : 00000014-notes.pdf>\n"),
    "WhatsApp, iPhone in English": ("a.txt", lines("[3/1/24, 12:0{n}:00 PM] {name}: {text}\n") + "\u200e[3/1/24, 12:09:00 PM] 阿泽: \u200eimage omitted\n"),
    "WhatsApp, Arabic": ("a.txt", lines("٣١\u200f/١٢\u200f/٢٠٢٣، ٩:١٥ م - {name}: {text}\n")),
    "LINE": ("a.txt", "[LINE] 阿泽とのトーク履歴\n保存日時：2024/03/02 10:00\n\n2024/03/01(金)\n"
        + lines("午後12:0{n}\t{name}\t{text}\n").replace("了\n", "了\n午後12:05\t\t阿泽がメッセージの送信を取り消しました\n")
        + "12:09\t阿泽\t[สติกเกอร์]\n12:09\t阿泽\t[アルバム] 夏\n12:10\t阿泽\t☎ 通話時間 0:32\n"),
    "bold names and colons": ("a.txt", lines("- **{name}：** {text}\n")),
    "WeChatMsg": ("a.csv", wechatmsg(BOTH, *((9, kind, 0, 0, 1709266690, XML, "", "阿泽", "w") for kind in (3, 47, 10000)))),
    "PyWxDump": ("a.csv", "id,MsgSvrID,type_name,is_sender,talker,room_name,msg,src,CreateTime\n" + rows(
        "{n},7,文本,0,{name},room,{text},,2024-03-01 12:0{n}:00", "9,7,图片,0,阿泽,room,图片,x.dat,2024-03-01 12:02:30"
    )),
    "WeFlow's sheet as CSV": ("a.csv", "会话信息,,,\n微信ID,wxid,昵称,阿泽\n\n序号,时间,发送者昵称,发送者微信ID,发送者备注,发送者身份,消息类型,内容\n"
        + rows("{n},2024-03-01 12:0{n}:00,{name},wxid,,{name},文本消息,{text}")),
    "WeFlow JSON": ("a.json", array(
        '{"createTime": 170926560%(n)d, "type": "文本消息", "content": "%(text)s", "isSend": %(i)d, "senderUsername": "wxid", "senderDisplayName": "%(name)s"}',
        '{"createTime": 1, "type": "图片消息", "content": "[图片]", "isSend": 1, "senderDisplayName": "阿泽"}',
        around='{"weflow": {"version": "1.0.3"}, "session": {"displayName": "阿泽"}, "messages": %s}',
    )),
    "WeFlow text": ("a.txt", lines("2024-03-01 12:0{n}:00 '{name}'\n{text}\n\n")),
    "qq-chat-exporter JSON": ("a.json", array(QCE := (
        '{"timestamp": 170926560%(n)d000, "sender": {"uid": "u_%(name)s", "name": "%(name)s"}, "content": {"text": "%(text)s"}, "recalled": false, "system": false}'
    ), around='{"metadata": {}, "chatInfo": {"name": "阿泽"}, "messages": %s}')),
    "qq-chat-exporter text": ("a.txt", "[QQChatExporter V5 / https://example.invalid]\n\n====\n聊天名称: 阿泽\n导出时间: 2024-03-02 10:00:00\n\n\n"
        + lines("{name}:\n时间: 2024-03-01 12:0{n}:00\n内容: {text}\n\n\n")
        + "阿泽:\n时间: 2024-03-01 12:09:00\n内容: [图片: a.png]\n资源: 1 个文件\n  - image: a.png\n\n====\n导出完成\n"),
    "QQ's own text": ("a.txt", "消息记录（此消息记录为文本格式，不支持重新导入）\n\n====\n消息分组:我的好友\n====\n消息对象:阿泽\n====\n\n"
        + lines("2024-03-01 12:0{n}:00 {name}(10001)\n{text}\n\n")),
    "QQNT_Export": ("a.json", array(
        '{"time": "2024-03-01 12:0%(n)d:00", "sender": "%(name)s", "contents": [["%(text)s", "text"]]}',
        '{"time": "2024-03-01 12:09:00", "sender": "阿泽", "contents": [["[图片]", "x.png"]]}',
    )),
    "chatlog JSON": ("a.json", array(
        '{"time": "2024-03-01T12:0%(n)d:00+08:00", "talker": "wxid_ze", "talkerName": "阿泽", "senderName": "%(name)s", "isSelf": false, "type": 1, "subType": 0, "content": "%(text)s"}',
        '{"talker": "wxid_ze", "sender": "系统消息", "isSelf": false, "type": 10000, "subType": 0, "content": "撤回"}',
    )),
    "chatlog text": ("a.txt", lines("{name}(wxid_1) 03-01 12:0{n}:00\n{text}\n\n")),
    "Telegram": ("a.json", array(TELEGRAM, '{"type": "service", "actor": "阿泽", "text": ""}', around='{"name": "阿泽", "id": 1, "messages": %s}')),
    "Telegram, whole account": ("a.json", array(
        TELEGRAM, around='{"about": "x", "contacts": {"list": [{"user_id": 1}]}, "chats": {"list": [{"name": "阿泽", "messages": %s}]}}'
    )),
    "Messenger, newest first and read as Latin-1": ("a.json", {"title": "x", "messages": [
        {"sender_name": name.encode().decode("latin-1"), "timestamp_ms": 1709265600000 + n, "content": text.encode().decode("latin-1")}
        for n, (name, text) in [*enumerate(TALK)][::-1]
    ]}),
    "Discord": ("a.json", array(
        '{"type": "Default", "timestamp": "2024-03-01T12:0%(n)d:00+00:00", "content": "%(text)s", "author": {"name": "x", "nickname": "%(name)s"}}',
        '{"type": "GuildMemberJoin", "timestamp": "", "content": "Joined.", "author": {"name": "x", "nickname": "阿泽"}}',
        around='{"guild": {"name": "g"}, "channel": {"name": "闲聊"}, "messages": %s}',
    )),
    "ChatLab": ("a.json", array(
        '{"sender": "1", "accountName": "%(name)s", "timestamp": 170926560%(n)d, "type": 0, "content": "%(text)s"}',
        '{"sender": "1", "accountName": "阿泽", "timestamp": 1709269999, "type": 1, "content": "pic.jpg"}',
        around='{"chatlab": {"version": "0.0.2"}, "meta": {"name": "阿泽"}, "messages": %s}',
    )),
    "name: text": ("a.txt", lines("{name}：{text}\n")),
    "messages of roles": ("a.json", array(
        '{"role": "%(name)s", "content": [{"type": "text", "text": "%(text)s"}]}', '{"role": "system", "content": "你是助手"}', around='{"messages": %s}'
    )),
    "ShareGPT lines": ("a.jsonl", array('{"from": "%(name)s", "value": "%(text)s"}', around='{"id": "1", "conversations": %s}').replace("\n", "")),
    "dialogue": ("a.json", array('{"speaker": "%(name)s", "text": "%(text)s"}', around='[{"dialogue_id": "d1", "dialogue": %s}]')),
    "list beside an object": ("a.json", array('{"speaker": "%(name)s", "text": "%(text)s"}', around='{"about": {"people": [{"name": "x"}]}, "data": %s}')),
    "plain table, semicolons, GB18030": ("a.csv", table("发送人,内容", TALK, ";").encode("gb18030")),
    "title lines": ("a.csv", "sep=,\n与阿泽的聊天记录,,\n导出时间:,2024-03-02,\n发送人,时间,内容\n" + rows("{name},2024-03-01 12:00,{text}")),
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
    assert written.count(b"out_memes/m1.png") == 1
    with pytest.raises(ChatError, match="memes were inserted into it"):
        read(EXPORTS[name][0], written)


def test_who_speaks_is_a_flag_where_every_row_has_the_others_name(read) -> None:
    other = wechatmsg({"小林": "阿泽", "阿泽": "阿泽"})
    assert turns(read("a.csv", other)) == [({"小林": "我"}.get(name, name), text) for name, text in TALK]
    messages_db = table("is_from_me,text,date", [(int(name == "小林"), text, "") for name, text in TALK])
    assert [name for name, _ in turns(read("b.csv", messages_db))] == ["我", "对方"] * 2
    group = [(1, "w1", "在吗"), (0, "w2", "在"), (0, "w3", "我也在"), (0, "", "有人加入了群聊")]
    assert read("c.csv", table("is_sender,wxid,text", group)).chats[0].people[:3] == ["w1", "w2", "w3"]


MEMOTRACE = (
    "【图片】", "【表情包】 开心", "【文件】a.pdf 0.12 MB C:\\a.pdf pdf d41d", "【红包】: 恭喜", "【分享链接】\n标题：一\n描述：二\n链接: https://x\n应用：三\n",
    "【音视频通话】\n通话时长 00:30", "【合并转发的聊天记录】\n\n    - 2024-03-01 11:00:00 某人: 旧话\n", "【名片】\n微信号:a\n昵称: b\n", "【语音】在路上\n引用：小林: 【图片】",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "我 03-01 12:00:00\n在\n\n阿泽(wxid_ze) 03-01 12:01:00\n在\n\n我 03-01 12:02:00\n> 阿泽(wxid_ze) 03-01 12:01:00\n> 在\n截图了\n\n", "截图了"),
        ("a.json", array(QCE, (QCE % {"n": 5, "name": "小林", "text": "[回复 阿泽: 他记错了]\\n就这样"}), (QCE % {"n": 6, "name": "阿泽", "text": "x"}).replace("false", "true", 1)), "就这样"),
        ("a.txt", "2024-03-01 11:00:00 甲\n在\n\n" + "".join(f"2024-03-01 12:1{n}:00 乙\n{text}\n\n" for n, text in enumerate(MEMOTRACE)), "在路上"),
        ("a.txt", f"\n\n{DAY}\n\n甲:在\n\n乙:" + "\n".join(MEMOTRACE) + "\n", "在路上"),
        ("a.txt", f"\n\n{DAY}\n\n甲:在\n\n乙:一\n\n\n{DAY}\n二\n[语音]\n", "一\n\n\n\n二"),
        ("a.txt", "[LINE] x\n\n2024/03/01(金)\n12:00\t甲\t在\n12:01\t乙\t\"明天\n12:30 集合\n\"\"早\"\"\"\n", '明天\n12:30 集合\n"早"'),
        ("a.txt", "甲: 他怎么说\n乙: 他说：“走吧。”\n", "他说：“走吧。”"),
        ("a.txt", "甲 [12:00]\n在\n\n乙 [12:01]\n[捂脸]\n好\n", "[捂脸]\n好"),
        ("a.txt", "01/03/24, 9:15 p. m. - 甲: 在\n01/03/24, 9:16 p. m. - 乙: <Multimedia omitido>\nmira\n", "mira"),
        ("a.txt", "01/03/24, 9:15 p. m. - 甲: 在\n01/03/24, 9:16 p. m. - 乙: vale <Se editó este mensaje.>\n", "vale"),
        ("a.txt", f"{RULE}\nGuild: g\n{RULE}\n\n[1-Mar-24 12:00 PM] 甲\n在\n\n[1-Mar-24 12:01 PM] 乙\n一\n\n二\n\n{{Embed}}\nx\n\ny\n", "一\n\n二"),
        ("a.json", array(
            '{"type": "message", "user": "U%(i)d", "text": "在", "ts": "170926560%(n)d.0001", "user_profile": {"real_name": "%(name)s"}}',
            '{"type": "message", "user": "U1", "text": "&lt;3 <@U0> <!here> <#C1|闲聊> <https://x.invalid|这个> &amp;", "ts": "1709265609.1"}',
        ), "<3 @小林 @here #闲聊 这个 &"),
        ("a.json", array(
            '{"msg_type": "text", "body": {"content": "{\\"text\\": \\"在\\"}"}, "sender": {"id": "%(name)s"}, ' + FEISHU + "}",
            json.dumps({"msg_type": "post", "chat_id": "oc", "sender": {"id": "阿泽"}, "mentions": [{"key": "@_user_1", "name": "小林"}], "body": {"content": json.dumps(
                {"title": "", "content": [[{"tag": "text", "text": "看 @_user_1"}], [{"tag": "img", "image_key": "k"}]]})}}),
        ), "看 @小林"),
        ("a.csv", 'nickname,raw_message\n甲,在\n乙,A&amp;B[CQ:face]\n甲,"[CQ:image,file=a]"\n', "A&B"),
        ("a.csv", "is_from_me,text\n1,在\n1,\ufffc\n0,看\ufffc\n", "看"),
        ("a.csv", wechatmsg(BOTH, (9, 49, 57, 0, 1709266690, "这个好", "", "阿泽", "w")), "这个好"),
        ("a.csv", "speaker,text\n甲,在\n甲,[pic:1.png]\n乙,好[at:1]\n甲,[图片里的人是谁]\n乙,哈哈[捂脸] <3 2 < 3 > 1\n", "哈哈[捂脸] <3 2 < 3 > 1"),
    ],
)  # fmt: skip
def test_what_stands_beside_words_leaves_them(name: str, content: str, said: str, read) -> None:
    """Files, captions, quotes, notices and marks in the ways of many tools; `said` is the last that is spoken."""
    (chat,) = read(name, content).chats
    assert [message.text for message in chat.messages if message.speaker and message.text][-1] == said
    assert len(chat.people) == 2


def test_a_bots_private_chat_is_read_and_a_log_of_several_is_refused(read) -> None:
    def log(*pairs: tuple[int, int]) -> str:
        form = '{"self_id": 1, "user_id": %d, "target_id": %d, "message_id": 1, "message": "在", "sender": {"nickname": "n%d"}}'
        return "\n".join(form % (user, target, user) for user, target in pairs)

    assert turns(read("a.jsonl", log((3, 1), (1, 3)))) == [("n3", "在"), ("n1", "在")]
    with pytest.raises(ChatError, match="private chats with 2 people: split the log by `user_id`"):
        read("b.jsonl", log((3, 1), (1, 3), (1, 4)))


def test_accounts_of_one_name_are_said_and_an_id_stands_for_a_name_that_is_missing(read) -> None:
    people = [("user1", "小林"), ("user2", "小林"), ("user3", "阿泽"), ("user1", None)]
    talk = json.loads(array(TELEGRAM))
    group = [row | {"from_id": a, "from": b} for row, (a, b) in zip(talk, people, strict=True)]
    export = read("a.json", {"name": "x", "messages": group})
    assert export.chats[0].people == ["小林", "阿泽"]
    assert "2 accounts called '小林' are read as one speaker" in export.taken
    written = "2024-03-01 12:00:00 小林(10001)\n一\n\n2024-03-01 12:01:00 小林(10002)\n二\n"
    assert "2 accounts called '小林'" in read("c.txt", written).taken


def test_times_count_with_their_offsets_or_it_is_said(read) -> None:
    def in_order(*times: str, column: str = "time") -> tuple[str, str]:
        said = [("甲乙"[n % 2], str(n), time) for n, time in enumerate(times)]
        export = read("a.csv", table(f"speaker,text,{column}", said))
        return "".join(message.text for message in export.chats[0].messages), export.taken

    offsets = ("2024-01-01T10:00:00+08:00", "2024-01-01T03:00:00Z", "2024-01-01 10:30:00 +0800")
    assert in_order(*offsets)[0] == "021"
    order, said = in_order("2024-01-01 08:00", "2024-01-01 10:00", "2024-01-01 09:00", "10:03", "")
    assert order == "02134" and "2 messages without a time that can be read, such as '10:03'" in said
    assert in_order("2024-01-03", "", "2024-01-02", "上午", "2024-01-01")[0] == "43210", "newest first"
    assert "'sent_on_date' is not read as time" in in_order("2024", "2023", column="sent_on_date")[1]


THINGS = [
    "[图片: screenshot.png]", "[语音 7秒]", "![图片](http://127.0.0.1/i/0)", "[链接|看这个](https://x.invalid)", "[表情包：加油]", "[GIF表情]",
    "[转账|发送 ¥5.20]", "<Media omitted>", "[動畫貼圖]", "[Sticker]", "[图片][图片]", "[スタンプ]", "[ Voice message ]", "［图片］", "Loved “好的”", "‎image omitted", "<媒体内容已忽略>", "[位置: 人民广场]",
]  # fmt: skip


def test_what_stands_for_a_picture_is_no_text_and_words_like_it_stay(read) -> None:
    pictures = table("speaker,text", [*TALK, *(("小林", thing) for thing in THINGS), ("小林", "好[at:1]")])
    export = read("a.csv", pictures)
    assert turns(export) == [*TALK, ("小林", "好[at:1]")]
    assert "1 text with a code such as '[at:1]'" in export.taken
    long = "好" * 200_000  # a cell may be as long as the file
    kept = [*zip("甲乙" * 3, ("[图片里的人是谁]", "哈哈[捂脸]", "<3", "2 < 3 > 1", long), strict=False)]
    assert turns(read("a.csv", table("speaker,text", [*kept, ("乙", "好\0吧")]))) == [*kept, ("乙", "好吧")]


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        ("a.txt", "Sender: 小林\nTime: 12:00\nMessage: 在吗\n\nSender: 阿泽\nTime: 12:01\nMessage: 在\n", "label"),
        ("a.csv", table("speaker,text", [("小林", text) for _, text in TALK]), "all 4 messages"),
        ("a.csv", table("speaker,text", [*TALK, ("阿泽", XML)]), "xml"),
        ("a.jsonl", '\ufeff{"speaker": "A", "text": "x"}\n{', "line 2: not JSON"),
        ("a.csv", "speaker,text\n小林,在,吗\n", "3 cells under 2 columns"),
        ("a.csv", "speaker,text,text\n小林,在,吗\n阿泽,在,的\n", "line 1: two columns are called 'text'"),
        ("a.json", [{"speaker": name, "text": text} for name, text in [*TALK[:2], *[("", "x")] * 3]], "3 of 5 texts without a speaker"),
        ("a.json", [{"who": {"nm": "a"}, "words": "b"}], "there are: who, who.nm, words; name its columns"),
        ("a.json", '{"a":' * 900 + "1" + "}" * 900, "no list of messages"),
        ("a.json", [{"speaker": "a", "text": None, "body": {"words": "b"}}], "both a speaker and a text.* there are: speaker, text, body, body.words"),
        ("a.csv", table("speaker,text", [(name, json.dumps([{"type": "text"}])) for name, _ in TALK]), "which nobody says"),
        ("a.csv", table("speaker,text", [(name, f"[pic:{n}] 好") for n, (name, _) in enumerate(TALK)]), r"a text holds '\[pic:0\]'"),
        ("a.txt", "走吧，天黑了。\n好，等等我。\n快点，要下雨了。\n", "this form is not known"),
        ("a.txt", "他说：“走吧。”\n她笑道：“好。”\n他说：“快一点。”\n", "this form is not known"),
        ("a.txt", "姓名: 小美\n年龄: 20\n电话: 1234\n地址: 北京\n邮箱: a\n", "this form is not known"),
        ("a.txt", "[LINE] x\n\n2024.03.01 星期五\n12:00 小林 在吗\n12:01 阿泽 在\n", "this form is not known"),
        ("a.txt", "[12:00] <小林> 在吗\n[12:01] <阿泽> 在\n", "this form is not known"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_what_was_seen(name: str, content, seen: str, read) -> None:
    with pytest.raises(ChatError, match=seen) as caught:
        read(name, content)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert not (name.endswith(".txt") and "FIELDS='speaker" in str(caught.value)), "it cannot help there"


def test_fields_name_what_no_layout_knows(read) -> None:
    rows = [{"who": {"name": name}, "what": {"body": text}} for name, text in TALK]
    assert turns(read("a.json", rows, "speaker=who.name,text=what.body")) == TALK
    assert turns(read("a.csv", table("x,y", TALK), "speaker=x,text=y")) == TALK
    inner = [{"who": name, "what": json.dumps({"body": text})} for name, text in TALK]
    assert turns(read("a.json", inner, "speaker=who,text=what.body")) == TALK
    talk = [{"speaker": name, "text": text} for name, text in TALK]
    spaced = read("a.json", {"甲乙": talk, "甲乙 ": talk})  # names that differ by a blank are two chats
    assert [chat.name for chat in spaced.chats] == ["甲乙", "甲乙 #2"]
    with pytest.raises(ChatError, match="part=column"):
        readers.parse_fields("who=x")


def test_all_three_of_s_e_and_psi_are_a_summary_and_a_label_is_none(read) -> None:
    three = read("a.csv", table("speaker,text,S,E,Psi", [(*said, "s", "e", "p") for said in TALK]))
    label = read("b.csv", table("speaker,text,emotion", [(*said, "joy") for said in TALK]))
    assert three.chats[0].messages[0].summary.motivation == "p" and not label.chats[0].messages[0].summary


def test_cells_numbers_and_lines_stay_as_they_stood(read) -> None:
    content = 'speaker,"text",id\r\n小林,"在,吗",7.00E+18\r\n\r\n阿泽,"=1+1",007\r\n'
    written = read("a.csv", content).render({(0, 1): MEME}).decode()
    head, *rows = written.split("\n")
    assert head == "speaker,text,id," + ",".join(MEME_COLUMNS)
    assert rows[0] == '小林,"在,吗",7.00E+18,,,,,,' and rows[1] == ""
    assert rows[2] == "阿泽,=1+1,007,m1,out_memes/m1.png,0.5,1.25,0.75,greedy"
    lines = (
        '{"speaker": "a", "text": "在吗",   "n": 1.5}\n{"speaker": "b", "text": "在", "meme_id": "mine"}\n'
    )
    first, second = read("a.jsonl", lines).render({(0, 1): MEME}).decode().splitlines()
    assert first == '{"speaker": "a", "text": "在吗", "n": 1.5}' and json.loads(second)["meme_id"] == "m1"
    text = "小林: 在吗\n[meme cat: haha.jpg]\n阿泽: 在\n小林: 好\n"
    assert "[meme cat: haha.jpg]" in read("a.txt", text).render({(0, 1): MEME}).decode()


def test_turns_join_what_one_person_says_in_a_row(read) -> None:
    rows = [("a", "一"), ("a", "二"), ("system", "x"), ("b", "[图片]"), ("a", "三"), ("b", "四")]
    (chat,) = read("a.csv", table("speaker,text", rows)).chats
    assert [turn[:3] for turn in chat.spoken] == [(1, "a", "一 二"), (2, "a", "三"), (3, "b", "四")]
    context = list(missing(chat))[-1]
    assert context.lines == [("a", "一 二"), ("a", "三")] and context.next_speaker == "b"


# --- dialogues of a run from a file

TOLD = {"scenario": "在聊天", "emotion": "开心", "motivation": "想笑"}
SAID = zip("美强强美", ("到家了吗", "堵车", "还在桥上", "那我先吃了"), strict=True)
OWN = {
    "dialogue_id": "chat-1",
    "turns": [{"speaker": name, "text": text} for name, text in SAID],
    "summaries": [{"turn": turn, **TOLD} for turn in (2, 3, 4)],
}


def load(path: Path, content, **settings):
    if not isinstance(content, bytes):
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in content).encode()
    path.write_bytes(content)
    return chats.load_dialogues(Profile(name="p").replace(dialogues=str(path), **settings))


def test_who_speaks_first_is_a_and_messages_in_a_row_are_one_turn(tmp_path: Path) -> None:
    ((made,), taken) = load(tmp_path / "own.jsonl", [OWN])
    assert (made.kind, made.name_a, made.name_b, made.complete) == ("own", "美", "强", True)
    assert [turn.text for turn in made.turns] == ["到家了吗", "堵车 还在桥上", "那我先吃了"]
    assert [(s.turn, s.speaker) for s in made.summaries] == [(2, "B"), (3, "A")]
    assert {record.source for record in (made, *made.turns, *made.summaries)} == {"user dialogue"}
    assert taken == "form of a release; 4 messages of 2 speakers (美, 强) in 1 chat"
    assert chats.load_dialogues(Profile(name="p")) == ([], "")
    (foreign,), _ = load(tmp_path / "own.jsonl", [OWN | {"kind": "chitchat", "title": "", "source": None}])
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
        ({"turns": [*OWN["turns"], {"speaker": "路人", "text": "让让"}]}, "'chat-1' has 3: 美, 强, 路人"),
        ({"dialogue_id": "chat-0"}, "dialogue_id 'chat-0' must name one dialogue"),
        ({"summaries": []}, "2 turns in own.jsonl have no summary, and profile 'p' has no model"),
        ({"summaries": ["x"]}, "line 2: summaries.0: Input should be a valid dictionary"),
    ],
)
def test_what_is_no_dialogue_of_two_is_refused_in_one_line(tmp_path: Path, change: dict, what: str) -> None:
    with pytest.raises((ProfileError, ChatError), match=re.escape(what)) as caught:
        load(tmp_path / "own.jsonl", [OWN | {"dialogue_id": "chat-0"}, OWN | change])
    assert not re.search("\n|http|FIELDS", str(caught.value))


def test_what_is_wrong_with_the_file_is_told_before_any_stage(tmp_path: Path) -> None:
    (lack,) = cost.lacks(Profile(name="p").replace(dialogues=str(tmp_path / "nowhere.jsonl")))
    assert lack.startswith("dialogues: ") and "nowhere.jsonl" in lack and "No such file" in lack
    for beside in ("n_news=5", "scenarios_per_pair=3 news=x.jsonl"):
        with pytest.raises(ProfileError, match=r"with `dialogues` none .* leave out \w+"):
            load_profile("local", parse_settings(f"dialogues=a.csv {beside}"))
    own = load_profile("local", parse_settings("dialogues=a.csv n_news=0 n_dialogues=3")).dialogue
    assert (own.n_news, own.n_role_pairs) == (0, 0), "the profile's own numbers do not count"


def test_groups_among_several_chats_are_left_out_and_counted(tmp_path: Path) -> None:
    both = [(chat, *row) for chat in ("a/b", "a b") for row in TALK]
    content = table("chat,speaker,text", [*both, *(("群", name, "在") for name in "甲乙丙")])
    own, taken = load(tmp_path / "a.csv", content.encode("gb18030"), llm="openai")
    assert [(one.dialogue_id, one.title) for one in own] == [("a-b", "a/b"), ("a-b-2", "a b")]
    assert taken.endswith("in 3 chats; gb18030; left out: 1 chat not of two speakers")
