import json
import re
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from memecmd_utils.core import errors, storage
from memecmd_utils.core.recordings import store as rec
from memecmd_utils.core.recordings.store import RecordingError, Recordings, TextCache
from memecmd_utils.llm.messages import Image, Message, ModelId, Request, Sampling

LONG = "这是一段很长的话，" * 20
GOOD = {"text": "好", "outcome": "accepted", "attempts": 1}
REFUSED = {"text": "", "outcome": "refusal", "attempts": 5, "reason": "the model refused"}
MODEL = ModelId(name="m", label="v1", sha256="a" * 64)


class Mood(BaseModel):
    mood: str


class Feeling(BaseModel):
    mood: str


def form(text: str = "你好", **changes) -> dict:
    return {
        "key_version": rec.KEY_VERSION,
        "task": "utterance",
        "messages": [{"text": text}],
        "seed": 1,
        **changes,
    }


def opened(folder: Path) -> Recordings:
    return Recordings("s", [folder], folder)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "s" / "w0.jsonl").read_text(encoding="utf-8").splitlines()]


def write(folder: Path, *pairs: tuple[dict, dict], writer: str = "w0") -> Path:
    store = opened(folder)
    for key, value in pairs:
        store.put(key, value)
    store.close()
    made = folder / "s" / "w0.jsonl"
    return made if writer == "w0" else made.rename(made.with_name(f"{writer}.jsonl"))


def test_a_torn_last_line_is_cut_off_and_the_run_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, (form("一"), GOOD), (form("二"), GOOD))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    store = opened(tmp_path)
    assert len(store) == 1, "the torn one counts as not recorded"
    store.put(form("三"), GOOD)
    store.close()
    assert [line["form"]["messages"][0]["text"] for line in lines(tmp_path)] == ["一", "三"]
    assert len(opened(tmp_path)) == 2


@pytest.mark.parametrize(
    "bad",
    [
        b"garbled",
        b"",
        b"[1]",
        b'{"v": "2", "key": "k", "form": {}, "value": {}}',
        b'{"v": 2, "key": "k", "form": {}, "value": {}}',
        b'{"v": 2, "text": "abc"}',
        b'{"v": 2, "key": "%s", "value": {}}' % (b"a" * 64),
        b"\xff\xfe{}",
        b'{"v": 1, "key": "%s", "form": {}, "value": {}}' % (b"a" * 64),
    ],
)
def test_a_garbled_line_in_the_middle_names_file_and_line(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path, (form("一"), GOOD), (form("二"), GOOD))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, bad, second, b""]))
    with pytest.raises(RecordingError, match=r"w0\.jsonl line 2 is damaged"):
        opened(tmp_path)


def test_what_a_killed_rewriting_left_is_no_recording_file(tmp_path: Path) -> None:
    path = write(tmp_path, (form(), GOOD))
    path.with_name(".w0.jsonl.77.part.jsonl").write_bytes(b"half a li\n")
    assert len(opened(tmp_path)) == 1 and opened(tmp_path).files() == [path]


def test_a_file_that_changes_under_the_store_is_an_error_and_no_wrong_answer(tmp_path: Path) -> None:
    path = write(tmp_path, (form("一"), GOOD), (form("二"), GOOD))
    store = opened(tmp_path)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(second + first)
    with pytest.raises(RecordingError, match="run again"):
        store.get(rec.key_of(form("一")))
    path.write_bytes(first)
    with pytest.raises(RecordingError, match="run again"):
        store.put(form("三"), GOOD)
    assert path.read_bytes() == first
    path.unlink()
    with pytest.raises(RecordingError, match="run again"):
        store.get(rec.key_of(form("二")))


