"""Answers of models are kept under the key of what changes them: nothing recorded is lost by a kill, a full
disk or a second run, keys never change, vectors come back to the bit.
"""

import resource
from pathlib import Path

import numpy as np
import pytest
import recordings as care
from scripted import Mood

from memecmd_utils import files
from memecmd_utils.files import paths
from memecmd_utils.llm import recordings
from memecmd_utils.llm.recordings import RecordedVectors, RecordingError, Recordings, key_of, read_file
from memecmd_utils.llm.types import Backend, Image, Message, ModelId, Request, Sampling

GOOD = {"text": "好", "outcome": "accepted", "attempts": 1}
REFUSED = {"text": "", "outcome": "refusal", "attempts": 5, "reason": "the model refused"}
MODEL = ModelId(name="m", label="v1", sha256="a" * 64)


def form(text: str = "你好", **changes) -> dict:
    return {"key_version": 2, "task": "utterance", "messages": [{"text": text}], "seed": 1, **changes}


def opened(folder: Path) -> Recordings:
    return Recordings("s", [folder], folder)


def write(folder: Path, *pairs: tuple[dict, dict]) -> Path:
    store = opened(folder)
    for asked, value in pairs:
        store.put(asked, value)
    return folder / "s" / "w0.jsonl"


# --- replies ---------------------------------------------------------------------------------------


def test_every_tracked_reply_stands_under_the_key_of_its_form() -> None:
    files = list(paths.example.glob("recordings/*/*.jsonl.gz"))
    read = {key: form for path in files for key, form, _ in read_file(path)}
    assert len(read) > 14_000 and all(key_of(form) == key for key, form in read.items())


def test_what_a_kill_or_a_full_disk_tore_is_cut_off_and_the_run_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, (form("一"), GOOD), (form("二"), GOOD))
    path.write_bytes(path.read_bytes()[:-9])
    store, limits = opened(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    assert len(store._values) == 1, "the torn one counts as not recorded"
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.read_bytes().find(b"\n") + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.put(form("二"), GOOD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.get(key_of(form("二"))) is None
    store.put(form("三"), GOOD)
    assert [form["messages"][0]["text"] for _, form, _ in read_file(path)] == ["一", "三"]


@pytest.mark.parametrize("bad", [b"garbled", b'{"v": 1, "key": "%s"}' % (b"a" * 64)])
def test_what_is_damaged_names_file_and_line(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path, (form("一"), GOOD), (form("二"), GOOD))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, bad, second, b""]))
    with pytest.raises(RecordingError, match=r"w0\.jsonl line 2 is damaged"):
        opened(tmp_path)
    rows(tmp_path, ["a"], Encoder())
    (shard,) = tmp_path.rglob("*.npz")
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(RecordingError, match=shard.name):
        rows(tmp_path, ["a"], Encoder())


def test_the_later_answer_counts_and_a_refusal_takes_no_answers_place(tmp_path: Path) -> None:
    key, newer = key_of(form()), {**GOOD, "text": "后来"}
    care.write_file(tmp_path / "tracked" / "s" / "example.jsonl.gz", [(form(), GOOD)])
    mine = write(tmp_path / "mine", (form(), REFUSED))
    both = [tmp_path / "tracked", tmp_path / "mine"]
    assert Recordings("s", both[1:]).get(key) == REFUSED and Recordings("s", both).get(key) == GOOD
    store = Recordings("s", both, tmp_path / "mine")
    assert store.fresh_keys == set()
    store.put(form(), newer)
    assert store.fresh_keys == store.used_keys == {key}
    assert store.get(key) == Recordings("s", both).get(key) == newer and len(list(read_file(mine))) == 2


# --- keys --------------------------------------------------------------------------------------------


def request(**changes) -> Request:
    picture = Image(image_id="m1", load=lambda: "data:,x")
    messages = [Message(role="system", text="系统"), Message(role="user", text="你好", images=[picture])]
    sampling = Sampling(temperature=0.9, max_tokens=60, extra={"min_p": 0.05, "dry": 1})
    values = {"task": "utterance", "subject": "d/1", "messages": messages, "sampling": sampling, "seed": 3}
    return Request(**{**values, "reply_schema": Mood, **changes})


def key(model: ModelId = MODEL, **changes) -> str:
    backend = Backend()
    backend.model = model
    return key_of(backend.normal_form(request(**changes)))


