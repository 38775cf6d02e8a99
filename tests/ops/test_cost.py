import socket

import made_up
import pytest

from memecmd_utils import annotation, cost, drawing, files, schemas, settings
from memecmd_utils.evaluation import judges
from memecmd_utils.files import paths
from memecmd_utils.llm import budget, chat, messages, usage
from memecmd_utils.llm.budget import CallBound, Ledger

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
    return budget.with_real_usage(cost.estimate(profile, n_memes), Ledger()).set_index("stage")


def lines(n_memes: int = 20, **changes: object):
    return table_of(made_up.profile(**{**LIVE, **changes}), n_memes)


def test_calls_by_hand() -> None:
    """20 memes: 20 annotations. 3 pairs x 2 scenarios: 12 requests (scenario, details). 4 + 6 dialogues of
    6 turns: 60 utterances, 50 summaries. One judge, one length, five strategies, 10 dialogues: 50."""
    calls = lines().calls
    assert calls["02 annotation"] == 20 and calls["03 scenarios"] == 12
    assert calls["03 utterance"] == 60 and calls["03 summary"] == 50
    assert calls["05 judge 1 (rating)"] == 50
    assert calls["total"] == 192


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
    assert table.calls["05 judge 1 (rating)"] == 4 * 15 + 25


def test_yes_no_judge_by_hand() -> None:
    """85 placed memes; 20 memes in each half at 4 contexts: 5 * (85 + 2 * 20 * 4) = 1225."""
    table = lines(judges=[{"kind": "yes_no", "llm": "local"}])
    assert table.calls["05 judge 1 (yes_no)"] == 1225
    assert table.usd["05 judge 1 (yes_no)"] == 0


def test_authored_texts_cost_nothing() -> None:
    table = table_of(settings.load_profile("example"), 60)
    authored = table[table.model == "authored text"]
    assert (
        len(authored) == 4 and not authored[["calls", "tokens_in", "tokens_out", "usd", "hours"]].any().any()
    )
    asked = [name for name in table.index if name.startswith(("05 judge", "05b"))]
    assert table.calls["total"] == table.calls[asked].sum() > 0 and table.usd["total"] == 0
    assert table.calls["05b summary"] == 12 * 17 and table.model["05 judge 2 (yes_no)"] == "gemma-3-270m"


def test_checks_of_judges_are_counted() -> None:
    def calls(**changes: object) -> float:
        return table_of(settings.load_profile("example", changes), 200).calls["05 judge 1 (yes_no)"]

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
    annotations = 20 * billed(annotation.annotation_request(meme, 0, lambda _: ""), (380, 350))
    ratings = 0.0
    for n in (6, 12, 18):
        item = judges.Item(n, long, dict.fromkeys(range(3, n + 1, 4), meme), n)
        spec = drawing.chat_from_dialogue(long, dict.fromkeys(item.memes, "m1"), n)
        drawn = drawing.draw_chat(spec, files)
        request = judges.rating_request(item, 0, ("x", lambda: b""))
        ratings += 10 * 5 * billed(request, drawn.size)
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
        ("own_chats", "summary", 9),
    ):
        made = ledger.reserve(stage, task, CallBound(10, 0.1))
        ledger.settle(made, 0.25, tokens, 2)
    cut_off = ledger.reserve("evaluation", "rating", CallBound(10, 0.1))
    ledger.settle(cut_off, 1.0, 0, 0, sure=False)
    table = budget.with_real_usage(cost.estimate(made_up.profile(**LIVE), 20), ledger).set_index("stage")
    assert table.real_calls.to_dict() == {
        "02 annotation": 1, "03 scenarios": 0, "03 utterance": 0, "03 summary": 2,
        "05 judge 1 (rating)": 2, "other: own_chats summary": 1, "total": 6,
    }  # fmt: skip
    assert table.real_in["03 summary"] == 61 and table.real_usd["05 judge 1 (rating)"] == 1.25
    assert table.real_usd["total"] == pytest.approx(2.25) and table.calls["02 annotation"] == 20
    assert table.real_usd["other: own_chats summary"] == 0.25, "the estimate does not know of it"
    text = budget.estimate_text(table.reset_index())
    assert "real_usd" in text and "1.25" in text


