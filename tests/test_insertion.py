import csv
import json
import re
import shutil
from collections import Counter
from functools import partial
from types import SimpleNamespace

import made_chats
import made_up
import numpy as np
import pandas as pd
import pytest
from fault_server import Answer, FaultServer, chat_reply, error

from memecmd_utils import chats, files, reranking, retrieval, runs, schemas
from memecmd_utils.chats.turns import ChatError, NoSummaryAgent
from memecmd_utils.files import atomic_path, read_jsonl, write_json
from memecmd_utils.llm.types import EndpointError
from memecmd_utils.retrieval import QUERY_FIELDS
from memecmd_utils.runs import StageMissing
from memecmd_utils.settings import ProfileError

# --- the library of a finished run

SUMMARY = schemas.SummaryReply(**made_chats.summary(4))


@pytest.mark.parametrize("centring", ["none", "attribute"])
def test_it_finds_what_the_pipeline_found(monkeypatch, tmp_path, centring) -> None:
    """The run's own summaries, as texts: the same memes, scores and parts."""
    run = made_chats.finished_run(monkeypatch, tmp_path, centring=centring)
    library = chats.open_library(run, run)
    dialogues = read_jsonl(run.read("dialogues.jsonl"), schemas.Dialogue)
    scored = retrieval.score_dialogues(dialogues, library.index, library.encode, run.profile)
    flat = [schemas.SummaryReply(**{f: getattr(s, f) for f in QUERY_FIELDS})
            for d in dialogues for s in d.summaries]  # fmt: skip
    queries, ranking = library.rank([None, *flat])
    assert ranking.memes[0].tolist() == [-1] * 3 and not queries[0].any()
    for part in ("memes", "scores", "components"):
        expected = np.concatenate([getattr(s.ranking, part) for s in scored])
        assert np.allclose(getattr(ranking, part)[1:], expected, atol=1e-6)
    _, found = library.rank([SUMMARY])
    assert library.index.meme_ids[found.memes[0, 0]] == "m04"


def test_vectors_of_new_texts_are_recorded_where_the_run_records(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path)
    chats.open_library(run, run).queries([SUMMARY])
    assert not list((tmp_path / "raw").rglob("*.npz"))
    auto = made_chats.finished_run(monkeypatch, tmp_path / "b", mode="auto")
    chats.unrecorded(auto, auto)(["新的"], "query")
    assert not list((tmp_path / "b" / "raw").rglob("*.npz")), "nor where the panel asks"
    chats.open_library(auto, auto).queries([SUMMARY])
    assert list((tmp_path / "b" / "raw" / "recordings" / "made").rglob("*.npz"))
    assert not list(tmp_path.rglob("*.keys.json")), "no part of the run, and never tracked with it"


def test_a_remote_embedder_is_asked_only_where_the_mode_allows(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path, embedder="endpoint")
    with pytest.raises(EndpointError, match="SET=mode=auto"):
        chats.open_library(run, run)
    paid = []
    asking = SimpleNamespace(profile=made_up.profile(mode="auto"), with_budget=lambda e: paid.append(e) or e)
    chats.open_library(run, asking)
    assert [embedder.name for embedder in paid] == [run.embedder_name()], "who asks pays"


def test_a_run_that_is_not_there_or_cannot_be_read(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path)
    assert chats.library_run("", "made", "").profile == runs.open_finished("made").profile
    with pytest.raises(StageMissing, match="no run 'made-"):
        chats.library_run("", "made", "seed=99")
    asking = chats.asking_run(run, "made", "seed=99", "chats")
    assert (asking.name, asking.profile.seed) == ("made-chats", 99)
    annotations = pd.read_parquet(run.write("annotations.parquet"))
    annotations.drop(columns="emotion").to_parquet(run.write("annotations.parquet"))
    with pytest.raises(StageMissing, match=r"from another version .*emotion"):
        chats.open_library(run, run)
    run.write("profile.yaml").write_text("colour: red", encoding="utf-8")
    with pytest.raises(ProfileError, match="remake the run"):
        runs.open_finished("made")


