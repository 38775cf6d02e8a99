import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fast_time
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from memecmd_utils import paths
from memecmd_utils.budget import TOKENS_OUT, Budget, Ledger, tokens_at_most
from memecmd_utils.llm import BudgetReached, Image, Message, Reply, Request, Sampling


def request(text: str = "好", task: str = "utterance", max_tokens: int | None = 10, **changes) -> Request:
    values = {
        "task": task,
        "subject": "d/1",
        "messages": [Message(role="user", text=text)],
        "sampling": Sampling(max_tokens=max_tokens),
    }
    return Request(**{**values, **changes})


def budget(ledger: Ledger | None = None, **changes) -> Budget:
    """A million dollars per million tokens out: a reply of ten tokens costs ten dollars at most."""
    return Budget(ledger, **{"stage": "s", "usd_out": 1e6, **changes})


def reserve(ledger: Ledger, usd: float = 1.0, max_calls: int | None = None, max_usd: float | None = None):
    return ledger.reserve("s", "utterance", usd, 5, max_calls, max_usd)


def reached(made: Budget, asked: Request | None = None) -> str:
    with pytest.raises(BudgetReached) as caught:
        fast_time.run(made.reserve(asked or request()))
    return str(caught.value)


# --- the most a call can cost -----------------------------------------------------------------------


class Mood(BaseModel):
    mood: str


def test_the_bound_of_tokens_counts_bytes_messages_pictures_and_the_schema() -> None:
    picture = Image(image_id="x", load=lambda: pytest.fail("not needed for an estimate"))
    plain = request("火锅hot")
    assert tokens_at_most(plain, 765) == 9 + 8
    two = request(messages=[Message(role="user", text="a"), Message(role="user", text="b", images=[picture])])
    assert tokens_at_most(two, 765) == 2 + 16 + 765
    more = tokens_at_most(request("火锅hot", reply_schema=Mood), 0) - 17
    assert more >= len(json.dumps(Mood.model_json_schema()))


@pytest.mark.parametrize(
    ("max_tokens", "unbounded", "reckoned"),
    [(10, False, 10), (None, False, TOKENS_OUT), (10, True, TOKENS_OUT)],
)
def test_without_a_limit_on_the_wire_a_long_reply_is_reckoned_with(max_tokens, unbounded, reckoned) -> None:
    made = budget(unbounded=unbounded)
    reserved = fast_time.run(made.reserve(request(max_tokens=max_tokens)))
    assert reserved.usd == pytest.approx(reckoned) and made.ledger.usd == reserved.usd


def test_prices_are_per_million_tokens() -> None:
    assert Budget(usd_in=0.15, usd_out=0.6).price(1_000_000, 500_000) == pytest.approx(0.45)


# --- settling ---------------------------------------------------------------------------------------


def test_a_settled_call_costs_what_the_endpoint_counted_and_gives_the_rest_back() -> None:
    made = budget(max_usd=12.0)
    first = fast_time.run(made.reserve(request()))
    assert made.ledger.usd == pytest.approx(10) and made.ledger.calls == 1
    made.settle(first, Reply(text="好", tokens_in=3, tokens_out=2))
    row = made.ledger.spent["s", "utterance"]
    assert (row.calls, row.tokens_in, row.tokens_out, row.usd) == (1, 3, 2, pytest.approx(2))
    assert made.ledger.usd == pytest.approx(2) and not made.ledger.open
    fast_time.run(made.reserve(request()))


def test_released_is_free_unsure_counts_at_its_most_and_so_does_abandoned() -> None:
    made = budget()

    async def three():
        return [await made.reserve(request()) for _ in range(3)]

    free, unsure, left = fast_time.run(three())
    made.release(free)
    made.settle_unsure(unsure)
    made.abandon(left)
    row = made.ledger.spent["s", "utterance"]
    assert (row.calls, row.unsure_calls, row.unsure_usd) == (0, 1, pytest.approx(10))
    assert made.ledger.usd == pytest.approx(20) and made.ledger.calls == 2


def test_tasks_and_stages_are_counted_apart() -> None:
    ledger = Ledger()
    for stage, task in (("a", "utterance"), ("a", "summary"), ("b", "summary")):
        made = budget(ledger, stage=stage)
        made.settle(fast_time.run(made.reserve(request(task=task))), Reply(text="x", tokens_out=1))
    assert {key: row.calls for key, row in ledger.spent.items()} == {
        ("a", "utterance"): 1,
        ("a", "summary"): 1,
        ("b", "summary"): 1,
    }


def test_a_reply_without_a_count_of_tokens_costs_what_was_set_aside() -> None:
    made = budget(max_usd=25.0)
    for _ in range(2):
        made.settle(fast_time.run(made.reserve(request())), Reply(text="好"))
    assert made.ledger.usd == pytest.approx(20)
    reached(made)