def test_scored_ratings_are_counted_and_a_stopped_judge_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.setattr(paths, "processed", tmp_path / "data")
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    files.write_text(tmp_path / "data" / "r" / "dialogues.jsonl", '{"a": 1}\n{"a": "x\u2028y"}\n')
    text = cost.summary_text("r")
    assert "- memes, 2 dialogues" in text and "- ratings, - scored" in text, "missing, not zero"
    assert "reports/r/index.html" in text
    made = [made_up.rating(), made_up.rating(3, None), made_up.rating(4, None, unscored=judges.STOPPED)]
    files.write_parquet(tmp_path / "data" / "r" / "ratings.parquet", made, schemas.Rating)
    text = cost.summary_text("r")
    assert "3 ratings, 1 scored" in text
    assert f"judge one {judges.STOPPED}; 1 of its ratings were not asked for" in text
    files.write_parquet(tmp_path / "data" / "r" / "ratings.parquet", made[1:2] * 32, schemas.Rating)
    assert "32 ratings, 0 scored" in cost.summary_text("r") and "stopped" not in cost.summary_text("r")


def test_usage_names_the_model_and_calls_authored_text_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "processed", tmp_path)
    counts = {"calls": 3, "replayed": 2, "tokens_in": 10, "tokens_out": 4, "usd": 0.5}
    usage = tmp_path / "r" / "usage"
    files.write_json(usage / "rating.json", {"source": "model m@1", "outcomes": {"accepted": 5}, **counts})
    files.write_json(usage / "summary.json", {"source": "authored", "outcomes": {"accepted": 3}, **counts})
    files.write_json(usage / "rating.keys.json", ["k"])
    lines = list(cost.real_usage("r"))
    assert len(lines) == 2
    assert "model m@1; 3 calls, 2 replayed" in lines[0] and "$0.50; 5 accepted" in lines[0]
    assert "3 authored texts, no model asked" in lines[1]


def test_expected_memes_follow_table_folder_and_cap(tmp_path):
    example = settings.load_profile("example")
    assert cost.expected_memes(example) == 200
    assert cost.expected_memes(example.replace(max_memes=7)) == 7
    for name in ("a.png", "b.jpg", "c.gif"):
        (tmp_path / name).write_bytes(b"x")
    assert cost.expected_memes(example.replace(sources=[str(tmp_path)])) == 3


def test_every_outcome_and_every_further_try_is_counted(tmp_path):
    counts = {"calls": 9, "replayed": 0, "tokens_in": 10, "tokens_out": 4, "usd": 0.5, "think_characters": 77}
    files.write_json(
        tmp_path / "usage" / "annotation.json",
        {
            "source": "model m@1",
            "outcomes": {"accepted": 5, "refusal": 1, "rejected": 2},
            "retries": {"status 429": 1200, "time-out": 1},
            **counts,
        },
    )
    files.write_json(tmp_path / "usage" / "annotation.keys.json", ["k"])
    (row,) = usage.outcome_rows(tmp_path)
    assert row["outcomes"] == "5 accepted, 1 refusal, 2 rejected"
    assert row["tried again"] == "1,200 status 429, 1 time-out"
    assert row["characters of thought"] == 77 and row["stage"] == "annotation"


def test_cost_says_what_it_does_not_know_and_makes_no_ledger(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "processed", tmp_path)
    endpoints = {"generator": {"model": "big"}}
    profile = settings.load_profile("openai", {"endpoints": endpoints, "batch": True})
    text = cost.cost_text(profile)
    assert "No call was made" in text and "price of big is not known" in text and "24 hours" in text
    assert "real_calls" not in text and not list(tmp_path.rglob("*"))
    ledger = Ledger(tmp_path / settings.run_name(profile) / "usage" / "ledger.sqlite")
    ledger.settle(ledger.reserve("annotation", "annotation", CallBound(5, 0.2)), 0.5, 5, 2)
    assert "real_calls" in cost.cost_text(profile)


def test_vectors_that_were_paid_for_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "processed", tmp_path)
    assert list(cost.real_usage("r")) == [] and not list(tmp_path.rglob("*"))
    ledger = Ledger(tmp_path / "r" / "usage" / "ledger.sqlite")
    ledger.settle(ledger.reserve("embedding", "embedding", CallBound(100, 0.01)), 0.5, 90, 0)
    assert list(cost.real_usage("r")) == ["  embedding: 1 calls, 90 tokens in, $0.50"]