# --- insertion

HEADER = ["会话", "发送人", "内容", "备注", "S", "E", "Psi"]


def row(chat: str, who: str, text: str, topic: int | None = None, note: str = "") -> list[str]:
    told = list(made_chats.summary(topic).values()) if topic is not None else ["", "", ""]
    return [chat, who, text, note, *told]


def write_csv(path, rows, header=HEADER):
    with path.open("w", encoding="utf-8-sig", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
    return path


def read_csv(path):
    with path.open(encoding="utf-8-sig", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture
def run(monkeypatch, tmp_path):
    return made_chats.finished_run(monkeypatch, tmp_path)


def test_the_right_memes_at_the_right_places(run, tmp_path) -> None:
    rows = [
        row("一", "小雨", "=去不去爬山", 3),  # the first turn never has a meme
        row("一", "阿杰", '他说"下雨"\n两行', 5, "+1"),
        row("一", "小雨", "", None),
        row("一", "小雨", "那算了", 40),  # about a topic that no meme has
        row("二", "张三", "开会吗"),
        row("二", "李四", "[图片]"),
        row("二", "王五", "开", 7),
        row("二", "李四", "好", 2),
    ]
    source = write_csv(tmp_path / "chat.csv", rows)
    target = tmp_path / "out" / "chat.csv"
    told = chats.insert_file(source, target, "made")
    out = read_csv(target)
    assert [{k: v for k, v in r.items() if k in HEADER} for r in out] == [
        dict(zip(HEADER, r, strict=True)) for r in rows
    ]
    assert [r["meme_id"] for r in out] == ["", "m05", "", "", "", "", "m07", "m02"]
    placed = out[1]
    assert placed["meme_strategy"] == "greedy" and placed["meme_file"] == "chat_memes/m05.png"
    assert float(placed["meme_score"]) > float(placed["meme_threshold"]) == pytest.approx(0.6)
    # The gate remembers: the turn after a meme has a higher threshold (Eq. 23).
    assert float(out[7]["meme_threshold"]) == pytest.approx(0.6 + 0.1 * 2.718281828**-1, abs=1e-4)
    assert sorted(p.name for p in (target.parent / "chat_memes").glob("*.png")) == [
        "m02.png",
        "m05.png",
        "m07.png",
    ]
    assert (target.parent / placed["meme_file"]).read_bytes() == run.read("memes/m05.png").read_bytes()
    assert told.startswith("3 memes (3 different) in 6 turns of 2 chats; summaries: in the file\n")
    assert not (tmp_path / "raw").exists(), "a run that only replays records nothing of a chat"


def test_the_page_shows_chat_and_memes_and_nothing_runs(run, tmp_path) -> None:
    rows = [row("<i>一", "小雨", "<script>alert(1)</script>"), row("<i>一", "阿杰", "k", 5)]
    chats.insert_file(write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv", "made")
    page = (tmp_path / "o.html").read_text(encoding="utf-8")
    assert "<script>" not in page and "<i>" not in page and "&lt;script&gt;alert(1)" in page
    assert page.count('data-meme="m05"') == 1 and "data:image/jpeg;base64," in page
    assert "1 meme (1 different) in 2 turns of 1 chat; summaries: in the file" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)


@pytest.mark.parametrize("position", ["before", "after"])
def test_a_meme_stands_at_the_first_or_last_message_of_its_turn(monkeypatch, tmp_path, position) -> None:
    made_chats.finished_run(monkeypatch, tmp_path, meme_position=position)
    rows = [row("", "甲", "在吗"), row("", "乙", "在", 4), row("", "乙", "怎么了"), row("", "甲", "没事", 40)]
    chats.insert_file(write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv", "made")
    at = [bool(r["meme_id"]) for r in read_csv(tmp_path / "o.csv")]
    assert at == ([False, True, False, False] if position == "before" else [False, False, True, False])


# --- what may be overwritten

ROWS = [row("", "甲", "在吗"), row("", "乙", "在", 4), row("", "甲", "好", 40), row("", "乙", "嗯", 7)]


def contents(folder) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("there", ["o.csv", "o.html", "o_memes/note.txt"])
def test_what_no_insertion_wrote_or_what_was_changed_is_not_overwritten(run, tmp_path, there) -> None:
    source, out = write_csv(tmp_path / "c.csv", ROWS), tmp_path / "out"
    (out / there).parent.mkdir(parents=True)
    (out / there).write_text("mine", encoding="utf-8")
    with pytest.raises(ChatError, match="was not written by this command"):
        chats.insert_file(source, out / "o.csv", "made")
    assert contents(out) == {there: b"mine"}
    chats.insert_file(source, tmp_path / "p.csv", "made")
    (tmp_path / "p.csv").write_bytes(b"edited")
    with pytest.raises(ChatError, match="was changed"):
        chats.insert_file(source, tmp_path / "p.csv", "made")


def test_an_insertion_of_ones_own_is_overwritten(run, tmp_path) -> None:
    source, out = write_csv(tmp_path / "c.csv", ROWS), tmp_path / "out"
    chats.insert_file(source, out / "o.csv", "made")
    first = contents(out)
    chats.insert_file(source, out / "o.csv", "made")
    assert contents(out) == first
    write_csv(source, ROWS[:2])
    chats.insert_file(source, out / "o.csv", "made")
    assert [r["meme_id"] for r in read_csv(out / "o.csv")] == ["", "m04"]
    # Another output beside it would have the same page.
    source.with_suffix(".jsonl").write_text('{"speaker": "a", "text": "x"}\n', encoding="utf-8")
    with pytest.raises(ChatError, match="o_memes was not written by this command"):
        chats.insert_file(source.with_suffix(".jsonl"), out / "o.jsonl", "made")


def test_a_run_that_was_killed_while_it_wrote_can_be_repeated(run, tmp_path, monkeypatch) -> None:
    source, out = write_csv(tmp_path / "c.csv", ROWS), tmp_path / "out"
    chats.insert_file(source, out / "o.csv", "made")
    write_csv(source, [*ROWS, row("", "甲", "再来", 9)])
    write = atomic_path
    for stop in ("written.json", "m09.png", "o.html", "o.csv"):

        def killed(target, stop=stop):
            if target.name == stop:
                raise KeyboardInterrupt
            return write(target)

        monkeypatch.setattr(files, "atomic_path", killed)
        with pytest.raises(KeyboardInterrupt):
            chats.insert_file(source, out / "o.csv", "made")
        assert not list(out.rglob("*.part*"))
    monkeypatch.setattr(files, "atomic_path", write)
    chats.insert_file(source, out / "o.csv", "made")
    assert [r["meme_id"] for r in read_csv(out / "o.csv")] == ["", "m04", "", "m07", "m09"]


# --- strategies


def test_learned_placement_sends_where_it_promises_most(monkeypatch, tmp_path) -> None:
    """Of four turns with a summary three may get a meme; no meme is about the topic of the fourth."""
    run = made_chats.finished_run(monkeypatch, tmp_path, wanted_rate=0.75)
    made_chats.placement_file(tmp_path / "example" / "placement.json")
    rows = [row("", "甲", "在吗"), row("", "乙", "在", 4), row("", "甲", "好", 40), row("", "乙", "嗯", 7)]
    rows += [row("二", "甲", "去吗"), row("二", "乙", "去"), row("二", "甲", "行", 2)]  # one has no summary
    source = write_csv(tmp_path / "c.csv", rows)
    chats.insert_file(source, tmp_path / "o.csv", "made", strategy="learned")
    out = read_csv(tmp_path / "o.csv")
    assert [r["meme_id"] for r in out] == ["", "m04", "", "m07", "", "", "m02"]
    sent = [r for r in out if r["meme_id"]]
    assert {r["meme_strategy"] for r in sent} == {"learned"}
    assert all(float(r["meme_gate_score"]) >= float(r["meme_threshold"]) for r in sent)
    assert "m04, gain to expect = +4.000" in (tmp_path / "o.html").read_text(encoding="utf-8")
    # What the run itself fitted comes first: under these weights everybody likes m05.
    made_chats.placement_file(run.write("placement.json"))
    values = json.loads(run.write("placement.json").read_text(encoding="utf-8"))
    values["model"]["intercepts"] = {"m05": 9.0}
    write_json(run.write("placement.json"), values)
    chats.insert_file(source, tmp_path / "p.csv", "made", strategy="learned")
    assert {r["meme_id"] for r in read_csv(tmp_path / "p.csv")} == {"", "m05"}


@pytest.mark.parametrize("strategy", ["greedy", "learned"])
def test_as_many_turns_of_a_file_get_a_meme_as_were_asked_for(monkeypatch, tmp_path, strategy) -> None:
    changes = {"wanted_rate": 0.3, "theta0": "auto", "score_scale": "standard", "threshold_penalty": 0.1}
    made_chats.finished_run(monkeypatch, tmp_path, **changes)
    made_chats.placement_file(tmp_path / "example" / "placement.json")
    topics = [n % 12 if n % 10 < 4 else 20 + n % 15 for n in range(63)]  # of the later ones no meme is about
    rows = [row(str(n // 21), "甲乙"[n % 2], f"句{n}", topic) for n, topic in enumerate(topics)]
    chats.insert_file(write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv", "made", strategy=strategy)
    sent = [bool(r["meme_id"]) for r in read_csv(tmp_path / "o.csv")]
    assert sum(sent) / 60 == pytest.approx(0.3, abs=0.11 if strategy == "learned" else 0.04)  # best ones tie


def test_reranked_memes_are_what_a_model_chooses(run, tmp_path, monkeypatch) -> None:
    """The simulated model takes the meme of the topic that was named last; nothing is asked twice."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    rows = [
        row("", "甲", "说说 k3"),
        row("", "乙", "好", 3),
        row("", "甲", "还有 k6", 40),
        row("", "乙", "行", 6),
    ]
    source = write_csv(tmp_path / "c.csv", rows)
    with pytest.raises(NoSummaryAgent, match=r"reranked asks a model.*RUN=made after `make local-llm`"):
        chats.insert_file(source, tmp_path / "o.csv", "made", strategy="reranked")

    def answer(body):
        said = body["messages"][-1]["content"]
        told, listed = re.sub("［.*?］", "", said).split("候选表情包")
        topic = made_chats.TOPIC.findall(told)[-1]
        caption = f"字幕 k{(int(topic) + 5) % made_chats.N_MEMES}」"
        number = next((line.split(".")[0] for line in listed.splitlines() if caption in line), "0")
        return Answer(chat_reply(json.dumps({"reason": f"说到 k{topic}", "number": int(number)})))

    with FaultServer(answer).running() as server:
        name = made_chats.live_profile(tmp_path, server.url)
        for out in ("o.csv", "p.csv"):
            told = chats.insert_file(source, tmp_path / out, name, run_name="made", strategy="reranked")
        assert len(server.bodies) == 3
    assert [r["meme_id"] for r in read_csv(tmp_path / "o.csv")] == ["", "m03", "", "m06"]
    assert told.startswith("2 memes (2 different)")
    assert "说到 k3" in (tmp_path / "o.html").read_text(encoding="utf-8")

    # Anew, by a model that fails at first, and killed before the last turn: the same choices.
    shutil.rmtree(tmp_path / "raw")
    tried = Counter()

    def fails_first(body):
        tried[json.dumps(body)] += 1
        return Answer(error("busy"), 503) if tried[json.dumps(body)] == 1 else answer(body)

    real, turns = reranking._choice_at, iter(range(9))

    async def killed(*where):
        if next(turns) == 2:
            raise KeyboardInterrupt
        return await real(*where)

    with FaultServer(fails_first).running() as server:
        name = made_chats.live_profile(tmp_path, server.url)
        insert = partial(chats.insert_file, source, tmp_path / "q.csv", name, run_name="made")
        monkeypatch.setattr(reranking, "_choice_at", killed)
        with pytest.raises(KeyboardInterrupt):
            insert(strategy="reranked")
        insert(strategy="reranked")
    assert len(tried) == 3 and set(tried.values()) == {2}, "what was answered is not asked again"
    first, last = ((tmp_path / f"{out}.csv").read_bytes() for out in "oq")
    assert first.replace(b"o_memes/", b"q_memes/") == last


# --- the summary agent


def test_missing_summaries_are_asked_for_recorded_and_replayed(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    plain = ["speaker", "text"]
    rows = [["甲", "说说 k3"], ["乙", "好 k40"], ["丙", "还有 k6"], ["甲", "行"]]
    source = write_csv(tmp_path / "c.csv", rows, plain)
    with made_chats.agent().running() as server:
        name = made_chats.live_profile(tmp_path, server.url)
        chats.insert_file(source, tmp_path / "o.csv", name, run_name="made")
        asked = [body["messages"][-1]["content"] for body in server.bodies]
        # Killed and started again: nothing is asked twice.
        chats.insert_file(source, tmp_path / "p.csv", name, run_name="made")
        assert len(server.bodies) == 3
    assert [r["meme_id"] for r in read_csv(tmp_path / "o.csv")] == ["", "m03", "", "m06"]
    first, second = ((tmp_path / f"{name}.csv").read_bytes() for name in "op")
    assert first.replace(b"o_memes/", b"p_memes/") == second
    assert any("甲：说说 k3\n乙：好 k40\n丙：还有 k6" in text and "轮到甲" in text for text in asked)
    recorded = [p.relative_to(tmp_path).as_posix() for p in (tmp_path / "raw").rglob("*.jsonl")]
    assert recorded and all(p.startswith("raw/recordings/live/own_chats/") for p in recorded)
    assert (tmp_path / "processed" / "made-chats" / "usage" / "own_chats.json").is_file()
    assert not (run.folder / "usage").exists(), "the finished run stays as it is"


def test_without_a_model_the_message_says_how_to_get_one(run, tmp_path) -> None:
    source = write_csv(tmp_path / "c.csv", [["甲", "在吗"], ["乙", "在"]], ["speaker", "text"])
    with pytest.raises(NoSummaryAgent, match=r"RUN=made after `make local-llm`.*S, E, Psi"):
        chats.insert_file(source, tmp_path / "o.csv", "made")
    assert not (tmp_path / "o.csv").exists() and not (tmp_path / "processed" / "made-chats").exists()


def test_without_a_model_turns_without_a_summary_get_no_meme(run, tmp_path) -> None:
    rows = [row("", "甲", "在吗"), row("", "乙", "在"), row("", "甲", "好", 4)]
    told = chats.insert_file(write_csv(tmp_path / "c.csv", rows), tmp_path / "o.csv", "made")
    assert [r["meme_id"] for r in read_csv(tmp_path / "o.csv")] == ["", "", "m04"]
    assert "1 turn without a summary" in told


@pytest.mark.parametrize(
    ("target", "changes", "error", "message"),
    [
        ("c.csv", {}, ChatError, "it would be lost"),
        ("o.jsonl", {}, ChatError, r"call it o\.csv"),
        ("o.csv", {"strategy": "best"}, ChatError, "there are: greedy"),
        ("o.csv", {"run_name": "nowhere"}, StageMissing, "no run 'nowhere'"),
        ("o.csv", {"fields": "text"}, ChatError, "part=column"),
        ("o.csv", {"fields": "text=消息"}, ChatError, "has the columns 消息"),
    ],
)
def test_what_cannot_be_done_says_why(run, tmp_path, target, changes, error, message) -> None:
    source = write_csv(tmp_path / "c.csv", [row("", "甲", "在吗"), row("", "乙", "在", 4)])
    before = source.read_bytes()
    with pytest.raises(error, match=message):
        chats.insert_file(source, tmp_path / target, **{"profile": "made", **changes})
    assert source.read_bytes() == before
