"""The same calls made by ours, by the bare SDK, and one by one: what `bench_orchestration` compares."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import stage_run

from memecmd_utils import dialogue
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import messages as llm_messages
from memecmd_utils.llm.budget import Budget, Spent
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.recordings import Recordings
from memecmd_utils.settings import Endpoint, Profile

Bodies = dict[tuple[str, str], dict[str, Any]]
PROFILE = Profile(name="made", llm="openai", mode="auto", n_turns=18)


@dataclass
class Timing:
    """Seconds of one run by the clock and of the CPU of this process, and its calls."""

    wall: float
    cpu: float
    calls: int

    @property
    def cpu_ms(self) -> float:
        """CPU of one call in milliseconds."""
        return 1e3 * self.cpu / self.calls


def timed(work: Callable[[], int]) -> Timing:
    wall, cpu = time.perf_counter(), time.process_time()
    calls = work()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu, calls)


class Noting(OpenAIBackend):
    """Keeps the bodies that it sends, so that others can send the same."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, key=stage_run.KEY)
        self.bodies: Bodies = {}

    def body(self, request: llm_messages.Request, form: str) -> dict[str, Any]:
        made = self.bodies[request.task, request.subject] = super().body(request, form)
        return made


def chat(backend: OpenAIBackend, folder: Path, cap: int) -> llm_chat.Chat:
    """A chat as `runs` opens it: recordings and money on disk, prices and a cap that is not reached."""
    spent = Spent(folder / "spent.jsonl")
    prices = {"usd_in": stage_run.USD_IN, "usd_out": stage_run.USD_OUT}
    budget = Budget(spent, "dialogue_generation", 10**9, 1e9, **prices)
    return llm_chat.Chat(backend, Recordings("made", [folder], folder), "auto", cap, budget)


def endpoint(url: str) -> Endpoint:
    return Endpoint(base_url=url, model="simulated")


def ours(url: str, dialogues: int, cap: int, note: bool = False) -> tuple[Timing, Bodies]:
    """Stage 03 over HTTP, as the notebook runs it."""
    backend = Noting(endpoint(url)) if note else OpenAIBackend(endpoint(url), key=stage_run.KEY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asking = chat(backend, folder, cap)

        def work() -> int:
            starts = stage_run.starts(dialogues)
            made = llm_chat.run(dialogue.generate(starts, asking, PROFILE, folder))
            assert made.dialogues == dialogues and not made.broken_turns
            return asking.usage.calls

        return timed(work), getattr(backend, "bodies", {})


def ours_single(url: str, bodies: Bodies, cap: int) -> Timing:
    """As many requests that do not depend on each other."""
    with tempfile.TemporaryDirectory() as name:
        asking = chat(OpenAIBackend(endpoint(url), key=stage_run.KEY), Path(name), cap)

        async def work() -> int:
            requests = [single(subject, body) for (_, subject), body in bodies.items()]
            texts = await asking.side_by_side(asking.ask(r, lambda reply: reply.text) for r in requests)
            return len(texts)

        return timed(lambda: llm_chat.run(work()))


def single(subject: str, body: dict[str, Any]) -> llm_messages.Request:
    messages = [llm_messages.Message(role=m["role"], text=m["content"]) for m in body["messages"]]
    sampling = llm_messages.Sampling(temperature=body["temperature"], max_tokens=body["max_tokens"])
    return llm_messages.Request(
        task="utterance", subject=subject, messages=messages, sampling=sampling, seed=body["seed"]
    )


async def with_sdk(url: str, work: Callable[[Any], Awaitable[int]]) -> int:
    import openai

    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    key = stage_run.KEY.get_secret_value()
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=http) as client:
        return await work(client)


def bare_sdk(url: str, bodies: Bodies, cap: int, raw: bool = False) -> Timing:
    """The same call graph and bodies on the bare SDK: no prompts, checks, records, money.

    By `chat.completions.create`; with `raw` by the client's `post`, which builds no objects, as ours does.
    """
    dialogues = sorted({subject.partition("/")[0] for _, subject in bodies})

    async def work(client: Any) -> int:
        slots = asyncio.Semaphore(cap)

        async def ask(task: str, subject: str) -> None:
            async with slots:
                if raw:
                    body = bodies[task, subject]
                    reply = await client.post("/chat/completions", body=body, cast_to=object)
                    text = reply["choices"][0]["message"]["content"]
                else:
                    made = await client.chat.completions.create(**bodies[task, subject])
                    text = made.choices[0].message.content
            assert text

        async def talk(name: str) -> None:
            summaries = []
            for turn in range(1, PROFILE.dialogue.n_turns + 1):
                if turn > 1:
                    summaries.append(asyncio.ensure_future(ask("summary", f"{name}/{turn}")))
                await ask("utterance", f"{name}/{turn}")
            await asyncio.gather(*summaries)

        await asyncio.gather(*map(talk, dialogues))
        return len(bodies)

    return timed(lambda: asyncio.run(with_sdk(url, work)))


def sequential(url: str, bodies: Bodies, calls: int) -> Timing:
    """The first `calls` of them, one after the other, on the SDK's plain client."""
    import openai

    def work() -> int:
        with openai.OpenAI(base_url=url, api_key=stage_run.KEY.get_secret_value(), max_retries=0) as client:
            for body in list(bodies.values())[:calls]:
                assert client.chat.completions.create(**body).choices[0].message.content
        return calls

    return timed(work)
