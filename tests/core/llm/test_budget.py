import asyncio
import gc
import json
import subprocess
import sys
import time
from pathlib import Path

import fast_time
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from memecmd_utils.files import paths
from memecmd_utils.llm.budget import (
    PICTURE_AT_MOST,
    TOKENS_OUT,
    Budget,
    CallBound,
    Ledger,
    LedgerError,
    tiles,
    tokens_at_most,
)
from memecmd_utils.llm.messages import BudgetReached, Image, Message, Reply, Request, Sampling


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
    return ledger.reserve("s", "utterance", CallBound(5, usd / 5), max_calls, max_usd)


def reached(made: Budget, asked: Request | None = None) -> str:
    with pytest.raises(BudgetReached) as caught:
        fast_time.run(made.reserve(asked or request()))
    return str(caught.value)


class Mood(BaseModel):
    mood: str


def test_the_bound_of_tokens_counts_bytes_messages_and_the_schema() -> None:
    assert tokens_at_most(request("火锅hot")) == 9 + 8
    assert tokens_at_most(request(messages=[Message(role="user", text="a")] * 2)) == 2 + 16
    more = tokens_at_most(request("火锅hot", reply_schema=Mood)) - 17
    assert more >= len(json.dumps(Mood.model_json_schema()))


@pytest.mark.parametrize(
    ("max_tokens", "unbounded", "reckoned"),
    [(10, False, 10), (None, False, TOKENS_OUT), (10, True, TOKENS_OUT)],
)
def test_without_a_limit_on_the_wire_a_long_reply_is_reckoned_with(max_tokens, unbounded, reckoned) -> None:
    made = budget(unbounded=unbounded)
    reserved = fast_time.run(made.reserve(request(max_tokens=max_tokens)))
    assert reserved.usd == pytest.approx(reckoned) and made.ledger.usd == reserved.usd


def test_a_settled_call_costs_what_the_endpoint_counted_and_gives_the_rest_back() -> None:
    made = budget(max_usd=12.0)
    first = fast_time.run(made.reserve(request()))
    assert made.ledger.usd == pytest.approx(10) and made.ledger.calls == 1
    made.settle(first, Reply(text="好", tokens_in=3, tokens_out=2))
    row = made.ledger.spent["s", "utterance"]
    assert (row.calls, row.tokens_in, row.tokens_out, row.usd) == (1, 3, 2, pytest.approx(2))
    assert made.ledger.usd == pytest.approx(2) and not made.ledger.open_calls
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


PICTURE = Image(image_id="x", load=lambda: pytest.fail("not needed for an estimate"))


def seen(text: str = "a" * 92, pictures: int = 1) -> Request:
    return request(messages=[Message(role="user", text=text, images=[PICTURE] * pictures)])


def call(made: Budget, asked: Request, tokens_in: int = 1, tokens_out: int = 1) -> float:
    """One call that is answered; what it was reckoned at."""
    reserved = fast_time.run(made.reserve(asked))
    made.settle(reserved, Reply(text="x", tokens_in=tokens_in, tokens_out=tokens_out))
    return reserved.usd


def test_replies_longer_than_asked_for_are_reckoned_with_from_then_on_and_by_the_next_process(
    tmp_path,
) -> None:
    ledger = Ledger(tmp_path / "l")
    assert call(budget(ledger), request(), tokens_out=30) == pytest.approx(10)
    assert call(budget(ledger), request(), tokens_out=9) == pytest.approx(60), "and as much again"
    assert call(budget(ledger), request(task="summary")) == pytest.approx(10), "another task"
    assert call(budget(ledger, stage="other"), request()) == pytest.approx(10), "another stage"
    made = budget(Ledger(tmp_path / "l"))
    assert call(made, request()) == pytest.approx(60) and call(made, request(max_tokens=20)) == pytest.approx(
        120
    )


def test_what_is_under_way_is_reckoned_anew_too(tmp_path) -> None:
    ledger, other = Ledger(tmp_path / "l"), Ledger(tmp_path / "l")
    made = budget(ledger)
    first, cut_off, _ = (fast_time.run(made.reserve(request())) for _ in range(3))
    made.settle(first, Reply(text="x", tokens_in=1, tokens_out=30))
    assert ledger.usd == pytest.approx(30 + 60 + 60)
    made.settle_unsure(cut_off)
    for one in (ledger, other, Ledger(tmp_path / "l")):
        assert reserve(one, 1.0) is not None
        assert one.spent["s", "utterance"].unsure_usd == pytest.approx(60)
        one.release_abandoned("no such stage")
    assert Ledger(tmp_path / "l").usd == pytest.approx(30 + 60 + 60 + 3)


