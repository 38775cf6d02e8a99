import json

import made_up
import numpy as np
import pytest
from explorer_data import ANNOTATIONS, DIALOGUES
from made_transcripts import BELOW, BESIDE, TALK
from tiny_server import Answer, TinyServer, chat_reply

from memecmd_utils import pasted_chat, paths, profiles, runs, schemas, selection
from memecmd_utils.embedding import RecordedEmbedder
from memecmd_utils.pasted_chat import ChatError, Line, PastedRetrieval, parse
from memecmd_utils.retrieval import QUERY_FIELDS


def said(text: str) -> list[tuple[str, str]]:
    chat = parse(text)
    return [(chat.names[line.speaker], line.text) for line in chat.lines]


def test_names_with_either_colon() -> None:
    assert said("小雨：去不去\n阿杰: 下雨\n小雨:那算了") == [
        ("小雨", "去不去"),
        ("阿杰", "下雨"),
        ("小雨", "那算了"),
    ]


def test_bare_lines_alternate() -> None:
    assert said("去不去\n下雨\n\n  那算了  ") == [("甲", "去不去"), ("乙", "下雨"), ("甲", "那算了")]


def test_a_bare_line_among_names_is_the_other_ones() -> None:
    assert said("小雨：去不去\n下雨\n小雨：那算了") == [
        ("小雨", "去不去"),
        ("甲", "下雨"),
        ("小雨", "那算了"),
    ]
    assert said("去不去\n小雨：下雨") == [("甲", "去不去"), ("小雨", "下雨")]


def test_lines_of_one_speaker_become_one_turn() -> None:
    assert said("小雨：去\n小雨：不去\n阿杰：嗯") == [("小雨", "去 不去"), ("阿杰", "嗯")]


def test_a_name_alone_goes_with_the_next_line() -> None:
    assert said("小雨:\n去不去\n\n阿杰：\n下雨") == [("小雨", "去不去"), ("阿杰", "下雨")]


@pytest.mark.parametrize(
    "line",
    [
        "10:30见",
        "明天 10:30 见",
        "看 https://a.example/b",
        "他说，好的：走",
        "2：1 赢了",
        "：没有名字",
        "http://x",
    ],
)
def test_a_colon_does_not_make_a_name(line) -> None:
    assert said(line) == [("甲", line)]


def test_a_time_inside_a_named_line_stays_text() -> None:
    assert said("小雨: 明天 10:30 见\n阿杰：看 https://a.example") == [
        ("小雨", "明天 10:30 见"),
        ("阿杰", "看 https://a.example"),
    ]


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    assert said("\ufeff小雨：去\r\n阿杰：好\r\n") == [("小雨", "去"), ("阿杰", "好")]


def test_the_first_speaker_is_a_and_turns_alternate() -> None:
    chat = parse("小雨：一\n阿杰：二\n阿杰：三\n小雨：四")
    assert [line.speaker for line in chat.lines] == [0, 1, 0] and chat.next_name == "阿杰"
    assert chat.lines[0] == Line(0, "一")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to read"),
        ("  \n\t\n", "nothing to read"),
        ("小雨：", "nothing to read"),
        ("甲：一\n乙：二\n丙：三", "line 3: '丙' would be a third person"),
        ("好" * 20_001, "20,001 characters"),
        ("甲：一\n乙：二\n" * 101, "202 turns"),
    ],
)
def test_what_cannot_be_read_says_why(text, message) -> None:
    with pytest.raises(ChatError, match=message):
        parse(text)


# --- as chat programs copy it -------------------------------------------------------------------------


@pytest.mark.parametrize("form", [*BELOW.values(), *BESIDE.values()], ids=[*BELOW, *BESIDE])
def test_a_copied_chat_has_names_without_times(form) -> None:
    assert said(form.format(*(text for _, text in TALK))) == TALK


