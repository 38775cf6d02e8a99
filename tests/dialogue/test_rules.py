import pytest

from memecmd_utils.dialogue import rules
from memecmd_utils.dialogue.rules import STARTER_WINDOW, is_copy, violations

SPOKEN = ("今天好热", "空调坏了", "你来我家吧")


def found(text: str, earlier: tuple[str, ...] = SPOKEN) -> list[str]:
    return violations(text, earlier, 25)


def test_length_at_its_edge() -> None:
    assert found("长" * 25) == []
    assert found("长" * 26) == ["太长（26字，最多25字）"]
    assert found("长" * 24 + "！！") == ["太长（26字，最多25字）"], "punctuation counts"


@pytest.mark.parametrize(
    "emoji",
    [
        "😀", "🤣", "👍🏽", "❤️", "☀", "✨", "⭐", "🇨🇳", "1️⃣", "➡", "‼", "⏰", "⌛", "㊗", "🫠", "🀄",
        "👨\u200d👩\u200d👧",
    ],
)  # fmt: skip
def test_emoji(emoji: str) -> None:
    assert found(f"行吧{emoji}") == ["用了表情符号"]


@pytest.mark.parametrize(
    "sign",
    [*"！？…—～，。、；：“”‘’（）《》【】「」·￥％＋", "……", "——", "①", "km²", "α", "3℃", "Wi-Fi", "々"],
)
def test_no_emoji(sign: str) -> None:
    assert found(f"行吧{sign}好") == []


@pytest.mark.parametrize(
    "text",
    ["行吧(^_^)",
     "好呀T_T", "QAQ我错了", "气死我了>_<", "-_-随便你", "╮(╯▽╰)╭算了", "(╯°□°）╯掀桌", "好嘛(｡•́︿•̀｡)",
     "行:)", "好的;-)", "XD笑死", "那就这样 :D", "orz服了", "ಠ_ಠ你认真的", "¯\\_(ツ)_/¯", "o(╥﹏╥)o",
     "(*^▽^*)来啦", "好哒^^", "= = 无语", "(:з」∠)_躺平", "（￣▽￣）", "(・∀・)", "(；一_一)", "@_@晕了",
     "o_O啥", "(╥_╥)", "＞＜"],
)  # fmt: skip
def test_faces_made_of_signs(text: str) -> None:
    assert found(text) == ["用了颜文字"]


@pytest.mark.parametrize(
    ("text", "act"),
    [("（笑）好啊", "（笑）"), ("好啊（笑）", "（笑）"), ("(叹气)算了", "(叹气)"),
     ("*挠头*我忘了", "*挠头*"), ("＊笑＊行吧", "＊笑＊"), ("[捂脸]我服了", "[捂脸]"),
     ("【无奈】行吧", "【无奈】"), ("我不去（翻白眼）", "（翻白眼）"),
     ("（把手机递过去）你看", "（把手机递过去）"), ("你看*指着窗外*下雪了", "*指着窗外*"),
     ("行吧。（沉默）那算了", "（沉默）"), ("[doge]懂的都懂", "[doge]"), ("**认真**说", "**认真**"),
     ("好哒（偷笑", "（偷笑"), ("我爱上班（不是）", "（不是）"), ("（往后一靠）随便", "（往后一靠）")],
)  # fmt: skip
def test_stage_directions(text: str, act: str) -> None:
    assert found(text) == [f"写了括号动作（{act}）"]


@pytest.mark.parametrize(
    "text",
    ["甲：你好", "A:你好", "A：你好", "乙: 好", "外婆：吃饭了", "外孙女: 来了", "【甲】你好",
     "**甲**：你好", "甲说：你好", "外婆（笑）：吃饭", "用户：你好", "助手：好的", "User: hi",
     "[外婆] 吃饭", "（外婆）：吃饭", "好的。乙：真的吗", "旁白：天黑了", "外婆 ：吃饭", "说话人1：好"],
)  # fmt: skip
def test_names_before_the_words(text: str) -> None:
    broken = violations(text, SPOKEN, 25, ("外婆", "外孙女"))
    assert "写了人名前缀" in [rule.split("（")[0] for rule in broken]


@pytest.mark.parametrize(
    "text",
    ["那家店（楼下那家）关了", "我在三号线（人民广场站）", "周三（15号）见", "涨了5%（含税）", "第(2)个",
     "看《（大）明》", "今晚（如果不加班）去", "3*4*5的箱子", "他妈的**", "下午3:30见", "比分2:3输了",
     "答案:D吧", "选A：B不对", "说真的：我不信", "C:盘满了", "他说：“行”", "我妈说：早点睡",
     "客服说：明天到", "系统提示：密码错误", "1~2天", "A股又跌了", "甲方又改", "-5~-3度", "0.0分",
     "x_y坐标", "啊？？", "外婆说得对", "外婆家在哪", "5:0赢了", "a/b测试", "no.1", "——行吧---"],
)  # fmt: skip
def test_brackets_colons_and_signs_of_ordinary_chat(text: str) -> None:
    assert violations(text, SPOKEN, 25, ("外婆", "外孙女")) == []