@pytest.mark.parametrize(
    ("said", "counted", "first", "then"),
    [
        (765, 600, 865, 865),  # less than was said of it
        (765, 9000, 865, 100 + 2 * 9000),
        (None, 9000, 100 + PICTURE_AT_MOST, 100 + 2 * 9000),
        (0, 300, 100, 100 + 2 * 300),
    ],
)
def test_a_picture_is_reckoned_as_said_or_at_the_most_known_and_then_as_counted(
    said, counted, first, then
) -> None:
    made = Budget(stage="s", usd_in=1e6, tokens_per_image=said)
    assert call(made, seen(), counted) == pytest.approx(first)
    assert call(made, seen(), counted) == pytest.approx(then)
    assert call(made, seen(pictures=2), counted) == pytest.approx(100 + 2 * (then - 100)), "each of them"
    assert call(made, seen("a")) == pytest.approx(then - 91), "also where there is less text beside it"
    assert call(made, request("a" * 92)) == pytest.approx(100), "texts alone are counted as they are"


def spend(
    made: Budget, asked: Request, tokens_in: int, tokens_out: int, at_once: int = 16
) -> dict[str, float]:
    """As many calls as the cap allows, `at_once` under way; `lead` is the most that was under way before the
    first answer, in real money."""
    found = {"usd": 0.0, "under way": 0, "lead": 0, "calls": 0}

    async def worker() -> None:
        while True:
            try:
                reserved = await made.reserve(asked)
            except BudgetReached:
                return
            found["under way"] += 1
            if not found["calls"]:
                found["lead"] = max(found["lead"], found["under way"])
            await asyncio.sleep(1)
            found["under way"] -= 1
            found["calls"] += 1
            found["usd"] += made.price(tokens_in, tokens_out)
            made.settle(reserved, Reply(text="x", tokens_in=tokens_in, tokens_out=tokens_out))

    async def main() -> None:
        await asyncio.gather(*(worker() for _ in range(at_once)))

    fast_time.run(main())
    return found | {"lead usd": found["lead"] * made.price(tokens_in, tokens_out)}


@pytest.mark.parametrize("times", [1, 3, 40])
@pytest.mark.parametrize("cap", [0.05, 1.1, 20.0])
def test_a_cap_is_passed_by_no_more_than_what_was_under_way_at_the_first_overrun(
    tmp_path, times, cap
) -> None:
    """A model that thinks: it bills several times its `max_tokens`."""
    prices = {"usd_in": 1.0, "usd_out": 100.0, "max_usd": cap, "tokens_per_image": 765}
    asked = request(max_tokens=100)  # a cent
    found = spend(Budget(Ledger(tmp_path / "l"), "s", **prices), asked, 10, 100 * times)
    assert found["usd"] <= cap + (found["lead usd"] if times > 1 else 0)
    assert found["lead"] == (16 if cap == 20 else 2 if cap == 1.1 else 1), "few where the cap is near"
    assert found["usd"] >= cap - 2.5 * times * 0.01, "and it is made use of"
    again = Budget(Ledger(tmp_path / "l"), "s", **{**prices, "max_usd": found["usd"] + 1})
    more = spend(again, asked, 10, 100 * times)
    assert more["usd"] <= 1, "the next process knows from the ledger"


@pytest.mark.parametrize("said", [None, 765, 8500])
def test_a_cap_is_not_passed_with_pictures_that_count_many_tokens(said: int | None) -> None:
    """gpt-4o-mini: 36,839 tokens for a picture at 15 cents a million; 16 at once."""
    made = Budget(None, "s", usd_in=0.15, usd_out=0.6, max_usd=0.01, tokens_per_image=said)
    found = spend(made, seen(), 36_839 + 40, 60)
    assert 0.005 < found["usd"] <= 0.01 and found["lead"] == 1


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((380, 350), 1), ((512, 512), 1), ((513, 512), 2), ((1024, 1024), 4), ((4096, 4096), 4),
        ((16, 9000), 4), ((390, 880), 2), ((390, 1797), 4), ((390, 2470), 4), ((768, 2048), 8),
        ((2048, 4096), 6), ((1, 1), 1),
    ],
)  # fmt: skip
def test_tiles_are_those_of_the_price_list(size: tuple[int, int], expected: int) -> None:
    """A picture must fit 2,048 by 2,048 pixels, its shorter side 768; then it is cut into squares of 512."""
    assert tiles(*size) == expected


