import asyncio
import json
import time
from pathlib import Path

import made_up
import pytest
from scripted import ScriptedBackend

from memecmd_utils.annotation import annotator
from memecmd_utils.annotation.annotator import CheckedAnnotationReply
from memecmd_utils.core import html, paths, storage
from memecmd_utils.core.llm import chat, prompts
from memecmd_utils.core.llm.chat import Chat
from memecmd_utils.core.llm.messages import Reply, Request, RequestRejected
from memecmd_utils.core.storage import dumps
from memecmd_utils.recordings import Recordings
from memecmd_utils.schemas import Annotation, AnnotationReply
from memecmd_utils.settings import Profile

FOUR = {"s_plus": "约饭", "s_minus": "追悼会", "emotion": "开心", "motivation": "想吃"}
MEMES = [made_up.meme(f"m{n}").model_copy(update={"sha256": f"{n:064d}"}) for n in range(6)]
PROFILE = Profile(name="p")


def annotate(backend: ScriptedBackend, image=None, **options):
    return chat.run(annotator.annotate(MEMES, Chat(backend, **options), PROFILE, image))


def test_every_meme_gets_its_four_dimensions_in_order() -> None:
    done = annotate(ScriptedBackend(lambda r: dumps(FOUR | {"emotion": r.subject})))
    assert [(a.meme_id, a.emotion) for a in done] == [(f"m{n}", f"m{n}") for n in range(6)]
    assert {(a.s_plus, a.s_minus, a.motivation, a.unscored) for a in done} == {("约饭", "追悼会", "想吃", "")}
    assert len({a.seed for a in done}) == 6 and {len(a.prompt_sha256) for a in done} == {64}


SAME = [
    ({"s_minus": "约饭"}, "s_minus 和 s_plus 说的一样"),
    ({"s_minus": "约饭！"}, "s_minus 和 s_plus 说的一样"),
    ({"s_minus": " 约 饭。"}, "s_minus 和 s_plus 说的一样"),
    ({"s_plus": "Deadline 前夜", "s_minus": "ＤＥＡＤＬＩＮＥ前夜"}, "s_minus 和 s_plus 说的一样"),
    ({"s_plus": "朋友约你吃饭的时候", "s_minus": "不是朋友约你吃饭的时候"}, "s_minus 和 s_plus 几乎一样"),
    ({"s_plus": "和同事在群里闲聊", "s_minus": "和老板在群里闲聊"}, ""),
    ({"s_plus": "和同事在群里闲聊时发", "s_minus": "和老板在群里闲聊时发"}, "几乎一样"),
    ({"motivation": "开心"}, "motivation 和 emotion 说的一样"),
    ({"emotion": "约饭"}, "emotion 和 s_plus 说的一样"),
    ({"emotion": "无奈的自嘲，想休息", "motivation": "无奈自嘲，想休息"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), SAME)
def test_texts_that_say_the_same_break_a_rule(change, said) -> None:
    broken = annotator.repetitions(AnnotationReply(**FOUR | change))
    assert said in "".join(broken) and bool(broken) == bool(said)


def test_equal_scenarios_are_asked_for_again_with_the_reason_and_never_kept() -> None:
    tries: dict[str, int] = {}

    def answer(request: Request) -> str:
        tries[request.subject] = tries.get(request.subject, 0) + 1
        mended = request.subject == "m1" and tries["m1"] == 4
        same = request.subject in ("m1", "m4") and not mended
        return dumps(FOUR | {"s_minus": "约饭。"} if same else FOUR)

    backend = ScriptedBackend(answer)
    done = annotate(backend)
    assert tries == {"m0": 1, "m1": 4, "m2": 1, "m3": 1, "m4": 5, "m5": 1}
    assert [a.meme_id for a in done if a.unscored] == ["m4"] and not done[4].usable
    assert done[4].unscored == "violations: s_minus 和 s_plus 说的一样，四项要各说各的"
    assert (done[4].s_plus, done[4].s_minus, done[1].s_minus) == ("", "", "追悼会")
    shown = [r.messages[-1].text for r in backend.requests if r.subject == "m4"]
    assert "说的一样" in shown[3] and shown[0] == shown[2] != shown[3]


def test_recordings_with_equal_scenarios_are_replayed_as_unscored(tmp_path: Path) -> None:
    """Such as were accepted before there was a rule: no error, and nothing is paid for twice."""
    store = Recordings("annotation", [tmp_path], tmp_path)
    annotate(ScriptedBackend(lambda r: dumps(FOUR)), recordings=store)
    (file,) = tmp_path.rglob("*.jsonl")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("追悼会", "约饭", 1), encoding="utf-8")
    stored = Recordings("annotation", [tmp_path])
    done = annotate(ScriptedBackend([]), recordings=stored, mode="recorded")
    assert [a.unscored.partition(":")[0] for a in done].count("violations") == 1 and len(done) == 6


