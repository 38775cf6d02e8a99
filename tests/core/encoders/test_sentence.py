"""What needs neither torch nor weights, on made-up models; `test_paper_models` has the real packages."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from memecmd_utils import recordings as vectors
from memecmd_utils.core.encoders.text import SentenceTransformerEmbedder

COMMIT = "c0ffee" * 6 + "0123"
NAME = f"org/name@{COMMIT[:12]}"


class MadeUp:
    """A sentence-transformers model with an encoder for each side."""

    device = SimpleNamespace(type="cpu")
    prompts: ClassVar = {"query": "问："}
    max_seq_length = 64
    asked: ClassVar = []

    def __init__(self, name: str, **options: object) -> None:
        self.asked.append((name, options))

    def eval(self) -> "MadeUp":
        return self

    def __getitem__(self, place: int) -> object:
        return SimpleNamespace()

    def get_sentence_embedding_dimension(self) -> int:
        return 2

    def encode_query(self, texts: list[str], prompt: str | None = None, **options) -> list:
        return [[10 * len((self.prompts["query"] if prompt is None else prompt) + t), 1.0] for t in texts]

    def encode_document(self, texts: list[str], **options) -> list:
        return [[100 * len(t), 1.0] for t in texts]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Put a made-up torch and sentence-transformers in place of the real ones."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def install(model: type, gpu: bool = False) -> None:
        torch = SimpleNamespace(
            cuda=SimpleNamespace(is_available=lambda: gpu), float16="half", float32="single"
        )
        monkeypatch.setattr(model, "asked", [])
        monkeypatch.setitem(sys.modules, "torch", torch)
        package = SimpleNamespace(SentenceTransformer=model)
        monkeypatch.setitem(sys.modules, "sentence_transformers", package)

    return install


def downloaded(cache: Path, commit: str = COMMIT) -> None:
    refs = cache / "models--org--name" / "refs"
    refs.mkdir(parents=True, exist_ok=True)
    (refs / "main").write_text(commit, encoding="utf-8")


def recorded(folder: Path, name: str) -> None:
    vectors.RecordedVectors(name, [], folder).rows(["k"], ["k"], lambda part: np.ones((len(part), 2)))


def test_an_instruction_takes_the_place_of_the_models_own_prompt(installed) -> None:
    installed(MadeUp)
    plain = SentenceTransformerEmbedder(f"org/name@{COMMIT}")
    assert plain.name == f"{NAME}-float32" and MadeUp.asked == [], "nothing is loaded for a name"
    instructed = SentenceTransformerEmbedder(f"org/name@{COMMIT}", query_instruction="Q: x")
    for embedder, query in ((plain, 30), (instructed, 50)):
        assert embedder.encode(["一"], "query").tolist() == [[query, 1]]
        assert embedder.encode(["一"], "document").tolist() == [[100, 1]], "queries only"
    ((_, first), *_) = MadeUp.asked
    assert first["revision"] == COMMIT and first["trust_remote_code"] is False


def test_precision_by_the_device_and_by_the_key(installed, tmp_path: Path) -> None:
    downloaded(tmp_path / "hub")
    for gpu, asked, ends in ((False, "auto", "32"), (True, "auto", "16"), (True, "float32", "32")):
        installed(MadeUp, gpu)
        embedder = SentenceTransformerEmbedder("org/name", dtype=asked)
        embedder.encode(["一"], "query")
        assert embedder.name == f"{NAME}-float{ends}"
        ((_, options),) = MadeUp.asked
        assert list(options["model_kwargs"].values()) == ["half" if ends == "16" else "single"]


def test_without_weights_recorded_vectors_tell_the_revision(installed, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "torch", None)
    recorded(tmp_path, f"{NAME}-float16")
    recorded(tmp_path, "org/name2@1-float16")
    assert SentenceTransformerEmbedder("org/name", read_dirs=[tmp_path]).name == f"{NAME}-float16"
    recorded(tmp_path, "org/name@another-float16")
    with pytest.raises(ValueError, match=r"several versions of org/name .*@another-float16.*NAME@COMMIT"):
        _ = SentenceTransformerEmbedder("org/name", read_dirs=[tmp_path]).name
    pinned = SentenceTransformerEmbedder(f"org/name@{COMMIT}", read_dirs=[tmp_path])
    assert pinned.name == f"{NAME}-float16"


def test_recorded_precision_is_gone_on_in(installed, tmp_path: Path) -> None:
    downloaded(tmp_path / "hub")
    recorded(tmp_path, f"{NAME}-float16")
    installed(MadeUp, gpu=False)
    embedder = SentenceTransformerEmbedder("org/name", read_dirs=[tmp_path])
    embedder.encode(["一"], "query")
    assert MadeUp.asked[0][1]["model_kwargs"].popitem()[1] == "half"


def test_another_revision_than_the_recorded_one_is_not_mixed_in(installed, tmp_path: Path) -> None:
    recorded(tmp_path, f"{NAME}-float32")
    installed(MadeUp)
    embedder = SentenceTransformerEmbedder("org/name", read_dirs=[tmp_path])
    assert embedder.name == f"{NAME}-float32"
    downloaded(tmp_path / "hub", "d" * 40)  # as loading does it
    with pytest.raises(RuntimeError, match=rf"{NAME}-float32 are recorded, but org/name@d{{12}}-float32"):
        embedder.encode(["一"], "query")


def test_the_first_load_of_a_hub_model_gives_the_name(installed, tmp_path: Path) -> None:
    class Downloads(MadeUp):
        model_card_data = SimpleNamespace(base_model_revision=COMMIT)

    installed(Downloads)
    assert SentenceTransformerEmbedder("org/name").name == f"{NAME}-float32"
    installed(MadeUp)
    with pytest.raises(RuntimeError, match="does not tell its revision: give NAME@COMMIT"):
        _ = SentenceTransformerEmbedder("org/name").name


def test_batches_follow_the_free_memory(installed, monkeypatch, tmp_path: Path) -> None:
    installed(MadeUp)
    sizes = []
    monkeypatch.setattr(
        MadeUp,
        "encode_document",
        lambda self, texts, batch_size, **more: sizes.append(batch_size) or [[1.0, 2.0]] * len(texts),
    )
    texts = ["长" * 98, *["短" * 6] * 99]
    # Half of 10**6 bytes at 4 * (12 * 2 + 4 * 8 + 2 * 64) a token are 679 tokens: 10 texts of 64.
    for free, first, later in ((10**12, 32, 32), (10**6, 10, 32), (1000, 1, 1)):
        sizes.clear()
        embedder = SentenceTransformerEmbedder(f"org/name@{COMMIT}")
        monkeypatch.setattr(embedder, "_free_bytes", lambda free=free: free)
        assert embedder.encode(texts, "document").shape == (100, 2)
        assert (sizes[0], sizes[1]) == (first, later) and sum(sizes) == 100


def test_faults_say_what_to_do(installed, monkeypatch, tmp_path: Path) -> None:
    class Fails(MadeUp):
        problem = ValueError("please pass trust_remote_code=True")

        def __init__(self, name: str, **options: object) -> None:
            raise self.problem

    installed(Fails)
    model = f"org/name@{COMMIT}"
    with pytest.raises(RuntimeError, match="If you trust it, set trust_remote_code=true"):
        SentenceTransformerEmbedder(model).encode(["一"], "query")
    monkeypatch.setattr(Fails, "problem", OSError("no\nconnection"))
    with pytest.raises(RuntimeError, match=r"'org/name' cannot be loaded \(OSError: no connection\)"):
        SentenceTransformerEmbedder(model).encode(["一"], "query")
    with pytest.raises(ValueError, match="40 hex digits"):
        SentenceTransformerEmbedder("org/name@main")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(RuntimeError, match=r"'org/name' cannot be loaded .*pip install -e '\.\[paper\]'"):
        SentenceTransformerEmbedder(model).encode(["一"], "query")


def test_other_errors_of_a_model_are_not_taken_for_memory(installed, monkeypatch, tmp_path: Path) -> None:
    installed(MadeUp)

    def breaks(self: object, texts: list[str], **options: object) -> None:
        raise RuntimeError("index out of range in self")

    monkeypatch.setattr(MadeUp, "encode_document", breaks)
    with pytest.raises(RuntimeError, match=r"^index out of range"):
        SentenceTransformerEmbedder(f"org/name@{COMMIT}").encode(["一"], "document")