def test_a_batch_is_not_held_back_until_one_is_answered() -> None:
    made = budget(max_usd=100.0)

    async def bulk() -> int:
        return len([await made.reserve(request(), in_bulk=True) for _ in range(10)])

    assert fast_time.run(bulk()) == 10


def test_an_endpoint_that_does_not_count_is_asked_one_by_one_near_the_cap() -> None:
    made = budget(max_usd=100.0)
    assert spend(made, request(), 0, 0, at_once=10)["lead"] == 1
    assert made.ledger.usd == pytest.approx(100), "each call counts at its most"


@pytest.mark.parametrize("caps", [{"max_calls": 0}, {"max_usd": 0.0}, {"max_usd": 0.0, "usd_out": 0.0}])
def test_a_cap_of_nothing_allows_no_call_not_even_a_free_one(caps) -> None:
    made = budget(**caps)
    assert next(iter(caps)) in reached(made) and not made.ledger.open_calls


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
        tokens_in = max(1, round(share * tokens_at_most(asked)))
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


def test_what_was_spent_is_known_to_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "usage" / "ledger.sqlite"
    first = Ledger(path)
    assert first.usd == 0 and not path.parent.exists(), "nothing is written before the first call"
    made = budget(first)
    made.settle(fast_time.run(made.reserve(request())), Reply(text="x", tokens_in=7, tokens_out=4))
    made.settle_unsure(fast_time.run(made.reserve(request())))
    made.release(fast_time.run(made.reserve(request())))
    fast_time.run(made.reserve(request()))
    again = Ledger(path)
    assert again.rows == first.rows
    assert again.usd == pytest.approx(4 + 10 + 10) and (again.calls, again.open_calls) == (3, 1)


def test_two_ledgers_of_one_file_see_each_other(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path / "l"), Ledger(tmp_path / "l")
    mine = reserve(one, max_calls=2)
    yours = reserve(two, max_calls=2)
    assert mine and yours and mine.name != yours.name
    assert reserve(one, max_calls=2) is None and reserve(two, max_calls=2) is None
    assert "max_calls=2" in reached(budget(two, max_calls=2)), "calls of another process are not waited for"
    one.release(mine)
    assert reserve(two, max_calls=2) is not None


def test_a_ledger_that_nobody_holds_any_more_closes_its_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    reserve(ledger)
    assert (tmp_path / "ledger.sqlite-wal").exists()
    del ledger
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


