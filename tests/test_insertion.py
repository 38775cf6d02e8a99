"""Memes for chats of one's own: the right ones stand at the right places, in the file and on the page; files
that no insertion wrote are not overwritten; no answer of a model is paid for twice. A chat goes on and memes
come out: in Python and over HTTP, with a model and without."""

import ast
import asyncio
import http.client
import json
import queue
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import made_chats
import numpy as np
import pandas as pd
import pytest
from fault_server import Answer, chat_reply
from PIL import Image

import memecmd_utils as memecmd
from memecmd_utils import chats, files, library, reranking, retrieval, schemas
from memecmd_utils.chats import ranking, search
from memecmd_utils.chats.turns import ChatError
from memecmd_utils.files import MemecmdError, read_jsonl, read_parquet
from memecmd_utils.llm.types import EndpointError

HEADER = ["会话", "发送人", "内容", "备注", "S", "E", "Psi"]


def row(who: str, text: str, topic: int | None = None, chat: str = "", note: str = "") -> list[str]:
    told = list(made_chats.summary(topic).values()) if topic is not None else ["", "", ""]
    return [chat, who, text, note, *told]


ROWS = [row("甲", "在吗"), row("乙", "在", 4), row("甲", "好", 40), row("乙", "嗯", 7)]
"""No meme is about topic 40."""


def write_csv(path: Path, rows, header=HEADER) -> Path:
    pd.DataFrame(rows, columns=header).to_csv(path, index=False, encoding="utf-8-sig")
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig").to_dict("records")


def memes_in(path: Path) -> list[str]:
    return [cells["meme_id"] for cells in read_csv(path)]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def run(monkeypatch, tmp_path):
    return made_chats.finished_run(monkeypatch, tmp_path)


@pytest.fixture
def live(run, monkeypatch):
    """An endpoint that sums up and chooses."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    with made_chats.agent().running() as server:
        made_chats.live_profile(Path(search.paths.profiles).parent, server.url)
        yield server


# --- the library of a finished run


@pytest.mark.parametrize("centring", ["none", "attribute"])
def test_it_finds_what_the_pipeline_found(monkeypatch, tmp_path, centring) -> None:
    """The run's own summaries, as texts: the same memes, scores and parts."""
    run = made_chats.finished_run(monkeypatch, tmp_path, centring=centring)
    library = chats.open_library(run, run)
    dialogues = read_jsonl(run.read("dialogues.jsonl"), schemas.Dialogue)
    scored = retrieval.score_dialogues(dialogues, library.index, library.encode, run.profile)
    own = [summary for dialogue in dialogues for summary in dialogue.summaries]
    queries = retrieval.queries_of(own, library.encode, centring, library.query_means)
    assert np.allclose(queries, np.concatenate([item.queries for item in scored]), atol=1e-6)


# --- an insertion


def test_the_right_memes_stand_in_the_file_and_on_the_page(run, tmp_path, monkeypatch) -> None:
    rows = [  # the first turn never has a meme, and another one has it at its first message
        row("小雨", "=去不去爬山", 3, "<i>一"),
        row("阿杰", '他说"下雨"\n<script>alert(1)</script>', 5, "<i>一", "+1.10"),
        row("阿杰", "怎么了", None, "<i>一"),
        row("小雨", "", None, "<i>一"),
        row("小雨", "那算了", 40, "<i>一"),
        *(row(who, text, topic, "二") for who, text, topic in (
            ("张三", "开会吗", None), ("李四", "[图片]", None), ("王五", "开", 7), ("李四", "好", 2))),
    ]  # fmt: skip
    target = tmp_path / "out" / "chat.csv"
    source, written = write_csv(tmp_path / "chat.csv", rows), []
    kept = files.atomic_path
    monkeypatch.setattr(files, "atomic_path", lambda path: written.append(path.name) or kept(path))
    told = chats.insert_file(source, target, "made")
    assert written == ["chat.html", "m05.png", "m07.png", "m02.png", "chat.csv"], "it can be repeated"
    cells = read_csv(target)
    assert [[line[name] for name in HEADER] for line in cells] == rows, "cells stay as they stood"
    assert memes_in(target) == ["", "m05", "", "", "", "", "", "m07", "m02"]
    assert all((target.parent / line["meme_file"]).is_file() for line in cells if line["meme_id"])
    assert {line["meme_strategy"] + line["meme_score"][1:2] for line in cells} == {"", "greedy."}
    assert told.startswith("3 memes (3 different) in 6 turns of 2 chats; summaries: in the file\n")
    page = target.with_suffix(".html").read_text(encoding="utf-8")
    assert "<script>" not in page and "<i>" not in page and "&lt;script&gt;alert(1)" in page
    assert page.count('data-meme="m05"') == 1 and "data:image/jpeg;base64," in page
    assert "Memes by greedy from the library of run made." in page and "Ψ 想说 k5" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page), "nothing is loaded from elsewhere"
    assert not (tmp_path / "raw").exists(), "a run that only replays records nothing of a chat"


