import asyncio
import json
import math
from collections import Counter

import made_up
import pytest

from memecmd_utils import evaluation, llm
from memecmd_utils.llm import Chat, Reply
from memecmd_utils.llm_backends import ScriptedBackend
from memecmd_utils.llm_types import RequestRejected
from memecmd_utils.recordings import Recordings
from memecmd_utils.schemas import DIMENSIONS
from memecmd_utils.selection import halves

NAMES = ("n1", "n2", "n3", "n4")
DIALOGUES = {name: made_up.dialogue(name) for name in NAMES}
LONG = {name: made_up.dialogue(name, tuple(f"{name} {t}" for t in range(1, 19))) for name in NAMES[:2]}
MEMES = {name: made_up.meme(name) for name in ("m1", "m2")}


def placed(name: str, turn: int, meme_id: str = "m1", strategy: str = "greedy"):
    return made_up.placement(turn, meme_id, dialogue_id=name, strategy=strategy)


def yes(p: float) -> Reply:
    return Reply(text="是", first_token={"是": math.log(p), "否": math.log(1 - p)})


def rate(placements, answer, dialogues=DIALOGUES, **changes):
    backend = ScriptedBackend(answer, recordable=False)
    profile = made_up.profile(**changes)
    got = llm.run(evaluation.rate_yes_no(placements, dialogues, MEMES, Chat(backend), profile, "judge"))
    return got, backend.requests


def where(request) -> tuple[str, int, str]:
    name, turn, meme, _ = request.subject.split("/")
    return name, int(turn), meme


@pytest.mark.parametrize(
    ("n_turns", "expected"),
    [(4, [4]), (6, [6]), (8, [6, 8]), (18, [6, 12, 18]), (24, [6, 12, 18, 24])],
)
def test_lengths(n_turns, expected) -> None:
    assert evaluation.lengths(n_turns) == expected


def test_scores_are_centred_by_hand() -> None:
    """p(yes) at home .8, elsewhere .5: each dimension 50 (1 + .8 - .5) = 65, overall 65, raw 80."""
    got, _ = rate([placed("n1", 3)], lambda r: yes(0.8 if where(r)[:2] == ("n1", 3) else 0.5))
    assert [getattr(got[0], k) for k in DIMENSIONS] == pytest.approx([65] * 5, abs=0.01)
    assert (got[0].overall, got[0].raw, got[0].unscored) == (
        pytest.approx(65, abs=0.01),
        pytest.approx(80, abs=0.01),
        "",
    )
    assert (got[0].judge_unit, got[0].judge, got[0].source) == ("meme", "judge", "scripted")


def test_each_turn_and_meme_is_asked_once() -> None:
    shared = [placed("n1", 3, strategy=s) for s in ("greedy", "sampling", "random")]
    got, requests = rate([*shared, placed("n1", 4, "m2")], lambda r: yes(0.5))
    assert len(got) == 4 and {r.strategy for r in got} == {"greedy", "sampling", "random"}
    assert max(Counter(r.subject for r in requests).values()) == 1
    at_home = {where(r) for r in requests if where(r)[:2] in (("n1", 3), ("n1", 4))}
    assert at_home == {("n1", 3, "m1"), ("n1", 4, "m2")}
    # Two memes of one half, four held-out contexts each, five questions a pair.
    assert len(requests) == 5 * (2 + 2 * 4)


def test_contexts_come_from_the_other_half() -> None:
    split = halves(list(DIALOGUES.values()))
    contexts = evaluation.held_out_contexts(list(DIALOGUES.values()), made_up.profile(judge_contexts=7))
    for half, found in contexts.items():
        assert len(found) == 7 and len({(c.dialogue.dialogue_id, c.turn) for c in found}) == 7
        assert all(split[c.dialogue.dialogue_id] != half and c.turn >= 2 for c in found)
    for name in NAMES:
        _, requests = rate([placed(name, 3)], lambda r: yes(0.5))
        elsewhere = {where(r)[0] for r in requests} - {name}
        assert elsewhere and all(split[other] != split[name] for other in elsewhere)


