"""Peak memory and CPU time of a process that generates 1,000, 10,000 and 34,758 turns, with files on disk.

Replies are simulated in the process, so the time is ours alone; it is CPU time, which other processes of the
machine hardly lengthen. Recordings and ledger are written. Each size runs in a fresh process:
`bench_memory.py TURNS` is that process, and prints its CPU seconds and its peak resident memory in MB.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from figures_to_reach import exponent, record

from memecmd_utils.llm import messages as llm_messages

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

TURNS_EACH = 18
SIZES = (1_000, 10_000, 34_758)
AT_ONCE = 128


def peak_mb() -> float:
    """Largest resident size of this process; `ru_maxrss` would also count that of its parent."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def work(turns: int) -> dict[str, float]:
    import asyncio

    import openai  # noqa: F401  (a real run has both loaded)
    import pandas  # noqa: F401
    from fault_replies import drawn, utterance, value_of
    from scripted import ScriptedBackend
    from stage_run import USD_IN, USD_OUT, starts

    from memecmd_utils import dialogue, schemas
    from memecmd_utils.llm import chat as llm_chat
    from memecmd_utils.llm.budget import Budget, Spent
    from memecmd_utils.recordings import Recordings
    from memecmd_utils.settings import Profile

    schema = schemas.SummaryReply.model_json_schema()

    class Simulated(ScriptedBackend):
        """Recordable replies made from the request; keeps nothing."""

        async def complete(self, request: llm_messages.Request) -> llm_messages.Reply:
            await asyncio.sleep(0)
            messages = [(m.role, m.text) for m in request.messages]
            numbers = drawn(messages, request.task)
            if request.reply_schema is None:
                text = utterance(messages, numbers)
            else:
                text = json.dumps(value_of(schema, schema, "", numbers), ensure_ascii=False)
            return llm_messages.Reply(text=text, tokens_in=1000, tokens_out=len(text))

    profile = Profile(name="made", llm="openai", mode="auto", n_turns=TURNS_EACH)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        budget = Budget(Spent(folder / "spent.jsonl"), "made", 10**9, 1e9, USD_IN, USD_OUT)
        store = Recordings("made", [folder], folder)
        chat = llm_chat.Chat(Simulated(lambda request: ""), store, "auto", AT_ONCE, budget)
        begun = starts(round(turns / TURNS_EACH))
        clock = time.process_time()
        made = llm_chat.run(dialogue.generate(begun, chat, profile, folder))
        seconds = time.process_time() - clock
    return {"turns": len(made.lengths), "seconds": seconds, "peak": peak_mb()}


def test_memory_stays_flat(benchmark) -> None:
    found = []

    def all_sizes() -> None:
        for turns in SIZES:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", __file__, str(turns)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found.append(json.loads(done.stdout.splitlines()[-1]))

    benchmark.pedantic(all_sizes, rounds=1)
    first, *_, last = found
    each = ", ".join(f"{item['turns']:,}: {item['peak']:.0f} MB" for item in found)
    is_flat = record(benchmark, "turns/memory", last["peak"] / first["peak"], note=each)
    power = exponent([item["turns"] for item in found], [item["seconds"] for item in found])
    each = ", ".join(f"{item['turns']:,}: {item['seconds']:.1f} s" for item in found)
    record(benchmark, "growth/turns", power, note=f"replies simulated in the process; {each}")
    assert last["turns"] == pytest.approx(SIZES[-1], abs=TURNS_EACH) and is_flat


if __name__ == "__main__":
    print(json.dumps(work(int(sys.argv[1]))))
