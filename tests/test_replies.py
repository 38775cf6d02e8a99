import pytest
from pydantic import BaseModel

from memecmd_utils import replies
from memecmd_utils.llm import Reply, UnusableReply
from memecmd_utils.schemas import Text


class Mood(BaseModel):
    mood: Text
    score: float = 0


def read(text: str, finish: str = "stop") -> tuple[str, float]:
    mood = replies.structured(Reply(text=text, finish_reason=finish), Mood)
    return mood.mood, mood.score


@pytest.mark.parametrize(
    "text",
    [
        '{"mood": "开心", "score": 85}',
        '```json\n{"mood": "开心", "score": 85}\n```',
        '好的，这是结果：\n{"mood": "开心", "score": 85}\n希望对你有帮助！',
        '{"mood": "开心", "score": ８５}',
        '{"mood": "开心", "score": "８５"}',
        "{'mood': '开心', 'score': 85,}",
        '{"mood"："开心"，"score"：85}',
        "{mood: 开心, score: 85}",
        '[{"mood": "开心", "score": 85}]',
        '说明 [1]：{"mood": "开心", "score": 85}',
        '{"mood": "开心", "score": 85} 其中 {mood} 指情绪',
        '格式 {"x": 1}，结果 {"mood": "开心", "score": 85}',
        '{"mood": " 开心 ", "score": 85.0}',
    ],
)
def test_json_is_found_in_what_models_write(text: str) -> None:
    assert read(text) == ("开心", 85)


@pytest.mark.parametrize(
    ("text", "mood"),
    [
        ('{"mood": "他说\\"算了\\"就走"}', '他说"算了"就走'),
        ('{"mood": "他说“算了”，{真的}"}', "他说“算了”，{真的}"),
        ('{"mood": "{{ 7*7 }} >>> [x]"}', "{{ 7*7 }} >>> [x]"),
        ('{"mood": "两\n行"}', "两\n行"),
    ],
)
def test_quotes_and_braces_inside_a_text(text: str, mood: str) -> None:
    assert read(text)[0] == mood


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "不是 JSON"),
        ("我觉得很开心", "不是 JSON"),
        ("[1, 2]", "不是 JSON 对象"),
        ("[]", "不是 JSON 对象"),
        ('{"score": 3}', "mood"),
        ('{"mood": "", "score": 3}', "mood"),
        ('{"mood": null}', "mood"),
        ('{"mood": "开心", "score": "很高"}', "score"),
        ('{"mood": "开', "截断"),
        ('{"score": 3, "mood": "开心，因为", "oth', "截断"),
        ('```json\n{"mood": "开心', "截断"),
    ],
)
def test_what_cannot_be_used_says_why(text: str, reason: str) -> None:
    with pytest.raises(UnusableReply, match=reason):
        read(text)


def test_a_reply_cut_by_length_counts_only_if_its_json_is_whole() -> None:
    assert read('{"mood": "开心"} 另外我还想说', "length") == ("开心", 0)
    with pytest.raises(UnusableReply, match="截断"):
        read('{"mood": "开心"', "length")


NAMES = ("外婆", "女友（小林）")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("早啊", "早啊"),
        ("\n\n  早啊  \n后面的不要", "早啊"),
        ("外婆：早啊", "早啊"),
        ("女友（小林）: 早啊", "早啊"),
        ("甲 ：早啊", "早啊"),
        ("B:早啊", "早啊"),
        ("外婆：\n早啊", "早啊"),
        ("```\n早啊\n```", "早啊"),
        ("“早啊”", "早啊"),
        ('"早啊"', "早啊"),
        ("「早啊」", "早啊"),
        ("外婆：“早啊”", "早啊"),
        ("“外婆：早啊”", "早啊"),
        ("“早啊", "早啊"),
        ("早啊”", "早啊"),
        # What must stay:
        ("我说：算了", "我说：算了"),
        ("「我说：算了」", "我说：算了"),
        ("他说“算了”", "他说“算了”"),
        ("“算了”他说", "“算了”他说"),
        ("“好”和“坏”", "“好”和“坏”"),
        ('他回了个"好"', '他回了个"好"'),
        ("你看过《三体》", "你看过《三体》"),
        ("《三体》", "《三体》"),
        ("结论：不去", "结论：不去"),
        ("外婆说：吃饭", "外婆说：吃饭"),
        ("3:2 赢了", "3:2 赢了"),
        ("{{ 7*7 }}>>>", "{{ 7*7 }}>>>"),
        ("", ""),
        ("外婆：", ""),
        ("“”", ""),
    ],
)
def test_the_line_a_speaker_says(text: str, said: str) -> None:
    assert replies.utterance_text(Reply(text=text), NAMES) == said