@pytest.mark.parametrize("form", BELOW.values(), ids=BELOW)
def test_lines_below_a_name_and_a_time_are_one_message(form) -> None:
    assert said(form.format("在吗", "在\n明天 10:30", "走")) == [
        ("小王", "在吗"),
        ("小李", "在 明天 10:30"),
        ("小王", "走"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user1: 100块\nuser2: 30行不", [("user1", "100块"), ("user2", "30行不")]),
        ("小王2：10块\n小王3：好\n小王2：走", [("小王2", "10块"), ("小王3", "好"), ("小王2", "走")]),
        ("12345678: 在吗\n小王: 在", [("12345678", "在吗"), ("小王", "在")]),
        (
            "3班：王：在\n3班：王：吗\n杰：来\n3班：王：走",
            [("3班：王", "在 吗"), ("杰", "来"), ("3班：王", "走")],
        ),
        (
            "小王（产品）：在吗\n好\n小王（产品）：走",
            [("小王（产品）", "在吗"), ("甲", "好"), ("小王（产品）", "走")],
        ),
        (
            "小雨：几点\n12:30\n阿杰：一点\n5月1日\n小雨：好",
            [("小雨", "几点"), ("阿杰", "一点"), ("小雨", "好")],
        ),
        ("几点\n12:30\n好", [("甲", "几点"), ("乙", "12:30"), ("甲", "好")]),
        ("几点\n一点\n昨天 12:30\n好", [("甲", "几点"), ("乙", "一点"), ("甲", "好")]),
        (
            "小雨：明天 10:30\n阿杰：好\n小雨：改到 11:00",
            [("小雨", "明天 10:30"), ("阿杰", "好"), ("小雨", "改到 11:00")],
        ),
        ("小王 12:30\n[图片]\n小李 12:31\n好", [("小王", "[图片]"), ("小李", "好")]),
    ],
)
def test_names_and_times_that_look_alike(text, expected) -> None:
    assert said(text) == expected


def test_a_third_person_in_a_copied_chat_is_named_with_the_line() -> None:
    with pytest.raises(ChatError, match="line 5: '小张' would be a third person"):
        parse("小王 12:30\n在吗\n小李 12:31\n在\n小张 12:32\n我也在")


def test_hostile_text_is_text() -> None:
    line = "<script>alert(1)</script> {{ 7*7 }} </details>"
    assert said(f"甲：{line}") == [("甲", line)]


# --- the summary agent --------------------------------------------------------------------------------

CHAT = "小雨：周末爬山去不去\n阿杰：天气预报说要下雨\n小雨：又下雨，我的帐篷白买了"
SUMMARY = {"scenario": "两人在聊下雨", "emotion": "无奈", "motivation": "想安慰一下"}


def live_run(tmp_path, url: str, **changes) -> runs.Run:
    endpoint = profiles.Endpoint(base_url=url, model="m")
    values = {"llm": "openai", "mode": "auto", "endpoints": profiles.Endpoints(generator=endpoint), **changes}
    return runs.Run("made", made_up.profile(**values), tmp_path / "data", tmp_path / "report")


