import base64
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tiny_server import Answer, TinyServer, error

from memecmd_utils.core.encoders import text as encoders_text
from memecmd_utils.core.encoders.text import EndpointEmbedder
from memecmd_utils.files import paths
from memecmd_utils.llm import delivery
from memecmd_utils.llm.budget import Budget, Ledger
from memecmd_utils.llm.messages import BudgetReached
from memecmd_utils.settings import Endpoint


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FIRST_WAIT_S", 0.01)


def _vectors(body: dict, packed: bool = False) -> Answer:
    data = []
    for i, text in enumerate(body["input"]):
        row: list[float] | str = [float(len(text)), 1.0]
        if packed:
            row = base64.b64encode(np.array(row, dtype="<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": i, "embedding": row})
    return Answer(
        {"object": "list", "model": "m", "data": data[::-1], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    )


def test_an_endpoint_embeds_in_order_with_a_prefix_for_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBED_KEY", "sk-embed\n")
    with TinyServer(_vectors).running() as server:
        endpoint = Endpoint(base_url=server.url, model="m", model_label="v2", key_env="EMBED_KEY")
        embedder = EndpointEmbedder(endpoint, query_instruction="查询：")
        assert embedder.name == "m@v2"
        assert embedder.encode(["一", "二二"], "document").tolist() == [[1, 1], [2, 1]]
        assert embedder.encode(["一", "二二"], "query")[:, 0].tolist() == [4, 5]
    assert server.bodies[0] == {"input": ["一", "二二"], "model": "m", "encoding_format": "base64"}
    assert server.headers[0]["authorization"] == "Bearer sk-embed"


def test_many_texts_go_in_requests_that_servers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders_text, "INPUTS", 3)
    texts = ["一" * n for n in range(1, 9)]
    with TinyServer(_vectors).running() as server:
        rows = EndpointEmbedder(Endpoint(base_url=server.url, model="m")).encode(texts, "document")
    assert [len(body["input"]) for body in server.bodies] == [3, 3, 2]
    assert rows[:, 0].tolist() == list(range(1, 9))


def test_vectors_come_packed_where_the_server_packs_them_and_as_numbers_where_it_refuses() -> None:
    def packs(body: dict) -> Answer:
        return _vectors(body, packed=True)

    def refuses(body: dict) -> Answer:
        if body["encoding_format"] == "base64":
            return Answer(error("encoding_format: base64 is not supported"), status=400)
        return _vectors(body)

    texts, rows = ["一", "二二", "三三三"], []
    for script, asked in ((packs, ["base64"] * 2), (refuses, ["base64", "float", "float"])):
        with TinyServer(script).running() as server:
            embedder = EndpointEmbedder(Endpoint(base_url=server.url, model="m"))
            rows += [embedder.encode(texts, "document"), embedder.encode(texts, "document")]
        assert [body["encoding_format"] for body in server.bodies] == asked
    assert all(row.dtype == np.float32 and row.tolist() == [[1, 1], [2, 1], [3, 1]] for row in rows)


# --- money ------------------------------------------------------------------------------------------


