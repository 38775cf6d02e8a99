"""Calls to the Batch API of a service: files up, batches made and looked at, results down.

Every call is tried again for as long as a fault may mend; making a batch is looked up before it is tried
again, so that no fault makes two.
"""

import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO, TypeVar

from memecmd_utils.llm_types import EndpointError, Request, TransientFault
from memecmd_utils.llm_wire import retry_after
from memecmd_utils.openai_backend import NEUTRAL, OpenAIBackend, name_fault

T = TypeVar("T")
URL = "/v1/chat/completions"
TAG = "memecmd"
"""Name of the entry of a batch's metadata that says which of our files it was made from."""
TRIES_AT_FIRST, TRIES = 8, 60
"""Of one call: two minutes before the service ever answered, an hour after."""
LONGEST_WAIT_S = 60.0
TRANSFER_S = 3600.0
"""Longest silence while a file goes over the line."""
LOOK_AGAIN_S, SETTLED_AFTER_S = 5.0, 120.0
"""A batch made a moment ago may not be in the service's list yet."""
CLOCK_SKEW_S = 86_400.0
OURS = {400, 404, 405, 413, 422}
"""Statuses that say that the service does not do what we ask for."""
NO_BATCHES = "has it a Batch API? `batch: false` asks one by one"
STRANGE_BATCH = (
    "was it sent with another account or endpoint, or too long ago? Delete the stage's folder of batches to "
    "send anew what is not recorded"
)
NO_REQUEST = Request(task="annotation", subject=NEUTRAL, messages=[])
"""Stands for a request where a fault is the file's or the batch's."""


class Service:
    """The endpoint of `inner`, spoken to about files and batches."""

    def __init__(self, inner: OpenAIBackend, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self.inner, self.sleep = inner, sleep
        self._reached = False

    async def upload(self, name: str, lines: BinaryIO) -> str:
        """Send a file of requests, one JSON line each, and return its id."""

        async def upload(client: Any, _: int) -> Any:
            lines.seek(0)
            return await client.files.create(file=(name, lines), purpose="batch", timeout=TRANSFER_S)

        return (await self._call("uploading a file", upload)).id

    async def create(self, file: str, tag: str, at: float) -> Any:
        """Make a batch of a file. `at`: Unix time before which none was made with this tag."""

        async def create(client: Any, tries: int) -> Any:
            # The try before may have made it without our hearing of it.
            known = await self._look_up(client, tag, at) if tries > 1 else None
            return known or await client.batches.create(
                input_file_id=file, endpoint=URL, completion_window="24h", metadata={TAG: tag}
            )

        return await self._call("making a batch", create)

    async def find(self, tag: str, at: float) -> Any:
        """Return the batch that a killed process may have made since `at`, or None."""
        return await self._call("listing batches", lambda client, _: self._look_up(client, tag, at))

    async def look(self, batch: str) -> Any:
        """Return the batch as it stands now."""
        return await self._call(f"looking at batch {batch}", lambda client, _: client.batches.retrieve(batch))

    async def results(self, batch: Any) -> dict[str, dict[str, Any]]:
        """Return the lines of an ended batch by custom id; the key is nowhere in them."""
        results: dict[str, dict[str, Any]] = {}
        for file in (batch.error_file_id, batch.output_file_id):
            if file:
                what = f"fetching the results of batch {batch.id}"
                results |= await self._call(what, lambda client, _, file=file: self._lines(client, file))
        return results

    def why_failed(self, batch: Any) -> tuple[str, str]:
        """Return code and message of the first error of a failed batch."""
        errors = (batch.errors.data if batch.errors is not None else None) or []
        if not errors:
            return "", "the service does not say why"
        line = f" (line {errors[0].line})" if errors[0].line else ""
        return str(errors[0].code or ""), self.inner.plain(errors[0].message) + line

    async def _lines(self, client: Any, file: str) -> dict[str, dict[str, Any]]:
        """Return the lines of a file by custom id; `ValueError` where it did not arrive whole."""
        content = (await client.files.content(file, timeout=TRANSFER_S)).content.decode(errors="replace")
        lines = [json.loads(raw) for raw in self.inner.guard.blot(content).split("\n") if raw.strip()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("not lines of results")
        return {str(line.get("custom_id")): line for line in lines}

    async def _look_up(self, client: Any, tag: str, at: float) -> Any:
        young = time.time() - at < SETTLED_AFTER_S
        for wait_s in (0.0, LOOK_AGAIN_S) if young else (0.0,):
            if wait_s:
                await self.sleep(wait_s)
            async for batch in client.batches.list(limit=100):
                if (batch.metadata or {}).get(TAG) == tag:
                    return batch
                if batch.created_at < at - CLOCK_SKEW_S:
                    break
        return None

    async def _call(self, what: str, make: Callable[[Any, int], Awaitable[T]]) -> T:
        import aiohttp
        import openai

        client = await self.inner.connect()
        tries = 0
        while True:
            tries += 1
            fault: Exception
            try:
                result = await make(client, tries)
                self._reached = True
                return result
            except openai.APIStatusError as error:
                code, message = str(error.code or ""), self.inner.plain(error.message)
                message = message.removeprefix(f"Error code: {error.status_code} - ")
                wait_s = retry_after(error.response.headers)
                fault = self._name(what, error.status_code, code, message, wait_s)
            except (openai.APIError, aiohttp.ClientError, TimeoutError, ValueError) as error:
                fault = name_fault(error)
            # Outside of the handlers, so that no fault of ours carries the SDK's, whose headers hold the key.
            if not isinstance(fault, TransientFault):
                raise fault
            if tries >= (TRIES if self._reached else TRIES_AT_FIRST):
                raise EndpointError(
                    f"{what} failed {tries} times, the last time with {fault.kind}. Batches that were sent "
                    "go on at the service: run again to go on"
                )
            back_off = min(LONGEST_WAIT_S, 2.0 ** (tries - 1))
            wait = back_off if fault.wait_s is None else fault.wait_s
            await self.sleep(wait * random.uniform(1.0, 1.25))

    def _name(self, what: str, status: int, code: str, message: str, wait_s: float | None) -> Exception:
        refusal = EndpointError(f"the endpoint refused {what} ({status}): {message}")
        if status in OURS:
            hint = STRANGE_BATCH if what.startswith(("looking", "fetching")) else NO_BATCHES
            return EndpointError(f"{refusal}; {hint}")
        fault = self.inner.name_status(status, code, message, "", NO_REQUEST, "plain", wait_s)
        return fault if isinstance(fault, TransientFault | EndpointError) else refusal
