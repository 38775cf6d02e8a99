"""Retrieve, then let a model choose: what the model is shown, and what is made of its answers."""

import json
from collections.abc import Callable

import made_up
import numpy as np
import pytest
from scripted import ScriptedBackend

from memecmd_utils import files, retrieval, schemas
from memecmd_utils.files import paths
from memecmd_utils.llm.authored import AuthoredBackend, MissingText, texts
from memecmd_utils.llm.chat import Chat
from memecmd_utils.recordings import Recordings
from memecmd_utils.reranking import Chooser, RankedChat
from memecmd_utils.retrieval import Gate

N = 8
IDS = [f"m{number}" for number in range(N)]
MEMES = {
    name: made_up.meme(name).model_copy(update={"text": f"字幕{name}", "picture_note": f"画{name}"})
    for name in IDS
}
NOTES = [
    made_up.annotation(name, s_plus=f"合适{name}", s_minus=f"不合适{name}", emotion=f"情绪{name}")
    for name in IDS
]
INDEX = retrieval.build_index(IDS, [made_up.vectors(IDS, side) for side in "abcd"])
LINES = [("阿橙" if number % 2 else "老柏", f"第{number}句") for number in range(1, 7)]


def ranked(name: str = "chat", gate: Gate | None = None, scores=(0.0,) * 5) -> RankedChat:
    """Six turns; at every one of the last five all memes come into question, in the order of their ids."""
    return RankedChat(name, LINES, range(2, 7), np.tile(np.arange(N), (5, 1)), np.array(scores), gate)


def chooser(backend, image=None, strict=True, store=None, **changes) -> Chooser:
    profile = made_up.profile(**{"rerank_k": 4, "wanted_rate": 0.3, **changes})
    chat = Chat(backend, store, strict=strict) if backend else None
    return Chooser(chat, profile, INDEX, MEMES, NOTES, image)


def reply(number: int) -> str:
    return json.dumps({"reason": "接得上", "number": number}, ensure_ascii=False)


def takes(wanted: dict[int, str]) -> Callable:
    """A model that wants certain memes at certain turns, and looks up their numbers in what it is shown."""

    def answer(request):
        meme = wanted.get(int(request.subject.split("/")[1]))
        return reply(1 + request.options.index(meme) if meme in request.options else 0)

    return answer


def prompt_of(request) -> str:
    return "\n".join(message.text for message in request.messages)


# --- what the model is shown


def test_it_sees_the_turns_before_and_the_best_memes_in_another_order() -> None:
    made = chooser(None)
    request = made.request(ranked(), 3, {3: "m2"})  # turn 5
    said = prompt_of(request)
    assert "阿橙：［表情包：字幕m2］第3句\n老柏：第4句" in said and "接下来轮到阿橙发消息" in said
    assert "第5句" not in said and "第6句" not in said
    assert "4条消息里发过1张" in said and "平均每十条消息发3张" in said
    assert sorted(request.options) == ["m0", "m1", "m3", "m4"], "the best four that were not sent"
    for number, meme in enumerate(request.options, start=1):
        assert f"{number}. 「字幕{meme}」（画面：画{meme}）" in said
    assert request.options == made.request(ranked(), 3, {3: "m2"}).options
    orders = {tuple(made.request(ranked(f"chat {n}"), 0, {}).options) for n in range(20)}
    assert len(orders) > 5, "drawn for each turn"


@pytest.mark.parametrize("by", ["caption", "annotation"])
def test_nothing_leaks_into_the_prompt(by: str) -> None:
    """Neither S-, nor a grade or mark, nor a turn that is still to come, nor a meme's id."""
    request = chooser(None, rerank_by=by).request(ranked(), 2, {})
    said = prompt_of(request)
    for number in range(4, 7):
        assert LINES[number - 1][1] not in said
    for meme in request.options:
        assert f"不合适{meme}" not in said and (f"合适{meme}" in said) == (by == "annotation")
        assert f" {meme}" not in said


def test_nothing_leaks_into_the_prompts_of_the_example() -> None:
    """The same of the example's own dialogues, memes and annotations."""
    rows = files.read_rows(paths.example / "dialogues.jsonl")
    mine = [row for row in rows if row["dialogue_id"] == "role-R13-1"]
    notes = files.read_jsonl(paths.example / "annotations.jsonl", schemas.Annotation)
    ids = [note.meme_id for note in notes]
    memes = {name: made_up.meme(name) for name in ids}
    index = retrieval.build_index(ids, [made_up.vectors(ids, side) for side in "abcd"])
    made = Chooser(None, made_up.profile(rerank_by="annotation"), index, memes, notes)
    lines = [(row["speaker"], row["text"]) for row in mine]
    order = np.tile(np.arange(len(ids)), (17, 1))
    chat = RankedChat("role-R13-1", lines, range(2, 19), order, np.zeros(17))
    for row in range(17):
        said = prompt_of(made.request(chat, row, {}))
        before = {text for _, text in lines[: row + 1]}
        assert not [text for _, text in lines[row + 1 :] if text in said and text not in before]
        assert not [note.s_minus for note in notes if note.s_minus in said]


