import json
from contextlib import contextmanager
from types import SimpleNamespace

import made_up
import pytest
from scripted import ScriptedBackend

from memecmd_utils.core.drawing import screenshots
from memecmd_utils.core.llm.chat import Chat
from memecmd_utils.core.recordings.store import Recordings
from memecmd_utils.evaluation import ratings
from memecmd_utils.schemas import DIMENSIONS
from memecmd_utils.settings import Endpoint, Judge


@pytest.mark.parametrize("vision", [True, False])
def test_screenshots_are_drawn_for_judges_that_see_and_only_to_be_sent(
    vision: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(screenshots, "draw", lambda spec, files: drawn.append(1))
    monkeypatch.setattr(screenshots, "encode", lambda picture, kind: b"\xff\xd8" + kind.encode())

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
            store.close()

        run = SimpleNamespace(
            profile=made_up.profile(
                judges=[Judge(kind="rating", llm="openai")] * len(backends),
                endpoints={"judges": [{"model": f"m{i}"} for i in range(len(backends))]},
            ),
            read=lambda name: tmp_path / name,
            endpoint=lambda role, number: Endpoint(model="m", vision=vision),
            chat=chat,
        )
        dialogues = {"news-made-1": made_up.dialogue()}
        return ratings.rate(run, [made_up.placement(2, "m1")], dialogues, {"m1": made_up.meme("m1")})

    reply = json.dumps({"ratings": [{"meme": 1, **dict.fromkeys(DIMENSIONS, 40)}]})
    (first,) = rate(Seeing([reply]))
    assert (first.overall, first.judge) == (40, "scripted rating") and len(drawn) == vision
    assert rate(Seeing([])) == [first] and len(drawn) == vision, "not to be replayed"
    both = rate(Seeing([]), Seeing([]))
    assert [r.judge for r in both] == ["scripted rating", "scripted rating 2"], "two judges are not pooled"