SPENDER = """
import asyncio, random, sys
from memecmd_utils.llm.budget import Budget, Ledger
from memecmd_utils.llm.messages import BudgetReached, Message, Reply, Request, Sampling
from pathlib import Path

path, seed = Path(sys.argv[1]), int(sys.argv[2])
random.seed(seed)
asked = Request(task="utterance", subject="x", messages=[Message(role="user", text="a")],
                sampling=Sampling(max_tokens=10))

async def worker(made):
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
    made = Budget(Ledger(path), "s", max_calls=90, max_usd=600.0, usd_out=1e6)
    ends = await asyncio.gather(*(worker(made) for _ in range(5)), return_exceptions=True)
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
    """Each looks at the caps after every call; the file is made by whoever comes first."""
    path = tmp_path / "ledger.sqlite"
    runs = [start(SPENDER, path, seed) for seed in range(3)]
    assert [process.stdout.readline() for process in runs] == ["ready\n"] * 3
    for process in runs:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in runs:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
    ledger = Ledger(path)
    assert ledger.usd <= 600.0001 and ledger.calls <= 90 and not ledger.open_calls
    assert ledger.usd > 590 or ledger.calls == 90, "and they used what there was"


def test_calls_in_flight_of_a_killed_process_count_at_their_most(tmp_path: Path) -> None:
    killed = budget(Ledger(tmp_path / "l"))
    killed.settle(fast_time.run(killed.reserve(request())), Reply(text="x", tokens_out=2))
    for _ in range(3):
        fast_time.run(killed.reserve(request()))
    after = Ledger(tmp_path / "l")
    assert (after.calls, after.usd, after.open_calls) == (4, pytest.approx(32), 3)
    message = reached(budget(after, max_usd=41.0))  # nobody waits for calls of a process that is gone
    assert "max_usd=41.0" in message and "30.0000 for calls that were cut off" in message
    fast_time.run(budget(after, max_usd=42.0).reserve(request()))


def test_a_process_killed_at_any_moment_leaves_a_ledger_that_counts_all_its_calls(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from memecmd_utils.llm.budget import Ledger, CallBound
ledger = Ledger(Path(sys.argv[1]))
while True:
    made = ledger.reserve("s", "t", CallBound(1, 1.0))
    print(made.name, flush=True)
    ledger.settle(made, 1.0, 1, 1)
"""
    calls = 0
    for n in range(5):
        process = start(code, tmp_path / "l")
        for _ in range(20 * n + 1):
            assert process.stdout.readline()
        process.kill()
        told = process.stdout.read()
        process.communicate()
        calls += 20 * n + 1 + told.count("\n")
        ledger = Ledger(tmp_path / "l")
        assert calls <= ledger.calls <= calls + n + 1, "at most one a kill that was entered and not told"
        assert ledger.usd == pytest.approx(ledger.calls)


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
    dead = Ledger(tmp_path / "l")
    dead.reserve("annotation", "annotation", CallBound(1, 3.0))
    dead.reserve("dialogue_generation", "utterance", CallBound(1, 2.0))
    ledger = Ledger(tmp_path / "l")
    mine = ledger.reserve("annotation", "annotation", CallBound(1, 1.0))
    assert ledger.usd == pytest.approx(6.0)
    ledger.release_abandoned("annotation")
    assert ledger.usd == pytest.approx(3.0) and ledger.calls == 2
    ledger.release(mine)
    assert Ledger(tmp_path / "l").usd == pytest.approx(2.0), "written down, not only forgotten"


@pytest.mark.parametrize(
    ("caps", "fewest", "most"),
    [
        ({"max_usd": 400.0}, 40, 40),  # ten dollars a call, more than a thousandth
        ({"max_usd": 40_000.0}, 8, 13),  # four calls are a thousandth
        ({"max_calls": 40}, 40, 40),
        ({"max_usd": 1e7, "max_calls": 10**6}, 0, 0),
        ({}, 0, 0),
    ],
)
def test_a_power_cut_takes_no_more_than_a_thousandth_of_a_cap_from_the_ledger(
    tmp_path: Path, caps, fewest: int, most: int
) -> None:
    """What the disk surely has is what stood in the files when the last full sync ended."""
    made, on_disk, syncs = budget(Ledger(tmp_path / "l"), **caps), {}, 0
    sync = made.ledger._sync

    def noted() -> None:
        nonlocal syncs
        statements: list[str] = []
        made.ledger._db.set_trace_callback(statements.append)
        sync()
        made.ledger._db.set_trace_callback(None)
        write = next(n for n, line in enumerate(statements) if line.startswith("update"))
        assert "synchronous = full" in statements[write - 1]
        on_disk.update({name: (tmp_path / name).read_bytes() for name in ("l", "l-wal")})
        syncs += 1

    made.ledger._sync = noted
    for number in range(40):
        fast_time.run(made.reserve(request(), in_bulk=True))
        kept = tmp_path / str(number)
        kept.mkdir()
        for name, data in on_disk.items():
            (kept / name).write_bytes(data)
        after = Ledger(kept / "l")
        if "max_usd" in caps:
            assert made.ledger.usd - after.usd <= 0.001 * caps["max_usd"] + 1e-9
        if "max_calls" in caps:
            assert made.ledger.calls - after.calls <= 0.001 * caps["max_calls"]
    assert made.ledger.calls == 40 and fewest <= syncs <= most


@pytest.mark.parametrize("bad", [b"garbled" * 100, b"SQLite format 3\0" + b"\0" * 4000])
def test_a_damaged_ledger_ends_the_run_with_what_to_do(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "l").write_bytes(bad)
    with pytest.raises(LedgerError, match=r"l: what this run has spent cannot be read .*from a copy"):
        reserve(Ledger(tmp_path / "l"))