def test_a_model_that_sees_gets_the_pictures_in_the_order_of_their_numbers() -> None:
    request = chooser(None, image=lambda meme: f"data:{meme.meme_id}").request(ranked(), 0, {})
    pictures = request.messages[-1].images
    assert [picture.load() for picture in pictures] == [f"data:{meme}" for meme in request.options]
    assert "第1张图" in prompt_of(request) and "画m" not in prompt_of(request)


# --- what is made of its answers


def test_no_meme_comes_twice_and_each_turn_waits_for_the_one_before() -> None:
    backend = ScriptedBackend(takes({2: "m1", 3: "m1", 5: "m4"}))
    made = chooser(backend).choose([ranked("one"), ranked("two")])
    found = {(choice.dialogue_id, choice.turn): choice.meme_id for choice in made}
    for name in ("one", "two"):
        assert [found[name, turn] for turn in range(2, 7)] == ["m1", "", "", "m4", ""]
    assert all(choice.place in range(1, 5) for choice in made if choice.meme_id)
    assert all("［表情包：字幕m1］" in prompt_of(r) for r in backend.requests if "/2" not in r.subject)


def test_a_number_that_is_none_of_theirs_is_asked_again_and_then_unscored() -> None:
    backend = ScriptedBackend(lambda _: reply(5))
    made = chooser(backend).choose([ranked()._replace(turns=[2])])
    assert made[0].meme_id == "" and made[0].unscored.startswith("unusable") and len(backend.requests) == 5
    forced = chooser(ScriptedBackend([reply(0), reply(2)]), rerank_abstains=False)
    (choice,) = forced.choose([ranked()._replace(turns=[2])])
    assert choice.place == 2 and "填 0" not in prompt_of(forced.request(ranked(), 0, {}))


def test_with_a_memory_the_model_is_asked_only_where_the_gate_opens() -> None:
    """Eq. 23 by hand: theta0 0.5, penalty 1, decay ln 2, so after a meme theta is 1, 0.75, 0.625, ..."""
    gate = Gate(0.5, 1.0, float(np.log(2)))
    backend = ScriptedBackend(takes({2: "m0", 5: "m1"}))
    chat = ranked(gate=gate, scores=(0.6, 0.9, 0.74, 0.7, 0.4))
    made = chooser(backend).choose([chat])
    assert [request.subject for request in backend.requests] == ["chat/2", "chat/5"]
    assert [choice.meme_id for choice in made] == ["m0", "", "", "m1", ""]
    assert [choice.shown for choice in made] == [4, 0, 0, 4, 0]


def test_what_was_answered_is_not_asked_again(tmp_path) -> None:
    store = Recordings("choice", [], tmp_path, "w0.jsonl")
    with store.writing():
        first = chooser(ScriptedBackend(takes({3: "m2"})), store=store).choose([ranked()])
    again = Recordings("choice", [tmp_path], tmp_path, "w0.jsonl")
    assert chooser(ScriptedBackend([]), store=again).choose([ranked()]) == first


# --- authored choices


def authored(**chosen: str) -> AuthoredBackend:
    """Authored choices for turns 2 to 6: `t4="m3"`; none at the others."""
    rows = {turn: {"reason": "接得上", "meme_id": chosen.get(f"t{turn}", "")} for turn in range(2, 7)}
    return AuthoredBackend({("choice", f"chat/{turn}"): files.dumps(row) for turn, row in rows.items()})


def test_an_authored_choice_names_its_meme_whatever_the_order() -> None:
    for seed in range(3):
        made = chooser(authored(t4="m3"), seed=seed).choose([ranked()])
        assert [choice.meme_id for choice in made] == ["", "", "m3", "", ""]


def test_an_authored_choice_that_is_no_candidate_any_more_ends_the_shipped_run_alone() -> None:
    with pytest.raises(MissingText, match="no choice for chat/4"):
        chooser(authored(t4="m7")).choose([ranked()])
    made = chooser(authored(t4="m7"), strict=False).choose([ranked()])
    assert [bool(choice.unscored) for choice in made] == [False, False, True, False, False]


def test_the_example_has_a_choice_for_every_turn() -> None:
    for folder in (paths.example, *(paths.example / name for name in ("untouched", "untouched_2"))):
        known, turns = texts(folder), files.read_rows(folder / "summaries.jsonl")
        assert all(("choice", f"{row['dialogue_id']}/{row['turn']}") in known for row in turns), folder
