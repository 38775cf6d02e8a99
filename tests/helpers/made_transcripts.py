"""Chats of three messages in the forms in which chat programs copy and export them."""

TALK = [("小王", "在吗"), ("小李", "在"), ("小王", "爬山去不去")]
RULE = "=" * 64
QQ_HEAD = f"消息记录（此消息记录为文本格式，不支持重新导入）\n\n{RULE}\n消息分组:我的好友\n{RULE}\n"


def below(*heads: str, above: str = "", gap: str = "") -> str:
    """A chat whose texts stand below these lines, as a format for three texts."""
    return above + "".join(f"{head}\n{gap}{{}}\n{gap}" for head in heads)


BELOW = {
    "QQ export": below(
        "2024-05-01 12:30:11 小王(12345678)",
        "2024-05-01 12:30:15 小李(87654321)",
        "\n2024-05-02 8:01:02 小王(12345678)",
    ),
    "QQ export with its head": below(
        "2024-05-01 12:30:11 小王(12345678)",
        "\n2024-05-01 12:30:15 小李<li@example.com>",
        "\n2024-05-02 8:01:02 小王(12345678)",
        above=f"{QQ_HEAD}消息对象:小李\n{RULE}\n\n",
    ),
    "QQ, copied": below("小王 2024/5/1 12:30:11", "小李 2024/5/1 12:30:15", "小王 8:01:02"),
    "QQ, copied, with numbers": below(
        "小王(12345678) 2024-05-01 12:30:11", "小李(87654321) 2024-05-01 12:31:11", "小王(12345678) 12:32:11"
    ),
    "new QQ": below("小王: 05-01 12:30:11", "\n小李: 05-01 12:30:15", "\n小王: 05-02 08:01:02"),
    "time alone": below("小王 12:30", "小李 12:31", "小王 12:40"),
    "WeChat, days": below("小王 5月1日 12:30", "小李 昨天 12:31", "\n小王 星期三 下午3:20"),
    "WeChat, by mail": below(
        "小王  12:30",
        "小李  12:31",
        "————— 2024-05-02 —————\n\n小王  08:00",
        above="微信聊天记录\n————— 2024-05-01 —————\n\n",
        gap="\n",
    ),
    "WeChat on a computer": below("小王:", "\n小李:", "\n昨天 12:30\n小王:"),
    "time below the name": below("小王\n昨天 12:30", "\n小李\n昨天 12:31", "\n小王\n8:01"),
    "Slack": below("小王\n  3:20 PM", "小李\n  3:21 PM", "小王\n  3:25 PM"),
    "上午": below("小王 上午 9:05", "小李 下午 1:07", "小王 下午1:10"),
    "AM/PM": below("小王  9:05 AM", "小李  1:07 PM", "小王  1:10 PM"),
    "Telegram": below("小王, [01.05.2024 12:30]", "\n小李, [01.05.2024 12:31]", "\n小王, [02.05.2024 08:00]"),
    "Discord": below("小王 — Yesterday at 12:30 PM", "小李 — Today at 1:30 AM", "小王 — Today at 1:31 AM"),
}


def beside(*heads: str) -> str:
    """A chat whose texts stand on these lines; a line that ends with a break has none."""
    return "".join(head if head.endswith("\n") else f"{head}{{}}\n" for head in heads)


BESIDE = {
    "WhatsApp": beside(
        "5/1/24, 12:29 PM - Messages are end-to-end encrypted.\n",
        "5/1/24, 12:30 PM - 小王: ",
        "5/1/24, 12:31 PM - 小李: ",
        "5/2/24, 8:00 AM - 小王: ",
    ),
    "WhatsApp on a telephone": beside(
        "[2024/5/1 下午3:20:11] 小王: ",
        "\u200e[2024/5/1 下午3:20:15] 小李: ",
        "[2024/5/1 下午3:21:00] 小王: ",
    ),
    "iOS, English": beside(
        "[01.05.24, 3:20:11\u202fPM] 小王: ",
        "[01.05.24, 3:20:15\u202fPM] 小李: ",
        "[02.05.24, 1:20:15\u202fAM] 小王: ",
    ),
    "LINE": beside(
        "[LINE] 與小李的聊天記錄\n",
        "儲存日期： 2024/05/03 12:30\n\n",
        "2024/05/01（三）\n",
        "12:30\t小王\t",
        "12:31\t小李\t",
        "12:31\t小李已收回訊息\n\n",
        "2024/05/02（四）\n",
        "08:10\t小王\t",
    ),
    "LINE on a computer": beside("2024.05.01 星期三\n", "12:30 小王 ", "12:31 小李 ", "12:33 小王 "),
    "KakaoTalk": beside(
        "--------------- 2024년 5월 1일 수요일 ---------------\n",
        "[小王] [오후 12:30] ",
        "[小李] [오후 12:31] ",
        "[小王] [오후 12:33] ",
    ),
    "time first": beside("12:30 小王: ", "12:31 小李: ", "12:35 小王: "),
    "date first": beside(
        "2024-05-01 12:30:11 小王：", "2024-05-01 12:31:11 小李：", "2024-05-01 12:32:11 小王："
    ),
    "time after the name": beside("小王 12:30: ", "小李 12:31: ", "小王(12:33)："),
    "plain": beside("小王：", "小李：", "小王："),
    "plain, with days": beside("5月1日 12:30\n", "小王：", "小李：", "昨天 08:10\n", "12:30\n", "小王："),
}
