"""Reranking: the model sees the chat before the turn and the best memes in another order, and nothing else.

No meme comes twice in a chat, and an unusable answer is asked again and then counted as unscored.
"""

import json
from collections.abc import Callable

import made_up
import pytest
from scripted import ScriptedBackend

from memecmd_utils import files, reranking, schemas
from memecmd_utils.files import paths
from memecmd_utils.llm.authored import AuthoredBackend, MissingText
from memecmd_utils.llm.chat import Chat
from memecmd_utils.reranking import RankedChat, choice_request

IDS = [f"m{number}" for number in range(8)]
MEMES = {
    name: made_up.meme(name).model_copy(update={"text": f"字幕{name}", "picture_note": f"画{name}"})
    for name in IDS
}
LINES = [("阿橙" if number % 2 else "老柏", f"第{number}句") for number in range(1, 7)]
PROFILE = made_up.profile(rerank_k=4, wanted_rate=0.3)


def ranked(name: str = "chat") -> RankedChat:
    """Six turns; at every one of the last five all memes come into question, in the order of their ids."""
    return RankedChat(name, LINES, range(2, 7), [IDS] * 5)


def choices(backend, *chats: RankedChat, strict: bool = True, profile=PROFILE):
    return reranking.ask_model(chats or [ranked()], Chat(backend, strict=strict), MEMES, profile)


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
    request = choice_request(ranked(), 3, {3: "m2"}, MEMES, PROFILE)  # turn 5
    prompt = prompt_of(request)
    assert "阿橙：［表情包：字幕m2］第3句\n老柏：第4句" in prompt and "接下来轮到阿橙发消息" in prompt
    assert "第5句" not in prompt and "第6句" not in prompt
    assert "4条消息里发过1张" in prompt and "平均每十条消息发3张" in prompt and "填 0" in prompt
    assert sorted(request.options) == ["m0", "m1", "m3", "m4"], "the best four that were not sent"
    for number, meme in enumerate(request.options, start=1):
        assert f"{number}. 「字幕{meme}」（画面：画{meme}）" in prompt
    assert request == choice_request(ranked(), 3, {3: "m2"}, MEMES, PROFILE)
    orders = {tuple(choice_request(ranked(f"{n}"), 0, {}, MEMES, PROFILE).options) for n in range(20)}
    assert len(orders) > 5, "drawn for each turn"


def test_nothing_leaks_into_the_prompts_of_the_example() -> None:
    """Neither what is known of a meme beside caption and picture note, nor a turn that is still to come."""
    rows = files.read_rows(paths.example / "dialogues.jsonl")
    lines = [(row["speaker"], row["text"]) for row in rows if row["dialogue_id"] == "role-R13-1"]
    notes = files.read_jsonl(paths.example / "annotations.jsonl", schemas.Annotation)
    ids = [note.meme_id for note in notes]
    memes, chat = {name: made_up.meme(name) for name in ids}, RankedChat("x", lines, range(2, 19), [ids] * 17)
    for row in range(17):
        prompt = prompt_of(choice_request(chat, row, {}, memes, PROFILE))
        before = {text for _, text in lines[: row + 1]}
        assert not [text for _, text in lines[row + 1 :] if text in prompt and text not in before]
        assert not [note for note in notes if note.s_plus in prompt or note.s_minus in prompt]


def test_a_model_that_sees_gets_the_pictures_in_the_order_of_their_numbers() -> None:
    request = choice_request(ranked(), 0, {}, MEMES, PROFILE, lambda meme: f"data:{meme.meme_id}")
    pictures = request.messages[-1].images
    assert [picture.load() for picture in pictures] == [f"data:{meme}" for meme in request.options]
    assert "第1张图" in prompt_of(request) and "画m" not in prompt_of(request)


# --- what is made of its answers


def test_no_meme_comes_twice_and_each_turn_waits_for_the_one_before() -> None:
    backend = ScriptedBackend(takes({2: "m1", 3: "m1", 5: "m4"}))
    made = {(c.dialogue_id, c.turn): c for c in choices(backend, ranked("one"), ranked("two"))}
    for name in ("one", "two"):
        assert [made[name, turn].meme_id for turn in range(2, 7)] == ["m1", "", "", "m4", ""]
    assert all(choice.place in range(1, 5) for choice in made.values() if choice.meme_id)
    assert all("［表情包：字幕m1］" in prompt_of(r) for r in backend.requests if "/2" not in r.subject)
    (nothing_left,) = choices(backend, RankedChat("empty", LINES, [2], [[]]))
    assert (nothing_left.shown, nothing_left.source) == (0, "computed"), "nobody is asked"


def test_a_number_that_is_none_of_theirs_is_asked_again_and_then_unscored() -> None:
    backend = ScriptedBackend(lambda _: reply(5))
    (made,) = choices(backend, ranked()._replace(turns=[2]))
    assert made.meme_id == "" and made.unscored.startswith("unusable") and len(backend.requests) == 5


# --- authored choices


def authored(**chosen: str) -> AuthoredBackend:
    """Authored choices for turns 2 to 6: `t4="m3"`; none at the others."""
    rows = {turn: {"reason": "接得上", "meme_id": chosen.get(f"t{turn}", "")} for turn in range(2, 7)}
    return AuthoredBackend({("choice", f"chat/{turn}"): files.dumps(row) for turn, row in rows.items()})


def test_an_authored_choice_names_its_meme_and_ends_the_shipped_run_where_that_is_no_candidate() -> None:
    for seed in range(3):  # another order
        made = choices(authored(t4="m3"), profile=PROFILE.replace(seed=seed))
        assert [choice.meme_id for choice in made] == ["", "", "m3", "", ""]
    with pytest.raises(MissingText, match="no choice for chat/4"):
        choices(authored(t4="m7"))
    made = choices(authored(t4="m7"), strict=False)
    assert [bool(choice.unscored) for choice in made] == [False, False, True, False, False]
