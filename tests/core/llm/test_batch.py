import asyncio
import io
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from batch_server import (
    KEY,
    BatchServer,
    Fault,
    Outcome,
    ask_all,
    backend_for,
    chat_for,
    completed,
    mood,
    number_of,
    parse,
    request,
    run,
)
from pydantic import SecretStr
from tiny_server import error

from memecmd_utils.files import paths
from memecmd_utils.llm import batch
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm.batch import TRIES, TRIES_AT_FIRST, Service
from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.llm.messages import (
    BudgetReached,
    EndpointError,
    Image,
    Message,
    RequestRejected,
    TransientFault,
)
from memecmd_utils.settings import Endpoint

ASKED = [request(n) for n in range(8)]


def test_answers_come_back_to_their_questions(tmp_path: Path) -> None:
    loads = []

    def load() -> str:
        loads.append(1)
        return "data:image/png;base64,QUJD"

    with BatchServer(mood, polls=2).running() as server:
        asked = [request(n, images=[Image(image_id=f"i{n}", load=load)]) for n in range(30)]
        backend = backend_for(server.url, tmp_path)
        answers = ask_all(chat_for(backend, tmp_path), asked)
    assert [a.value for a in answers] == [f"{n}号" for n in range(30)]
    assert {a.outcome for a in answers} == {"accepted"} and server.sizes == [30]
    body = server.sent(0)[0]["body"]
    assert body["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,QUJD"
    assert body["response_format"]["json_schema"]["name"] == "Mood" and body["model"] == "tiny"
    assert len(loads) == 30, "each image is read once"
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["journal.sqlite"]
    assert backend.in_bulk and backend.status == "" and llm_chat.run(backend.alive(1.0))


def test_files_are_split_by_count_and_the_status_says_how_far(tmp_path: Path) -> None:
    seen = []
    with BatchServer(mood, polls=4).running() as server:
        backend = backend_for(server.url, tmp_path, requests=4, quiet_s=0.5)
        server.on_call = lambda call: seen.append(backend.status)
        answers = ask_all(chat_for(backend, tmp_path), [request(n) for n in range(10)])
    assert [a.value for a in answers] == [f"{n}号" for n in range(10)]
    assert sorted(server.sizes) == [2, 4, 4]
    assert seen[0] == "collecting 2 requests, 0 of 2 batches back, 0 of 8 requests done"
    assert seen[-1].endswith("of 10 requests done")


def test_files_are_split_by_bytes_and_a_request_larger_than_one_is_rejected_alone(tmp_path: Path) -> None:
    asked = [request(n, messages=[Message(role="user", text=f"{n}" + "长" * 1000)]) for n in range(8)]
    large = request(9, messages=[Message(role="user", text="9" * 12_000)])
    with BatchServer(mood).running() as server:
        *answers, rejected = run(server.url, tmp_path, [*asked, large], size=11_000)
    assert [a.value for a in answers] == [f"{n}号" for n in range(8)]
    assert rejected.outcome == "rejected" and "11,000" in rejected.reason
    assert sorted(server.sizes) == [2, 3, 3], "3,000 bytes each: UTF-8, not escapes"
    assert all(len(file) <= 11_000 for name, file in server.files.items() if name.startswith("file-"))


def test_an_unusable_reply_is_asked_again_under_the_next_name(tmp_path: Path) -> None:
    def answer(body: dict) -> str:
        first = server.sizes == [3] and number_of(body) == 1
        return "不是" if first else mood(body)

    with BatchServer(answer).running() as server:
        answers = run(server.url, tmp_path, [request(n) for n in range(3)])
    assert [(a.value, a.attempts) for a in answers] == [("0号", 1), ("1号", 2), ("2号", 1)]
    (again,) = server.sent(1)
    digest, _, number = again["custom_id"].partition("-")
    assert number == "2" and len(digest) == 40
    assert f"{digest}-1" in {line["custom_id"] for line in server.sent(0)}


def test_equal_bodies_of_two_samples_are_two_requests(tmp_path: Path) -> None:
    with BatchServer(mood).running() as server:
        run(
            server.url,
            tmp_path,
            [request(sample=n) for n in range(2)],
            endpoint={"parameters": {"seed": None}},
        )
        one, two = server.sent(0)
    assert one["body"] == two["body"] and one["custom_id"][:40] != two["custom_id"][:40]


def test_rejected_filtered_and_failed_requests_stand_alone(tmp_path: Path) -> None:
    def answer(body: dict) -> str | Outcome:
        match number_of(body):
            case 1:
                return Outcome(error("too long"), 400)
            case 2:
                return Outcome(error("no", code="content_filter"), 400)
            case 3:
                return Outcome(error("oops"), 500)
            case n if n >= 10:
                return Outcome(error("too long"), 400)
        return mood(body)

    asked = [request(n) for n in [*range(5), *range(10, 30)]]
    with BatchServer(answer).running() as server:
        rejected, filtered, failed = (results := completed(server.url, tmp_path, *asked))[1:4]
    assert isinstance(rejected, RequestRejected) and "too long" in str(rejected)
    assert filtered.finish_reason == "content_filter"
    assert failed.finish_reason == "failed" and "status 500" in failed.text
    assert results[0].text and results[4].text
    assert all(isinstance(r, RequestRejected) for r in results[5:]), "however many they are"
    assert server.sizes == [25, 1, 1]


def test_a_reply_that_cannot_be_read_is_sent_anew_by_delivery(tmp_path: Path) -> None:
    def answer(body: dict) -> str | Outcome:
        return Outcome({"choices": []}) if number_of(body) == 1 and len(server.sizes) == 1 else mood(body)

    with BatchServer(answer).running() as server:
        good, bad = completed(server.url, tmp_path / "a", request(0), request(1))
        assert good.text and isinstance(bad, TransientFault) and bad.paid
    with BatchServer(answer).running() as server:
        chat = chat_for(backend_for(server.url, tmp_path / "b"), tmp_path / "b")
        answers = ask_all(chat, [request(0), request(1)])
    assert [a.value for a in answers] == ["0号", "1号"] and server.sizes == [2, 1]
    assert sum(s.unsure_calls for s in chat.budget.ledger.spent.values()) == 1


def test_a_service_that_sends_no_completions_ends_the_run(tmp_path: Path) -> None:
    with BatchServer(lambda body: Outcome({"answer": 42})).running() as server:
        faults = completed(server.url, tmp_path, *(request(n) for n in range(30)))
    assert all("without a single chat completion" in str(fault) for fault in faults)
    assert {type(fault) for fault in faults} == {EndpointError} and len(server.sizes) == 1


def test_a_refusal_that_was_mended_is_not_held_against_a_request(tmp_path: Path) -> None:
    asked = [request(n, schema=None) for n in range(3)]
    with BatchServer(lambda body: Outcome(error("no such thing"), 400)).running() as server:
        faults = completed(server.url, tmp_path, *asked)
        assert all(isinstance(f, EndpointError) and "no such thing" in str(f) for f in faults)
        server.answer = mood
        answers = completed(server.url, tmp_path, *asked)
    assert [parse(reply) for reply in answers] == ["0号", "1号", "2号"] and server.sizes == [3, 3]


def only(*forms: str | None):
    def answer(body: dict) -> str | Outcome:
        form = body.get("response_format", {}).get("type")
        return mood(body) if form in forms else Outcome(error("unknown response_format"), 400)

    return answer


@pytest.mark.parametrize(
    ("form", "batches", "neutral"), [("json_schema", 1, 0), ("json_object", 2, 2), (None, 2, 3)]
)
def test_the_ladder_of_forms(tmp_path: Path, form: str | None, batches: int, neutral: int) -> None:
    """What form is taken is found out at once by a neutral request, and not by a batch a rung."""
    with BatchServer(only(form)).running() as server:
        answers = run(server.url, tmp_path, [request(n) for n in range(4)])
    assert [a.value for a in answers] == [f"{n}号" for n in range(4)]
    assert server.sizes == [4] * batches and server.calls["POST /chat/ID"] == neutral


def test_a_first_batch_of_refused_requests_alone_is_held_against_them(tmp_path: Path) -> None:
    def answer(body: dict) -> str | Outcome:
        return Outcome(error("not this one", code=403), 403) if number_of(body) > 1 else mood(body)

    with BatchServer(answer).running() as server:
        for asked, outcomes in (([2, 3], ["rejected"] * 2), ([1, 2], ["accepted", "rejected"])):
            answers = run(server.url, tmp_path, [request(n) for n in asked])
            assert [a.outcome for a in answers] == outcomes
        assert server.calls["POST /chat/ID"] == 1 and "not this one" in answers[1].reason


def test_what_expires_three_times_has_failed(tmp_path: Path) -> None:
    with BatchServer(mood, end=lambda *_: "expired").running() as server:
        answers = run(server.url, tmp_path, ASKED)
        assert server.sizes == [8, 4, 2] and [a.outcome for a in answers].count("accepted") == 7
        (failed,) = [a for a in answers if a.value is None]
        assert failed.outcome == "failed" and "batch_expired" in failed.reason
        server.end = lambda *_: "completed"
        answers = run(server.url, tmp_path, ASKED)
    assert all(a.value for a in answers) and server.sizes == [8, 4, 2, 1]


def test_without_any_answer_in_three_batches_the_run_ends(tmp_path: Path) -> None:
    with BatchServer(lambda body: Outcome(code="batch_expired")).running() as server:
        faults = completed(server.url, tmp_path, *ASKED)
    assert server.sizes == [8, 8, 8]
    assert all(isinstance(fault, EndpointError) and "not a single answer" in str(fault) for fault in faults)


def test_a_cancelled_batch_keeps_what_it_has(tmp_path: Path) -> None:
    with BatchServer(mood, end=lambda number, _: "completed" if number else "cancelled").running() as server:
        with pytest.raises(EndpointError, match="batch_0 was cancelled; run again"):
            run(server.url, tmp_path, ASKED)
        answers = run(server.url, tmp_path, ASKED)
    assert [a.value for a in answers] == [f"{n}号" for n in range(8)]
    assert [a.replayed for a in answers] == [True] * 4 + [False] * 4
    assert server.sizes == [8, 4] and set(server.answered.values()) == {1}


def test_a_refused_file_ends_the_run_with_the_servers_words(tmp_path: Path) -> None:
    refused = ("model_not_found", "The model `tiny` has no batches")
    with BatchServer(mood, end=lambda number, _: "completed" if number else refused).running() as server:
        with pytest.raises(EndpointError, match=r"model_not_found.*has no batches \(line 1\).*`model`"):
            run(server.url, tmp_path, ASKED)
        assert all(a.value for a in run(server.url, tmp_path, ASKED))


def test_at_the_token_cap_a_file_waits_for_another(tmp_path: Path) -> None:
    with BatchServer(mood, token_cap=4, polls=3).running() as server:
        answers = run(server.url, tmp_path, ASKED, requests=4)
    assert [a.value for a in answers] == [f"{n}号" for n in range(8)]
    assert set(server.sizes) == {4} and set(server.answered.values()) == {1}
    assert server.calls["POST /files"] == 2, "what was uploaded stays there"


@pytest.mark.parametrize("cap", [1, 3])
def test_a_file_above_the_token_cap_is_halved(tmp_path: Path, cap: int) -> None:
    with BatchServer(mood, token_cap=cap).running() as server:
        answers = run(server.url, tmp_path, ASKED)
    assert [a.value for a in answers] == [f"{n}号" for n in range(8)]
    assert set(server.answered.values()) == {1} and len(server.answered) == 8


def test_one_request_above_the_token_cap_ends_the_run(tmp_path: Path) -> None:
    with (
        BatchServer(mood, token_cap=0).running() as server,
        pytest.raises(EndpointError, match="takes no more tokens"),
    ):
        run(server.url, tmp_path, ASKED)


def test_a_full_disk_ends_the_run_and_hangs_nothing(tmp_path: Path, monkeypatch) -> None:
    def note(self, part) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(batch.Journal, "note", note)
    with BatchServer(mood).running() as server, pytest.raises(OSError, match="No space left"):
        run(server.url, tmp_path, ASKED)
    assert server.calls.total() == 0


def test_a_tight_cap_makes_several_batches_and_is_never_passed(tmp_path: Path) -> None:
    with BatchServer(mood).running() as server:
        # 40 tokens at most, 3 in the end: 0.40 reserved, 0.03 spent.
        budget = Budget(max_usd=1.0, usd_out=10_000.0)
        chat = chat_for(backend_for(server.url, tmp_path), tmp_path, budget=budget)
        answers = ask_all(chat, [request(n) for n in range(5)])
    assert all(a.value for a in answers) and server.sizes == [2, 2, 1]
    assert budget.ledger.usd == pytest.approx(0.15)


def test_at_the_cap_the_run_ends_and_goes_on_later(tmp_path: Path) -> None:
    with BatchServer(mood).running() as server:
        chat = chat_for(backend_for(server.url, tmp_path), tmp_path, budget=Budget(max_calls=3))
        with pytest.raises(BudgetReached):
            ask_all(chat, [request(n) for n in range(5)])
        answers = run(server.url, tmp_path, [request(n) for n in range(5)])
    assert [a.replayed for a in answers] == [True, True, True, False, False]
    assert server.sizes == [3, 2] and set(server.answered.values()) == {1}


def from_sdk(error: BaseException | None) -> bool:
    """Whether an exception of the SDK or of its transport hangs on this one."""
    while error is not None:
        if type(error).__module__.split(".")[0] in ("openai", "httpx", "httpx2", "aiohttp"):
            return True
        error = error.__cause__ or error.__context__
    return False


def test_the_key_is_nowhere(tmp_path: Path) -> None:
    def answer(body: dict) -> str | Outcome:
        return Outcome(error(f"Incorrect key {KEY}"), 400) if number_of(body) else mood(body)

    shown = []
    with BatchServer(answer).running() as server:
        shown += completed(server.url, tmp_path / "a", request(0), request(1))
        server.end = lambda number, bodies: ("invalid", f"key {KEY}")
        shown += completed(server.url, tmp_path / "b", request(0))
        server.faults = {"POST /files": [Fault(401, message=KEY), Fault(404, message=KEY)]}
        shown += completed(server.url, tmp_path / "c", request(0))
        shown += completed(server.url, tmp_path / "d", request(0))
        server.faults = {"GET /batches/ID": [Fault(404, message=KEY)]}
        server.end = lambda *_: "completed"
        shown += completed(server.url, tmp_path / "e", request(0))
    faults = [fault for fault in shown if isinstance(fault, Exception)]
    texts = ["".join(traceback.format_exception(fault)) for fault in faults]
    assert len(faults) == 5 and KEY not in "".join(texts)
    assert "Incorrect key ***" in texts[0] and "key ***" in texts[1]
    assert "OPENAI_API_KEY" in texts[2] and "`batch: false`" in texts[3]
    assert "another account" in texts[4] and "folder of batches" in texts[4]
    assert not [fault for fault in faults if from_sdk(fault)], "its headers hold the key"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 5 and not any(KEY.encode() in path.read_bytes() for path in files)


CHILD = """
import os, signal, sys
from pathlib import Path
from batch_server import request, run
from memecmd_utils.llm import batch

def fatal(owner, name, nth=1):
    "Makes a method end the process at its nth call, before or after its work."
    work, calls = getattr(owner, name), []
    def call(*args):
        calls.append(name)
        if when == "before" and len(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        result = work(*args)
        if when == "after" and len(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, call)

url, folder, when, where, nth = sys.argv[1:]
fatal(batch.Journal if where in ("note", "save") else batch.Service, where, int(nth))
run(url, Path(folder), [request(n) for n in range(6)])
"""


def child(url: str, folder: Path, point: str) -> int:
    here = paths.root / "tests" / "helpers"
    command = [sys.executable, "-c", CHILD, url, str(folder), *point.split()]
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{paths.root}"}
    return subprocess.run(command, cwd=here, env=environment).returncode


POINTS = ["before note 1", "after note 1", "before create 1", "before note 2", "after note 2",
          "before look 2", "before save 1", "after save 1"]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_anywhere_pays_nothing_twice(tmp_path: Path, point: str) -> None:
    with BatchServer(mood).running() as server:
        assert child(server.url, tmp_path, point) == -signal.SIGKILL
        batches, calls = len(server.batches), server.calls.total()
        answers = run(server.url, tmp_path, [request(n) for n in range(6)])
    assert batches == (point not in POINTS[:3])
    assert [a.value for a in answers] == [f"{n}号" for n in range(6)]
    assert len(server.batches) == 1 and set(server.answered.values()) == {1}
    if point == "after save 1":
        assert server.calls.total() == calls, "what is saved needs no call"


@pytest.mark.slow
def test_two_kills_and_a_smaller_third_run(tmp_path: Path) -> None:
    with BatchServer(mood).running() as server:
        child(server.url, tmp_path, "before note 2")
        child(server.url, tmp_path, "before look 1")
        answers = run(server.url, tmp_path, [request(n) for n in range(2)])
        assert [a.value for a in answers] == ["0号", "1号"]
        answers = run(server.url, tmp_path, [request(n) for n in range(8)])
    assert [a.value for a in answers] == [f"{n}号" for n in range(8)]
    assert server.sizes == [6, 2] and set(server.answered.values()) == {1}


def test_a_stop_between_two_attempts_goes_on_with_the_second(tmp_path: Path) -> None:
    def answer(body: dict) -> str:
        return mood(body) if number_of(body) or len(server.sizes) > 1 else "不是"

    def stop(call: str) -> None:
        if call == "GET /batches/ID" and len(server.batches) == 2 and "loop" in box:
            box["loop"].call_soon_threadsafe(box.pop("task").cancel)
            del box["loop"]

    async def work() -> None:
        box["loop"], box["task"] = asyncio.get_running_loop(), asyncio.current_task()
        await chat.side_by_side(chat.ask(r, parse) for r in ASKED)

    box: dict = {}
    with BatchServer(answer, polls=3, on_call=stop).running() as server:
        chat = chat_for(backend_for(server.url, tmp_path), tmp_path)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(work())
        answers = run(server.url, tmp_path, ASKED)
    assert [a.attempts for a in answers] == [2] + [1] * 7 and all(a.value for a in answers)
    assert server.sizes == [8, 1] and set(server.answered.values()) == {1}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    assert batch.is_free(tmp_path / "jobs") and not (tmp_path / "jobs").exists()
    journal = batch.Journal(tmp_path / "jobs")
    with BatchServer(mood).running() as server:
        (fault,) = completed(server.url, tmp_path, request())
        assert isinstance(fault, EndpointError) and "another process" in str(fault)
        assert not batch.is_free(tmp_path / "jobs")
        journal.close()
        assert batch.is_free(tmp_path / "jobs"), "a look leaves no lock behind"
        (reply,) = completed(server.url, tmp_path, request())
    assert reply.text


def test_a_damaged_journal_says_what_is_at_stake(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / batch.JOURNAL).write_text("not a database" * 100)
    (fault,) = completed("http://127.0.0.1:9/v1", tmp_path, request())
    assert isinstance(fault, EndpointError) and "paid twice" in str(fault)


THREE = [request(n) for n in range(3)]
CALLS = ["POST /files", "POST /batches", "GET /batches/ID", "GET /files/ID/content"]


class Waits(list):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def service(url: str, waits: Waits) -> Service:
    inner = OpenAIBackend(Endpoint(base_url=url, model="tiny"), key=SecretStr(KEY))
    return Service(inner, waits)


def test_every_call_survives_faults_and_makes_one_batch(tmp_path: Path) -> None:
    faults = {
        call: [
            Fault(503),
            Fault(reset=True),
            Fault(429),
            Fault(reset=True, after=True),
            Fault(500, after=True),
        ]
        for call in CALLS
    }
    with BatchServer(mood, faults=faults).running() as server:
        answers = run(server.url, tmp_path, THREE)
    assert [a.value for a in answers] == ["0号", "1号", "2号"]
    assert server.sizes == [3] and set(server.answered.values()) == {1}


def test_half_a_file_of_results_is_fetched_again(tmp_path: Path) -> None:
    with BatchServer(mood).running() as server:
        whole = BatchServer._do
        cut = []

        def do(call: str, path: list[str], *rest):
            status, body = whole(server, call, path, *rest)
            if call == "GET /files/ID/content" and not cut:
                cut.append(body)
                body = body[: len(body) // 2]
            return status, body

        server._do = do
        answers = run(server.url, tmp_path, THREE)
    assert [a.value for a in answers] == ["0号", "1号", "2号"] and cut


def test_an_endpoint_that_never_answers_is_given_up_soon(tmp_path: Path) -> None:
    waits = Waits()
    with pytest.raises(EndpointError, match=f"failed {TRIES_AT_FIRST} times.*no connection"):
        asyncio.run(service("http://127.0.0.1:9/v1", waits).look("batch_0"))
    assert len(waits) == TRIES_AT_FIRST - 1 and 100 < sum(waits) < 240


def test_one_that_has_answered_is_waited_for(tmp_path: Path) -> None:
    waits = Waits()
    with BatchServer(mood).running() as server:

        async def work() -> None:
            asked = service(server.url, waits)
            file = await asked.upload("x.jsonl", io.BytesIO())
            batch = await asked.create(file, "tag", 2e9)
            assert (await asked.look(batch.id)).id == "batch_0"
            server.faults["GET /batches/ID"] = [Fault(502) for _ in range(TRIES)]
            await asked.look(batch.id)

        with pytest.raises(EndpointError, match=rf"failed {TRIES} times.*status 502.*run again"):
            asyncio.run(work())
    assert 2400 < sum(waits) < 4500, "about an hour"


def test_a_batch_is_found_by_its_tag_on_a_later_page(tmp_path: Path) -> None:
    waits = Waits()
    with BatchServer(mood).running() as server:

        async def work() -> None:
            asked = service(server.url, waits)
            file = await asked.upload("x.jsonl", io.BytesIO())
            for n in range(5):
                assert (await asked.create(file, f"tag{n}", 2e9)).id == f"batch_{n}"
            assert (await asked.find("tag0", 2e9)).id == "batch_0" and not waits
            assert await asked.find("other", 2e9) is None
            assert waits == [5.0], "a young one is looked for twice"
            assert await asked.find("other", 1e9) is None and waits == [5.0]

        asyncio.run(work())