def test_talk_about_the_task_is_told_with_its_words() -> None:
    (rule,) = found("抱歉，我之前的回答重复了前面的话")
    assert rule.startswith("谈到了任务本身（") and "我之前的回答" in rule
    assert found("抱歉来晚了") == []


def test_fewer_and_milder_rules_weigh_less_and_talk_about_the_task_most() -> None:
    told = {
        "talk": found("以下是修改后的：行"),
        "copy": found("空调坏了！"),
        "act": found("（笑）行吧"),
        "face": found("行吧(^_^)"),
        "emoji": found("行吧😀"),
        "starter": found("今天？不来了"),
        "long": found("长" * 26),
    }
    weight = {name: rules.severity(broken) for name, broken in told.items()}
    assert weight["talk"] > sum(weight.values()) - weight["talk"]
    assert weight["copy"] > weight["act"] > weight["face"] == weight["emoji"]
    assert weight["emoji"] > weight["starter"] == weight["long"]
    assert rules.severity([]) == 0 and rules.severity(["another"]) > 0
    assert rules.severity(told["long"] + told["face"]) > rules.severity(told["face"])


def test_starters() -> None:
    assert found("今天？不来了") == ["开头“今天”和前面的话一样"]
    assert found("“今，天”不来了")[0].startswith("开头“今天”"), "punctuation does not hide it"
    assert found("今晚不来了") == []
    away = ("今天好热", *(f"{word}一句别的话" for word in "甲乙丙丁戊己庚"[:STARTER_WINDOW]))
    assert violations("今天不来了", away[:STARTER_WINDOW], 25) != []
    assert violations("今天不来了", away, 25) == [], "so far back it is no repetition"


def test_copies() -> None:
    assert "重复了前面说过的话" in found("空调坏了！")
    assert "重复了前面说过的话" in violations("咱们周末一起去爬香山吧", ["哎，咱们周末一起去爬香山吧"], 25)
    far = ("空调坏了", *(f"{word}一句话" for word in "甲乙丙丁戊己庚辛"))
    assert violations("空调坏了", far, 25) == ["重复了前面说过的话"], "however far back"
    assert is_copy("好", "好。") and not is_copy("好", "好的") and not is_copy("今天好热", "今天好冷啊你说")
    assert not is_copy("abcd", "abce"), "three quarters alike are not a copy"


def test_a_run_from_a_worked_example_is_found_unless_the_dialogue_has_it():
    examples = ["那顿拜师饭你请了没", "排了四十分钟"]
    assert rules.borrowed("你急啥，我那顿拜师饭还没来呢。", examples) == "那顿拜师饭"
    assert rules.borrowed("我那顿，拜师饭！", examples) == "那顿拜师饭"
    assert rules.borrowed("那顿拜师酒你请了没", examples) is None  # no five in a row
    assert rules.borrowed("排了四十分钟", examples, own=["新闻说有人排了四十分钟"]) is None
    assert rules.borrowed("短", examples) is None


def test_six_characters_in_a_row_of_an_earlier_turn_are_said_again_and_five_are_an_echo():
    earlier = ["太激动了，差点连脚都抽筋了", "后来呢"]
    assert violations("我那脚啊，差点连脚都抽", earlier, 25) == ["“差点连脚都抽”前面已经说过"]
    assert violations("我那脚啊，差点连脚都麻了", earlier, 25) == []
    assert violations("比赛时，连脚都抽筋，真惨", earlier, 25) == []


