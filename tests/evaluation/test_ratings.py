import asyncio
import json
import math
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import made_up
import pytest
from scripted import ScriptedBackend

from memecmd_utils import drawing, settings
from memecmd_utils.evaluation import judges, ratings
from memecmd_utils.evaluation.judges import Judge
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.messages import Reply
from memecmd_utils.recordings import Recordings
from memecmd_utils.retrieval import halves
from memecmd_utils.schemas import DIMENSIONS

NAMES = ("n1", "n2", "n3", "n4")
DIALOGUES = {name: made_up.dialogue(name) for name in NAMES}
LONG = {name: made_up.dialogue(name, tuple(f"{name} {t}" for t in range(1, 19))) for name in NAMES[:2]}
MEMES = {name: made_up.meme(name) for name in ("m1", "m2")}


def placed(name: str, turn: int, meme_id: str = "m1", strategy: str = "greedy"):
    return made_up.placement(turn, meme_id, dialogue_id=name, strategy=strategy)


def yes(p: float) -> Reply:
    return Reply(text="是", first_token={"是": math.log(p), "否": math.log(1 - p)})


def rate_yes_no(placements, answer, dialogues=DIALOGUES, **changes):
    backend = ScriptedBackend(answer, recordable=False)
    return rated("yes_no", Chat(backend), placements, dialogues, **changes), backend.requests


def rated(kind: str, chat: Chat, placements, dialogues=LONG, draw=None, **changes):
    profile = made_up.profile(**changes)
    judge = Judge("judge", kind, chat, profile, list(dialogues.values()), draw)
    return ratings.rate_with(judge, placements, dialogues, MEMES)


def where(request) -> tuple[str, int, str]:
    name, turn, meme, _ = request.subject.split("/")
    return name, int(turn), meme


def test_scores_are_centred_by_hand() -> None:
    """p(yes) at home .8, elsewhere .5: each dimension 50 (1 + .8 - .5) = 65, overall 65, raw 80."""
    got, _ = rate_yes_no([placed("n1", 3)], lambda r: yes(0.8 if where(r)[:2] == ("n1", 3) else 0.5))
    assert [getattr(got[0], k) for k in DIMENSIONS] == pytest.approx([65] * 5, abs=0.01)
    assert (got[0].overall, got[0].raw, got[0].unscored) == (
        pytest.approx(65, abs=0.01),
        pytest.approx(80, abs=0.01),
        "",
    )
    assert (got[0].judge_unit, got[0].judge, got[0].source) == ("meme", "judge", "scripted")


def test_each_turn_and_meme_is_asked_once() -> None:
    shared = [placed("n1", 3, strategy=s) for s in ("greedy", "sampling", "random")]
    got, requests = rate_yes_no([*shared, placed("n1", 4, "m2")], lambda r: yes(0.5))
    assert len(got) == 4 and {r.strategy for r in got} == {"greedy", "sampling", "random"}
    assert max(Counter(r.subject for r in requests).values()) == 1
    at_home = {where(r) for r in requests if where(r)[:2] in (("n1", 3), ("n1", 4))}
    assert at_home == {("n1", 3, "m1"), ("n1", 4, "m2")}
    # Two memes of one half, four held-out contexts each, five questions a pair.
    assert len(requests) == 5 * (2 + 2 * 4)


def test_contexts_come_from_the_other_half() -> None:
    split = halves(list(DIALOGUES.values()))
    contexts = judges.held_out_contexts(list(DIALOGUES.values()), made_up.profile(judge_contexts=7))
    for half, found in contexts.items():
        assert len(found) == 7 and len({(c.dialogue.dialogue_id, c.turn) for c in found}) == 7
        assert all(split[c.dialogue.dialogue_id] != half and c.turn >= 2 for c in found)
    for name in NAMES:
        _, requests = rate_yes_no([placed(name, 3)], lambda r: yes(0.5))
        elsewhere = {where(r)[0] for r in requests} - {name}
        assert elsewhere and all(split[other] != split[name] for other in elsewhere)


def test_held_out_contexts_that_fail_leave_the_mean_or_the_score() -> None:
    contexts = judges.held_out_contexts(list(DIALOGUES.values()), made_up.profile())
    half = halves(list(DIALOGUES.values()))["n1"]
    first = (contexts[half][0].dialogue.dialogue_id, contexts[half][0].turn)

    def one_fails(request):
        if where(request)[:2] == first:
            return Reply(text="也许")
        return yes(0.9 if where(request)[0] == "n1" else 0.6)

    got, _ = rate_yes_no([placed("n1", 3)], one_fails)
    assert got[0].overall == pytest.approx(65, abs=0.01)  # the mean of the other three
    got, _ = rate_yes_no([placed("n1", 3)], lambda r: yes(0.9) if where(r)[0] == "n1" else Reply(text="也许"))
    assert got[0].overall is None and got[0].unscored == "no held-out context could be scored"