def test_a_task_that_was_underestimated_is_reckoned_higher_from_then_on() -> None:
    made = Budget(stage="s", usd_in=1e6)
    asked, other = request("a" * 92), request("a" * 92, "summary")
    assert fast_time.run(made.reserve(asked)).usd == pytest.approx(100)
    made.settle(fast_time.run(made.reserve(asked)), Reply(text="x", tokens_in=150))
    assert fast_time.run(made.reserve(asked)).usd == pytest.approx(150)
    assert fast_time.run(made.reserve(request("a" * 192))).usd == pytest.approx(300), "in proportion"
    assert fast_time.run(made.reserve(other)).usd == pytest.approx(100), "other tasks are as before"
    made.settle(fast_time.run(made.reserve(asked)), Reply(text="x", tokens_in=80))
    assert fast_time.run(made.reserve(asked)).usd == pytest.approx(150), "it is not forgotten"


def test_an_underestimate_grows_with_each_worse_one() -> None:
    made = Budget(stage="s", usd_in=1e6)
    asked = request("a" * 92)
    for counted in (200, 300, 320):
        made.settle(fast_time.run(made.reserve(asked)), Reply(text="x", tokens_in=counted))
        assert fast_time.run(made.reserve(asked)).usd == pytest.approx(counted)


def test_calls_made_side_by_side_do_not_add_their_underestimates_up() -> None:
    made = Budget(stage="s", usd_in=1e6)
    asked = request("a" * 92)

    async def many():
        return [await made.reserve(asked) for _ in range(8)]

    for reserved in fast_time.run(many()):
        made.settle(reserved, Reply(text="x", tokens_in=200))
    assert fast_time.run(made.reserve(asked)).usd == pytest.approx(200)


# --- caps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caps", [{"max_calls": 0}, {"max_usd": 0.0}, {"max_usd": 0.0, "usd_out": 0.0}])
def test_a_cap_of_nothing_allows_no_call_not_even_a_free_one(caps) -> None:
    made = budget(**caps)
    assert next(iter(caps)) in reached(made) and not made.ledger.open


def test_a_free_endpoint_never_reaches_a_cap_of_dollars() -> None:
    made = Budget(stage="s", max_usd=0.01)
    for _ in range(100):
        made.settle(fast_time.run(made.reserve(request())), Reply(text="x", tokens_in=99, tokens_out=99))
    assert made.ledger.usd == 0 and made.ledger.calls == 100


def test_what_the_message_says_when_a_cap_is_reached() -> None:
    by_calls = budget(max_calls=1)
    by_calls.settle_unsure(fast_time.run(by_calls.reserve(request())))
    assert "max_calls=1 reached" in reached(by_calls)
    by_usd = budget(max_usd=15.0)
    by_usd.settle_unsure(fast_time.run(by_usd.reserve(request())))
    told = reached(by_usd)
    assert "max_usd=15.0 would be passed" in told and "spent 10.0000, of it 10.0000 for calls" in told
    assert "run again" in told and "raise it" in told


def test_near_the_cap_calls_in_flight_are_waited_for_because_they_cost_less_than_set_aside() -> None:
    async def main() -> tuple[int, int, float]:
        made, most, flying = budget(max_usd=30.0), 0, 0

        async def call() -> None:
            nonlocal most, flying
            reserved = await made.reserve(request())
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(1)
            flying -= 1
            made.settle(reserved, Reply(text="x", tokens_out=1))

        ends = await asyncio.gather(*(call() for _ in range(40)), return_exceptions=True)
        assert {type(end) for end in ends} == {type(None), BudgetReached}
        return ends.count(None), most, made.ledger.usd

    done, most, usd = fast_time.run(main())
    assert most == 3, "three at their most fill the cap"
    assert done == 21 and usd == pytest.approx(21), "stopping at the first full cap would make it three"


def test_a_call_that_waits_takes_what_another_gives_back() -> None:
    async def main() -> None:
        made = budget(max_calls=1)
        first = await made.reserve(request())
        waiting = asyncio.ensure_future(made.reserve(request()))
        await asyncio.sleep(1)
        assert not waiting.done()
        made.release(first)
        made.abandon(await waiting)
        with pytest.raises(BudgetReached):
            await made.reserve(request())

    fast_time.run(main())