def test_a_disk_that_is_full_ends_in_one_line_and_leaves_no_half_line_in_the_middle(tmp_path: Path) -> None:
    path = write(tmp_path, (form("一"), GOOD))
    store, whole = opened(tmp_path), path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 20, limits[1]))
    try:
        with pytest.raises(RecordingError, match="nothing can be recorded there") as caught:
            store.put(form("二"), GOOD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in errors.mendable_message(caught.value) and path.stat().st_size == whole + 20
    assert store.get(rec.key_of(form("二"))) is None
    store.put(form("三"), {**GOOD, "text": "三"})
    assert store.get(rec.key_of(form("三")))["text"] == "三"
    assert [line["form"]["messages"][0]["text"] for line in lines(tmp_path)] == ["一", "三"]


def test_a_file_that_another_process_does_not_let_go_ends_in_one_line(tmp_path: Path, monkeypatch) -> None:
    path = write(tmp_path, (form("一"), GOOD))
    monkeypatch.setattr(rec, "LOCK_WAIT_S", 0.01)
    with storage.lock(path), pytest.raises(RecordingError, match="nothing can be recorded there"):
        opened(tmp_path).put(form("二"), GOOD)
    opened(tmp_path).put(form("二"), GOOD)
    assert len(lines(tmp_path)) == 2


WRITER = """
import os, signal, sys
from pathlib import Path
from memecmd_utils.core.recordings.store import Recordings
store = Recordings("s", [], Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[3])):
    store.put({"task": "x", "who": sys.argv[2], "n": n, "long": "长" * 5000}, {"text": "长" * 5000})
    print(n, flush=True)
"""


def writer(folder: Path, who: str, count: int) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(folder), who, str(count)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "ready\n"
    return started


def test_processes_that_write_at_once_lose_nothing_also_when_they_are_killed(tmp_path: Path) -> None:
    both, killed = [writer(tmp_path, who, 200) for who in "ab"], writer(tmp_path, "c", 10**6)
    for process in (*both, killed):
        process.stdin.write("go\n")
        process.stdin.flush()
    put = [int(killed.stdout.readline()) for _ in range(50)]
    killed.kill()
    put += map(int, killed.communicate()[0].split("\n")[:-1])
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    opened(tmp_path).put(form(), GOOD)  # cuts off what the killed one left
    found = [(f.get("who"), f.get("n")) for _, f, _ in rec.read_file(tmp_path / "s" / "w0.jsonl")]
    assert len(found) == len(set(found)) == len(opened(tmp_path))
    assert {(who, n) for who in "ab" for n in range(200)} | {("c", n) for n in put} <= set(found)


def test_what_others_record_is_taken_in_and_the_first_still_wins(tmp_path: Path) -> None:
    store, other, third = (opened(tmp_path) for _ in range(3))
    store.refresh()
    assert len(store) == 0, "no folder yet"
    other.put(form(LONG), {**GOOD, "text": "甲"})
    store.refresh()
    assert store.get(rec.key_of(form(LONG)))["text"] == "甲"
    store.put(form(LONG), {**GOOD, "text": "乙"})
    third.put(form("三"), GOOD)
    other.put(form("二"), GOOD)
    store.refresh()
    assert len(store) == 3 and store.get(rec.key_of(form(LONG)))["text"] == "甲"
    assert len(other) == 3, "what stood before the own line was read on the way"
    with (tmp_path / "s" / "w0.jsonl").open("ab") as handle:  # half a line that is being written
        handle.write(b'{"v": 2, "key": "')
    other.refresh()
    assert len(other) == 3


def test_the_store_knows_what_was_used(tmp_path: Path) -> None:
    write(tmp_path, (form("一"), REFUSED), (form("二"), GOOD))
    store = opened(tmp_path)
    one, two, three = (rec.key_of(form(text)) for text in "一二三")
    assert store.used_keys() == set()
    store.mark_used(two)
    store.mark_used(three)
    assert store.used_keys() == {two}, "a key that is not recorded is passed over"
    store.mark_used(one)
    for text in "一三":
        store.put(form(text), GOOD)
    assert store.used_keys() == {one, two, three} and store.get(one) == GOOD
    store.close()


def test_first_accepted_answer_wins_in_file_order(tmp_path: Path) -> None:
    write(tmp_path, (form(), {**GOOD, "text": "第二"}), writer="w1")
    write(tmp_path, (form(), {**GOOD, "text": "第一"}))
    assert opened(tmp_path).get(rec.key_of(form()))["text"] == "第一"
    store = opened(tmp_path)
    store.put(form(), {**GOOD, "text": "后来"})
    store.close()
    assert store.get(rec.key_of(form()))["text"] == "第一"


def live(folder: Path, text: str, **changes) -> dict:
    """Record an answer in mode `live`; what stands there now."""
    store = opened(folder)
    store.put(form(), {**GOOD, "text": text, **changes}, live=True)
    store.close()
    return opened(folder).get(rec.key_of(form()))


def test_the_newest_answer_of_mode_live_wins_in_whichever_file_it_stands(tmp_path: Path) -> None:
    write(tmp_path, (form(), {**GOOD, "text": "第一"}))
    assert live(tmp_path, "现问")["text"] == "现问", "also in the store that wrote it"
    assert live(tmp_path, "再问")["text"] == "再问"
    path = tmp_path / "s" / "w0.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for order in ((third, second, first), (second, third, first), (first, third, second)):
        for number, line in enumerate(order):
            (tmp_path / "s" / f"w{number}.jsonl").write_bytes(line)
        assert opened(tmp_path).get(rec.key_of(form()))["text"] == "再问"
    write(tmp_path / "tracked", (form(), {**GOOD, "text": "公用"}))
    both = Recordings("s", [tmp_path / "tracked", tmp_path])
    assert both.get(rec.key_of(form()))["text"] == "再问", "also over the tracked ones"


def test_an_answer_still_beats_a_refusal_of_mode_live_and_auto_takes_nothing_s_place(tmp_path: Path) -> None:
    assert live(tmp_path, "", outcome="refusal")["outcome"] == "refusal"
    write(tmp_path, (form(), GOOD))
    assert live(tmp_path, "", outcome="refusal") == GOOD
    newest = live(tmp_path, "现问")
    write(tmp_path, (form(), {**GOOD, "text": "后来"}))
    assert opened(tmp_path).get(rec.key_of(form())) == newest


def test_a_clock_that_goes_back_makes_no_answer_older(tmp_path: Path, monkeypatch) -> None:
    for now, text in ((2e9, "一"), (1e9, "二"), (1e9, "三"), (2e9, "四")):
        monkeypatch.setattr(rec.time, "time", lambda now=now: now)
        assert live(tmp_path, text)["text"] == text


@pytest.mark.parametrize("mark", ["yesterday", None, True, -1.0, [], float("nan")])
def test_a_time_that_is_none_counts_as_none(tmp_path: Path, mark) -> None:
    assert rec.rank({**GOOD, "live": mark}) == (True, 0.0) == rec.rank(GOOD)
    write(tmp_path, (form(), {**GOOD, "text": "先", "live": mark}), (form(), {**GOOD, "live": 5}))
    assert opened(tmp_path).get(rec.key_of(form()))["text"] == "好"


def test_a_claim_holds_between_processes_until_it_is_released_or_the_process_dies(tmp_path: Path) -> None:
    keys = [rec.key_of(form(text)) for text in "一二三"]
    code = (
        "import sys; from pathlib import Path; from memecmd_utils.core.recordings.store import Recordings\n"
        "s = Recordings('s', [], Path(sys.argv[1]))\n"
        "print([s.claim(key) for key in sys.argv[2:]], flush=True)\n"
        "sys.stdin.readline(); s.release(sys.argv[2]); print('released', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", code, str(tmp_path), *keys[:2]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        try:
            assert other.stdout.readline() == "[True, True]\n"
            store = opened(tmp_path)
            assert [store.claim(key) for key in keys] == [False, False, True]
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "released\n"
            assert [store.claim(key) for key in keys] == [True, False, True]
        finally:
            other.kill()
    assert store.claim(keys[1]), "a claim does not outlive its process"
    store.close()
    assert Recordings("s", [tmp_path]).claim(keys[0]), "who only reads claims nothing"
    assert len(opened(tmp_path)) == 0


def test_reading_only_refuses_to_write(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="reading only"):
        Recordings("s", [tmp_path]).put(form(), GOOD)
    assert not (tmp_path / "s").exists()


def test_explain_miss_names_the_fields_of_the_nearest(tmp_path: Path) -> None:
    near = form(LONG, sampling={"temperature": 0.9, "top_p": 1})
    far = form("全不一样", seed=9, sampling={}, sample=4)
    write(tmp_path, (far, GOOD), (near, GOOD))
    store = opened(tmp_path)
    asked = form(LONG + "！", sampling={"temperature": 0.5, "top_p": 1})
    told = store.explain_miss(asked)
    first, second = re.search(
        r"messages\[0\].text \(asked '(.+)', recorded '(.+)'\), sampling", told
    ).groups()
    assert told.endswith(", sampling.temperature")
    assert first == f"…{LONG[-9:]}！" and second == f"…{LONG[-9:]}", "where they part, not the whole texts"
    assert "summary" in store.explain_miss(form(task="summary"))
    assert store.explain_miss(form(LONG, messages=[], sampling=near["sampling"])).endswith(": messages")


def test_explain_miss_takes_the_recording_whose_text_parts_last(tmp_path: Path) -> None:
    near, asked = "同一段对话，" * 20 + "近处", "同一段对话，" * 20 + "问处"
    write(tmp_path, (form("远" * 200), GOOD), (form(near), GOOD), (form("同一段" + "远" * 90), GOOD))
    told = opened(tmp_path).explain_miss(form(asked))
    assert "问处', recorded " in told and told.endswith("近处')")


@pytest.mark.parametrize("where", [0, 5, 60, 119])
def test_excerpts_show_the_difference(where: int) -> None:
    a = "".join(chr(0x4E00 + n) for n in range(120))
    b = a[:where] + "X" + a[where + 1 :]
    first, second = rec.excerpts(a, b)
    assert "X" in second and a[where] in first and len(first) <= 40 and len(second) <= 40
    longer, shorter = rec.excerpts(a, a[:where])
    assert a[where] in longer and shorter.endswith(a[:where][-5:])


def request(**changes) -> Request:
    values = {
        "task": "utterance",
        "subject": "d/1",
        "messages": [
            Message(role="system", text="系统"),
            Message(role="user", text="你好", images=[Image(image_id="m1", load=lambda: "data:,x")]),
        ],
        "sampling": Sampling(temperature=0.9, max_tokens=60, extra={"min_p": 0.05, "dry": 1}),
        "seed": 3,
        "sample": 0,
        "reply_schema": Mood,
        "schema_version": 1,
    }
    return Request(**{**values, **changes})


def key(model: ModelId = MODEL, **changes) -> str:
    return rec.key_of(request(**changes).normal_form(model))


def _message(**changes) -> list[Message]:
    first, last = request().messages
    return [first, last.model_copy(update=changes)]


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "summary"},
        {"messages": _message(text="你好！")},
        {"messages": _message(role="assistant")},
        {"messages": _message(images=[Image(image_id="m2", load=lambda: "data:,x")])},
        {"messages": _message(images=[])},
        {"messages": request().messages[::-1]},
        {"sampling": Sampling(temperature=0.8, max_tokens=60, extra={"min_p": 0.05, "dry": 1})},
        {"sampling": Sampling(temperature=0.9, max_tokens=60, extra={"min_p": 0.1, "dry": 1})},
        {"sampling": Sampling(temperature=0.9, max_tokens=60)},
        {"seed": 4},
        {"seed": None},
        {"sample": 1},
        {"reply_schema": Feeling},
        {"reply_schema": None},
        {"schema_version": 2},
        {"model": ModelId(name="n", label="v1", sha256="a" * 64)},
        {"model": ModelId(name="m", label="v2", sha256="a" * 64)},
        {"model": ModelId(name="m", label="v1", sha256="b" * 64)},
        {"model": ModelId(name="m", label="v1")},
    ],
)
def test_the_key_changes_with_each_part_of_the_normal_form(changes: dict) -> None:
    assert key(**changes) != key()


