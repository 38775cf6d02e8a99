import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedBackend

from memecmd_utils import __main__ as command_line
from memecmd_utils.core import paths, storage
from memecmd_utils.core.encoders.text import RecordedEmbedder, text_key
from memecmd_utils.core.recordings import care as tools
from memecmd_utils.core.recordings import store as recordings_store
from memecmd_utils.core.recordings.store import RecordingError, RecordingMiss, Recordings, key_of, read_file
from memecmd_utils.core.recordings.vectors import read_shard, write_shard
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.messages import Message, Request, Sampling

LONG = "这是一段很长的话，" * 20
GOOD = {"text": "好", "outcome": "accepted", "attempts": 1}
REFUSED = {"text": "", "outcome": "refusal", "attempts": 5, "reason": "the model refused"}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with nothing in it; returns the folder of the recordings of profile `local`."""
    for name in ("processed", "raw", "interim", "example"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.setenv("PROFILE", "local")
    return tmp_path / "raw" / "recordings" / "local"


def form(text: str = "你好", **changes) -> dict:
    version = recordings_store.KEY_VERSION
    return {"key_version": version, "task": "utterance", "messages": [{"text": text}], "seed": 1, **changes}


def write(folder: Path, *pairs: tuple[dict, object], name: str = "w0") -> Path:
    lines = [
        {"v": recordings_store.KEY_VERSION, "key": key_of(f), "form": f, "value": value} for f, value in pairs
    ]
    path = folder / "s" / f"{name}.jsonl"
    storage.write_text(path, "".join(storage.dumps(line) + "\n" for line in lines))
    return path


def edit(path: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"".join(lines))


def test_a_sound_store_has_no_problem(mine: Path) -> None:
    write(mine, (form(LONG), GOOD), (form("二"), REFUSED), (form("三"), {**GOOD, "outcome": "violations"}))
    cache = recordings_store.TextCache(Recordings("ocr", [mine], mine), "ocr")
    cache.put("x" * 70, "字")
    report = tools.check(tools.folders_of("local"))
    assert report.problems == []
    assert report.done == [
        "raw/recordings/local/ocr: 1 recordings (0 without an answer)",
        "raw/recordings/local/s: 3 recordings (1 without an answer)",
    ]
    assert report.notes == []
    assert tools.check([mine / "nowhere"]).text() == "no recordings there"


def test_every_damaged_line_is_told_with_its_place(mine: Path) -> None:
    path = write(mine, *((form(LONG + str(n)), {**GOOD, "text": str(n)}) for n in range(6)))
    edit(path, 2, lambda line: line[:-5] + b"\n")
    edit(path, 3, lambda line: re.sub(rb'"key": "....', b'"key": "0000', line))
    edit(path, 4, lambda line: line.replace(b'"v": 2', b'"v": 77'))
    edit(path, 5, lambda line: b'{"v": 2, "text": "0"}\n')
    edit(path, 6, lambda line: b"\xff\xfe\n")
    report = tools.check([mine])
    told = [problem.removeprefix("raw/recordings/local/s/w0.jsonl:") for problem in report.problems]
    of = dict(line.split(": ", 1) for line in told)
    assert list(of) == ["2", "3", "4", "5", "6"]
    assert of["3"] == "the key does not belong to the form"
    assert of["4"].endswith("update this package")
    assert of["5"] == "a field is missing or of a wrong type"
    assert report.done == ["raw/recordings/local/s: 1 recordings (0 without an answer)"]


def test_damage_in_a_tracked_file_shows_in_the_lines_that_build_on_it(mine: Path) -> None:
    path = mine / "s" / "example.jsonl"
    recordings_store.write_file(path, [(form(LONG, seed=n), GOOD) for n in range(4)])
    assert tools.check([mine]).problems == []
    edit(path, 1, lambda line: line.replace("很长".encode(), "很短".encode(), 1))
    assert len(tools.check([mine]).problems) == 4
    edit(path, 1, lambda line: b"{}\n")
    assert len(tools.check([mine]).problems) == 4


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("好", "no text"),
        ({"outcome": "accepted", "attempts": 1}, "no text"),
        ({**GOOD, "text": None}, "no text"),
        ({**GOOD, "outcome": "fine"}, "outcome 'fine'"),
        ({"text": "好", "attempts": 1}, "outcome None"),
        ({**GOOD, "attempts": 0}, "attempts are 0"),
        ({**GOOD, "attempts": True}, "attempts are True"),
        ({"text": "好", "outcome": "accepted"}, "attempts are None"),
        ({**GOOD, "live": "now"}, "the time of mode live is 'now'"),
        ({**GOOD, "live": -1}, "the time of mode live is -1"),
    ],
)
def test_a_value_of_a_wrong_shape_is_a_problem(mine: Path, value, told: str) -> None:
    write(mine, (form("一"), GOOD), (form("二"), value))
    (problem,) = tools.check([mine]).problems
    assert problem.startswith("raw/recordings/local/s/w0.jsonl:2: ") and told in problem


def test_other_problems_of_forms_and_of_texts_from_images(mine: Path) -> None:
    write(mine, ({"task": "ocr", "subject": "k"}, GOOD), (form(key_version=1), GOOD))
    first, second = tools.check([mine]).problems
    assert "holds more than a text" in first and "the form is of key version 1" in second


def test_a_torn_last_line_is_noted_and_no_problem(mine: Path) -> None:
    write(mine, (form("一"), REFUSED), (form("二"), REFUSED))
    path = write(mine, (form("一"), GOOD), (form("三"), GOOD), name="w1")
    with path.open("ab") as handle:
        handle.write(b'{"v": 2, "ke')
    report = tools.check([mine])
    assert report.problems == []
    assert report.done == ["raw/recordings/local/s: 3 recordings (1 without an answer)"]
    assert [note.removeprefix("raw/recordings/local/s") for note in report.notes] == [
        "/w1.jsonl: the last line is torn; it counts as not recorded",
    ]


def vectors(*texts: str, width: int = 4, length: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    rows = random.normal(size=(len(texts), width))
    rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
    return dict(zip((text_key(t, "query") for t in texts), rows.astype(np.float16), strict=True))


def test_vectors_are_checked_too(mine: Path) -> None:
    folder = mine / "embedding" / "org__m"
    sound = vectors("一", "二")
    write_shard(folder / "a.npz", sound)
    report = tools.check([mine])
    assert report.problems == [] and report.done == ["raw/recordings/local/embedding/org__m: 2 vectors"]
    write_shard(folder / "b.npz", vectors("三", length=1.1) | {"k": sound[text_key("一", "query")]})
    write_shard(folder / "c.npz", {text_key("四", "query"): np.array([np.nan, 0, 0, 1], np.float16)})
    write_shard(folder / "d.npz", vectors("五", width=3))
    (folder / "e.npz").write_bytes((folder / "a.npz").read_bytes()[:-30])
    told = [p.removeprefix("raw/recordings/local/embedding/org__m") for p in tools.check([mine]).problems]
    assert told[:3] == [
        "/b.npz: 1 keys are not 64 hex digits",
        "/b.npz: 1 vectors are not of length 1",
        "/c.npz: 1 vectors are not finite",
    ]
    assert told[3].startswith("/e.npz: ") and "is damaged" in told[3]
    assert told[4:] == [": vectors of [3, 4] numbers side by side"]


def test_promote_takes_what_counts_and_is_stable(tmp_path: Path) -> None:
    forms = [form(LONG, seed=n) for n in range(6)]
    newest = {**GOOD, "text": "新", "live": 7.5}
    a = write(tmp_path / "a", *((f, GOOD) for f in forms[:4]), (forms[5], GOOD))
    b = write(tmp_path / "b", (forms[0], {**GOOD, "text": "后"}), (forms[4], REFUSED), (forms[3], newest))
    c = write(tmp_path / "c", (forms[4], GOOD), (forms[3], {**GOOD, "live": 5}))
    wanted = {key_of(f) for f in forms[:5]}
    target = tmp_path / "tracked" / "s" / "example.jsonl"
    assert tools.promote([a, b, c], target, wanted) == 5
    once = target.read_bytes()
    read = {key: value for key, _, value in read_file(target)}
    assert set(read) == wanted and once.decode().count(LONG) == 1
    assert read[key_of(forms[0])] == GOOD and read[key_of(forms[4])] == GOOD, "the refusal lost"
    assert read[key_of(forms[3])] == newest
    assert tools.promote([target, c, b, a], target, wanted) == 5 and target.read_bytes() == once
    assert len(Recordings("s", [tmp_path / "tracked"])) == 5
    with pytest.raises(RecordingError, match="none of the 1 replies of s is recorded"):
        tools.promote([target], target, {"0" * 64})
    assert target.read_bytes() == once


class Fake:
    name = "fake/m"

    def encode(self, texts, side):
        return np.array([[len(t), 1.0] for t in texts], np.float32)


def test_a_run_becomes_tracked_recordings_of_exactly_what_it_used(mine: Path, tmp_path: Path) -> None:
    store = Recordings("evaluation", [], mine)
    forms = [{"task": "rating", "n": n} for n in range(4)]
    for one in forms:
        store.put(one, GOOD)
    RecordedEmbedder(Fake(), [mine], mine).encode(["一", "二二", "三三三"], "query")
    run = tmp_path / "processed" / "local-0a1b2c3d"
    for text in ("一", "三三三"):  # as two notebooks
        RecordedEmbedder(Fake(), [mine], None, "recorded", used_in=run).encode([text], "query")
    storage.write_json(run / "usage" / "evaluation.keys.json", sorted(map(key_of, forms[:3])))
    storage.write_json(run / "usage" / "evaluation.json", {"calls": 4})

    told = list(tools.promote_run(run.name))
    assert [line.split(" ->")[0] for line in told] == ["2 of 2 vectors", "3 of 3 replies"]
    tracked = tmp_path / "example" / "recordings"
    replies, shard = (
        tracked / "evaluation" / "example.jsonl",
        tracked / "embedding" / "fake__m" / "example.npz",
    )
    assert len(replies.read_bytes().splitlines()) == 3
    assert set(read_shard(shard)) == {text_key(text, "query") for text in ("一", "三三三")}
    once = replies.read_bytes(), shard.read_bytes()
    list(tools.promote_run(run.name))
    assert once == (replies.read_bytes(), shard.read_bytes())
    storage.write_json(run / "usage" / "embedding:fake__other.keys.json", ["k"])
    with pytest.raises(RecordingError, match="none of the 1 vectors of fake__other"):
        list(tools.promote_run(run.name))


def test_new_vectors_stand_in_files_of_their_own(mine: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tools, "SHARD_BYTES", 8)  # two vectors of two float16 numbers
    run = tmp_path / "processed" / "local-0a1b2c3d"
    shards = tmp_path / "example" / "recordings" / "embedding" / "fake__m"

    def promote(*texts: str) -> dict[str, set[str]]:
        RecordedEmbedder(Fake(), [mine], mine, used_in=run).encode(texts, "query")
        list(tools.promote_run(run.name))
        return {path.name: set(read_shard(path)) for path in shards.glob("*.npz")}

    first = promote("一")
    before = (shards / "example.npz").read_bytes()
    more = promote("二二", "三三三", "四四四四")
    assert more.keys() == {"example.npz", "example-2.npz", "example-3.npz"}
    assert (shards / "example.npz").read_bytes() == before and more["example.npz"] == first["example.npz"]
    assert sorted(map(len, more.values())) == [1, 1, 2]
    (run / "usage" / "embedding:fake__m.keys.json").unlink()
    assert promote("一").keys() == {"example.npz"}  # what no run uses goes


@pytest.mark.parametrize(
    ("run", "folder"),
    [("a", "a"), ("a-lab", "a"), ("a-b", "a-b"), ("a-b-12345678", "a-b"), ("a-proto", "a"), ("c-lab", "c")],
)
def test_recordings_belong_to_the_profile_at_the_beginning_of_a_runs_name(
    tmp_path: Path, run: str, folder: str
) -> None:
    for name in ("a", "a-b"):
        (tmp_path / "raw" / "recordings" / name).mkdir(parents=True)
    assert tools.recordings_of(run).name == folder


def test_explain_shows_where_two_recordings_part(mine: Path) -> None:
    one, two = form(LONG + "甲", sampling={"temperature": 0.9}), form(LONG + "乙", sampling={})
    write(mine, (one, GOOD), (two, GOOD))
    wanted = [
        "messages[0].text", f"  first:  '…{LONG[-9:]}甲'", f"  second: '…{LONG[-9:]}乙'",
        "sampling.temperature", "  first:  '0.9'", "  second: 'null'",
    ]  # fmt: skip
    assert tools.explain(json.dumps(one), json.dumps(two), [mine]) == wanted
    assert tools.explain(key_of(one)[:8], key_of(two), [mine]) == wanted
    assert tools.explain(key_of(one), json.dumps(one), [mine]) == ["no difference"]


def test_explain_takes_every_key_that_a_miss_prints(mine: Path, capsys: pytest.CaptureFixture) -> None:
    def request(text: str) -> Request:
        message = Message(role="user", text=text)
        return Request(task="utterance", subject="d/2", messages=[message], sampling=Sampling())

    def ask(text: str) -> str:
        chat = Chat(ScriptedBackend([]), Recordings("s", [mine]), "recorded")
        with pytest.raises(RecordingMiss) as caught:
            llm_chat.run(chat.ask(request(text), str))
        return str(caught.value)

    recorded = request(LONG + "甲").normal_form(ScriptedBackend([]).model)
    write(mine, (form("全不一样"), GOOD), (recorded, GOOD))
    said = ask(LONG + "乙")
    command = re.search(r"`python -m memecmd_utils (recordings explain [0-9a-f]{16})`", said)[1].split()
    nearest = re.search(r"the nearest recording, ([0-9a-f]{16}), differs in: messages", said)[1]
    wanted = f"messages[0].text\n  first:  '…{LONG[-9:]}乙'\n  second: '…{LONG[-9:]}甲'\n"
    for given in (command, [*command, nearest]):
        assert command_line.main(given) == 0 and capsys.readouterr().out == wanted
    key = command[2]
    for number in range(recordings_store.KEPT_MISSES - 1):
        ask(f"别的{number}")
    assert tools.explain(key, None, [mine]) == wanted.splitlines()
    assert ask(LONG + "乙") == said, "asked for again: it is not kept twice"
    ask("一个新的")
    assert len(recordings_store.missed_forms()) == recordings_store.KEPT_MISSES
    assert tools.explain(key, None, [mine]) == wanted.splitlines(), "the oldest goes first"
    with pytest.raises(RecordingError, match="nothing is recorded for task 'rating'"):
        tools.explain(json.dumps(form(task="rating")), None, [mine])


def test_a_miss_is_told_where_nothing_can_be_written(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "interim", mine / "a file")
    (mine / "a file").parent.mkdir(parents=True, exist_ok=True)
    (mine / "a file").touch()
    chat = Chat(ScriptedBackend([]), Recordings("s", [mine]), "recorded")
    message = Message(role="user", text="甲")
    asked = Request(task="utterance", subject="d/2", messages=[message], sampling=Sampling())
    with pytest.raises(RecordingMiss, match="nothing is recorded for task 'utterance'"):
        llm_chat.run(chat.ask(asked, str))


@pytest.mark.parametrize(
    ("text", "told"),
    [("12345678", "0 recordings have"), ("abc", "neither a form"), ("{", "neither"), ("[1]", "JSON object")],
)
def test_explain_says_what_it_needs(mine: Path, text: str, told: str) -> None:
    with pytest.raises(RecordingError, match=told):
        tools.explain(text, "{}", [mine])


def test_the_commands(mine: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(mine, (form("一"), GOOD), (form("三"), GOOD))
    assert command_line.main(["recordings", "check"]) == 0
    assert "2 recordings (0 without an answer)\n" in capsys.readouterr().out
    edit(path, 2, lambda line: line[1:])
    assert command_line.main(["recordings", "check"]) == 1
    assert "\nPROBLEM: raw/recordings/local/s/w0.jsonl:2: " in capsys.readouterr().out