def test_cancelling_one_that_waits_leaves_the_others_waiting() -> None:
    async def main() -> None:
        made = budget(max_calls=1)
        first = await made.reserve(request())
        one, two = (asyncio.ensure_future(made.reserve(request())) for _ in range(2))
        await asyncio.sleep(1)
        one.cancel()
        await asyncio.sleep(1)
        made.release(first)
        assert (await two).name and one.cancelled()

    fast_time.run(main())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_cap_is_ever_passed(data: st.DataObject) -> None:
    usd_in, usd_out = (data.draw(st.floats(0, 5e5), label=side) for side in ("in", "out"))
    max_usd = data.draw(st.none() | st.floats(0, 50), label="max_usd")
    max_calls = data.draw(st.none() | st.integers(0, 25), label="max_calls")
    calls = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 40),  # letters of the prompt
                st.integers(1, 30),  # max_tokens
                st.floats(0, 1),  # share of it that is used
                st.sampled_from(["settle", "settle", "settle", "unsure", "release", "abandon"]),
                st.integers(0, 5),  # seconds under way
            ),
            max_size=30,
        ),
        label="calls",
    )
    made = Budget(stage="s", max_calls=max_calls, max_usd=max_usd, usd_in=usd_in, usd_out=usd_out)
    real = {"usd": 0.0, "calls": 0}

    async def call(letters: int, max_tokens: int, share: float, end: str, seconds: int) -> None:
        asked = request("a" * letters, max_tokens=max_tokens)
        try:
            reserved = await made.reserve(asked)
        except BudgetReached:
            return
        check()
        await asyncio.sleep(seconds)
        tokens_in = max(1, round(share * reserved.tokens_in))
        reply = Reply(text="x", tokens_in=tokens_in, tokens_out=max(1, round(share * max_tokens)))
        if end != "release":
            real["usd"] += made.price(reply.tokens_in, reply.tokens_out)
            real["calls"] += 1
        if end == "settle":
            made.settle(reserved, reply)
        else:
            {"unsure": made.settle_unsure, "release": made.release, "abandon": made.abandon}[end](reserved)
        check()

    def check() -> None:
        assert max_usd is None or real["usd"] <= made.ledger.usd * (1 + 1e-9) + 1e-9
        assert max_usd is None or made.ledger.usd <= max_usd * (1 + 1e-9)
        assert max_calls is None or real["calls"] <= made.ledger.calls <= max_calls

    async def main() -> None:
        await asyncio.gather(*(call(*one) for one in calls))
        check()

    fast_time.run(main())


# --- on disk ----------------------------------------------------------------------------------------


def test_what_was_spent_is_known_to_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "usage" / "ledger.jsonl"
    first = Ledger(path)
    assert not path.exists(), "nothing is written before the first call"
    made = budget(first)
    made.settle(fast_time.run(made.reserve(request())), Reply(text="x", tokens_in=7, tokens_out=4))
    made.settle_unsure(fast_time.run(made.reserve(request())))
    made.release(fast_time.run(made.reserve(request())))
    fast_time.run(made.reserve(request()))
    first.close()
    again = Ledger(path)
    assert again.spent == first.spent and again.open == first.open
    assert again.usd == pytest.approx(4 + 10 + 10) and again.calls == 3


def test_two_ledgers_of_one_file_see_each_other(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path / "l"), Ledger(tmp_path / "l")
    mine = reserve(one, max_calls=2)
    yours = reserve(two, max_calls=2)
    assert mine and yours and mine.name != yours.name
    assert reserve(one, max_calls=2) is None and reserve(two, max_calls=2) is None
    one.release(mine)
    assert reserve(two, max_calls=2) is not None


def test_a_raised_cap_goes_on_where_the_run_stopped(tmp_path: Path) -> None:
    for cap, expected in ((3, 3), (3, 0), (5, 2), (None, 4)):
        ledger, done = Ledger(tmp_path / "l"), 0
        made = budget(ledger, max_calls=cap)
        try:
            for _ in range(4):
                made.settle(fast_time.run(made.reserve(request())), Reply(text="x", tokens_out=1))
                done += 1
        except BudgetReached:
            pass
        ledger.close()
        assert done == expected


def test_half_a_line_of_a_killed_process_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "l"
    ledger = Ledger(path)
    ledger.settle(reserve(ledger, 3.0), 1.0, 5, 5)
    ledger.close()
    whole = path.read_bytes()
    for torn in (b"{", whole[:20], b'{"r": "x-1", "stage": "s", "task": "t", "usd": 1}'):
        path.write_bytes(whole + torn)
        again = Ledger(path)
        assert again.usd == 1.0 and again.calls == 1
        assert reserve(again, 2.0) is not None
        again.close()
        assert Ledger(path).usd == 3.0
        lines = path.read_bytes().split(b"\n")
        assert [bool(json.loads(line)) for line in lines[:-1]] and lines[-1] == b""


def test_half_a_line_is_seen_by_those_who_already_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "l"
    ledger = Ledger(path)
    reserve(ledger)
    with path.open("ab") as other:
        other.write(b'{"r": "dead-1", "sta')
    assert reserve(ledger) is not None and ledger.calls == 2
    ledger.close()
    assert Ledger(path).calls == 2