def rate_whole(placements, answer, **changes):
    backend = ScriptedBackend(answer, recordable=False)
    return rated("rating", Chat(backend), placements, n_turns=18, **changes), backend.requests


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
        return rated("yes_no", chat, [placed("n1", 3)])

    full = replayed("auto", lambda request: yes(0.7))
    assert replayed("recorded") == full and full[0].overall == 50
    (path,) = (tmp_path / "s").glob("*.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")  # without one held-out answer
    (lacking,) = replayed("recorded")
    assert (lacking.overall, lacking.unscored) == (None, "unrecorded: no recorded answer")


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


# --- a judge that never answers properly ------------------------------------------------------------

MANY = [placed(name, turn) for name in LONG for turn in range(2, 18)]
"""32 memes in two dialogues."""


def judged(folder, answer, mode: str = "auto", kind: str = "rating", placements=MANY):
    """Ratings of `MANY`, and the requests that a model got."""
    backend = ScriptedBackend(answer)
    store = Recordings("evaluation", [folder], folder)
    got = rated(kind, Chat(backend, store, mode, concurrency=4), placements, n_turns=18)
    return got, backend.requests


def says_nothing(request) -> str:
    return "我不确定"


@pytest.mark.parametrize(("kind", "reply"), [("rating", numbers), ("yes_no", lambda request: yes(0.5))])
def test_a_judge_that_never_answers_is_stopped_and_asked_no_second_time(tmp_path, kind, reply) -> None:
    got, requests = judged(tmp_path, says_nothing, kind=kind)
    assert len(requests) == 10 * 5, "five attempts for each of ten, and nothing for the other 22"
    reasons = Counter(r.unscored.partition(":")[0] for r in got)
    assert reasons == {"unusable": 10, "stopped": 22} and all(r.overall is None for r in got)
    assert {r.unscored for r in got if r.unscored.startswith("stopped")} == {judges.STOPPED}
    assert {r.dialogue_id for r in got if r.unscored.startswith("unusable")} == set(LONG), "spread evenly"
    for mode in ("recorded", "auto"):
        again, requests = judged(tmp_path, [], mode, kind)
        assert again == got and not requests
    better, requests = judged(tmp_path, reply, "live", kind)
    assert all(r.overall is not None for r in better) and judged(tmp_path, [], "recorded", kind)[0] == better