def counted(tokens: int | None):
    """Answers whose usage says so many tokens."""

    def answer(body: dict) -> Answer:
        made = _vectors(body)
        usage = {} if tokens is None else {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        data = [{"object": "embedding", "index": i, "embedding": [1.0]} for i, _ in enumerate(body["input"])]
        made.body = json.dumps({"object": "list", "model": "m", "data": data} | usage)
        return made

    return answer


def priced(
    url: str, ledger: Ledger | None = None, max_usd: float | None = None, **changes
) -> EndpointEmbedder:
    """A dollar a token."""
    return EndpointEmbedder(
        Endpoint(base_url=url, model="m", **changes),
        budget=Budget(ledger, "embedding", None, max_usd, usd_in=1e6),
    )


@pytest.mark.parametrize(("counts", "usd"), [(7, 7), (None, 2 * (3 + 8)), (0, 2 * (3 + 8)), (500, 500)])
def test_vectors_cost_what_the_endpoint_counts_or_at_most_their_bytes(counts, usd, tmp_path: Path) -> None:
    with TinyServer(counted(counts)).running() as server:
        embedder = priced(server.url, Ledger(tmp_path / "l"))
        embedder.encode(["一", "二"], "document")
    ledger = Ledger(tmp_path / "l")
    assert ledger.usd == pytest.approx(usd) and ledger.calls == 1
    assert ledger.spent["embedding", "embedding"].tokens_in == (counts or 0)


def test_the_cap_holds_for_vectors_also_where_they_cost_more_than_was_reckoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders_text, "INPUTS", 1)
    with TinyServer(counted(30)).running() as server:
        ledger = Ledger(tmp_path / "l")
        with pytest.raises(BudgetReached, match=r"max_usd=100.* would be passed"):
            priced(server.url, ledger, 100).encode(["一"] * 9, "document")
        assert len(server.bodies) == 3 and ledger.usd == pytest.approx(90)
        with pytest.raises(BudgetReached):
            priced(server.url, Ledger(tmp_path / "l"), 119).encode(["一"], "document")
        priced(server.url, Ledger(tmp_path / "l"), 120).encode(["一"], "document")
    assert len(server.bodies) == 4, "the next process reckons with what was billed"


UNREADABLE = {
    "half JSON": Answer('{"data": ['),
    "no vectors": Answer({"object": "list", "data": None}),
    "no numbers": Answer('{"data": [{"index": 0, "embedding": [NaN]}]}'),
    "an empty vector": Answer({"data": [{"index": 0, "embedding": []}]}),
    "odd packing": Answer({"data": [{"index": 0, "embedding": "****"}]}),
    "too few": Answer({"data": []}),
    "too many": Answer({"data": [{"index": i, "embedding": [1.0]} for i in range(2)]}),
}


@pytest.mark.parametrize("bad", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_answer_that_cannot_be_read_is_asked_for_again_and_may_be_paid(bad: Answer) -> None:
    with TinyServer([bad, counted(5)({"input": ["一"]})]).running() as server:
        embedder = priced(server.url)
        assert embedder.encode(["一"], "document").tolist() == [[1.0]]
    spent = embedder.budget.ledger.spent["embedding", "embedding"]
    assert (spent.calls, spent.usd, spent.unsure_calls, spent.unsure_usd) == (1, 5, 1, 11)


RUN = """
import sys
from pathlib import Path
from memecmd_utils.core.encoders.text import RecordedEmbedder
from memecmd_utils.core.encoders.text import EndpointEmbedder
from memecmd_utils.settings import Endpoint

folder = Path(sys.argv[2])
embedder = EndpointEmbedder(Endpoint(base_url=sys.argv[1], model="m"))
recorded = RecordedEmbedder(embedder, [folder], folder)
print("ready", flush=True)
sys.stdin.readline()
rows = recorded.encode([f"{n}" for n in range(300)], "document")
print(rows.shape)
"""


def test_two_processes_at_once_pay_for_each_text_once_also_when_one_is_killed(tmp_path: Path) -> None:
    def slow(body: dict) -> Answer:
        made = _vectors(body)
        made.after_s = 0.05
        return made

    with TinyServer(slow).running() as server:
        runs = [
            subprocess.Popen(
                [sys.executable, "-c", RUN, server.url, str(tmp_path)], cwd=paths.root, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for _ in range(3)
        ]  # fmt: skip
        assert [process.stdout.readline() for process in runs] == ["ready\n"] * 3
        for process in runs:
            process.stdin.write("go\n")
            process.stdin.flush()
        while not server.bodies:
            time.sleep(0.01)
        runs[0].kill()
        for process in runs[1:]:
            out, told = process.communicate(timeout=60)
            assert out == "(300, 2)\n", told
        runs[0].communicate()
        asked = Counter(text for body in server.bodies for text in body["input"])
    assert len(asked) == 300 and max(asked.values()) <= 2
    assert sum(asked.values()) <= 300 + 128, "only what the killed one had not recorded yet"