# --- what may be overwritten


@pytest.mark.parametrize("there", ["o.csv", "o.html", "o_memes/note.txt"])
def test_what_no_insertion_wrote_is_not_overwritten(run, tmp_path, there) -> None:
    """Nor is the file that was read."""
    source, out = write_csv(tmp_path / "c.csv", ROWS), tmp_path / "out"
    files.write_text(out / there, "mine")
    for target, strategy, message in (
        (out / "o.csv", "greedy", "was not written by this command"),
        (source, "greedy", "it would be lost"),
        (tmp_path / "o.jsonl", "greedy", r"call it o\.csv"),
        (tmp_path / "o.csv", "best", "there are: greedy"),
    ):
        with pytest.raises(ChatError, match=message):
            chats.insert_file(source, target, "made", strategy=strategy)
    assert contents(out) == {there: b"mine"}


@pytest.mark.parametrize("topic", [40, 4])
def test_the_same_command_works_again_over_its_own_output(run, tmp_path, topic) -> None:
    """Also where no meme was placed."""
    source, out = write_csv(tmp_path / "c.csv", [ROWS[0], row("乙", "在", topic)]), tmp_path / "out"
    chats.insert_file(source, out / "c.csv", "made")
    first = contents(out)
    chats.insert_file(source, out / "c.csv", "made")
    assert contents(out) == first and (b"m04" in first["c.csv"]) == (topic == 4)


# --- strategies


def test_without_a_model_learned_placement_reads_the_last_turns(monkeypatch, tmp_path) -> None:
    """Nobody wrote a summary: topics are read from what was said."""
    made_chats.finished_run(monkeypatch, tmp_path, wanted_rate=0.5)
    rows = [["甲", "说说 k3"], ["乙", "天气"], ["甲", "还有 k7"], ["乙", "嗯"], ["丙", "行"]]
    source = write_csv(tmp_path / "c.csv", rows, ["speaker", "text"])
    told = chats.insert_file(source, tmp_path / "o.csv", "made", strategy="learned")
    memes = memes_in(tmp_path / "o.csv")
    assert (memes[0], memes[1], memes[3]) == ("", "m03", "m07")
    assert " memes (2 different) in 5 turns of 1 chat; summaries: none; 4 turns without" in told
    cells = read_csv(tmp_path / "o.csv")[1]
    assert cells["meme_score"] == "" and float(cells["meme_gate_score"]) > float(cells["meme_threshold"])
    page = (tmp_path / "o.html").read_text(encoding="utf-8")
    assert "m03" in page and "T =" not in page and "Ψ " not in page


