import pytest

from memecmd_utils import linebreak


def width(text: str) -> float:
    return sum(1 if c.isascii() else 2 for c in text)


@pytest.mark.parametrize(
    ("text", "limit", "lines"),
    [
        ("今天天气好", 6, ["今天天", "气好"]),
        ("今天，好", 4, ["今", "天，", "好"]),  # no comma at the start of a line
        ("太好了！！", 6, ["太好", "了！！"]),
        ("看《活着》吧", 4, ["看", "《活", "着》", "吧"]),  # no bracket left behind, none in front
        ("他说“好的”。", 6, ["他说", "“好", "的”。"]),
        ("用Python写", 8, ["用Python", "写"]),
        ("我用Python", 8, ["我用", "Python"]),  # a word stays whole
        ("共3,200人", 6, ["共", "3,200", "人"]),  # and so does a number
        ("涨了12.5%呢", 5, ["涨了", "12.5%", "呢"]),
        ("hello big world", 9, ["hello big", "world"]),  # the space at the break is dropped
        ("一\n\n二", 8, ["一", "", "二"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),  # wider than a line: cut where it must be
        ("好。。。。。", 4, ["好。", "。。", "。。"]),
        ("嗯……我想想", 6, ["嗯……", "我想想"]),
        ("", 8, [""]),
        ("好\u200d呀\ufe0f", 8, ["好呀"]),  # nothing to draw
    ],
)
def test_wrap(text: str, limit: int, lines: list[str]) -> None:
    assert linebreak.wrap(text, limit, width) == lines


def test_rules_hold_for_every_width() -> None:
    text = "老板（就是那位）说：“下周一9:30开会，带上iPhone 15和3,200元发票！”我……好吧。"
    for limit in range(12, 80):
        lines = linebreak.wrap(text, limit, width)
        assert all(width(line) <= limit for line in lines)
        assert all(line[0] not in linebreak.CLOSING for line in lines)
        assert all(line[-1] not in linebreak.OPENING for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        for word in ("iPhone", "3,200", "9:30"):
            assert any(word in line for line in lines)
