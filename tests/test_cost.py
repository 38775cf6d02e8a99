"""The estimate of a profile: calls by hand, pictures as a library reads them, what is not known."""

import made_up
import pytest

from memecmd_utils import cost, settings

LIVE = {"models.llm": "openai", "dialogue.n_news": 6, "dialogue.n_role_pairs": 4, "dialogue.n_turns": 10}
MODEL = {"model": "m", "usd_per_million_in": 1, "usd_per_million_out": 10}


def profile(**changes) -> settings.Profile:
    given = {
        **LIVE,
        "models.endpoints.generator": MODEL,
        **{k.replace("__", "."): v for k, v in changes.items()},
    }
    return settings.load_profile("openai", given)


def test_the_estimate_counts_the_calls_that_the_stages_make() -> None:
    rating, yes_no = ([{"kind": kind, "llm": "openai"}] for kind in ("rating", "yes_no"))
    mine = profile(evaluation__judges=rating, evaluation__judge_unit="dialogue",
                   retrieval__strategies=["greedy", "random"], retrieval__wanted_rate=0.5)  # fmt: skip
    rows = {row["stage"]: row for row in cost.estimate(mine, 30)}
    # 6 news and 4 role dialogues of 10 turns; two strategies, judged after 6 and 10 turns.
    calls = {"02 annotation": 30, "03 scenarios": 8, "03 utterance": 100, "03 summary": 90}
    assert {stage: row["calls"] for stage, row in rows.items()} == {**calls, "05 judge 1 (rating)": 40}
    for row in rows.values():
        assert row["usd"] == pytest.approx((row["tokens_in"] + 10 * row["tokens_out"]) / 1e6, rel=1e-3)
    by_meme = profile(evaluation__judges=yes_no, evaluation__judge_checks=0,
                      evaluation__judge_sample=None, retrieval__strategies=["greedy"],
                      retrieval__wanted_rate=0.999)  # fmt: skip
    (judge,) = [row for row in cost.estimate(by_meme, 30) if "judge" in row["stage"]]
    assert judge["calls"] == pytest.approx(5 * (9 * 10 + 2 * 30 * 4), rel=0.01), "4 held-out contexts a meme"
    assert sum(row["usd"] for row in cost.estimate(settings.load_profile("example", {}), 200)) == 0


def test_pictures_of_the_sources_are_counted_as_the_library_reads_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "memes" / "deep"
    (folder / ".git").mkdir(parents=True)
    for number in range(5):
        made_up.meme_files(folder / str(number))
    for name in ("README.md", ".git/a.png", "notes.txt"):
        (folder / name).write_bytes(b"text")
    mine = profile(library__sources=["~/memes"])
    assert cost.expected_memes(mine) == 15
    assert cost.expected_memes(profile(library__sources=["~/memes"], library__max_memes=4)) == 4
    unfetched = {"library__sources": ["~/memes", "~/later"], "library__max_memes": 100}
    assert cost.expected_memes(profile(**unfetched)) == 100, "what is still to be fetched is not known"


def test_what_is_not_known_is_said() -> None:
    mine = profile(models__endpoints={"generator": {"model": "m", "vision": True}}, models__max_usd=None)
    text = cost.cost_text(mine)
    assert "The price of m is not known" in text and "counts as 765 tokens" in text and " total " in text