def test_the_summary_agent_is_asked_and_nothing_is_recorded(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    monkeypatch.setattr(paths, "example", tmp_path / "example")
    answers = [Answer(chat_reply(json.dumps(SUMMARY, ensure_ascii=False))) for _ in range(2)]
    with TinyServer(answers).running() as server:
        run = live_run(tmp_path, server.url)
        for _ in range(2):  # the second time is asked anew, for nothing was kept
            summary = pasted_chat.summarise(parse(CHAT), run)
        asked = json.dumps(server.bodies, ensure_ascii=False)
    assert {name: getattr(summary, name) for name in SUMMARY} == SUMMARY
    assert (summary.turn, summary.speaker) == (4, "B")
    assert "小雨：周末爬山去不去" in asked and "接下来轮到阿杰发消息" in asked
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert all("帐篷" not in p.read_text(encoding="utf-8") for p in written)
    assert all("无奈" not in p.read_text(encoding="utf-8") for p in written)


@pytest.mark.parametrize(
    ("llm_name", "mode", "expected"),
    [
        ("authored", "auto", False),
        ("openai", "recorded", False),
        ("local", "recorded", False),
        ("openai", "auto", True),
        ("local", "live", True),
    ],
)
def test_only_a_live_model_is_asked(tmp_path, llm_name, mode, expected) -> None:
    run = live_run(tmp_path, "http://127.0.0.1:1/v1", llm=llm_name, mode=mode)
    assert pasted_chat.is_live(run.profile) is expected
    assert ("by hand" in pasted_chat.where_it_goes(run.profile)) is not expected
    if not expected:
        with pytest.raises(ChatError, match="no live model"):
            pasted_chat.summarise(parse(CHAT), run)


def test_the_reader_is_told_where_texts_go(tmp_path) -> None:
    remote = live_run(tmp_path, "http://127.0.0.1:1/v1").profile
    assert "goes to the endpoint of 'm'" in pasted_chat.where_it_goes(remote)
    assert "stays on this machine" in pasted_chat.where_it_goes(made_up.profile(llm="local", mode="auto"))
    assert "embedder's endpoint" in pasted_chat.where_it_goes(made_up.profile(embedder="endpoint"))
    assert "not recorded" in pasted_chat.where_it_goes(made_up.profile())


# --- retrieval ----------------------------------------------------------------------------------------


class MadeUp:
    """An embedder whose vectors are drawn by text."""

    name = "made-up"
    asked = 0

    def encode(self, texts, side):
        type(self).asked += len(texts)
        return made_up.vectors(texts, side)


def encode(texts, side):
    """As the run's embedder: rounded to float16 as recorded vectors are."""
    return RecordedEmbedder(MadeUp(), (), None, "live").encode(texts, side)


@pytest.fixture
def retrieval_of(monkeypatch):
    monkeypatch.setattr(pasted_chat, "embedder_of", lambda profile: MadeUp())

    def make(**changes):
        profile = made_up.profile(n_turns=18, **changes)
        index = selection.index_library(ANNOTATIONS, encode, profile)
        scored = selection.score_dialogues(DIALOGUES, index, encode, profile)
        return PastedRetrieval(profile, index, DIALOGUES, encode), scored

    return make


@pytest.mark.parametrize("centring", ["attribute", "none"])
@pytest.mark.parametrize("mode", ["recorded", "auto"])
def test_a_turns_own_summary_finds_what_the_pipeline_found(retrieval_of, centring, mode) -> None:
    """Texts of the run, pasted by hand: the same memes, scores and parts, also in a mode that replays."""
    pasted, scored = retrieval_of(centring=centring, mode=mode)
    for item in scored[:2]:
        for row, summary in enumerate(item.dialogue.summaries[:4]):
            fields = {name: getattr(summary, name) for name in QUERY_FIELDS}
            query = pasted.queries(schemas.SummaryReply(**fields))
            assert np.allclose(query[0], item.queries[row], atol=1e-6)
            top = pasted.top(query, pasted._profile.weights, 3)
            assert np.array_equal(top.memes[0], item.ranking.memes[row])
            assert np.allclose(top.scores[0], item.ranking.scores[row], atol=1e-6)


def test_texts_are_not_recorded(retrieval_of, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    pasted, _ = retrieval_of(mode="auto")
    pasted.queries(schemas.SummaryReply(**SUMMARY))
    assert not list(tmp_path.rglob("*"))


def test_the_runs_own_mean_is_worked_out_once(retrieval_of) -> None:
    pasted, _ = retrieval_of()
    pasted.queries(schemas.SummaryReply(**SUMMARY))
    MadeUp.asked = 0
    pasted.queries(schemas.SummaryReply(scenario="别的", emotion="别的", motivation="别的"))
    assert MadeUp.asked <= 3


def test_a_remote_embedder_is_not_asked_in_recorded_mode(retrieval_of) -> None:
    pasted, _ = retrieval_of(embedder="endpoint")
    with pytest.raises(ChatError, match="mode=auto"):
        pasted.queries(schemas.SummaryReply(**SUMMARY))


def test_four_components_sum_to_the_score(retrieval_of) -> None:
    pasted, _ = retrieval_of()
    weights = (0.5, 0.25, -0.5, 0.1)
    top = pasted.top(pasted.queries(schemas.SummaryReply(**SUMMARY)), weights, 6)
    assert top.components.shape == (1, 6, 4)
    assert np.allclose(top.components @ np.array(weights), top.scores, atol=1e-8)
    assert (np.diff(top.scores[0]) <= 0).all()
