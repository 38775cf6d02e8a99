import asyncio
import io
from pathlib import Path

import pytest
from batch_server import KEY, BatchServer, Fault, completed, mood, request, run
from pydantic import SecretStr

from memecmd_utils.core.llm.batch import TRIES, TRIES_AT_FIRST, Service
from memecmd_utils.core.llm.endpoint import OpenAIBackend
from memecmd_utils.core.llm.messages import EndpointError
from memecmd_utils.settings import Endpoint

ASKED = [request(n) for n in range(3)]
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
        answers = run(server.url, tmp_path, ASKED)
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
        answers = run(server.url, tmp_path, ASKED)
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


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    with BatchServer(mood).running() as server:
        server.faults = {"POST /batches": [Fault(404, message="unknown path")]}
        (fault,) = completed(server.url, tmp_path / "a", request())
        assert isinstance(fault, EndpointError)
        assert "making a batch (404): unknown path" in str(fault) and "`batch: false`" in str(fault)
        server.faults = {"GET /batches/ID": [Fault(404, message="No batch found")]}
        (fault,) = completed(server.url, tmp_path / "b", request())
        assert "another account" in str(fault) and "folder of batches" in str(fault)
        server.faults = {"POST /files": [Fault(403)]}
        (fault,) = completed(server.url, tmp_path / "c", request())
        assert "OPENAI_API_KEY" in str(fault)
