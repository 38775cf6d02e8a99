"""English of a live run: who is asked, what becomes of it, and that a run without any shows no switch."""

import json
import re

import made_page
import made_up
import pytest
from scripted import ScriptedBackend

from memecmd_utils import dialogue, drawing
from memecmd_utils.files import dumps
from memecmd_utils.llm import chat, gloss
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.types import Request
from memecmd_utils.schemas import Dialogue, Meme
from memecmd_utils.settings import Profile

PROFILE = Profile(name="p")


def lines_of(request: Request) -> list[str]:
    """The numbered texts of a request."""
    return re.findall(r"^\d+\. (.*)$", request.messages[0].text, re.MULTILINE)


def english(request: Request) -> str:
    return dumps({"english": [f"English of {line[:4]}" for line in lines_of(request)]})


def test_chats_and_summaries_get_english_that_belongs_to_them() -> None:
    backend, talk = ScriptedBackend(english), made_up.dialogue()
    (done,) = chat.run(gloss.of_dialogues([talk], Chat(backend), PROFILE))
    assert done.gloss == "English of 周末计划" and [t.gloss for t in done.turns] == [
        f"English of {t.text[:4]}" for t in talk.turns
    ]
    summary = done.summaries[2]
    assert drawing.english_of(summary, "x/4") == {
        "scenario": "English of 两人商量", "emotion": "English of 轻松", "motivation": "English of 想定下来",
    }  # fmt: skip
    assert dialogue.from_own(done) == dialogue.from_own(talk), "nothing of it reaches a prompt"
    assert all(len(lines_of(r)) <= gloss.TEXTS for r in backend.requests)


def test_memes_get_the_english_of_their_words_and_texts_and_unusable_ones_none() -> None:
    changes = {"m1": {}, "m2": {"picture": "一只猫\n>>>"}, "m3": {"unsafe": "hate"}}
    memes = {name: made_up.meme(name) for name in changes}
    memes["m2"] = memes["m2"].model_copy(update={"text": "", "text_source": "none"})
    said = [made_up.annotation(name, **more) for name, more in changes.items()]
    backend = ScriptedBackend(english)
    done = chat.run(gloss.of_annotations(said, memes, Chat(backend), PROFILE))
    assert [a.english[-1:] for a in done] == [["English of 先吃饭"], ["English of 一只猫"], []]
    assert memes["m1"].as_seen(done[0]).gloss == "English of 先吃饭"
    assert drawing.english_of(done[1], "m2")["s_minus"] == "English of 追悼会上"
    assert "一只猫 ›››" in backend.requests[1].messages[0].text, "one line, and the fence stays closed"


def test_a_translation_that_lacks_a_line_or_is_chinese_is_asked_again_and_may_be_missing() -> None:
    given = ["Hello"], ["Hello", "还是中文的一句话"], ["Hello", "Xiao Li (小李) waits"]
    asking = Chat(ScriptedBackend([dumps({"english": lines}) for lines in given]))
    told = chat.run(gloss.translate("c", ["你好", "小李在等"], asking, PROFILE))
    assert told == ["Hello", "Xiao Li (小李) waits"] and asking.usage.retries == {"unusable": 2}
    lost = Chat(ScriptedBackend(lambda r: "no JSON"))
    assert chat.run(gloss.translate("c", ["你好", ""], lost, PROFILE)) == ["", ""]
    (done,) = chat.run(gloss.of_dialogues([made_up.dialogue()], lost, PROFILE))
    assert done == made_up.dialogue(), "the chat stays as it is"


@pytest.mark.parametrize("has", ["chats", "memes", "nothing"])
def test_a_page_without_english_has_no_switch_and_no_lines_about_it(tmp_path, has: str) -> None:
    records = made_page.records()
    if has != "memes":
        records[Meme] = [meme.model_copy(update={"gloss": ""}) for meme in records[Meme]]
    if has != "chats":
        for talk in records[Dialogue]:
            talk.turns[:] = [turn.model_copy(update={"gloss": ""}) for turn in talk.turns]
    text = made_page.write(tmp_path, records).read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="chat-data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["english"] == (has == "chats")
    assert ('<input type="checkbox" role="switch" id="english">' in text) == (has != "nothing")
    assert ('<span lang="en">Eat</span>' in text) == (has == "memes")
