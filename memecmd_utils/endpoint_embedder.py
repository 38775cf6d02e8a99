"""Any OpenAI-compatible `/v1/embeddings` endpoint as an embedder."""

import base64
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from memecmd_utils import live_extra
from memecmd_utils.budget import Budget
from memecmd_utils.key_guard import NO_KEY, address, api_key
from memecmd_utils.llm_types import BudgetReached, EndpointError, Reply
from memecmd_utils.llm_wire import retry_after
from memecmd_utils.proxies import client_options
from memecmd_utils.settings import Endpoint

RETRIES = 5
LONGEST_WAIT_S = 8.0
TASK = "embedding"
"""Name of its calls in the ledger."""
INPUTS = 32
"""Texts of one request: what servers take at least unless they are set up otherwise."""


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
        self._format: Literal["base64", "float"] = "base64"

    def encode(self, texts: Sequence[str], side: Literal["query", "document"]) -> np.ndarray:
        """Encode, shape [n, dim], in requests of at most `INPUTS` texts.

        Raises `EndpointError`, which says what to set, and `BudgetReached`.
        """
        live_extra.need("an endpoint's embedder")
        import openai

        endpoint = self.endpoint
        before = (self.query_instruction or "") if side == "query" else ""
        key = api_key(endpoint) if os.getenv(endpoint.key_env) else NO_KEY
        url, options = address(endpoint), client_options(endpoint)
        rows: list[np.ndarray] = []
        try:
            with openai.OpenAI(
                api_key=key.get_secret_value(),
                base_url=url,
                timeout=endpoint.timeout_s,
                max_retries=0,  # each try is entered in the ledger
                http_client=openai.DefaultHttpxClient(**options),
            ) as client:
                for start in range(0, len(texts), INPUTS):
                    rows += self._ask(client, [before + text for text in texts[start : start + INPUTS]])
            return np.stack(rows)
        except BudgetReached:
            raise
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            what = f"refused the key ({error.status_code}): check {endpoint.key_env}"
        except openai.NotFoundError:
            what = (
                f"does not know the model {endpoint.model!r} (404): check `model` and `base_url` of "
                "endpoints.embedder"
            )
        except TimeoutError:
            what = "did not come to the end of an answer: where it is only slow, raise `timeout_s`"
        except openai.APIStatusError as error:
            what = f"failed: status {error.status_code}"
        except Exception as error:  # also a body without vectors, or an address that is none
            what = f"failed: {type(error).__name__}"
        # Outside of the handlers, so that our fault does not carry the SDK's, whose headers hold the key.
        raise EndpointError(f"the embedder's endpoint {what}")

    def _ask(self, client: Any, inputs: list[str]) -> list[np.ndarray]:
        """Vectors as base64, which is read far faster than numbers; as numbers where that is refused."""
        import openai

        tries = 0
        while True:
            tries += 1
            reserved = self.budget.reserve_text(TASK, inputs)
            try:
                wanted = {"model": self.endpoint.model, "input": inputs, "encoding_format": self._format}
                got = _within(self.endpoint.timeout_s, partial(client.embeddings.create, **wanted))
                rows = _rows(got, len(inputs))
            except openai.APIStatusError as error:
                self.budget.release(reserved)
                if error.status_code in (400, 422) and self._format == "base64":
                    self._format, tries = "float", tries - 1
                    continue
                if tries > RETRIES or not (error.status_code in (408, 409, 429) or error.status_code >= 500):
                    raise
                asked = retry_after(error.response.headers)
            except Exception:  # no connection, no end of the answer, or one that cannot be read
                self.budget.settle_unsure(reserved)
                if tries > RETRIES:
                    raise
                asked = None
            except BaseException:  # we were stopped
                self.budget.settle_unsure(reserved)
                raise
            else:
                self.budget.settle(reserved, Reply(text="", tokens_in=_tokens(got)))
                return rows
            back_off = min(LONGEST_WAIT_S, 0.5 * 2 ** (tries - 1))
            time.sleep(back_off * random.uniform(0.75, 1.0) if asked is None else asked)


def _tokens(got: Any) -> int:
    """What the endpoint counted; 0 where it does not."""
    usage = getattr(got, "usage", None)
    counts = (getattr(usage, "prompt_tokens", None), getattr(usage, "total_tokens", None))
    return next((n for n in counts if isinstance(n, int) and n > 0), 0)


def check(endpoint: Endpoint) -> None:
    """Raise `EndpointError` where no key is set, or what stands there is none.

    A server of one's own may need none; the address that the SDK knows by itself does.
    """
    if address(endpoint) is None or os.getenv(endpoint.key_env):
        api_key(endpoint)


def _within(seconds: float, exchange: Callable[[], Any]) -> Any:
    """What `exchange` returns, or `TimeoutError`: the SDK's own limit is none where bytes drip."""
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            ended.put((exchange(), None))
        except BaseException as error:  # raised below
            ended.put((None, error))

    threading.Thread(target=work, daemon=True).start()  # ends when the client is closed
    try:
        value, error = ended.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return value


def _rows(got: Any, n: int) -> list[np.ndarray]:
    """The `n` vectors of an answer in the order of the texts; what it raises otherwise is not said."""
    rows = [_row(item.embedding) for item in sorted(got.data, key=lambda item: item.index)]
    if len(rows) != n or not np.isfinite(np.stack(rows)).all() or not rows[0].size:
        raise ValueError("not one vector for each text")
    return rows


def _row(vector: str | list[float]) -> np.ndarray:
    """A vector as it was sent: base64 of little-endian float32, or numbers (servers may ignore the wish)."""
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector, validate=True), dtype="<f4").astype(np.float32)
    return np.asarray(vector, dtype=np.float32)
