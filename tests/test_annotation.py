"""Every meme has its four texts, in the order of the library, or the reason why it has none.

Texts that say the same, refusals and echoes of the prompt are asked for again and never kept; what is flagged
as unsafe goes no further. What an annotator sees stands for the words of a meme, wherever these are read.
"""

import re
from collections import Counter

import made_up
import pytest
from scripted import ScriptedBackend

from memecmd_utils import annotation, library, reranking, retrieval
from memecmd_utils.dialogue import Context
from memecmd_utils.files import dumps
from memecmd_utils.llm import chat, prompts
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.types import Request
from memecmd_utils.schemas import Annotation, Meme
from memecmd_utils.settings import Profile

FOUR = {"s_plus": "约饭", "s_minus": "追悼会", "emotion": "开心", "motivation": "想吃"}
MEMES = [made_up.meme(f"m{n}").model_copy(update={"sha256": f"{n:064d}"}) for n in range(6)]
PROFILE = Profile(name="p")
SEEN = FOUR | {"picture": "两只鸽子碰翅膀", "text_seen": "英雄所见略同"}
READ = {"text": "嘤嘤嘤雄所见略同", "text_source": "ocr", "picture_note": "文件夹：鸽子；文件名：原来我呗"}
OCR = MEMES[0].model_copy(update=READ)


def annotate(backend: ScriptedBackend, profile=PROFILE, memes=MEMES, image=None):
    return chat.run(annotation.annotate(memes, Chat(backend), profile, image))


def test_every_meme_gets_its_four_dimensions_in_order() -> None:
    done = annotate(ScriptedBackend(lambda r: dumps(FOUR | {"emotion": r.subject})))
    assert [(a.meme_id, a.emotion) for a in done] == [(f"m{n}", f"m{n}") for n in range(6)]
    assert {(a.s_plus, a.s_minus, a.motivation, a.unscored) for a in done} == {("约饭", "追悼会", "想吃", "")}
    assert done[0].prompt_sha256 == prompts.prompt_sha256("annotation_examples", "annotation")


def test_equal_scenarios_are_asked_for_again_with_the_reason_and_never_kept() -> None:
    tries: Counter[str] = Counter()

    def answer(request: Request) -> str:
        tries[request.subject] += 1
        same = request.subject == "m4" or (request.subject == "m1" and tries["m1"] < 4)
        return dumps(FOUR | {"s_minus": "约饭。"} if same else FOUR)

    done = annotate(ScriptedBackend(answer))
    assert tries == {"m0": 1, "m1": 4, "m2": 1, "m3": 1, "m4": 5, "m5": 1}
    assert [a.usable for a in done] == [True] * 4 + [False, True]
    assert done[4].unscored == "violations: s_minus 和 s_plus 说的一样，四项要各说各的"


# --- what an annotator sees


def picture_of(meme: Meme) -> str:
    return f"data:{meme.meme_id}"


@pytest.mark.parametrize("flag_unsafe", [False, True])
def test_a_seeing_annotator_is_asked_what_is_to_be_seen_before_what_it_means(flag_unsafe) -> None:
    request = annotation.annotation_request(OCR, 1, picture_of, flag_unsafe)
    asked = request.messages[-1]
    items = re.findall(r"^- (\w+)：", asked.text, re.MULTILINE)
    assert items == [*request.reply_schema.model_fields] and len(items) == 6 + flag_unsafe
    assert items[:2] == ["picture", "text_seen"]
    for message in request.messages:
        if message.role == "assistant":
            request.reply_schema.model_validate_json(message.text)
    shown = [(picture.image_id, picture.load()) for picture in asked.images]
    assert shown == [(OCR.sha256, "data:m0")], "the key knows the picture by its hash"


def test_a_prompt_says_what_a_machine_may_have_misread() -> None:
    words = ("看不到图", "机器会读错字", "文件名也可能写错：和图对不上的，以图为准")
    rows = (("ocr", picture_of, words[1:]), ("ocr", None, words[:2]), ("known", None, words[:1]))
    for source, image, told in rows:
        meme = OCR.model_copy(update={"text_source": source})
        asked = annotation.annotation_request(meme, 1, image).messages[-1].text
        assert meme.text in asked and meme.picture_note in asked
        assert tuple(word for word in words if word in asked) == told


def test_what_is_seen_is_kept_and_mends_what_a_machine_read() -> None:
    (said,) = annotate(ScriptedBackend(lambda r: dumps(SEEN)), memes=[OCR], image=picture_of)
    assert (said.picture, said.text_seen) == ("两只鸽子碰翅膀", "英雄所见略同")
    assert OCR.words == "嘤嘤嘤雄所见略同" and OCR.as_seen(said).words == "英雄所见略同"
    for nothing in ("", "（没有文字）", "None"):
        reply = dumps(SEEN | {"text_seen": nothing})
        (said,) = annotate(ScriptedBackend([reply]), memes=[OCR], image=picture_of)
        assert said.text_seen == "" and OCR.as_seen(said).words == "两只鸽子碰翅膀"
    known = OCR.model_copy(update={"text_source": "known"})
    assert known.as_seen(said) == known, "what a table says stays"
    bare = known.model_copy(update={"text": "", "picture_note": ""})
    assert (bare.words, bare.as_seen(said).words) == ("", "两只鸽子碰翅膀")
    blind = annotate(ScriptedBackend(lambda r: dumps(FOUR)), memes=[OCR])[0]
    assert (blind.picture, blind.text_seen) == ("", "") and OCR.as_seen(blind) == OCR


