"""What a run says at its end."""

import made_up

from memecmd_utils import schemas, settings
from memecmd_utils.core import paths, storage
from memecmd_utils.core.llm import outcomes
from memecmd_utils.core.llm.budget import Ledger, Most
from memecmd_utils.evaluation import judges
from memecmd_utils.ops import cost


def test_missing_files_are_counted_as_missing_not_as_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.setattr(paths, "processed", tmp_path / "data")
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    storage.write_text(tmp_path / "data" / "r" / "dialogues.jsonl", '{"a": 1}\n{"a": "x\u2028y"}\n')
    text = cost.summary_text("r")
    assert "- memes, 2 dialogues" in text and "reports/r/index.html" in text


def test_scored_ratings_are_counted_and_a_stopped_judge_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.setattr(paths, "processed", tmp_path / "data")
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    assert "- ratings, - scored" in cost.summary_text("r")
    made = [made_up.rating(), made_up.rating(3, None), made_up.rating(4, None, unscored=judges.STOPPED)]
    storage.write_parquet(tmp_path / "data" / "r" / "ratings.parquet", made, schemas.Rating)
    text = cost.summary_text("r")
    assert "3 ratings, 1 scored" in text
    assert f"judge one {judges.STOPPED}; 1 of its ratings were not asked for" in text
    storage.write_parquet(tmp_path / "data" / "r" / "ratings.parquet", made[1:2] * 32, schemas.Rating)
    assert "32 ratings, 0 scored" in cost.summary_text("r") and "stopped" not in cost.summary_text("r")


def test_usage_names_the_model_and_calls_authored_text_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "processed", tmp_path)
    counts = {"calls": 3, "replayed": 2, "tokens_in": 10, "tokens_out": 4, "usd": 0.5}
    usage = tmp_path / "r" / "usage"
    storage.write_json(usage / "rating.json", {"source": "model m@1", "outcomes": {"accepted": 5}, **counts})
    storage.write_json(usage / "summary.json", {"source": "authored", "outcomes": {"accepted": 3}, **counts})
    storage.write_json(usage / "rating.keys.json", ["k"])
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
    storage.write_json(
        tmp_path / "usage" / "annotation.json",
        {
            "source": "model m@1",
            "outcomes": {"accepted": 5, "refusal": 1, "rejected": 2},
            "retries": {"status 429": 1200, "time-out": 1},
            **counts,
        },
    )
    storage.write_json(tmp_path / "usage" / "annotation.keys.json", ["k"])
    (row,) = outcomes.outcomes(tmp_path)
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
    ledger.settle(ledger.reserve("annotation", "annotation", Most(5, 0.2)), 0.5, 5, 2)
    assert "real_calls" in cost.cost_text(profile)


def test_vectors_that_were_paid_for_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "processed", tmp_path)
    assert list(cost.real_usage("r")) == [] and not list(tmp_path.rglob("*"))
    ledger = Ledger(tmp_path / "r" / "usage" / "ledger.sqlite")
    ledger.settle(ledger.reserve("embedding", "embedding", Most(100, 0.01)), 0.5, 90, 0)
    assert list(cost.real_usage("r")) == ["  embedding: 1 calls, 90 tokens in, $0.50"]
