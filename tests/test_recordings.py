import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from memecmd_utils import recordings as rec
from memecmd_utils.llm import Image, Message, ModelId, Request, Sampling
from memecmd_utils.recordings import RecordingError, Recordings, TextCache

LONG = "这是一段很长的话，" * 20
GOOD = {"text": "好", "outcome": "accepted", "attempts": 1}
REFUSED = {"text": "", "outcome": "refusal", "attempts": 5, "reason": "the model refused"}
MODEL = ModelId(name="m", label="v1", sha256="a" * 64)


class Mood(BaseModel):
    mood: str


class Feeling(BaseModel):
    mood: str


def form(text: str = "你好", **changes) -> dict:
    return {"key_version": 1, "task": "utterance", "messages": [{"text": text}], "seed": 1, **changes}


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


def test_what_is_put_is_there_at_once_and_in_the_next_run(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.get(rec.key_of(form())) is None and len(store) == 0
    store.put(form(), GOOD)
    assert store.get(rec.key_of(form())) == GOOD
    # Not closed, as after a kill.
    assert opened(tmp_path).get(rec.key_of(form())) == GOOD
    store.close()


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


def test_a_file_that_is_one_torn_line_and_an_empty_file_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "w0.jsonl").write_bytes(b'{"v": 1, "ke')
    store = opened(tmp_path)
    store.put(form(), GOOD)
    store.close()
    assert len(lines(tmp_path)) == 1
    (tmp_path / "s" / "w0.jsonl").write_bytes(b"")
    assert len(opened(tmp_path)) == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"garbled",
        b"",
        b"[1]",
        b'{"v": 99, "key": "k", "form": {}, "value": {}}',
        b'{"v": 1, "key": "k"}',
        b'{"v": 1, "text": "abc"}',
        b"\xff\xfe{}",
    ],
)
def test_a_garbled_line_in_the_middle_names_file_and_line(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path, (form("一"), GOOD), (form("二"), GOOD))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, bad, second, b""]))
    with pytest.raises(RecordingError, match=r"w0\.jsonl line 2 is damaged"):
        opened(tmp_path)


def test_two_writers_get_different_files_and_a_freed_one_is_used_again(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    one.put(form("一"), GOOD)
    two.put(form("二"), GOOD)
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == ["w0.jsonl", "w1.jsonl"]
    one.close()
    three = opened(tmp_path)
    three.put(form("三"), GOOD)
    assert [line["form"]["messages"][0]["text"] for line in lines(tmp_path)] == ["一", "三"]
    two.close()
    three.close()


def test_another_process_holds_its_file_until_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from memecmd_utils.recordings import Recordings\n"
        "s = Recordings('s', [], Path(sys.argv[1])); s.put({'task': 'x'}, {'text': 'other'})\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline().strip() == "ready"
        mine = opened(tmp_path)
        mine.put(form(), GOOD)
        mine.close()
        assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["w0.jsonl", "w1.jsonl"]
    finally:
        other.kill()
        other.communicate()
    assert len(opened(tmp_path)) == 2, "what the killed process wrote is whole"


def test_first_accepted_answer_wins_in_file_order(tmp_path: Path) -> None:
    write(tmp_path, (form(), {**GOOD, "text": "第二"}), writer="w1")
    write(tmp_path, (form(), {**GOOD, "text": "第一"}))
    assert opened(tmp_path).get(rec.key_of(form()))["text"] == "第一"
    store = opened(tmp_path)
    store.put(form(), {**GOOD, "text": "后来"})
    store.close()
    assert store.get(rec.key_of(form()))["text"] == "第一"


@pytest.mark.parametrize("outcome", ["refusal", "filtered", "length", "unusable"])
def test_an_accepted_answer_beats_a_recorded_refusal_of_an_earlier_file(tmp_path: Path, outcome: str) -> None:
    write(tmp_path, (form(), GOOD), writer="w1")
    write(tmp_path, (form(), {**REFUSED, "outcome": outcome}))
    assert opened(tmp_path).get(rec.key_of(form())) == GOOD
    assert not rec.is_answer({"outcome": outcome}) and rec.is_answer({"outcome": "violations"})


def test_long_texts_are_written_once_and_read_back(tmp_path: Path) -> None:
    edge, short = "长" * rec.INTERN_FROM, "短" * (rec.INTERN_FROM - 1)
    first = form(LONG, extra=[edge, short])
    write(tmp_path, (first, GOOD), (form(LONG, seed=2), GOOD))
    path = write(tmp_path, (form(LONG, seed=3), GOOD))
    raw = path.read_text(encoding="utf-8")
    assert raw.count(LONG) == 1 and raw.count(f'"{edge}"') == 1 and raw.count(short) == 1
    read = list(rec.read_file(path))
    assert [f["seed"] for _, f, _ in read] == [1, 2, 3]
    assert read[0][1] == first and all(rec.key_of(f) == key for key, f, _ in read)


def test_a_reference_to_a_text_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, (form(LONG), GOOD))
    path.write_text(path.read_text(encoding="utf-8").split("\n", 1)[1], encoding="utf-8")
    with pytest.raises(RecordingError, match=r"w0\.jsonl line 1 refers to a text"):
        list(rec.read_file(path))


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
    assert told.endswith("differs in: messages[0].text, sampling.temperature")
    assert "summary" in store.explain_miss(form(task="summary"))
    assert store.explain_miss(form(LONG, messages=[], sampling=near["sampling"])).endswith(": messages")