SPENDER = """
import asyncio, random, sys
from memecmd_utils.budget import Budget, Ledger
from memecmd_utils.llm import BudgetReached, Message, Reply, Request, Sampling
from pathlib import Path

path, seed = Path(sys.argv[1]), int(sys.argv[2])
random.seed(seed)
made = Budget(Ledger(path), "s", max_calls=90, max_usd=600.0, usd_out=1e6)
asked = Request(task="utterance", subject="x", messages=[Message(role="user", text="a")],
                sampling=Sampling(max_tokens=10))

async def worker():
    while True:
        reserved = await made.reserve(asked)
        assert made.ledger.usd <= 600.0001 and made.ledger.calls <= 90
        await asyncio.sleep(random.random() * 0.004)
        end = random.random()
        if end < 0.2:
            made.release(reserved)
        elif end < 0.3:
            made.settle_unsure(reserved)
        else:
            made.settle(reserved, Reply(text="x", tokens_in=1, tokens_out=random.randint(1, 10)))

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    ends = await asyncio.gather(*(worker() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(end, BudgetReached) for end in ends), ends

asyncio.run(main())
"""


def start(code: str, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=paths.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_several_processes_on_one_ledger_never_pass_the_caps_together(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    runs = [start(SPENDER, path, seed) for seed in range(3)]
    assert [process.stdout.readline() for process in runs] == ["ready\n"] * 3
    for process in runs:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in runs:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
    # Line by line, as it was at each moment.
    ledger, most_usd, most_calls = Ledger(), 0.0, 0
    writers = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        ledger._apply(entry)
        writers.add(entry.get("r", entry.get("s")).partition("-")[0])
        most_usd, most_calls = max(most_usd, ledger.usd), max(most_calls, ledger.calls)
    assert len(writers) == 3 and not ledger.open
    assert most_usd <= 600.0001 and most_calls <= 90
    assert ledger.usd > 590 or ledger.calls == 90, "and they used what there was"


KILLED = """
import asyncio, sys
from memecmd_utils.budget import Budget, Ledger
from memecmd_utils.llm import Message, Reply, Request, Sampling
from pathlib import Path

made = Budget(Ledger(Path(sys.argv[1])), "s", usd_out=1e6)
asked = Request(task="utterance", subject="x", messages=[Message(role="user", text="a")],
                sampling=Sampling(max_tokens=10))

async def main():
    made.settle(await made.reserve(asked), Reply(text="x", tokens_out=2))
    for _ in range(3):
        await made.reserve(asked)
    print("three under way", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_calls_in_flight_of_a_killed_process_count_at_their_most(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    process = start(KILLED, path)
    assert process.stdout.readline() == "three under way\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    after = Ledger(path)
    assert (after.calls, after.usd, len(after.open)) == (4, pytest.approx(32), 3)
    made = budget(after, max_usd=41.0)
    begun = time.monotonic()
    told = reached(made)
    assert time.monotonic() - begun < 1, "nobody waits for calls of a process that is gone"
    assert "max_usd=41.0" in told and "30.0000 for calls that were cut off" in told
    fast_time.run(budget(after, max_usd=42.0).reserve(request()))


def test_a_full_cap_of_another_process_is_not_waited_for(tmp_path: Path) -> None:
    other, mine = Ledger(tmp_path / "l"), Ledger(tmp_path / "l")
    reserve(other, 10.0)
    assert "max_calls=1" in reached(budget(mine, max_calls=1))


def test_many_open_calls_are_entered_in_a_moment_each() -> None:
    # A batch holds all its requests open at once.
    def seconds(n: int) -> float:
        ledger = Ledger()
        gc.collect()
        gc.disable()
        try:
            begun = time.process_time()
            for _ in range(n):
                assert reserve(ledger, 0.001, max_usd=1e9) is not None
            return time.process_time() - begun
        finally:
            gc.enable()

    seconds(100)
    few = max(seconds(400), 0.004)
    assert min(seconds(4000), seconds(4000)) < 30 * few, "it does not grow with the square"


def test_what_a_killed_batch_had_open_is_taken_back_for_its_stage_only(tmp_path: Path) -> None:
    dead = Ledger(tmp_path / "ledger.jsonl")
    dead.reserve("annotation", "annotation", 3.0, 5, None, None)
    dead.reserve("dialogue_generation", "utterance", 2.0, 5, None, None)
    dead.close()
    ledger = Ledger(tmp_path / "ledger.jsonl")
    mine = ledger.reserve("annotation", "annotation", 1.0, 5, None, None)
    assert ledger.usd == pytest.approx(6.0)
    ledger.release_abandoned("annotation")
    assert ledger.usd == pytest.approx(3.0) and mine.name in ledger.open and ledger.calls == 2
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.usd == pytest.approx(3.0), "written down, not only forgotten"
