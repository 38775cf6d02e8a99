"""A chat goes on and memes come out: in Python and over HTTP, with a model and without."""

import ast
import asyncio
import http.client
import json
import queue
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import made_chats
import pytest
from fault_server import Answer, chat_reply
from PIL import Image

import memecmd_utils as memecmd
from memecmd_utils import library, schemas
from memecmd_utils.chats import ranking, search
from memecmd_utils.chats.turns import ChatError
from memecmd_utils.files import MemecmdError, read_parquet
from memecmd_utils.llm.types import EndpointError

TURNS = [("小雨", "说说 k3"), ("阿杰", "还有 k7")]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A finished run, the example's dialogues, and weights under which emotion meets emotion."""
    made = made_chats.finished_run(monkeypatch, tmp_path)
    made_chats.placement_file(tmp_path / "example" / "placement.json")
    made_chats.example_corpus(tmp_path / "example")
    return made


@pytest.fixture
def live(run, monkeypatch):
    """An endpoint that sums up and chooses."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    with made_chats.agent().running() as server:
        made_chats.live_profile(Path(search.paths.profiles).parent, server.url)
        yield server


def ids(memes) -> list[str]:
    return [meme.id for meme in memes]


# --- In Python


def test_five_lines_rank_memes_by_what_was_said_last(run, tmp_path) -> None:
    opened = memecmd.open("made")
    there = {*tmp_path.rglob("*")}
    best = opened.rank(TURNS, k=3)
    assert best[0].id == "m07" and len(best) == 3
    assert best[0].score > best[1].score and best[0].text == "字幕 k0" and best[0].picture.is_file()
    assert ids(opened.rank(["在吗", "说说 k3"], k=1)) == ["m03"], "plain texts are two people in turn"
    assert len(opened.rank(TURNS, k=99)) == made_chats.N_MEMES
    assert {*tmp_path.rglob("*")} == there, "nothing is kept"
    with pytest.raises(ChatError, match="choose asks a model"):
        opened.rank(TURNS, choose=True)
    assert memecmd.open("made", settings="llm=openai max_calls=3").asking.profile.models.max_calls == 3
    for arguments, words in (
        (("nowhere", ""), "there is no run 'nowhere'"),
        (("made", "", "x=1"), "unknown key 'x'"),
    ):
        with pytest.raises(MemecmdError, match=words):
            memecmd.open(*arguments)


def test_a_meme_that_was_sent_in_the_chat_does_not_come_again(run) -> None:
    sent = [*TURNS, ("小雨", "", "m07"), ("阿杰", "还有 k7")]
    assert "m07" not in ids(memecmd.open("made").rank(sent, k=99))
    context, memes = ranking.read_turns([*sent, ("小雨", "好", "m01")], {"m01", "m07"})
    assert memes == {2: "m07", 4: "m01"} and context.next_speaker == "阿杰"
    assert ranking.read_turns([("小雨", "在"), ("小雨", "吗")], ())[0].next_speaker == "对方"


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ("在吗", "turn 1 cannot be read: turns are texts or"),
        ([("甲", "在"), 3], "turn 2 cannot be read"),
        ([("", "在")], "turn 1 cannot"),
        ([("甲", "在", "m99")], "turn 1 names a meme that the library does not have: 'm99'"),
        (["  "], "no turn has words"),
    ],
)
def test_what_is_no_chat_is_refused_in_a_sentence(turns, message) -> None:
    with pytest.raises(ChatError, match=message):
        ranking.read_turns(turns, {"m01"})


def test_a_model_sums_up_the_chat_and_chooses_one_meme_or_none(run, live, tmp_path) -> None:
    opened = memecmd.open("made", profile="live")
    with ThreadPoolExecutor(8) as threads:
        best = list(threads.map(lambda n: opened.rank([("小雨", f"说说 k{n}")], k=1)[0].id, range(8)))
    assert best == [made_chats.meme_id(n) for n in range(8)]
    (chosen,) = opened.rank(TURNS, choose=True)
    assert (chosen.id, chosen.reason) == ("m07", "说到 k7")
    assert opened.rank([*TURNS, ("小雨", "嗯 k40")], choose=True) == [], "no meme is about it"
    opened.rank([*TURNS, ("小雨", "还有 k7", "m07")], choose=True)
    assert "小雨：［表情包：字幕 k0］还有 k7" in live.bodies[-1]["messages"][-1]["content"]
    assert not list((tmp_path / "raw").rglob("*live*/*")), "no answer is kept"
    live.script = lambda body: Answer(chat_reply("不知道"))
    with pytest.raises(EndpointError, match="the model gave no usable summary"):
        opened.rank(TURNS)


# --- A folder of pictures, without any model


@pytest.fixture
def stickers(run, tmp_path, monkeypatch):
    """Three pictures whose names say something and one whose name and picture say nothing; no text on any."""
    shutil.copy(tmp_path / "profiles" / "made.yaml", tmp_path / "profiles" / "example.yaml")
    monkeypatch.setattr(library.RapidOcr, "read_text", lambda *_: "")
    folder = tmp_path / "my stickers"
    folder.mkdir()
    for number, name in enumerate(("哭了 k3", "笑死 k4", "IMG_20240101")):
        picture = Image.effect_mandelbrot((64, 48), (-2 + number / 4, -1, 1, 1 - number / 4), 60)
        picture.convert("RGB").save(folder / f"{name}.png")
    return folder


def test_a_folder_of_pictures_is_a_library_without_a_model(stickers) -> None:
    opened = memecmd.open(str(stickers))
    assert [meme.text for meme in opened.rank(["说说 k4"])] == ["文件名：笑死 k4", "文件名：哭了 k3"]
    assert opened.rank(["说说 k4"])[0].picture == stickers / "笑死 k4.png" and not opened.has_model
    Image.effect_mandelbrot((64, 48), (-1, -1, 1, 0), 60).convert("RGB").save(stickers / "困 k9.png")
    again = memecmd.open(str(stickers))
    assert again.rank(["说说 k9"])[0].text == "文件名：困 k9", "a new picture is read"
    made = read_parquet(again.run.read("annotations.parquet"), schemas.Annotation)
    assert {(a.source, a.s_minus) for a in made} == {("computed", "")}
    for path in stickers.glob("*k*"):
        path.unlink()
    with pytest.raises(MemecmdError, match="has words on it, or in its name"):
        memecmd.open(str(stickers))


# --- Over HTTP


@pytest.fixture
def served(run):
    loop, address = asyncio.new_event_loop(), queue.SimpleQueue()
    serving = loop.create_task(ranking.serve(memecmd.open("made"), "127.0.0.1", 0, address.put))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield int(address.get(timeout=30).split(":")[2].split("/")[0])
    loop.call_soon_threadsafe(serving.cancel)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def asked(port: int, body="", method="POST", path="/rank", **headers) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = body if isinstance(body, str | bytes) else json.dumps(body)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_requests_side_by_side_are_all_answered(served) -> None:
    with ThreadPoolExecutor(100) as threads:
        bodies = [{"turns": [["甲", f"说说 k{n % 12}"]], "k": 1} for n in range(200)]
        answers = list(threads.map(lambda body: asked(served, body), bodies))
    assert {status for status, _ in answers} == {200}
    best = [said["memes"][0] for _, said in answers]
    assert [meme["id"] for meme in best] == [made_chats.meme_id(n % 12) for n in range(200)]
    assert best[0].keys() == {"id", "score", "text", "picture", "reason"}
    assert Path(best[0]["picture"]).is_file()


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"body": "{"}, 400, 'send {"turns"'),
        ({"body": "[" * 90_000}, 400, 'send {"turns"'),
        ({"body": {"turns": "在吗"}}, 400, 'send {"turns"'),
        ({"body": {"turns": ["在吗"], "k": 0}}, 400, 'send {"turns"'),
        ({"body": {"turns": ["在吗"], "key": 1}}, 400, 'send {"turns"'),
        ({"body": {"turns": ["在吗"], "choose": True}}, 400, "choose asks a model"),
        ({"body": "{}", "path": "/"}, 404, "nothing but POST /rank"),
        ({"body": "{}", "Origin": "http://elsewhere"}, 403, "in a browser"),
        ({"method": "GET"}, 404, "nothing but POST /rank"),
    ],
)
def test_a_request_that_cannot_be_answered_is_told_why(served, request_, status, words) -> None:
    got, said = asked(served, **request_)
    assert got == status and said.keys() == {"error"} and words in said["error"] and "\n" not in said["error"]
    assert asked(served, {"turns": ["说说 k3", "\ud800 k4"], "k": 1})[1]["memes"][0]["id"] == "m04"


def test_a_model_that_fails_is_no_fault_of_the_request(served, monkeypatch) -> None:
    def fails(*_, **__):
        raise EndpointError("no credit left")

    monkeypatch.setattr(ranking.LiveLibrary, "rank", fails)
    assert asked(served, {"turns": ["在吗"]}) == (503, {"error": "no credit left"})
    with pytest.raises(MemecmdError, match=r"127.0.0.1:\d+ cannot be served"):
        asyncio.run(ranking.serve(None, "127.0.0.1", served, print))


def test_the_plug_in_of_the_readme_is_python_that_asks_the_route() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for block in (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "/rank" in b):
        assert ast.parse(block) and len(block.splitlines()) <= 20
        assert {"turns", "memes", "picture"} <= {*re.findall(r'"(\w+)"', block)}