def test_one_dialogue_alone_serves_itself() -> None:
    got, _ = rate([placed("n1", 3)], lambda r: yes(0.5), {"n1": DIALOGUES["n1"]}, judge_contexts=99)
    assert got[0].overall == pytest.approx(50)


def test_unscored_ratings_are_kept_and_say_why() -> None:
    def answer(request):
        return Reply(text="也许") if where(request)[:2] == ("n1", 3) else yes(0.5)

    got, _ = rate([placed("n1", 3), placed("n2", 3)], answer)
    assert len(got) == 2
    assert got[0].overall is None and got[0].unscored.startswith("unusable: ")
    assert got[0].humor_effect is None and got[0].raw is None
    assert got[1].overall == pytest.approx(50) and not got[1].unscored


def test_held_out_contexts_that_fail_leave_the_mean_or_the_score() -> None:
    contexts = evaluation.held_out_contexts(list(DIALOGUES.values()), made_up.profile())
    half = halves(list(DIALOGUES.values()))["n1"]
    first = (contexts[half][0].dialogue.dialogue_id, contexts[half][0].turn)

    def one_fails(request):
        if where(request)[:2] == first:
            return Reply(text="也许")
        return yes(0.9 if where(request)[0] == "n1" else 0.6)

    got, _ = rate([placed("n1", 3)], one_fails)
    assert got[0].overall == pytest.approx(65, abs=0.01)  # the mean of the other three
    got, _ = rate([placed("n1", 3)], lambda r: yes(0.9) if where(r)[0] == "n1" else Reply(text="也许"))
    assert got[0].overall is None and got[0].unscored == "no held-out context could be scored"


def rate_whole(placements, answer, **changes):
    backend = ScriptedBackend(answer, recordable=False)
    profile = made_up.profile(n_turns=18, **changes)
    got = llm.run(evaluation.rate_screenshots(placements, LONG, MEMES, Chat(backend), profile, "judge"))
    return got, backend.requests


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


def test_one_call_per_dialogue_strategy_and_length_with_the_memes_shown() -> None:
    got, requests = rate_whole(SIX, numbers, judge_unit="dialogue")
    calls = sorted((r.subject, n_memes(r)) for r in requests)
    greedy, random = [("n1/6", 1), ("n1/12", 2), ("n1/18", 3)], [("n1/6", 1), ("n1/12", 1), ("n1/18", 1)]
    assert calls == sorted([*greedy, *random, ("n2/18", 1)])  # nothing to rate in n2 before turn 16
    mine = [(r.n_turns, r.turn, r.overall) for r in got if (r.dialogue_id, r.strategy) == ("n1", "greedy")]
    assert mine == [(6, 3, 10), (12, 3, 10), (12, 8, 20), (18, 3, 10), (18, 8, 20), (18, 14, 30)]
    assert {r.judge_unit for r in got} == {"dialogue"}
    shortest = next(r for r in requests if r.subject == "n1/6")
    assert "n1 6" in shortest.messages[0].text and "n1 7" not in shortest.messages[0].text


def test_unit_meme_asks_once_per_placed_meme() -> None:
    got, requests = rate_whole(SIX, numbers, judge_unit="meme")
    assert len(got) == len(requests) == 5
    assert {n_memes(r) for r in requests} == {1} and {r.judge_unit for r in got} == {"meme"}
    assert all(r.n_turns == r.turn for r in got)
    third = next(r for r in requests if r.subject == "n1/3")
    assert "n1 3" in third.messages[0].text and "n1 4" not in third.messages[0].text  # u_t, nothing later


def test_a_reply_that_cannot_be_parsed_leaves_all_its_memes_unscored() -> None:
    def answer(request):
        return "不会" if request.subject == "n1/18" and n_memes(request) == 3 else numbers(request)

    got, _ = rate_whole(SIX, answer, judge_unit="dialogue")
    missing = [r for r in got if r.overall is None]
    assert [(r.n_turns, r.turn) for r in missing] == [(18, 3), (18, 8), (18, 14)]
    assert len(got) == 10 and all(r.unscored.startswith("unusable: ") for r in missing)