@pytest.mark.parametrize("strategy", ["greedy", "learned"])
def test_as_many_turns_of_a_file_get_a_meme_as_were_asked_for(monkeypatch, tmp_path, strategy) -> None:
    changes = {"wanted_rate": 0.3, "theta0": "auto", "score_scale": "standard", "threshold_penalty": 0.1}
    made_chats.finished_run(monkeypatch, tmp_path, **changes)
    topics = [n % 12 if n % 10 < 4 else 20 + n % 15 for n in range(63)]  # of the later ones no meme is about
    rows = [row("甲乙"[n % 2], f"句{n}", topic, str(n // 21)) for n, topic in enumerate(topics)]
    chats.insert_file(write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv", "made", strategy=strategy)
    rate = sum(map(bool, memes_in(tmp_path / "o.csv"))) / 60
    assert rate == pytest.approx(0.3, abs=0.11 if strategy == "learned" else 0.04)  # best ones tie
    assert {line["meme_strategy"] for line in read_csv(tmp_path / "o.csv")} == {"", strategy}


def test_a_model_chooses_is_paid_once_and_counted_in_the_closing_line(live, tmp_path, monkeypatch) -> None:
    """It stops at the third of four turns; later it gives nothing that can be used."""
    rows = [row("甲", "说说 k3"), row("乙", "好", 3), row("甲", "还有 k6", 40), row("乙", "行", 6)]
    source, out = write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv"
    real, asked = reranking.choice_at, iter(range(9))

    async def stops(*where):
        if next(asked) == 2:
            raise EndpointError("no credit left")
        return await real(*where)

    monkeypatch.setattr(reranking, "choice_at", stops)
    priced = {"base_url": live.url, "model": "m", "usd_per_million_in": 100, "usd_per_million_out": 100}
    made_chats.live_profile(tmp_path, live.url, endpoints={"generator": priced})
    reranked = partial(chats.insert_file, source, out, "live", run_name="made", strategy="reranked")
    with pytest.raises(EndpointError, match="no credit left"):
        reranked()
    told = reranked()
    assert len(live.bodies) == 3 and memes_in(out) == ["", "m03", "", "m06"]
    assert "说到 k3" in out.with_suffix(".html").read_text("utf-8")
    in_file = "4 turns of 1 chat; summaries: in the file; 3 choices: model m@"
    assert told.startswith(f"2 memes (2 different) in {in_file}") and "usable" not in told
    assert re.search(r"; \$0\.\d*[1-9]", told)
    live.script = lambda body: Answer(chat_reply('{"reason": "好", "number": 99}'))
    write_csv(source, ROWS)
    told = reranked()
    assert f"0 memes (0 different) in {in_file}" in told
    assert "3 of 3 choices without a usable answer (unusable: " in told


# --- the summary agent


def test_missing_summaries_are_asked_for_recorded_and_replayed(run, live, tmp_path) -> None:
    """Without a model only turns with a summary get a meme."""
    rows = [["甲", "说说 k3"], ["乙", "好 k40"], ["丙", "还有 k6"], ["甲", "行"]]
    source, out = write_csv(tmp_path / "c.csv", rows, ["speaker", "text"]), tmp_path / "o.csv"
    for strategy, words in (("greedy", "S, E, Psi"), ("reranked", "reranked asks a model")):
        with pytest.raises(ChatError, match=rf"{words}.*RUN=made after `make local-llm`"):
            chats.insert_file(source, out, "made", strategy=strategy)
    assert not out.exists()
    for _ in range(2):
        chats.insert_file(source, out, "live", run_name="made")
    asked = [body["messages"][-1]["content"] for body in live.bodies]
    assert memes_in(out) == ["", "m03", "", "m06"] and len(asked) == 3
    before = "甲：说说 k3\n乙：好 k40\n丙：还有 k6"
    assert any(before in text and "接下来发消息的人：\n<<<\n甲" in text for text in asked)
    assert list((tmp_path / "raw" / "recordings" / "live" / "own_chats").rglob("*.jsonl"))
    assert not (run.folder / "usage").exists(), "the finished run stays as it is"
    write_csv(source, [row("甲", "在吗"), row("乙", "在"), row("甲", "好", 4)])
    told = chats.insert_file(source, out, "made")
    assert memes_in(out) == ["", "", "m04"] and "1 turn without a summary" in told


# --- a chat that goes on, in Python

TURNS = [("小雨", "说说 k3"), ("阿杰", "还有 k7")]


def ids(memes) -> list[str]:
    return [meme.id for meme in memes]


def test_five_lines_rank_memes_by_what_was_said_last(run, tmp_path) -> None:
    opened = memecmd.open("made")
    there = {*tmp_path.rglob("*")}
    best = opened.rank(TURNS, k=3)
    assert best[0].id == "m07" and len(best) == 3
    assert best[0].score > best[1].score and best[0].text == "字幕 k0" and best[0].picture.is_file()
    assert ids(opened.rank(["在吗", "说说 k3"], k=1)) == ["m03"], "plain texts are two people in turn"
    assert len(opened.rank(TURNS, k=99)) == made_chats.N_MEMES
    assert {*tmp_path.rglob("*")} == there, "nothing is kept"
    assert memecmd.open("made", settings="llm=openai max_calls=3").asking.profile.models.max_calls == 3
    with pytest.raises(MemecmdError, match="there is no run 'nowhere'"):
        memecmd.open("nowhere")


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
        ([("甲", "在"), ("", "在")], "turn 2 cannot be read"),
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


# --- a folder of pictures, without any model


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


# --- over HTTP


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


def answered(port: int, body="", method="POST", path="/rank", **headers) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = body if isinstance(body, str | bytes) else json.dumps(body)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_requests_side_by_side_are_all_answered(served) -> None:
    with ThreadPoolExecutor(100) as threads:
        bodies = [{"turns": [["甲", f"说说 k{n % 12}"]], "k": 1} for n in range(200)]
        answers = list(threads.map(lambda body: answered(served, body), bodies))
    assert {status for status, _ in answers} == {200}
    best = [said["memes"][0] for _, said in answers]
    assert [meme["id"] for meme in best] == [made_chats.meme_id(n % 12) for n in range(200)]
    assert best[0].keys() == {"id", "score", "text", "picture", "reason"}
    assert Path(best[0]["picture"]).is_file()


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"body": "[" * 90_000}, 400, 'send {"turns"'),
        ({"body": {"turns": ["在吗"], "k": 0}}, 400, 'send {"turns"'),
        ({"body": {"turns": ["在吗"], "key": 1}}, 400, 'send {"turns"'),
        ({"body": {"turns": ["在吗"], "choose": True}}, 400, "choose asks a model"),
        ({"body": "{}", "path": "/"}, 404, "nothing but POST /rank"),
        ({"body": "{}", "Origin": "http://elsewhere"}, 403, "in a browser"),
        ({"method": "GET"}, 404, "nothing but POST /rank"),
    ],
)
def test_a_request_that_cannot_be_answered_is_told_why(served, request_, status, words) -> None:
    got, said = answered(served, **request_)
    assert got == status and said.keys() == {"error"} and words in said["error"] and "\n" not in said["error"]
    assert answered(served, {"turns": ["说说 k3", "\ud800 k4"], "k": 1})[1]["memes"][0]["id"] == "m04"


def test_a_model_that_fails_is_no_fault_of_the_request(served, monkeypatch) -> None:
    def fails(*_, **__):
        raise EndpointError("no credit left")

    monkeypatch.setattr(ranking.LiveLibrary, "rank", fails)
    assert answered(served, {"turns": ["在吗"]}) == (503, {"error": "no credit left"})
    with pytest.raises(MemecmdError, match=r"127.0.0.1:\d+ cannot be served"):
        asyncio.run(ranking.serve(None, "127.0.0.1", served, print))


def test_the_plug_in_of_the_readme_is_python_that_asks_the_route() -> None:
    text = (Path(__file__).parents[1] / "data/README.md").read_text(encoding="utf-8")
    for block in (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "/rank" in b):
        assert ast.parse(block) and len(block.splitlines()) <= 20
        assert {"turns", "memes", "picture"} <= {*re.findall(r'"(\w+)"', block)}
