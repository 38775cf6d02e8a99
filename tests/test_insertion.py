"""Memes for chats of one's own: the right ones stand at the right places, in the file and on the page; files
that no insertion wrote are not overwritten; no answer of a model is paid for twice."""

import json
import re
from pathlib import Path

import made_chats
import numpy as np
import pandas as pd
import pytest
from fault_server import Answer, chat_reply

from memecmd_utils import chats, files, reranking, retrieval, schemas
from memecmd_utils.chats.turns import ChatError
from memecmd_utils.files import StageOutputError, read_jsonl
from memecmd_utils.llm.types import EndpointError
from memecmd_utils.runs import StageMissing

HEADER = ["会话", "发送人", "内容", "备注", "S", "E", "Psi"]
SUMMARY = schemas.SummaryReply(**made_chats.summary(4))


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
    new = retrieval.queries_of([SUMMARY], library.encode, centring, library.query_means)
    best = retrieval.top_k(library.index, new, run.profile.retrieval.weights, 1)
    assert library.index.meme_ids[best.memes[0, 0]] == "m04"


def test_a_run_that_is_not_there_or_cannot_be_read(run) -> None:
    with pytest.raises(StageMissing, match="no run 'made-"):
        chats.library_run("", "made", "seed=99")
    annotations = run.write("annotations.parquet")
    pd.read_parquet(annotations).drop(columns="emotion").to_parquet(annotations)
    with pytest.raises(StageOutputError, match=r"annotations.parquet: columns missing: \['emotion'\]"):
        chats.open_library(run, run)


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
    assert written == ["chat.html", "m05.png", "m07.png", "m02.png", "chat.csv"], (
        "a killed one can be repeated"
    )
    cells = read_csv(target)
    assert [[line[name] for name in HEADER] for line in cells] == rows, "cells stay as they stood"
    assert memes_in(target) == ["", "m05", "", "", "", "", "", "m07", "m02"]
    assert all((target.parent / line["meme_file"]).is_file() for line in cells if line["meme_id"])
    assert {line["meme_strategy"] + line["meme_score"][:2] for line in cells} == {"", "greedy0."}
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
    """Nobody wrote a summary: topics are read from what was said. A model, where there is one, is asked."""
    made_chats.finished_run(monkeypatch, tmp_path, wanted_rate=0.5)
    made_chats.placement_file(tmp_path / "example" / "placement.json")
    made_chats.example_corpus(tmp_path / "example")
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
    write_csv(source, rows[:1], ["speaker", "text"])
    assert chats.insert_file(source, tmp_path / "o.csv", "made", strategy="learned").startswith("0 memes")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    write_csv(source, rows, ["speaker", "text"])
    with made_chats.agent().running() as server:
        name = made_chats.live_profile(tmp_path, server.url)
        told = chats.insert_file(source, tmp_path / "o.csv", name, run_name="made", strategy="learned")
    assert "summaries: model m@" in told and len(server.bodies) == 4


