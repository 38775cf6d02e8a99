"""The estimate of a profile, by hand."""

import pytest

from memecmd_utils import cost, settings
from memecmd_utils.llm import spending

LIVE = {"models.llm": "openai", "dialogue.n_news": 6, "dialogue.n_role_pairs": 4, "dialogue.n_turns": 10}
MODEL = {"model": "m", "usd_per_million_in": 1, "usd_per_million_out": 10}


def profile(**changes) -> settings.Profile:
    given = {
        **LIVE,
        "models.endpoints.generator": MODEL,
        **{k.replace("__", "."): v for k, v in changes.items()},
    }
    return settings.load_profile("openai", given)


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
    hours = 10 * dialogues * spending.REMOTE_SECONDS_PER_CALL / mine.models.concurrency / 3600
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