@pytest.mark.parametrize("bad", [8, 9])
def test_nearly_all_of_the_first_must_be_unusable(tmp_path, bad: int) -> None:
    first = [MANY[i * len(MANY) // 10].turn for i in range(10)]
    names = [MANY[i * len(MANY) // 10].dialogue_id for i in range(10)]
    useless = {f"{name}/{turn}" for name, turn in list(zip(names, first, strict=True))[:bad]}

    def answer(request):
        return "也许" if request.subject in useless else numbers(request)

    got, requests = judged(tmp_path, answer)
    assert len(requests) == bad * 5 + ((32 - bad) if bad == 8 else 1)
    assert sum(r.overall is not None for r in got) == (32 - bad if bad == 8 else 1)
    again, requests = judged(tmp_path, answer)
    assert again == got and not requests, "what could not be used is not asked for a second time"


def test_a_stopped_judge_that_was_killed_on_the_way_is_asked_only_for_the_rest(tmp_path) -> None:
    asked: list[str] = []

    def dies(request) -> str:
        if len(asked) == 23:
            raise KeyboardInterrupt
        asked.append(request.subject)
        return "也许"

    with pytest.raises(KeyboardInterrupt):
        judged(tmp_path, dies)
    kept = len(Recordings("evaluation", [tmp_path]))
    _, requests = judged(tmp_path, says_nothing)
    assert kept and len(requests) == (10 - kept) * 5


def test_few_items_and_faults_of_the_endpoint_stop_no_judge(tmp_path) -> None:
    got, requests = judged(tmp_path / "few", says_nothing, placements=MANY[:10])
    assert len(requests) == 50 and {r.unscored.partition(":")[0] for r in got} == {"unusable"}
    got, requests = judged(
        tmp_path / "faults", lambda _: Reply(text="413: too large", finish_reason="rejected")
    )
    assert len(requests) == len(got) == 32 and {r.unscored for r in got} == {"rejected: 413: too large"}
    assert len(judged(tmp_path / "faults", numbers)[1]) == 32, "these are asked for again"


class Seeing(ScriptedBackend):
    """Loads the pictures that it is sent, as an endpoint does."""

    async def complete(self, request):
        for image in request.messages[0].images:
            assert image.load().startswith("data:image/png;base64,")
        await asyncio.sleep(0)  # lets the other calls draw theirs
        return await super().complete(request)


def test_screenshots_are_drawn_a_few_at_a_time_and_only_to_be_sent(tmp_path) -> None:
    specified, drawn, answered, most = 0, [], 0, 0

    def specify(item):
        nonlocal specified
        specified += 1
        name = f"{item.dialogue.dialogue_id}-{item.n_turns}-{len(item.memes)}"

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

    def rate_seen(backend):
        store = Recordings("evaluation", [tmp_path], tmp_path)
        chat = Chat(backend, store, concurrency=2)
        got = rated("rating", chat, SIX, draw=specify, n_turns=18, judge_unit="dialogue")
        return got

    first = rate_seen(Seeing(answer))
    assert specified == 7 and most <= 2
    # Two strategies show the same first six turns: what is recorded once is drawn once.
    assert len(drawn) == answered <= 7
    before = len(drawn)
    assert rate_seen(Seeing([])) == first and len(drawn) == before, "nothing is drawn to be replayed"


def test_a_sample_is_bounded_shared_by_strategies_and_grows_into_a_larger_one() -> None:
    turns = {"greedy": (2, 5, 9, 14), "random_same_turns": (2, 5, 9, 14), "random": (3, 5, 8, 9, 12)}
    placements = [placed(name, t, "m1", s) for name in NAMES for s, where_ in turns.items() for t in where_]

    def kept(n: int | None) -> dict[tuple[str, str], set[int]]:
        found: dict[tuple[str, str], set[int]] = {}
        for p in ratings.to_judge(placements, made_up.profile(judge_sample=n, n_turns=18)):
            found.setdefault((p.dialogue_id, p.strategy), set()).add(p.turn)
        return found

    two, three, everything = kept(2), kept(3), kept(None)
    assert {len(v) for v in two.values()} == {2} and len(two) == len(everything) == len(NAMES) * 3
    assert all(two[name, "greedy"] == two[name, "random_same_turns"] for name in NAMES)
    assert all(two[key] < three[key] < everything[key] for key in two)
    assert len({frozenset(two[name, "greedy"]) for name in NAMES}) > 1  # not always the first ones
    assert kept(99) == everything and two == kept(2)


def test_unit_meme_asks_once_per_placed_meme() -> None:
    got, requests = rate_whole(SIX, numbers, judge_unit="meme")
    assert len(got) == len(requests) == 5
    assert {n_memes(r) for r in requests} == {1} and {r.judge_unit for r in got} == {"meme"}
    assert all(r.n_turns == r.turn for r in got)
    third = next(r for r in requests if r.subject == "n1/3")
    assert "n1 3" in third.messages[0].text and "n1 4" not in third.messages[0].text  # u_t, nothing later


@pytest.mark.parametrize("vision", [True, False])
def test_screenshots_are_drawn_for_judges_that_see_and_only_to_be_sent(
    vision: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    saved: list[list] = []
    monkeypatch.setattr(drawing, "draw_chat", lambda spec, files: drawn.append(1))
    monkeypatch.setattr(drawing, "encode", lambda picture, kind: b"\xff\xd8" + kind.encode())

    class Seeing(ScriptedBackend):
        async def complete(self, request):
            assert [image.load() for image in request.messages[0].images] == [
                "data:image/jpeg;base64,/9hqcGVn"
            ] * vision
            return await super().complete(request)

    def rate(*backends) -> list:
        @contextmanager
        def chat(role: str, stage: str, number: int):
            store = Recordings(stage, [tmp_path], tmp_path)
            yield Chat(backends[number], store)

        run = SimpleNamespace(
            profile=made_up.profile(
                judges=[settings.Judge(kind="rating", llm="openai")] * len(backends),
                endpoints={"judges": [{"model": f"m{i}"} for i in range(len(backends))]},
            ),
            read=lambda name: tmp_path / name,
            endpoint=lambda role, number: settings.Endpoint(model="m", vision=vision),
            chat=chat,
            save=lambda rows, schema: saved.append(rows),
        )
        dialogues = {"news-made-1": made_up.dialogue()}
        return ratings.rate(run, [made_up.placement(2, "m1")], dialogues, {"m1": made_up.meme("m1")})

    reply = json.dumps({"ratings": [{"meme": 1, **dict.fromkeys(DIMENSIONS, 40)}]})
    (first,) = rate(Seeing([reply]))
    assert (first.overall, first.judge) == (40, "scripted rating") and len(drawn) == vision
    assert rate(Seeing([])) == [first] and len(drawn) == vision, "not to be replayed"
    both = rate(Seeing([]), Seeing([]))
    assert [r.judge for r in both] == ["scripted rating", "scripted rating 2"], "two judges are not pooled"
    assert saved == [[first], [first], both]
