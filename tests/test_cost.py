"""Money: what was spent, caps, the estimate by hand, a provider's batches."""

import asyncio
import json
from collections import Counter

import pytest
from fault_server import Answer, FaultServer, Simulated

from memecmd_utils import cost, models, runs, schemas, settings
from memecmd_utils.files import paths
from memecmd_utils.llm import budget, chat
from memecmd_utils.llm.budget import Budget, Spent
from memecmd_utils.llm.messages import BudgetReached, Message, Reply, Request, Sampling

LIVE = {"models.llm": "openai", "dialogue.n_news": 6, "dialogue.n_role_pairs": 4, "dialogue.n_turns": 10}
MODEL = {"model": "m", "usd_per_million_in": 1, "usd_per_million_out": 10}


def profile(**changes) -> settings.Profile:
    given = {
        **LIVE,
        "models.endpoints.generator": MODEL,
        **{k.replace("__", "."): v for k, v in changes.items()},
    }
    return settings.load_profile("openai", given)


def request(task: str = "summary", **sampling) -> Request:
    return Request(
        task=task,
        subject="x",
        messages=[Message(role="user", text="一" * 100)],
        sampling=Sampling(**sampling),
    )


def test_what_was_spent_is_known_to_other_processes_and_a_torn_line_is_none(tmp_path) -> None:
    path = tmp_path / "usage" / "spent.jsonl"
    one, other = Spent(path), Spent(path)
    one.add("s", "rating", 10, 5, 0.25)
    other.refresh()
    other.add("s", "rating", 1, 1, 0.5)
    one.refresh()
    assert one.rows == other.rows == {("s", "rating"): Counter(calls=2, tokens_in=11, tokens_out=6, usd=0.75)}
    with path.open("a") as handle:
        handle.write('{"stage": "s", "ta')
    assert Spent(path).total("usd") == 0.75 and Spent(tmp_path / "none").total("calls") == 0


def spend(capped: Budget, n: int, reply: Reply, at_once: int = 4) -> tuple[int, BaseException | None]:
    """So many calls side by side, and what stopped them."""
    sent = []

    async def one(slots: asyncio.Semaphore) -> None:
        async with slots, capped.call(request(max_tokens=10)) as pay:
            sent.append(1)
            await asyncio.sleep(0.01)
            pay(reply)

    async def work() -> None:
        slots = asyncio.Semaphore(at_once)
        await asyncio.gather(*(one(slots) for _ in range(n)))

    try:
        chat.run(work())
    except BudgetReached as reached:
        return len(sent), reached
    return len(sent), None


def test_a_cap_in_calls_is_not_passed_and_one_in_dollars_by_what_is_under_way_at_the_most() -> None:
    reply = Reply(text="x", tokens_in=100, tokens_out=50)
    assert spend(Budget(max_calls=7), 20, reply)[0] == 7 and spend(Budget(max_calls=0), 1, reply)[0] == 0
    assert spend(Budget(max_usd=0), 1, reply)[0] == 0, "a cap of nothing allows no call, not even a free one"
    capped = Budget(max_usd=0.01, usd_in=1, usd_out=2)
    sent, reached = spend(capped, 200, reply)
    assert "max_usd=0.01 would be exceeded" in str(reached) and 40 <= sent <= 50 + 4
    thinks = Reply(text="x", tokens_in=100, tokens_out=5_000)  # far more than `max_tokens` says
    sent, _ = spend(Budget(max_usd=0.01, usd_in=1, usd_out=2), 200, thinks)
    assert sent == 1, "the first call goes alone, and shows the price"
    assert spend(Budget(max_usd=100), 20, reply)[1] is None, "what is free has no end"


def test_replies_without_counts_cost_what_was_reckoned_and_refused_ones_nothing() -> None:
    capped = Budget(usd_in=1e6, usd_out=1e6)
    assert spend(capped, 1, Reply(text="x"))[1] is None
    assert capped.spent.total("usd") == pytest.approx(budget.TOKENS_PER_CHARACTER * 100 + 10)
    for reason in ("failed", "rejected"):
        spend(capped, 1, Reply(text="x", finish_reason=reason))
    assert capped.spent.total("calls") == 1


def test_the_estimate_by_hand() -> None:
    rating, yes_no = ([{"kind": kind, "llm": "openai"}] for kind in ("rating", "yes_no"))
    mine = profile(evaluation__judges=rating, evaluation__judge_unit="dialogue",
                   retrieval__strategies=["greedy", "random"], retrieval__wanted_rate=0.5)  # fmt: skip
    rows = {row["stage"]: row for row in cost.estimate(mine, 30)}
    n_news, n_role = 6, sum(mine.dialogue.scenarios_per_pair for _ in range(4))
    dialogues = n_news + n_role
    assert [rows[s]["calls"] for s in ("02 annotation", "03 scenarios", "03 utterance", "03 summary")] == [
        30, 2 * n_role, 10 * dialogues, 9 * dialogues,
    ]  # fmt: skip
    written = rows["03 utterance"]["tokens_out"]
    assert written == 10 * dialogues * cost.REPLY_TOKENS["utterance"]
    assert rows["03 utterance"]["usd"] == pytest.approx(
        (rows["03 utterance"]["tokens_in"] + 10 * written) / 1e6
    )
    hours = 10 * dialogues * budget.REMOTE_SECONDS_PER_CALL / mine.models.concurrency / 3600
    assert rows["03 utterance"]["hours"] == pytest.approx(hours)
    assert rows["05 judge 1 (rating)"]["calls"] == 2 * dialogues * 2, "two strategies, 6 and 10 turns"
    by_meme = profile(evaluation__judges=yes_no, evaluation__judge_checks=0,
                      evaluation__judge_sample=None, retrieval__strategies=["greedy"],
                      retrieval__wanted_rate=0.999)  # fmt: skip
    (judge,) = [row for row in cost.estimate(by_meme, 30) if "judge" in row["stage"]]
    held_out = 2 * 30 * by_meme.evaluation.judge_contexts
    assert judge["calls"] == pytest.approx(5 * (9 * dialogues + held_out), rel=0.01)
    assert sum(row["usd"] for row in cost.estimate(settings.load_profile("example", {}), 200)) == 0