TALK = [
    "抱歉，我之前的回答重复了前面的话", "作为AI，我不能评价这个", "作为一个人工智能助手，我没有周末",
    "以下是修改后的回复：", "根据您的要求，重新回复如下", "好的，我会注意避免重复",
    "好的，我会重新组织语言", "好的，我会按照要求重新回复", "我重新说：今晚吃火锅吧", "那我换个开头吧",
    "修改后：今晚吃火锅", "修改：今晚吃火锅", "回复：今晚吃火锅", "对不起，我上一次的回复不符合要求",
    "好的，以下是符合要求的回复", "我会用更口语化的方式回复", "我会遵守规则，不用表情符号",
    "好的，我会用简短的话", "请提供更多背景信息", "很抱歉，我无法生成该内容", "抱歉，我的回答超过了字数",
    "Sorry for the previous response", "Here is the revised reply:", "As an AI language model, I can't",
    "Sure, here is a line", "感谢指正，我已修改如下", "我会扮演外婆继续聊", "根据聊天记录，外婆在问",
    "抱歉，之前的回答不符合格式要求", "对不起，我会改正，不再重复前面的话", "这是修改后的句子",
    "我会以外婆的口吻说", "好的，我会重新组织语言", "新的回复：今晚吃面",
    "非常抱歉，我的上一条回复违反了规则", "I'm sorry, I cannot help with that", "用户希望我写一句话",
    "下面是我的回复：", "我会尽量避免重复", "好的，已更正", "抱歉给您带来不便", "感谢您的反馈",
    "很抱歉，我刚才的话太长了", "我会换一种说法", "我会避免开头重复", "好的，下面我来写：今晚吃面",
    "（修改后）今晚吃面", "改为：今晚吃面", "好的，我换一句：今晚吃面", "明白了，我不会再使用表情符号",
    "这是我的新回复：走啊", "我理解了您的要求，走啊", "抱歉，我的上一句话用了表情符号", "不会用表情符号了",
    "对不起，我用了括号动作", "抱歉，我误解了您的意思", "这句话不超过25个字", "请告诉我下一句",
    "以外婆的口吻：今晚吃面", "作为外婆，我会说：今晚吃面", "您说得对，我修改一下",
    "抱歉，我无法回答这个问题",
]  # fmt: skip
CHAT = [
    "抱歉来晚了", "对不起，我忘了", "对不起对不起！手流血了吗", "不好意思刚看到，现在回复你",
    "抱歉回复晚了，刚在开会", "抱歉才回你消息", "你刚才的回复我没看到", "他上次的回答把我笑死",
    "她上一条回复是几点", "好的，我会准时到", "好的，我会注意安全的", "好，我会去接你的", "我会避开早高峰",
    "好的我会修好它", "老师让我重新回答一遍", "再说吧，先吃饭", "我再说一遍，不去", "重新来，这把不算",
    "甲方要求改第八版了", "领导要求周五交", "按照说明书装的", "根据天气预报要下雨",
    "按要求交了照片，又被退", "作为过来人，劝你别买", "作为朋友我支持你", "我是助理，不是保姆",
    "人工智能都能写诗了", "以下省略一万字", "下面就是地铁口", "方案又要修改，烦死", "这是我昨天买的",
    "聊天记录我都删了", "答案是C吧", "你的要求真多", "字数多少？八百", "提示密码错误", "我不会再迟到了",
    "希望你喜欢", "有什么可以吃的", "这句话我爱听", "对不起，我说话重了", "抱歉，我记错时间了",
    "对不起，刚才的话当我没说", "抱歉我之前的电话打不通", "不好意思，上次的钱还没还你", "我前面的车抛锚了",
    "上面的邻居又漏水", "换个说法吧，太直接了", "换一个口味", "那我改成周六", "我已经改了", "轮到我发言了",
    "输出全靠你了", "版本更新了没", "公司优化我了", "缩短假期，谁出的主意", "遵守交通规则，别闯红灯",
    "不符合规定，办不了", "用了简短的话骗我", "根据地在哪", "我这就按你说的办", "身为东北人怕冷",
    "我重新写，导师不满意", "我重新说服他了", "我来重新排", "再生成一份报表", "他说不会重复收费",
    "用户反馈说闪退", "我这就改", "表述不清扣了三分", "我会不会迟到", "我已经生成二维码了", "根据地铁图走",
    "按照老规矩AA", "上一句你说啥", "上一条微信谁发的", "回复我一下", "台词：我爱你", "作文不超过八百字",
    "对不起，刚才的话太重了", "抱歉，我说话太直", "我再也不用表情包了", "换个说法不行吗", "我会换一种活法",
    "换一句话说你怕了", "我再试一次", "这是我的新手机", "下面我来说两句", "已经改了三版",
    "以我的身份进不去", "作为老师，我会说他的", "我明白你的意思了", "你说得对，我改一下",
    "我无法回答，太难了", "抱歉，我无法同意", "不好意思，我话太多了", "给你带来了早饭", "这句话你说过了",
]  # fmt: skip


@pytest.mark.parametrize("text", TALK)
def test_talk_about_the_task_is_found(text: str) -> None:
    words = rules.task_talk(text)
    assert words and words in text


@pytest.mark.parametrize("text", CHAT)
def test_ordinary_chat_with_the_same_words_is_none(text: str) -> None:
    assert rules.task_talk(text) is None
