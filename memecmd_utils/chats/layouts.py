"""Which fields of a tool's messages say who speaks, what, when and in which chat."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """The fields of a tool's messages; `content.text` is a key within an object."""

    tool: str
    needs: tuple[str, ...]
    """Fields by which the tool is known."""
    speaker: tuple[str, ...]
    """Fields that may name the sender; the first that is not empty does."""
    text: str
    time: str = ""
    chat: tuple[str, ...] = ()
    mine: str = ""
    """A flag: whether the owner of the account sent the message."""
    kind: tuple[str, ...] = ()
    """Fields that say what kind of message it is, and the kinds that are spoken (joined with a stroke)."""
    spoken: str = ".*"
    silent: tuple[str, ...] = ()
    """Flags of messages that are no speech."""
    quotes: bool = True
    """Whether the tool writes quoted messages and placeholders into a text."""


TEXT_KINDS = "文本.*|引用.*|text|txt|plain|1|reply|quote"
WECHAT_KINDS = "1/.*|49/57"
"""Type and subtype of WeChat's database: a text, or a reply to another message."""
LAYOUTS = (
    Layout(
        "WeChatMsg",
        needs=("IsSender", "StrContent", "Type", "NickName"),
        speaker=("NickName", "Remark", "Sender"),
        text="StrContent",
        time="CreateTime",
        chat=("TalkerId",),
        mine="IsSender",
        kind=("Type", "SubType"),
        spoken=WECHAT_KINDS,
    ),
    Layout(
        "WeChatMsg",
        needs=("消息ID", "类型", "发送人", "内容"),
        speaker=("发送人",),
        text="内容",
        time="时间",
        kind=("类型",),
        spoken=TEXT_KINDS,
    ),
    Layout(
        "PyWxDump",
        needs=("type_name", "is_sender", "talker", "msg"),
        speaker=("talker",),
        text="msg",
        time="CreateTime",
        chat=("room_name",),
        mine="is_sender",
        kind=("type_name",),
        spoken=f"{TEXT_KINDS}|带有引用.*",
    ),
    Layout(
        "WeFlow",
        needs=("发送者身份", "消息类型", "内容"),
        speaker=("发送者昵称", "发送者备注", "发送者身份"),
        text="内容",
        time="时间",
        kind=("消息类型",),
        spoken=TEXT_KINDS,
    ),
    Layout(
        "WeFlow",
        needs=("senderUsername", "isSend", "content"),
        speaker=("senderDisplayName", "senderUsername"),
        text="content",
        time="createTime",
        mine="isSend",
        kind=("type",),
        spoken=TEXT_KINDS,
    ),
    Layout(
        "qq-chat-exporter",
        needs=("content.text", "sender.uid"),
        speaker=("sender.groupCard", "sender.name", "sender.nickname", "sender.uin"),
        text="content.text",
        time="timestamp",
        silent=("recalled", "system"),
    ),
    Layout(
        "chatlog",
        needs=("talker", "isSelf", "content"),
        speaker=("senderName", "sender"),
        text="content",
        time="time",
        chat=("talkerName", "talker"),
        mine="isSelf",
        kind=("type", "subType"),
        spoken=WECHAT_KINDS,
    ),
    Layout(
        "ChatLab",
        needs=("sender", "timestamp", "type", "content", "accountName"),
        speaker=("groupNickname", "accountName", "sender"),
        text="content",
        time="timestamp",
        kind=("type",),
        spoken="0|25",
    ),
    Layout(
        "Telegram",
        needs=("from", "from_id", "text"),
        speaker=("from",),
        text="text",
        time="date_unixtime",
        kind=("type",),
        spoken="message",
    ),
    Layout(
        "Instagram or Messenger",
        needs=("sender_name", "timestamp_ms"),
        speaker=("sender_name",),
        text="content",
        time="timestamp_ms",
        silent=("is_unsent",),
    ),
    Layout(
        "Discord",
        needs=("author.name", "content", "timestamp"),
        speaker=("author.nickname", "author.name"),
        text="content",
        time="timestamp",
        kind=("type",),
        spoken="Default|Reply|",
    ),
    Layout(
        "Discord",
        needs=("AuthorID", "Author", "Date", "Content"),
        speaker=("Author",),
        text="Content",
        time="Date",
    ),
    Layout(
        "QQNT_Export",
        needs=("time", "contents"),
        speaker=("sender", "direction", "sender_qq"),
        text="contents",
        time="time",
    ),
    Layout("messages of a model", needs=("role", "content"), speaker=("role",), text="content", quotes=False),
    Layout("ShareGPT", needs=("from", "value"), speaker=("from",), text="value", quotes=False),
)

# What a column of a plain table may be called, first choice first; the case of letters does not count.
_NAMES = {
    "speaker": """speaker speaker_name sender_name sender nickname from author username user role name
        speaker_id sender_id 发送人 发送者 发言人 说话人 昵称 用户 姓名 角色
        發送人 發送者 傳送者 暱稱 送信者 名前""",
    "text": """text content message utterance msg body value
        内容 消息内容 聊天内容 消息 文本 正文 內容 訊息 訊息內容 メッセージ 本文""",
    "chat": """dialogue_id dialog_id session_id conversation_id chat_id chat session conversation
        会话 对话 会话id 对话id 群聊 群名 聊天 會話 對話""",
    "time": """time timestamp datetime date created_at create_time createtime
        时间 发送时间 日期 時間 發送時間 日時""",
    "kind": "type type_name msg_type msgtype messagetype 类型 消息类型 類型",
    "mine": "is_sender issender issend is_send isself is_self from_me is_from_me key_from_me",
    "scenario": "s scenario 场景",
    "emotion": "e emotion 情绪",
    "motivation": "psi ψ motivation 动机",
}
NAMES: Mapping[str, tuple[str, ...]] = {part: tuple(names.split()) for part, names in _NAMES.items()}
PARTS = ("chat", "time", "speaker", "text", "scenario", "emotion", "motivation", "encoding")
"""What `FIELDS=` may name."""
ME, OTHER = "我", "对方"
"""Names of the two sides of a chat in which only a flag says who speaks."""
NOT_SPOKEN = {"system", "developer", "tool", "function", "系统", "系统消息", "系统通知"}
"""Senders whose messages are kept in place and not read as part of the chat."""
LISTS = (
    "messages",
    "dialogue",
    "dialog",
    "conversation",
    "conversations",
    "turns",
    "utterances",
    "history",
    "chat",
    "log",
    "对话",
    "消息",
)
"""Keys under which a JSON object may hold the messages of a whole chat."""
CHAT_NAMES = (
    "session.displayName",
    "session.nickname",
    "chatInfo.name",
    "meta.name",
    "channel.name",
    "title",
    "name",
    "dialogue_id",
    "chat_id",
    "id",
)
"""Keys under which such an object may hold the chat's name."""