def test_what_is_not_known_is_said() -> None:
    mine = profile(models__endpoints={"generator": {"model": "m", "vision": True}}, models__max_usd=None)
    text = cost.cost_text(mine)
    assert "The price of m is not known" in text and "counts as 765 tokens" in text and " total " in text


# --- batches ------------------------------------------------------------------------------------------


class BatchService(Simulated):
    """The Batch API over the simulated model: a batch has ended when it is looked at the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict] = {}

    def answer_to(self, path: str, method: str, body) -> Answer:
        name = path.rsplit("/", 1)[-1].partition("?")[0]
        if path.startswith("/v1/chat"):
            return self(body)
        if path.startswith("/v1/files"):
            if method == "GET":
                return Answer(self.files[path.split("/")[3]], kind="application/octet-stream")
            self.files[f"f{len(self.files)}"] = body.split(b"\r\n\r\n")[-1].rsplit(b"\r\n--", 1)[0]
            return Answer({"id": f"f{len(self.files) - 1}", "object": "file"})
        if method == "POST":
            made = {"id": f"b{len(self.batches)}", "object": "batch", "status": "in_progress", **body}
            self.batches[made["id"]] = made | {"request_counts": {"total": 1, "completed": 0, "failed": 0}}
            return Answer(self.batches[made["id"]])
        if name == "batches":
            return Answer({"object": "list", "data": list(self.batches.values()), "has_more": False})
        batch = self.batches[name]
        if batch.get("seen"):
            lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
            done = [{"custom_id": line["custom_id"], "response": {"status_code": 200,
                     "body": json.loads(self(line["body"]).body)}} for line in lines[:-1]]  # fmt: skip
            self.files["out"] = b"".join(json.dumps(line).encode() + b"\n" for line in done)
            batch |= {"status": "completed", "output_file_id": "out"}
        batch["seen"] = True
        return Answer({k: v for k, v in batch.items() if k != "seen"})


def test_a_batch_is_sent_once_fetched_and_taken_by_the_run_at_half_the_price(tmp_path, monkeypatch) -> None:
    for name in ("processed", "raw", "reports"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    monkeypatch.setenv("OPENAI_API_KEY", "simulated-simulated")
    service = BatchService()
    with FaultServer(service).running() as server:
        server.service = service.answer_to
        given = {"models.llm": "openai", "models.mode": "auto", "models.max_usd": None}
        given["models.endpoints.generator"] = {**MODEL, "base_url": server.url}
        monkeypatch.setattr(settings, "settled", lambda *_: settings.load_profile("openai", given))
        run = runs.open_run("openai", "", "b")
        memes = [
            schemas.Meme(meme_id=f"m{n}", file=f"m{n}.png", text=f"第{n}张", text_source="known",
                         picture_note="猫", origin="x", sha256=f"{n:064x}", phash="0" * 16,
                         width=8, height=8, source="made up")
            for n in range(5)
        ]  # fmt: skip
        run.save(memes, schemas.Meme)
        assert list(cost.send_batch(run, "annotation")) == ["5 questions of annotation are sent in batch b0"]
        with pytest.raises(cost.BatchError, match="batch fetch annotation"):
            list(cost.send_batch(run, "annotation"))
        assert not (run.folder / "annotations.parquet").exists() and not service.lines
        # The sender was killed before the note was written.
        models.inbox(run, "annotation").with_name("annotation.json").unlink()
        assert "in batch b0" in next(iter(cost.send_batch(run, "annotation"))) and len(service.batches) == 1
        assert list(cost.fetch_batch(run, "annotation")) == ["batch b0: in_progress, 0 of 1 answered"]
        assert "all batches have ended" in list(cost.fetch_batch(run, "annotation"))[-1]
        asked = len(service.lines)
        cost._ask(run, "annotation")
        assert len(service.lines) == asked + 1, "the one that was not answered"
        row = models.spent(run).rows["annotation", "annotation"]
        full = (row["tokens_in"] * 1 + row["tokens_out"] * 10) / 1e6
        assert row["calls"] == 5 and 0.5 * full < row["usd"] < 0.8 * full
        assert list(cost.send_batch(run, "annotation")) == [
            "annotation has no open questions: all answers are recorded"
        ]