def test_the_key_does_not_change_with_what_does_not_change_the_answer() -> None:
    same = {
        "subject": "another",
        "messages": _message(images=[Image(image_id="m1", load=lambda: "data:,other bytes")]),
        "sampling": Sampling(temperature=0.9, max_tokens=60, extra={"dry": 1, "min_p": 0.05}),
    }
    assert key(**same) == key()
    text = rec.canonical(request().normal_form(MODEL))
    assert "d/1" not in text and "data:" not in text
    assert not any(word in text for word in ("url", "http", "key_env", "timeout"))


def test_the_key_of_today_is_the_key_of_the_recordings() -> None:
    """A change here makes every recording of every user unusable: raise KEY_VERSION only if it must be."""
    assert key() == "34e2e853f9ae673909ede7039c782569659f1e13365b3336aef9fff52dd2b938"
    plain = Request(task="rating", subject="x", messages=[Message(role="user", text="是不是")])
    assert (
        rec.key_of(plain.normal_form(ModelId(name="m")))
        == "fc6b70b214adac4cfc3b1d16252f33e849e300e922914a8c5a2afa76f2cd1441"
    )
    assert set(plain.normal_form(MODEL)) == {
        "key_version", "task", "schema", "messages", "sampling", "seed", "sample", "model",
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.randoms())
def test_any_form_keeps_its_key_in_any_order_of_fields(value: dict, random) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert rec.key_of(dict(items)) == rec.key_of(value)
    assert list(rec.differences(value, dict(items))) == []


