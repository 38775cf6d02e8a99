import socket

import made_up
import pytest

from memecmd_utils.annotation import annotator
from memecmd_utils.core.drawing import screenshots
from memecmd_utils.core.llm import budget, chat, messages, prices
from memecmd_utils.core.llm.budget import Ledger, Most
from memecmd_utils.evaluation import judges as evaluation_judges
from memecmd_utils.ops import cost
from memecmd_utils.settings import load_profile

LIVE = {
    "llm": "openai",
    "n_news": 4,
    "n_role_pairs": 3,
    "scenarios_per_pair": 2,
    "judges": [{"kind": "rating", "llm": "openai"}],
    "judge_unit": "dialogue",
    "endpoints": {"generator": {"model": "big", "usd_per_million_in": 2.0, "usd_per_million_out": 8.0}},
}


@pytest.fixture(autouse=True)
def no_calls(monkeypatch) -> None:
    def refuse(*_, **__):
        raise AssertionError("an estimate must not call anything")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(chat.Chat, "ask", refuse)


def table_of(profile, n_memes: int = 20):
    return prices.beside(cost.estimate(profile, n_memes), Ledger()).set_index("stage")


def lines(n_memes: int = 20, **changes: object):
    return table_of(made_up.profile(**{**LIVE, **changes}), n_memes)


def test_calls_by_hand() -> None:
    """20 memes: 20 annotations. 3 pairs x 2 scenarios: 12 requests (scenario, details). 4 + 6 dialogues of
    6 turns: 60 utterances, 50 summaries. One judge, one length, four strategies, 10 dialogues: 40."""
    calls = lines().calls
    assert calls["02 annotation"] == 20 and calls["03 scenarios"] == 12
    assert calls["03 utterance"] == 60 and calls["03 summary"] == 50
    assert calls["05 judge 1 (rating)"] == 40
    assert calls["total"] == 182


def test_money_and_hours_by_hand() -> None:
    """Every live line: tokens in * 2 + tokens out * 8 dollars a million; 2 s a call, 8 at a time."""
    table = lines()
    for _, row in table.drop(index="total").iterrows():
        assert row.usd == pytest.approx((row.tokens_in * 2 + row.tokens_out * 8) / 1e6, rel=1e-3)
        assert row.hours == pytest.approx(row.calls * 2 / 8 / 3600)
    for column in ("calls", "tokens_in", "tokens_out", "usd", "hours"):
        assert table[column]["total"] == pytest.approx(table[column].drop("total").sum())


def test_unit_meme_asks_for_every_meme() -> None:
    """10 dialogues, 5 places each: 15 memes of each gated strategy (rate .3) and 25 of Random."""
    table = lines(judge_unit="meme")
    assert table.calls["05 judge 1 (rating)"] == 3 * 15 + 25


def test_yes_no_judge_by_hand() -> None:
    """70 placed memes; 20 memes in each half at 4 contexts: 5 * (70 + 2 * 20 * 4) = 1150."""
    table = lines(judges=[{"kind": "yes_no", "llm": "local"}])
    assert table.calls["05 judge 1 (yes_no)"] == 1150
    assert table.usd["05 judge 1 (yes_no)"] == 0


def test_authored_texts_cost_nothing() -> None:
    table = table_of(load_profile("example"), 60)
    authored = table[table.model == "authored text"]
    assert (
        len(authored) == 4 and not authored[["calls", "tokens_in", "tokens_out", "usd", "hours"]].any().any()
    )
    asked = [name for name in table.index if name.startswith(("05 judge", "05b"))]
    assert table.calls["total"] == table.calls[asked].sum() > 0 and table.usd["total"] == 0
    assert table.calls["05b summary"] == 12 * 17 and table.model["05 judge 2 (yes_no)"] == "gemma-3-270m"


def test_checks_of_judges_are_counted() -> None:
    def calls(**changes: object) -> float:
        return table_of(load_profile("example", changes), 200).calls["05 judge 1 (yes_no)"]

    none, few, worded = (calls(judge_checks=n, judge_wordings=w) for n, w in ((0, 0), (10, 0), (10, 10)))
    # Three memes a turn and their held-out contexts; two of the three three times more.
    assert 5 * 3 * 10 <= few - none <= 5 * 3 * 10 * 3 and worded - few == 5 * 6 * 10


