"""Vectors of texts from any `/v1/embeddings` endpoint."""

import hashlib
import os
from collections.abc import Sequence
from operator import itemgetter
from typing import Literal

import numpy as np

from memecmd_utils import files
from memecmd_utils.llm import chat
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend, address, api_key
from memecmd_utils.llm.spending import Budget
from memecmd_utils.llm.types import EndpointError, Message, Reply, Request
from memecmd_utils.settings import Endpoint

Side = Literal["query", "document"]
"""Which of both a text is: some models put another word before each."""
TASK = "embedding"
"""Name of an endpoint's calls in what a run has spent."""
INPUTS = 32
"""Texts of one request: what servers take at least unless they are set up otherwise."""


class EndpointEmbedder:
    """Any `/v1/embeddings` endpoint, held against the caps of `budget`."""

    def __init__(
        self,
        endpoint: Endpoint,
        query_instruction: str | None = None,
        concurrency: int = 8,
        max_rpm: int | None = None,
    ) -> None:
        """`query_instruction` goes before queries only; `concurrency` requests are under way at a time."""
        added = files.dumps(endpoint.extra_body).encode()
        self.name = f"{endpoint.model}@{endpoint.model_label}"
        if endpoint.extra_body:
            self.name += f"-{hashlib.sha256(added).hexdigest()[:8]}"
        self.endpoint, self.query_instruction, self.budget = endpoint, query_instruction, Budget()
        self.concurrency, self.batch, self.max_rpm = concurrency, concurrency * INPUTS, max_rpm

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode, shape [n, dim], in requests of at most `INPUTS` texts; `batch` texts keep all of them busy.

        Raises `EndpointError`, which says what to set, and `BudgetReached`.
        """
        before = (self.query_instruction or "") if side == "query" else ""
        return chat.run(self._encode([before + text for text in texts]))

    async def _encode(self, texts: list[str]) -> np.ndarray:
        # A server with an address of its own may need no key.
        is_free = address(self.endpoint) is not None and not os.getenv(self.endpoint.key_env)
        key = NO_KEY if is_free else api_key(self.endpoint)
        backend = OpenAIBackend(self.endpoint, key=key, max_rpm=self.max_rpm)
        parts = (texts[start : start + INPUTS] for start in range(0, len(texts), INPUTS))
        asking = chat.Chat(backend, concurrency=self.concurrency)
        return np.concatenate(await asking.side_by_side(self._rows(backend, part) for part in parts))

    async def _rows(self, backend: OpenAIBackend, texts: list[str]) -> np.ndarray:
        """The vectors of one request; an answer that did not arrive whole is asked for again."""
        messages = [Message(role="user", text=text) for text in texts]
        for _ in range(1 + chat.LOST_IN_A_ROW):
            async with self.budget.call(Request(task=TASK, subject=TASK, messages=messages)) as pay:
                body = {"model": self.endpoint.model, "input": texts, **self.endpoint.extra_body}
                answer = await backend.post("/embeddings", body)
                usage = answer.get("usage") if isinstance(answer, dict) else None
                pay(Reply(text="", tokens_in=(usage or {}).get("prompt_tokens") or 0))
            try:
                items = sorted(answer["data"], key=itemgetter("index"))
                rows = np.array([item["embedding"] for item in items], dtype=np.float32)
            except (TypeError, KeyError, ValueError):
                continue
            if rows.ndim == 2 and len(rows) == len(texts) and rows.size and np.isfinite(rows).all():
                return rows
        raise EndpointError(f"{self.endpoint.model} gives no vectors: is it a model for embeddings?")
