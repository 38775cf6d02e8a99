import os

import numpy as np
import pytest

from memecmd_utils.core.machine import STATUS_VARIABLE
from memecmd_utils.core.recordings import vectors
from memecmd_utils.core.recordings.store import RecordingError, RecordingMiss
from memecmd_utils.core.recordings.vectors import RecordedVectors


class Encoder:
    """Vectors of a text's length; keeps the parts that it was asked for."""

    def __init__(self) -> None:
        self.parts: list[list[str]] = []

    def __call__(self, part: list[str]) -> np.ndarray:
        self.parts.append(list(part))
        return np.array([[len(text), 1.0] for text in part])


def rows(folder, texts, encoder, mode="auto", **more) -> np.ndarray:
    recorded = RecordedVectors("org/one@1", [folder], folder if mode != "recorded" else None, mode)
    return recorded.rows(texts, texts, encoder, **more)


def test_the_longest_come_first_over_the_whole_call_and_rows_keep_their_order(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(vectors, "BATCH", 3)
    texts = ["aa", "a", "aaaaa", "bbbb", "b", "aaa", "bb"]
    encoder = Encoder()
    got = rows(tmp_path, texts, encoder, size=len)
    assert encoder.parts == [["aaaaa", "bbbb", "aaa"], ["aa", "bb", "a"], ["b"]]
    assert (got[:, 0] / got[:, 1]).round(2).tolist() == [2, 1, 5, 4, 1, 3, 2]
    assert len(list(tmp_path.rglob("*.npz"))) == 3 and (tmp_path / "embedding" / "org__one@1").is_dir()
    again = Encoder()
    assert np.array_equal(rows(tmp_path, texts, again, "recorded"), got) and again.parts == []


def test_without_a_size_the_order_of_asking_is_kept(tmp_path) -> None:
    encoder = Encoder()
    rows(tmp_path, ["a", "bbb", "cc", "a"], encoder)
    assert encoder.parts == [["a", "bbb", "cc"]]


def test_rows_do_not_depend_on_how_many_are_taken_at_once(tmp_path, monkeypatch) -> None:
    texts = ["a" * n for n in range(1, 12)]
    whole = rows(tmp_path, texts, Encoder())
    monkeypatch.setattr(vectors, "ROWS_AT_ONCE", 4)
    assert np.array_equal(rows(tmp_path, texts, Encoder(), "recorded"), whole)
    assert rows(tmp_path, [], Encoder(), "recorded").shape == (0, 2)
    assert rows(tmp_path / "new", [], Encoder()).shape == (0, 0)


def test_a_hard_kill_leaves_whole_shards(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(vectors, "BATCH", 2)
    if (child := os.fork()) == 0:  # as by kill -9: nothing is tidied up
        encoder = Encoder()
        rows(tmp_path, list("abcdef"), lambda p: encoder(p) if len(encoder.parts) < 2 else os._exit(9))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    encoder = Encoder()
    rows(tmp_path, list("abcdef"), encoder)
    assert encoder.parts == [["e", "f"]]


def test_a_miss_says_of_what_and_how_to_go_on(tmp_path) -> None:
    rows(tmp_path, ["a"], Encoder())
    with pytest.raises(RecordingMiss, match=r"1 of 2 pictures .*org/one@1 .*'b'.*mode=auto"):
        rows(tmp_path, ["a", "b"], Encoder(), "recorded", kind="pictures")


def test_the_status_line_of_a_headless_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(vectors, "BATCH", 2)
    monkeypatch.setenv(STATUS_VARIABLE, str(tmp_path / "status"))
    rows(tmp_path, ["a", "b"], Encoder())
    assert not (tmp_path / "status").exists(), "nothing to wait for"
    rows(tmp_path, ["c", "d", "e"], Encoder())
    assert (tmp_path / "status").read_text(encoding="utf-8") == "texts by org/one@1 3/3"


def test_names_that_have_vectors(tmp_path) -> None:
    for name in ("org/a@1-float16", "org/a@2-float32", "org/ab@1", "a@1"):
        RecordedVectors(name, [], tmp_path).rows(["k"], ["k"], Encoder())
    (tmp_path / "embedding" / "org__a@3").mkdir()  # no shard in it
    assert vectors.recorded_names([tmp_path, tmp_path / "none"], "org/a@") == [
        "org/a@1-float16",
        "org/a@2-float32",
    ]
    assert vectors.recorded_names([], "org/a@") == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_damage_is_an_error_that_names_the_file(tmp_path, damage: str) -> None:
    rows(tmp_path, ["a"], Encoder())
    (shard,) = tmp_path.rglob("*.npz")
    data = bytearray(shard.read_bytes())
    if damage == "flipped":
        data[data.index(b"\x93NUMPY") + 130] ^= 0xFF
    shard.write_bytes({"cut": data[:-20], "flipped": data, "empty": b"", "text": b"no zip"}[damage])
    with pytest.raises(RecordingError, match=shard.name):
        rows(tmp_path, ["a"], Encoder())