def test_pictures_cost_what_a_model_that_counts_tiles_bills(tmp_path) -> None:
    """gpt-4o-mini by OpenAI's price list, over memes and screenshots as they are drawn."""
    base, tile, per_char = 2833, 5667, made_up.profile().models.tokens_per_character
    files = made_up.meme_files(tmp_path, (380, 350))
    long = made_up.dialogue(texts=tuple(f"{n}：{cost.TYPICAL_UTTERANCE}" for n in range(18)))

    def billed(request: messages.Request, *sizes: tuple[int, int]) -> float:
        letters = sum(len(message.text) for message in request.messages)
        return letters * per_char + sum(base + tile * budget.tiles(*size) for size in sizes)

    meme = made_up.meme("m1").model_copy(update={"width": 380, "height": 350})
    annotations = 20 * billed(annotator.annotation_request(meme, 0, lambda _: ""), (380, 350))
    ratings = 0.0
    for n in (6, 12, 18):
        placed = [made_up.placement(turn, "m1") for turn in range(3, n + 1, 4)]
        drawn = screenshots.draw(screenshots.chat_from_dialogue(long, placed, n), files)
        request = evaluation_judges.rating_request(long, placed, {"m1": meme}, n, 0, ("x", lambda: b""))
        ratings += 10 * 4 * billed(request, drawn.size)
    endpoint = {**LIVE["endpoints"]["generator"], "vision": True, "tokens_per_image": 8500}
    table = lines(n_turns=18, endpoints={"generator": endpoint})
    assert table.tokens_in["02 annotation"] == pytest.approx(annotations, rel=0.05)
    assert table.tokens_in["05 judge 1 (rating)"] == pytest.approx(ratings, rel=0.15)
    real = budget.pictures_of(request) * 8500
    assert real == pytest.approx(base + tile * budget.tiles(*drawn.size), rel=0.01), "as the cap reckons"


VECTORS = {"embedder": {"model": "vectors", "usd_per_million_in": 0.5}}


def test_vectors_of_an_endpoint_by_hand() -> None:
    """6 scenarios, 20 memes of 4 texts, 10 dialogues with 5 summaries of 3 texts: 236 texts, 32 a request."""
    ends = {"endpoints": {**LIVE["endpoints"], **VECTORS}}
    row = lines(embedder="endpoint", **ends).loc["04 embedding"]
    tokens = 6 * 60 + 20 * 160 + 50 * 110
    assert (row.calls, row.tokens_in, row.tokens_out, row.model) == (8, tokens, 0, "vectors")
    assert row.usd == pytest.approx(tokens * 0.5 / 1e6)
    asked = lines(embedder="endpoint", query_instruction="查询：", **ends).loc["04 embedding"]
    assert asked.tokens_in == pytest.approx(
        tokens + 50 * 3 * 3 * made_up.profile().models.tokens_per_character
    )
    other = lines(consistency_embedder="endpoint", **ends).loc["04 embedding"]
    assert 0 < other.tokens_in < row.tokens_in
    assert "04 embedding" not in lines(**ends).index, "the endpoint is named, but nobody asks it"


def test_what_the_estimate_does_not_know_has_a_row_of_its_own() -> None:
    ledger = Ledger()
    for stage, task in (("own_chats", "summary"), ("embedding", "embedding"), ("annotation", "annotation")):
        ledger.settle(ledger.reserve(stage, task, Most(10, 0.1)), 0.25, 10, 2)
    table = prices.beside(cost.estimate(made_up.profile(**LIVE), 20), ledger).set_index("stage")
    assert table.real_usd["other: own_chats summary"] == table.real_usd["other: embedding"] == 0.25
    assert table.real_usd["total"] == pytest.approx(0.75) and table.calls["other: embedding"] == 0


def test_batches_take_half_the_money_and_up_to_a_day_and_never_dialogues() -> None:
    plain, batch = lines(), lines(batch=True)
    for stage in ("02 annotation", "05 judge 1 (rating)"):
        assert batch.usd[stage] == pytest.approx(plain.usd[stage] / 2) and batch.hours[stage] == 24
        assert batch.model[stage] == "big (batch)" and batch.calls[stage] == plain.calls[stage]
    for stage in ("03 scenarios", "03 utterance", "03 summary"):
        assert batch.loc[stage].equals(plain.loc[stage])
    local = lines(batch=True, llm="local", judges=[{"kind": "yes_no", "llm": "local"}])
    assert local.usd["total"] == 0 and "batch" not in " ".join(local.model)


def test_real_usage_stands_beside_the_estimate_by_stage_and_task() -> None:
    ledger = Ledger()
    for stage, task, tokens in (
        ("annotation", "annotation", 100),
        ("dialogue_generation", "summary", 30),
        ("dialogue_generation", "summary", 31),
        ("evaluation", "rating", 7),
    ):
        made = ledger.reserve(stage, task, Most(10, 0.1))
        ledger.settle(made, 0.25, tokens, 2)
    cut_off = ledger.reserve("evaluation", "rating", Most(10, 0.1))
    ledger.settle(cut_off, 1.0, 0, 0, sure=False)
    table = prices.beside(cost.estimate(made_up.profile(**LIVE), 20), ledger).set_index("stage")
    assert table.real_calls.to_dict() == {
        "02 annotation": 1, "03 scenarios": 0, "03 utterance": 0, "03 summary": 2,
        "05 judge 1 (rating)": 2, "total": 5,
    }  # fmt: skip
    assert table.real_in["03 summary"] == 61 and table.real_usd["05 judge 1 (rating)"] == 1.25
    assert table.real_usd["total"] == pytest.approx(2.0) and table.calls["02 annotation"] == 20
    text = prices.estimate_text(table.reset_index())
    assert "real_usd" in text and "1.25" in text


def test_an_endpoint_without_a_price_is_counted_and_costs_nothing_known() -> None:
    table = lines(endpoints={"generator": {"model": "big"}})
    assert table.calls["total"] == 182 and table.usd["total"] == 0