class Seeing(ScriptedBackend):
    """Loads the pictures that it is sent, as an endpoint does."""

    async def complete(self, request):
        for image in request.messages[0].images:
            assert image.load().startswith("data:image/png;base64,")
        await asyncio.sleep(0)  # lets the other calls draw theirs
        return await super().complete(request)


def test_screenshots_are_drawn_a_few_at_a_time_and_only_to_be_sent(tmp_path) -> None:
    specified, drawn, answered, most = 0, [], 0, 0

    def specify(dialogue, shown, n):
        nonlocal specified
        specified += 1
        name = f"{dialogue.dialogue_id}-{n}-{len(shown)}"

        def draw() -> bytes:
            nonlocal most
            drawn.append(name)
            most = max(most, len(drawn) - answered)
            return name.encode()

        return name, draw

    def answer(request):
        nonlocal answered
        answered += 1
        return numbers(request)

    profile = made_up.profile(n_turns=18, judge_unit="dialogue")

    def rate_seen(backend):
        store = Recordings("evaluation", [tmp_path], tmp_path)
        chat = Chat(backend, store, concurrency=2)
        got = llm.run(evaluation.rate_screenshots(SIX, LONG, MEMES, chat, profile, "judge", specify))
        store.close()
        return got

    first = rate_seen(Seeing(answer))
    assert specified == 7 and most <= 2
    # Two strategies show the same first six turns: what is recorded once is drawn once.
    assert len(drawn) == answered <= 7
    before = len(drawn)
    assert rate_seen(Seeing([])) == first and len(drawn) == before, "nothing is drawn to be replayed"


def test_a_screenshot_that_the_endpoint_rejects_leaves_its_memes_unscored() -> None:
    def answer(request):
        return RequestRejected("413: too large") if request.subject == "n2/18" else numbers(request)

    got, _ = rate_whole(SIX, answer, judge_unit="dialogue")
    assert {r.unscored for r in got if r.dialogue_id == "n2"} == {"rejected: 413: too large"}
    assert all(r.overall is not None for r in got if r.dialogue_id == "n1")


def test_a_text_judge_sees_the_meme_where_the_screenshot_has_it() -> None:
    for position in ("before", "after"):
        _, requests = rate_whole(SIX[1:2], numbers, judge_unit="meme", meme_position=position)
        lines = requests[0].messages[0].text.split("\n")
        at = next(i for i, line in enumerate(lines) if "［表情包1：先吃饭" in line)
        beside = lines[at + 1] if position == "before" else lines[at - 1]
        assert beside.endswith("n1 3")


def test_a_sample_is_bounded_shared_by_strategies_and_grows_into_a_larger_one() -> None:
    turns = {"greedy": (2, 5, 9, 14), "random_same_turns": (2, 5, 9, 14), "random": (3, 5, 8, 9, 12)}
    placements = [placed(name, t, "m1", s) for name in NAMES for s, where_ in turns.items() for t in where_]

    def kept(n: int | None) -> dict[tuple[str, str], set[int]]:
        found: dict[tuple[str, str], set[int]] = {}
        for p in evaluation.to_judge(placements, made_up.profile(judge_sample=n, n_turns=18)):
            found.setdefault((p.dialogue_id, p.strategy), set()).add(p.turn)
        return found

    two, three, everything = kept(2), kept(3), kept(None)
    assert {len(v) for v in two.values()} == {2} and len(two) == len(everything) == len(NAMES) * 3
    assert all(two[name, "greedy"] == two[name, "random_same_turns"] for name in NAMES)
    assert all(two[key] < three[key] < everything[key] for key in two)
    assert len({frozenset(two[name, "greedy"]) for name in NAMES}) > 1  # not always the first ones
    assert kept(99) == everything and two == kept(2)