def test_what_is_seen_stands_for_a_meme_in_the_history_of_a_choice() -> None:
    seen = {"m0": OCR.as_seen(made_up.annotation("m0", picture="两只鸽子碰翅膀")), "m1": MEMES[1]}
    place = Context.before("c", [("甲", "在吗"), ("乙", "在"), ("甲", "走不走")], 3)
    asked = reranking.choice_request(place, ["m0", "m1"], {2: "m0"}, seen, PROFILE).messages[-1].text
    assert "［表情包，画面：两只鸽子碰翅膀］" in asked and not re.search("嘤嘤嘤|文件名", asked)


# --- what is no annotation


@pytest.mark.parametrize(
    ("change", "outcome", "told"),
    [
        ({"s_plus": "抱歉，我无法查看这张图片"}, "refusal", "拒绝回答"),
        ({"s_minus": "作为AI助手，我没有情绪"}, "refusal", "拒绝回答"),
        ({"motivation": "I'm sorry, I can't help with that."}, "refusal", "拒绝回答"),
        ({"s_plus": "适合发送的场景（和谁聊、刚发生了什么）"}, "unusable", "照抄了"),
        ({"s_plus": "快下班时有人又要派活，或群里话题越聊越尴尬，先溜为敬"}, "unusable", "照抄了"),
        ({"emotion": "……"}, "unusable", "空的文字"),
        ({"s_plus": "朋友约你吃饭", "s_minus": "不是朋友约你吃饭"}, "violations", "几乎一样"),
        ({"motivation": "开心"}, "violations", "motivation 和 emotion 说的一样"),
    ],
)
def test_what_is_no_annotation_is_asked_again_counted_and_never_kept(change, outcome, told) -> None:
    backend = ScriptedBackend([*[dumps(FOUR | change)] * 3, *[dumps(FOUR)] * 6])
    asking = Chat(backend, concurrency=1)
    done = chat.run(annotation.annotate(MEMES, asking, PROFILE))
    assert [a.s_plus for a in done] == ["约饭"] * 6 and asking.usage.retries == {outcome: 3}
    assert told in backend.requests[3].messages[-1].text


def test_ordinary_texts_are_no_refusals_and_scenarios_may_be_near() -> None:
    texts = "无法描述的心累 抱歉来晚了，想求原谅 图片加载不出来 不能回答的尴尬问题 对不起三个字说不出口"
    assert not [text for text in texts.split() if library.REFUSAL.match(text)]
    near = {"s_plus": "和同事在群里闲聊", "s_minus": "和老板在群里闲聊"}
    assert annotate(ScriptedBackend(lambda r: dumps(FOUR | near)))[0].s_minus == near["s_minus"]


def test_annotations_that_open_alike_are_named() -> None:
    def said(numbers, s_plus: str, **changes: str) -> list[Annotation]:
        texts = {"emotion": "{}分开心", "motivation": "{}想", "s_minus": "{}种别的", "s_plus": s_plus}
        return [
            made_up.annotation(f"m{n}", **{name: text.format(n) for name, text in texts.items()}, **changes)
            for n in numbers
        ]

    alike, others = said(range(4), "朋友发来“第{}张图”"), said(range(4, 30), "{}号场景")
    lost = said(range(30, 40), "朋友发来", unscored="refusal: ")
    (line,) = annotation.alike_openings([*alike, *others, *lost])
    assert line == "s_plus of 4 of 30 memes opens with 朋友发来: m0, m1, m2, m3"
    assert annotation.alike_openings([*alike[:2], *others]) == [], "few that are alike are an accident"


# --- the safety flag


def test_flagged_memes_carry_the_category_and_are_neither_candidates_nor_released() -> None:
    flags = {"m1": {"unsafe": "abuse"}, "m4": {}}  # four items only: not a reply to what was asked

    def answer(request: Request) -> str:
        return dumps(FOUR | flags.get(request.subject, {"unsafe": "none"}))

    done = annotate(ScriptedBackend(answer), PROFILE.replace(llm="openai", flag_unsafe=True))
    assert [a.unsafe for a in done] == ["", "abuse", "", "", "unchecked", ""]
    assert done[1].s_plus == "约饭" and done[4].unscored and not done[1].unscored, "a person can look"
    fit, index = ["m0", "m2", "m3", "m5"], retrieval.index_library(done, made_up.vectors, PROFILE)
    assert list(index.meme_ids) == fit
    memes, annotations = annotation.releasable(MEMES, done)
    assert [meme.meme_id for meme in memes] == fit
    assert [(a.meme_id, a.unsafe, a.s_plus, a.unscored) for a in annotations if a.unsafe] == [
        ("m1", "abuse", "", ""), ("m4", "unchecked", "", ""),
    ]  # fmt: skip