@pytest.mark.parametrize("strategy", ["greedy", "learned"])
def test_as_many_turns_of_a_file_get_a_meme_as_were_asked_for(monkeypatch, tmp_path, strategy) -> None:
    changes = {"wanted_rate": 0.3, "theta0": "auto", "score_scale": "standard", "threshold_penalty": 0.1}
    made_chats.finished_run(monkeypatch, tmp_path, **changes)
    made_chats.placement_file(tmp_path / "example" / "placement.json")
    topics = [n % 12 if n % 10 < 4 else 20 + n % 15 for n in range(63)]  # of the later ones no meme is about
    rows = [row("甲乙"[n % 2], f"句{n}", topic, str(n // 21)) for n, topic in enumerate(topics)]
    chats.insert_file(write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv", "made", strategy=strategy)
    rate = sum(map(bool, memes_in(tmp_path / "o.csv"))) / 60
    assert rate == pytest.approx(0.3, abs=0.11 if strategy == "learned" else 0.04)  # best ones tie
    assert {line["meme_strategy"] for line in read_csv(tmp_path / "o.csv")} == {"", strategy}


def test_a_model_chooses_is_paid_once_and_counted_in_the_closing_line(run, tmp_path, monkeypatch) -> None:
    """It stops at the third of four turns; later it gives nothing that can be used."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    rows = [row("甲", "说说 k3"), row("乙", "好", 3), row("甲", "还有 k6", 40), row("乙", "行", 6)]
    source, out = write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv"
    with pytest.raises(ChatError, match=r"reranked asks a model.*RUN=made after `make local-llm`"):
        chats.insert_file(source, out, "made", strategy="reranked")
    real, asked = reranking.choice_at, iter(range(9))

    async def stops(*where):
        if next(asked) == 2:
            raise EndpointError("no credit left")
        return await real(*where)

    monkeypatch.setattr(reranking, "choice_at", stops)
    with made_chats.agent().running() as server:
        priced = {"base_url": server.url, "model": "m", "usd_per_million_in": 100, "usd_per_million_out": 100}
        name = made_chats.live_profile(tmp_path, server.url, endpoints={"generator": priced})
        with pytest.raises(EndpointError, match="no credit left"):
            chats.insert_file(source, out, name, run_name="made", strategy="reranked")
        told = chats.insert_file(source, out, name, run_name="made", strategy="reranked")
        assert len(server.bodies) == 3
        assert memes_in(out) == ["", "m03", "", "m06"] and "说到 k3" in out.with_suffix(".html").read_text(
            "utf-8"
        )
        in_file = "4 turns of 1 chat; summaries: in the file; 3 choices: model m@"
        assert told.startswith(f"2 memes (2 different) in {in_file}") and "usable" not in told
        assert re.search(r"; \$0\.\d*[1-9]", told)
        server.script = lambda body: Answer(chat_reply('{"reason": "好", "number": 99}'))
        write_csv(source, ROWS)
        told = chats.insert_file(source, out, name, run_name="made", strategy="reranked")
    assert f"0 memes (0 different) in {in_file}" in told
    assert "3 of 3 choices without a usable answer (unusable: " in told
    spent = [json.loads(line)["usd"] for line in next(tmp_path.rglob("spent.jsonl")).open()]
    assert len(spent) > 5 and min(spent) > 0


# --- the summary agent


def test_missing_summaries_are_asked_for_recorded_and_replayed(run, tmp_path, monkeypatch) -> None:
    """Without a model only turns with a summary get a meme."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    rows = [["甲", "说说 k3"], ["乙", "好 k40"], ["丙", "还有 k6"], ["甲", "行"]]
    source, out = write_csv(tmp_path / "c.csv", rows, ["speaker", "text"]), tmp_path / "o.csv"
    with pytest.raises(ChatError, match=r"S, E, Psi.*RUN=made after `make local-llm`"):
        chats.insert_file(source, out, "made")
    assert not out.exists()
    with made_chats.agent().running() as server:
        name = made_chats.live_profile(tmp_path, server.url)
        for _ in range(2):
            chats.insert_file(source, out, name, run_name="made")
        asked = [body["messages"][-1]["content"] for body in server.bodies]
    assert memes_in(out) == ["", "m03", "", "m06"] and len(asked) == 3
    before = "甲：说说 k3\n乙：好 k40\n丙：还有 k6"
    assert any(before in text and "接下来发消息的人：\n<<<\n甲" in text for text in asked)
    assert list((tmp_path / "raw" / "recordings" / "live" / "own_chats").rglob("*.jsonl"))
    assert not (run.folder / "usage").exists(), "the finished run stays as it is"
    write_csv(source, [row("甲", "在吗"), row("乙", "在"), row("甲", "好", 4)])
    told = chats.insert_file(source, out, "made")
    assert memes_in(out) == ["", "", "m04"] and "1 turn without a summary" in told
