"""Any OpenAI-compatible `/v1/embeddings` endpoint as an embedder."""

import base64
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from memecmd_utils import live_extra
from memecmd_utils.key_guard import NO_KEY, address, api_key, is_local
from memecmd_utils.llm_types import EndpointError
from memecmd_utils.settings import Endpoint

RETRIES = 5  # of the SDK, which is the one retry layer here
INPUTS = 32
"""Texts of one request: what servers take at least unless they are set up otherwise."""


class EndpointEmbedder:
    """Any `/v1/embeddings` endpoint. `query_instruction` goes before queries only."""

    def __init__(self, endpoint: Endpoint, query_instruction: str | None = None) -> None:
        self.name = f"{endpoint.model}@{endpoint.model_label}"
        self.query_instruction = query_instruction
        self._endpoint = endpoint
        self._format: Literal["base64", "float"] = "base64"

    def encode(self, texts: Sequence[str], side: Literal["query", "document"]) -> np.ndarray:
        """Encode, shape [n, dim], in requests of at most `INPUTS` texts; `EndpointError` says what to set."""
        live_extra.need("an endpoint's embedder")
        import openai

        endpoint = self._endpoint
        before = (self.query_instruction or "") if side == "query" else ""
        key = api_key(endpoint) if os.getenv(endpoint.key_env) else NO_KEY
        url, local = address(endpoint), is_local(endpoint)
        rows: list[np.ndarray] = []
        try:
            with openai.OpenAI(
                api_key=key.get_secret_value(),
                base_url=url,
                timeout=endpoint.timeout_s,
                max_retries=RETRIES,
                http_client=openai.DefaultHttpxClient(trust_env=not local),
            ) as client:
                for start in range(0, len(texts), INPUTS):
                    inputs = [before + text for text in texts[start : start + INPUTS]]
                    data = self._ask(client, inputs)
                    if len(data) != len(inputs):
                        raise ValueError("not one vector for each text")
                    rows += [_row(item.embedding) for item in sorted(data, key=lambda d: d.index)]
            return np.stack(rows)
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

    def _ask(self, client: Any, inputs: list[str]) -> list[Any]:
        """Vectors as base64, which is read far faster than numbers; as numbers where that is refused."""
        import openai

        while True:
            try:
                return client.embeddings.create(
                    model=self._endpoint.model, input=inputs, encoding_format=self._format
                ).data
            except (openai.BadRequestError, openai.UnprocessableEntityError):
                if self._format == "float":
                    raise
                self._format = "float"


def _row(vector: str | list[float]) -> np.ndarray:
    """A vector as it was sent: base64 of little-endian float32, or numbers (servers may ignore the wish)."""
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector, validate=True), dtype="<f4").astype(np.float32)
    return np.asarray(vector, dtype=np.float32)
