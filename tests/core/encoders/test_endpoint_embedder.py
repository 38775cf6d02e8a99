import numpy as np
import pytest
from fault_server import Answer, FaultServer, error

from memecmd_utils.core.encoders import text as encoders_text
from memecmd_utils.core.encoders.text import EndpointEmbedder
from memecmd_utils.llm.budget import Budget, Spent
from memecmd_utils.llm.messages import BudgetReached, EndpointError
from memecmd_utils.settings import Endpoint


def vectors(body: dict) -> Answer:
    rows = [{"index": i, "embedding": [float(len(text)), 1.0]} for i, text in enumerate(body["input"])]
    return Answer({"data": rows[::-1], "usage": {"prompt_tokens": 7}})


def test_an_endpoint_embeds_in_order_in_parts_with_a_prefix_for_queries(monkeypatch) -> None:
    monkeypatch.setenv("EMBED_KEY", "sk-embed\n")
    monkeypatch.setattr(encoders_text, "INPUTS", 2)
    with FaultServer(vectors).running() as server:
        endpoint = Endpoint(base_url=server.url, model="m", model_label="v2", key_env="EMBED_KEY")
        embedder = EndpointEmbedder(endpoint, query_instruction="查询：")
        assert embedder.name == "m@v2"
        rows = embedder.encode(["一", "二二", "三三三"], "document")
        assert rows.dtype == np.float32 and rows.tolist() == [[1, 1], [2, 1], [3, 1]]
        assert embedder.encode(["一", "二二"], "query")[:, 0].tolist() == [4, 5]
    assert server.bodies[0] == {"input": ["一", "二二"], "model": "m"} and len(server.bodies) == 3
    assert server.headers[0]["authorization"] == "Bearer sk-embed"


def test_vectors_that_did_not_arrive_whole_are_asked_for_again_and_a_cap_stops_them(tmp_path) -> None:
    lost = [Answer("<html>", kind="text/html"), Answer({"data": []}), Answer({"error": {}}), Answer('{"da')]
    script = iter(
        [*lost, *[Answer({"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 7}})] * 2]
    )
    with FaultServer(lambda _: next(script)).running() as server:
        budget = Budget(Spent(tmp_path / "spent.jsonl"), "embedding", None, 40, usd_in=1e6)
        embedder = EndpointEmbedder(Endpoint(base_url=server.url, model="m"), budget=budget)
        assert embedder.encode(["一"], "document").tolist() == [[1.0]]
        assert len(server.bodies) == 5 and budget.spent.rows["embedding", "embedding"].tokens_in == 7
    with pytest.raises(BudgetReached, match="max_calls=5"):
        EndpointEmbedder(embedder.endpoint, budget=Budget(budget.spent, "embedding", 5)).encode(
            ["一"], "document"
        )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(error("no such key"), 401), "no such key"),
        (Answer(error("not for embeddings"), 400), "not for embeddings"),
        (
            Answer({"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}]}),
            "gives no vectors",
        ),
    ],
)
def test_an_endpoint_that_gives_no_vectors_says_why(answer: Answer, said: str) -> None:
    with FaultServer(lambda _: answer).running() as server, pytest.raises(EndpointError, match=said):
        EndpointEmbedder(Endpoint(base_url=server.url, model="m")).encode(["一"], "document")
