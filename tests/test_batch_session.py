import asyncio
from pathlib import Path

import pytest
from batch_server import (
    BatchServer,
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

from memecmd_utils import batch
from memecmd_utils.llm import EndpointError

ASKED = [request(n) for n in range(8)]


def test_what_expired_is_submitted_again(tmp_path: Path) -> None:
    with BatchServer(mood, end=lambda number, _: "completed" if number else "expired").running() as server:
        answers = run(server.url, tmp_path, ASKED)
    assert [a.value for a in answers] == [f"{n}号" for n in range(8)]
    assert server.sizes == [8, 4] and set(server.answered.values()) == {1}


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


def test_the_stop_button_loses_nothing(tmp_path: Path) -> None:
    def stop(call: str) -> None:
        if call == "GET /batches/ID" and server.calls[call] == 2:
            box["loop"].call_soon_threadsafe(box["task"].cancel)

    async def work() -> None:
        box["loop"], box["task"] = asyncio.get_running_loop(), asyncio.current_task()
        await chat.side_by_side(chat.ask(r, lambda reply: reply.text) for r in ASKED)

    box: dict = {}
    with BatchServer(mood, polls=3, on_call=stop).running() as server:
        chat = chat_for(backend_for(server.url, tmp_path), tmp_path)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(work())
        chat.recordings.close()
        answers = run(server.url, tmp_path, ASKED)
    assert all(a.value for a in answers) and server.sizes == [8] and set(server.answered.values()) == {1}


def test_answers_are_handed_out_before_faults(tmp_path: Path) -> None:
    """So that the first fault does not look like an endpoint that never worked."""

    def answer(body: dict) -> str | Outcome:
        return mood(body) if number_of(body) == 7 else Outcome({"error": {"message": "no"}}, 422)

    with BatchServer(answer).running() as server:
        answers = ask_all(chat_for(backend_for(server.url, tmp_path), tmp_path), ASKED)
    assert [a.outcome for a in answers] == ["rejected"] * 7 + ["accepted"]


def test_the_status_tells_what_is_collected(tmp_path: Path) -> None:
    seen = []
    with BatchServer(mood).running() as server:
        backend = backend_for(server.url, tmp_path, requests=5, quiet_s=0.5)
        server.on_call = lambda call: seen.append(backend.status)
        ask_all(chat_for(backend, tmp_path), ASKED)
    assert seen[0] == "collecting 3 requests, 0 of 1 batches back, 0 of 5 requests done"


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
        chat.recordings.close()
        answers = run(server.url, tmp_path, ASKED)
    assert [a.attempts for a in answers] == [2] + [1] * 7 and all(a.value for a in answers)
    assert server.sizes == [8, 1] and set(server.answered.values()) == {1}
