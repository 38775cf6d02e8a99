import asyncio
from pathlib import Path

import made_up
import pytest

from memecmd_utils import annotation, llm
from memecmd_utils.llm import Chat, Reply, Request
from memecmd_utils.llm_backends import ScriptedBackend
from memecmd_utils.llm_types import RequestRejected
from memecmd_utils.profiles import Profile
from memecmd_utils.recordings import Recordings
from memecmd_utils.storage import dumps

FOUR = {"s_plus": "约饭", "s_minus": "追悼会", "emotion": "开心", "motivation": "想吃"}
MEMES = [made_up.meme(f"m{n}").model_copy(update={"sha256": f"{n:064d}"}) for n in range(6)]
PROFILE = Profile(name="p")


def annotate(backend: ScriptedBackend, image=None, **options):
    return llm.run(annotation.annotate(MEMES, Chat(backend, **options), PROFILE, image))


def test_every_meme_gets_its_four_dimensions_in_order() -> None:
    done = annotate(ScriptedBackend(lambda r: dumps(FOUR | {"emotion": r.subject})))
    assert [(a.meme_id, a.emotion) for a in done] == [(f"m{n}", f"m{n}") for n in range(6)]
    assert {(a.s_plus, a.s_minus, a.motivation, a.unscored) for a in done} == {("约饭", "追悼会", "想吃", "")}
    assert len({a.seed for a in done}) == 6 and {len(a.prompt_sha256) for a in done} == {64}


def test_a_meme_without_a_usable_reply_is_kept_with_the_reason() -> None:
    done = annotate(ScriptedBackend(lambda r: "不会" if r.subject == "m2" else dumps(FOUR)))
    assert len(done) == 6 and [a.meme_id for a in done if a.unscored] == ["m2"]
    assert done[2].s_plus == "" and done[2].unscored.startswith("unusable: ")


def test_a_text_model_gets_text_and_note_and_a_seeing_one_the_picture(tmp_path: Path) -> None:
    meme = MEMES[0].model_copy(update={"picture_note": "一只猫"})
    blind = annotation.annotation_request(meme, 1).messages[-1]
    assert "先吃饭" in blind.text and "一只猫" in blind.text and "看不到图" in blind.text and not blind.images
    path = made_up.meme_files(tmp_path, (8, 8))["m1"]
    seeing = annotation.annotation_request(meme, 1, lambda _: annotation.data_url(path)).messages[-1]
    assert "看不到图" not in seeing.text
    assert seeing.images[0].image_id == meme.sha256, "the key knows the picture by its hash"
    assert seeing.images[0].load().startswith("data:image/png;base64,iVBOR")
    bare = annotation.annotation_request(meme.model_copy(update={"text": "", "picture_note": ""}), 1)
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
    store.close()
    replayed = annotate(
        Seeing([]), lambda meme: pytest.fail("read in vain"), recordings=Recordings("annotation", [tmp_path])
    )
    assert replayed == done, "nothing is read to be replayed"


def test_a_picture_that_the_endpoint_rejects_leaves_its_meme_empty_with_the_reason() -> None:
    def answer(request: Request):
        return RequestRejected("400: image too large") if request.subject == "m4" else dumps(FOUR)

    done = annotate(ScriptedBackend(answer))
    assert [(a.meme_id, a.unscored) for a in done if a.unscored] == [("m4", "rejected: 400: image too large")]


def test_a_fault_stops_the_stage() -> None:
    def broken(request: Request) -> str:
        raise ConnectionError("told")

    with pytest.raises(ConnectionError, match="told"):
        annotate(ScriptedBackend(broken))
