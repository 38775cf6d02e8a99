"""Any OpenAI-compatible `/v1/embeddings` endpoint as an embedder."""

import base64
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from memecmd_utils import llm
from memecmd_utils.budget import Budget
from memecmd_utils.delivery import Delivery
from memecmd_utils.key_guard import NO_KEY, address, api_key
from memecmd_utils.llm_types import EndpointError, Message, Reply, Request, Sampling
from memecmd_utils.openai_backend import NEUTRAL, OpenAIBackend
from memecmd_utils.settings import Endpoint
from memecmd_utils.throttle import Throttle
from memecmd_utils.usage import Usage

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
        return llm.run(self._encode([before + text for text in texts]))

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