def test_an_open_store_holds_an_index_and_not_the_answers(tmp_path: Path) -> None:
    count, allowed_mb = 20_000, 8
    path = tmp_path / "s" / "w0.jsonl"
    reply = {**GOOD, "text": "答" * 500}
    rec.write_file(path, ((form("问" * 200, seed=n), reply) for n in range(count)))
    assert path.stat().st_size > 30e6
    tracemalloc.start()
    store = opened(tmp_path)
    grown = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(store) == count and max(grown) < allowed_mb * 1e6


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)


@settings(deadline=None, max_examples=50)  # it writes files
@given(st.lists(st.tuples(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3), ANY_TEXT), min_size=1, max_size=5))
def test_any_unicode_goes_in_and_comes_back_also_from_a_tracked_file(tmp_path_factory, pairs: list) -> None:
    folder = tmp_path_factory.mktemp("any")
    write(folder, *((value, {**GOOD, "text": text}) for value, text in pairs))
    firsts = {rec.key_of(value): (value, text) for value, text in reversed(pairs)}
    rec.write_file(folder / "tracked" / "s" / "example.jsonl", [(v, {"text": t}) for v, t in firsts.values()])
    for store in (opened(folder), Recordings("s", [folder / "tracked"])):
        assert {key: store.get(key)["text"] for key in firsts} == {k: text for k, (_, text) in firsts.items()}
        read = {key: value for path in store.files() for key, value, _ in rec.read_file(path)}
        assert len(store) == len(firsts) and read == {key: value for key, (value, _) in firsts.items()}


def test_text_cache_writes_and_notes_its_keys(tmp_path: Path) -> None:
    cache = TextCache(opened(tmp_path), "ocr")
    assert cache.get("k") is None and not cache.used_keys
    cache.put("k", "文字")
    assert cache.get("k") == "文字" and len(cache.used_keys) == 1, "a fresh text is one that the run used"
    again = TextCache(opened(tmp_path), "ocr")
    assert again.get("k") == "文字" and again.used_keys == cache.used_keys
    assert again.get("other") is None