def test_a_reply_of_any_length_is_compared_soon() -> None:
    one, other = "ab" * 9_000, "aab" * 6_000
    start = time.process_time()
    annotator.repetitions(AnnotationReply(s_plus=one, s_minus=other, emotion=one[1:], motivation=other[1:]))
    assert time.process_time() - start < 5


def test_no_authored_annotation_breaks_the_rule() -> None:
    authored = storage.read_jsonl(paths.example / "annotations.jsonl", Annotation)
    assert len(authored) == 200
    for said in authored:
        assert annotator.repetitions(AnnotationReply(**said.model_dump(include=set(FOUR)))) == []


def test_a_text_model_gets_text_and_note_and_a_seeing_one_the_picture(tmp_path: Path) -> None:
    meme = MEMES[0].model_copy(update={"picture_note": "一只猫"})
    blind = annotator.annotation_request(meme, 1).messages[-1]
    assert "先吃饭" in blind.text and "一只猫" in blind.text and "看不到图" in blind.text and not blind.images
    path = made_up.meme_files(tmp_path, (8, 8))["m1"]
    seeing = annotator.annotation_request(meme, 1, lambda _: html.data_url(path.read_bytes())).messages[-1]
    assert "看不到图" not in seeing.text
    assert seeing.images[0].image_id == meme.sha256, "the key knows the picture by its hash"
    assert seeing.images[0].load().startswith("data:image/png;base64,iVBOR")
    bare = annotator.annotation_request(meme.model_copy(update={"text": "", "picture_note": ""}), 1)
    assert "没有可读的文字" in bare.messages[-1].text


def test_pictures_are_read_when_they_are_sent_each_its_own(tmp_path: Path) -> None:
    read: list[str] = []
    held: list[int] = []

    class Seeing(ScriptedBackend):
        async def complete(self, request: Request) -> Reply:
            held.append(len(read) - len(self.requests))
            (image,) = request.messages[-1].images
            assert image.load() == f"data:,{request.subject}"
            await asyncio.sleep(0.005)
            return await super().complete(request)

    def picture(meme) -> str:
        read.append(meme.meme_id)
        return f"data:,{meme.meme_id}"

    store = Recordings("annotation", [tmp_path], tmp_path)
    done = annotate(Seeing(lambda r: dumps(FOUR)), picture, recordings=store, concurrency=2)
    assert sorted(read) == [f"m{n}" for n in range(6)] and max(held) < 2
    replayed = annotate(
        Seeing([]), lambda meme: pytest.fail("read in vain"), recordings=Recordings("annotation", [tmp_path])
    )
    assert replayed == done, "nothing is read to be replayed"


def test_a_picture_that_the_endpoint_rejects_leaves_its_meme_empty_with_the_reason() -> None:
    def answer(request: Request):
        return RequestRejected("400: image too large") if request.subject == "m4" else dumps(FOUR)

    done = annotate(ScriptedBackend(answer))
    assert [(a.meme_id, a.unscored) for a in done if a.unscored] == [("m4", "rejected: 400: image too large")]


CHECKED = Profile(name="p", llm="openai", flag_unsafe=True)


def annotate_checked(backend: ScriptedBackend):
    return chat.run(annotator.annotate(MEMES, Chat(backend), CHECKED))


def test_without_the_key_request_and_prompt_hash_are_those_of_the_recordings() -> None:
    shipped = json.loads((paths.example / "prompt_hashes.json").read_text(encoding="utf-8"))
    for name in annotator.prompt_files(flag_unsafe=False):
        assert prompts.prompt_sha256(name) == shipped[name]
    request = annotator.annotation_request(MEMES[0], 1)
    assert request == annotator.annotation_request(MEMES[0], 1, None, False)
    (done,) = {a.prompt_sha256 for a in annotate(ScriptedBackend(lambda r: dumps(FOUR)))}
    assert done == prompts.prompt_sha256("annotation_examples", "annotation")


def test_flagged_memes_keep_their_texts_and_carry_the_category() -> None:
    flags = {"m1": "abuse", "m3": "sexual"}

    def answer(request: Request) -> str:
        assert "unsafe" in request.messages[-1].text and request.reply_schema is CheckedAnnotationReply
        if request.subject == "m4":
            return dumps(FOUR)  # four items only: not a reply to what was asked
        return dumps(FOUR | {"unsafe": flags.get(request.subject, "none")})

    done = {a.meme_id: a for a in annotate_checked(ScriptedBackend(answer))}
    assert {name: a.unsafe for name, a in done.items()} == {
        "m0": "", "m1": "abuse", "m2": "", "m3": "sexual", "m4": "unchecked", "m5": ""
    }  # fmt: skip
    assert done["m1"].s_plus == "约饭" and done["m4"].unscored and not done["m1"].unscored
    assert [name for name, a in done.items() if a.usable] == ["m0", "m2", "m5"]
    assert len({a.prompt_sha256 for a in done.values()}) == 1
    assert done["m0"].prompt_sha256 != annotate(ScriptedBackend(lambda r: dumps(FOUR)))[0].prompt_sha256
