"""Every meme has its four texts, in the order of the library, or the reason why it has none.

Texts that say the same are asked for again and never kept; what is flagged as unsafe goes no further.
"""

import made_up
import numpy as np
import pytest
from scripted import ScriptedBackend

from memecmd_utils import annotation, retrieval
from memecmd_utils.files import dumps
from memecmd_utils.llm import chat, prompts
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.types import Request
from memecmd_utils.schemas import AnnotationReply
from memecmd_utils.settings import Profile

FOUR = {"s_plus": "约饭", "s_minus": "追悼会", "emotion": "开心", "motivation": "想吃"}
MEMES = [made_up.meme(f"m{n}").model_copy(update={"sha256": f"{n:064d}"}) for n in range(6)]
PROFILE = Profile(name="p")


def annotate(backend: ScriptedBackend, profile=PROFILE):
    return chat.run(annotation.annotate(MEMES, Chat(backend), profile))


def test_every_meme_gets_its_four_dimensions_in_order() -> None:
    done = annotate(ScriptedBackend(lambda r: dumps(FOUR | {"emotion": r.subject})))
    assert [(a.meme_id, a.emotion) for a in done] == [(f"m{n}", f"m{n}") for n in range(6)]
    assert {(a.s_plus, a.s_minus, a.motivation, a.unscored) for a in done} == {("约饭", "追悼会", "想吃", "")}
    assert done[0].prompt_sha256 == prompts.prompt_sha256(*annotation.prompt_files(flag_unsafe=False))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"s_plus": "朋友约你吃饭的时候", "s_minus": "不是朋友约你吃饭的时候"}, "几乎一样"),
        ({"s_plus": "和同事在群里闲聊", "s_minus": "和老板在群里闲聊"}, ""),
        ({"motivation": "开心"}, "motivation 和 emotion 说的一样"),
        ({"emotion": "无奈的自嘲，想休息", "motivation": "无奈自嘲，想休息"}, ""),
    ],
)
def test_texts_that_say_the_same_break_a_rule(change, said) -> None:
    broken = annotation.repetitions(AnnotationReply(**FOUR | change))
    assert said in "".join(broken) and bool(broken) == bool(said)


def test_equal_scenarios_are_asked_for_again_with_the_reason_and_never_kept() -> None:
    tries: dict[str, int] = {}

    def answer(request: Request) -> str:
        tries[request.subject] = tries.get(request.subject, 0) + 1
        mended = request.subject == "m1" and tries["m1"] == 4
        same = request.subject in ("m1", "m4") and not mended
        return dumps(FOUR | {"s_minus": "约饭。"} if same else FOUR)

    done = annotate(ScriptedBackend(answer))
    assert tries == {"m0": 1, "m1": 4, "m2": 1, "m3": 1, "m4": 5, "m5": 1}
    assert [a.meme_id for a in done if a.unscored] == ["m4"] and not done[4].usable
    assert done[4].unscored == "violations: s_minus 和 s_plus 说的一样，四项要各说各的"
    assert (done[4].s_plus, done[4].s_minus, done[1].s_minus) == ("", "", "追悼会")


def test_a_text_model_gets_text_and_note_and_a_seeing_one_the_picture() -> None:
    meme = MEMES[0].model_copy(update={"picture_note": "一只猫"})
    blind = annotation.annotation_request(meme, 1).messages[-1]
    assert "先吃饭" in blind.text and "一只猫" in blind.text and "看不到图" in blind.text and not blind.images
    seeing = annotation.annotation_request(meme, 1, lambda meme: f"data:{meme.meme_id}").messages[-1]
    assert "看不到图" not in seeing.text and seeing.images[0].load() == "data:m0"
    assert seeing.images[0].image_id == meme.sha256, "the key knows the picture by its hash"


# --- the safety flag


def test_flagged_memes_keep_their_texts_and_carry_the_category() -> None:
    flags = {"m1": {"unsafe": "abuse"}, "m4": {}}  # four items only: not a reply to what was asked

    def answer(request: Request) -> str:
        assert "unsafe" in request.messages[-1].text
        return dumps(FOUR | flags.get(request.subject, {"unsafe": "none"}))

    done = annotate(
        ScriptedBackend(answer), profile=Profile(name="p").replace(llm="openai", flag_unsafe=True)
    )
    assert [a.unsafe for a in done] == ["", "abuse", "", "", "unchecked", ""]
    assert done[1].s_plus == "约饭" and done[4].unscored and not done[1].unscored
    assert [a.meme_id for a in done if a.usable] == ["m0", "m2", "m3", "m5"]


def test_a_flagged_meme_is_no_candidate_of_retrieval_and_has_no_row_in_a_release() -> None:
    def encode(texts: list[str], side: str) -> np.ndarray:
        return np.eye(8, dtype=np.float32)[: len(texts)]

    said = [made_up.annotation(f"m{n}", unsafe=("", "", "hate", "")[n]) for n in range(4)]
    assert list(retrieval.index_library(said, encode, PROFILE).meme_ids) == ["m0", "m1", "m3"]
    memes, annotations = annotation.releasable(MEMES[:4], said)
    assert [meme.meme_id for meme in memes] == ["m0", "m1", "m3"]
    assert [(a.meme_id, a.unsafe, a.s_plus) for a in annotations][2] == ("m2", "hate", "")