def test_promote_sorts_drops_doubles_and_is_stable(tmp_path: Path) -> None:
    forms = [form(LONG, seed=n) for n in range(6)]
    a = write(tmp_path / "a", *((f, GOOD) for f in forms[:4]), (forms[5], GOOD))
    b = write(tmp_path / "b", (forms[0], {**GOOD, "text": "后"}), (forms[4], REFUSED), (forms[3], GOOD))
    c = write(tmp_path / "c", (forms[4], GOOD))
    wanted = {rec.key_of(f) for f in forms[:5]}
    target = tmp_path / "tracked" / "s" / "example.jsonl"
    assert rec.promote([a, b, c], target, wanted) == 5
    once = target.read_bytes()
    read = list(rec.read_file(target))
    keys = [key for key, _, _ in read]
    assert keys == sorted(wanted) and once.decode().count(LONG) == 1
    assert {key: value for key, _, value in read}[rec.key_of(forms[0])] == GOOD
    assert {key: value for key, _, value in read}[rec.key_of(forms[4])] == GOOD, "the refusal lost"
    assert rec.promote([target, c, b, a], target, wanted) == 5 and target.read_bytes() == once
    assert len(Recordings("s", [tmp_path / "tracked"])) == 5


# The key


def request(**changes) -> Request:
    values = {
        "task": "utterance",
        "subject": "d/1",
        "messages": [
            Message(role="system", text="系统"),
            Message(role="user", text="你好", images=[Image(image_id="m1", data_url="data:,x")]),
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
        {"messages": _message(images=[Image(image_id="m2", data_url="data:,x")])},
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
        "messages": _message(images=[Image(image_id="m1", data_url="data:,other bytes")]),
        "sampling": Sampling(temperature=0.9, max_tokens=60, extra={"dry": 1, "min_p": 0.05}),
    }
    assert key(**same) == key()
    text = rec.canonical(request().normal_form(MODEL))
    assert "d/1" not in text and "data:" not in text
    assert not any(word in text for word in ("url", "http", "key_env", "timeout"))


def test_the_key_of_today_is_the_key_of_the_recordings() -> None:
    """A change here makes every recording of every user unusable: raise KEY_VERSION only if it must be."""
    assert key() == "de1164dcbf73a6cda55f1a617d295ae838b65d88378ad380a79babaa81c48eef"
    plain = Request(task="rating", subject="x", messages=[Message(role="user", text="是不是")])
    assert (
        rec.key_of(plain.normal_form(ModelId(name="m")))
        == "db5211617bbce7e997785a4d601576cf9dbedad3809770e09a3fb7ad3055d8c7"
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
    assert list(rec.differing_fields(value, dict(items))) == []


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=150), min_size=1))
def test_any_text_comes_back_from_the_file_as_it_was(tmp_path_factory, value: dict) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = write(folder, (value, GOOD))
    assert [read for _, read, _ in rec.read_file(path)] == [value]


def test_text_cache_writes_notes_its_keys_and_keeps_memory_only_where_it_must_not_write(
    tmp_path: Path,
) -> None:
    cache = TextCache(opened(tmp_path), "ocr", write=True)
    assert cache.get("k") is None and not cache.used_keys
    cache.put("k", "文字")
    assert cache.get("k") == "文字" and len(cache.used_keys) == 1, "a fresh text is one that the run used"
    again = TextCache(opened(tmp_path), "ocr", write=True)
    assert again.get("k") == "文字" and again.used_keys == cache.used_keys
    assert again.get("other") is None

    silent = TextCache(Recordings("s", [tmp_path]), "ocr", write=False)
    silent.put("new", "")
    assert silent.get("new") == "" and silent.used_keys == set()
    assert TextCache(opened(tmp_path), "ocr", write=True).get("new") is None