def test_the_key_of_today_is_the_key_of_the_recordings_and_changes_with_each_part() -> None:
    """A change here makes every recording of every user unusable: raise KEY_VERSION only if it must be."""
    assert key() == "34e2e853f9ae673909ede7039c782569659f1e13365b3336aef9fff52dd2b938"
    plain = {"messages": [Message(role="user", text="是不是")], "sampling": Sampling(), "reply_schema": None}
    digest = "fc6b70b214adac4cfc3b1d16252f33e849e300e922914a8c5a2afa76f2cd1441"
    assert key(ModelId(name="m"), task="rating", seed=None, **plain) == digest
    system, user = request().messages
    other_bytes = user.model_copy(update={"images": [Image(image_id="m1", load=lambda: "data:,other")]})
    sampling = Sampling(temperature=0.9, max_tokens=60, extra={"dry": 1, "min_p": 0.05})
    assert key(subject="another", messages=[system, other_bytes], sampling=sampling) == key()
    other_text = user.model_copy(update={"text": "你好！"})
    other_picture = user.model_copy(update={"images": [Image(image_id="m2", load=lambda: "data:,x")]})
    changes = [
        {}, {"task": "summary"}, {"seed": None}, {"messages": [user, system]}, {"reply_schema": None},
        {"messages": [system, other_text]}, {"messages": [system, other_picture]},
        {"sampling": sampling.model_copy(update={"temperature": 0.8})},
        {"model": ModelId(name="m", label="v2", sha256="a" * 64)},
    ]  # fmt: skip
    assert len({key(**change) for change in changes}) == len(changes)


# --- vectors -----------------------------------------------------------------------------------------


class Encoder:
    """Vectors of a text's length; keeps the parts that it was asked for."""

    def __init__(self) -> None:
        self.parts: list[list[str]] = []

    def __call__(self, part: list[str]) -> np.ndarray:
        self.parts.append(list(part))
        return np.array([[len(text), 1.0] for text in part])


def rows(folder, texts, encoder, compute=True, **more) -> np.ndarray:
    stored = RecordedVectors("org/one@1", [folder], folder if compute else None, compute)
    return stored.rows(texts, texts, encoder, **more)


def test_the_longest_come_first_and_rows_keep_their_order(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(recordings, "BATCH", 3)
    texts = ["aa", "a", "aaaaa", "bbbb", "b", "aaa", "bb", "a"]
    encoder = Encoder()
    got = rows(tmp_path, texts, encoder, size=len)
    assert encoder.parts == [["aaaaa", "bbbb", "aaa"], ["aa", "bb", "a"], ["b"]]
    assert (got[:, 0] / got[:, 1]).round(2).tolist() == [2, 1, 5, 4, 1, 3, 2, 1]
    assert len(list((tmp_path / "embedding" / "org__one@1").glob("*.npz"))) == 3
    again = Encoder()
    assert np.array_equal(rows(tmp_path, texts, again, False), got) and again.parts == []
    assert rows(tmp_path, [], again, False).shape == (0, 2)


# --- care --------------------------------------------------------------------------------------------


def test_a_run_becomes_tracked_recordings_of_the_replies_that_it_used(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "example", tmp_path / "example")
    mine = tmp_path / "raw" / "recordings" / "local"
    forms = [{"task": "rating", "n": n} for n in range(4)]
    write(mine, *((asked, GOOD) for asked in forms))
    run, tracked = tmp_path / "processed" / "local-0a1b2c3d", tmp_path / "example" / "recordings"
    rows(mine, ["a", "aa"], Encoder())
    files.write_json(run / "usage" / "s.keys.json", sorted(map(key_of, forms[:3])))
    told = list(care.promote(run, mine))
    assert told == ["2 new vectors -> org__one@1", "3 of 3 replies -> s"]
    assert len(Recordings("s", [tracked])._values) == 3
    before = {path: path.read_bytes() for path in tracked.rglob("*.*") if path.is_file()}
    rows(mine, ["aaa"], Encoder())
    list(care.promote(run, mine))
    assert all(path.read_bytes() == data for path, data in before.items()), "what is tracked stays"
    shards = tracked / "embedding" / "org__one@1"
    assert [set(recordings.read_vectors(shards / f"example-{n}.npz")) for n in (1, 2)] == [
        {"a", "aa"},
        {"aaa"},
    ]
    files.write_json(run / "usage" / "other.keys.json", ["k"])
    with pytest.raises(RecordingError, match="none of the 1 replies of other"):
        list(care.promote(run, mine))
