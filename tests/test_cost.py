"""The estimate of a profile: calls by hand, pictures as a library reads them, what is not known. What a
run lacks and would be found out only after something was paid is said before the first stage.
"""

import re

import made_up
import pytest

from memecmd_utils import cost, drawing, runs, settings
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import spending
from memecmd_utils.settings import ProfileError, load_profile, parse_settings

LIVE = {"models.llm": "openai", "dialogue.n_news": 6, "dialogue.n_role_pairs": 4, "dialogue.n_turns": 10}
MODEL = {"model": "m", "usd_per_million_in": 1, "usd_per_million_out": 10}


def profile(**changes) -> settings.Profile:
    given = {k.replace("__", "."): v for k, v in changes.items()}
    return load_profile("openai", {**LIVE, "models.endpoints.generator": MODEL, **given})


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
    assert sum(row["usd"] for row in cost.estimate(load_profile("example", {}), 200)) == 0


def test_a_sheet_of_twenty_costs_less_than_a_fifth_of_twenty_pictures() -> None:
    """By the rule of gpt-4o, which counts 85 + 170 a tile."""
    worth = spending.pictures_worth(*drawing.sheet_size(20))
    assert worth * 255 == pytest.approx(765) and worth <= 20 / 5
    end = {**MODEL, "vision": True, "tokens_per_image": 255}
    mine = profile(models__endpoints={"generator": end}, retrieval__strategies=["reranked"])
    blind = profile(retrieval__strategies=["reranked"])
    (row,), (other,) = (
        [row for row in cost.estimate(one, 30) if row["stage"] == "04 choice"] for one in (mine, blind)
    )
    assert row["calls"] == 90 and row["tokens_in"] - other["tokens_in"] == pytest.approx(90 * 765, rel=1e-3)
    width, height = drawing.sheet_size(20)
    assert width * height <= 20 * 360 * 360 / 5, "also where a model counts the area of memes"
    assert max(width, height) <= 4 / 3 * min(width, height), "four crops of Gemini, which counts 258 each"


def test_a_total_above_the_cap_is_said_and_the_shipped_profile_is_below_it() -> None:
    shipped = load_profile("openai", {})
    assert "is above max_usd" not in cost.cost_text(shipped)
    assert sum(row["usd"] for row in cost.estimate(shipped, 200)) < 0.6 * shipped.models.max_usd
    text = cost.cost_text(load_profile("openai", {"models.max_usd": 0.5}))
    assert re.search(r"total of \$1\.\d\d is above max_usd=0\.5, at which the run stops: raise max_usd", text)


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


def test_a_limit_a_minute_is_in_the_hours() -> None:
    hours = [
        sum(row["hours"] for row in cost.estimate(profile(models__max_rpm=rpm), 30)) for rpm in (None, 2)
    ]
    calls = sum(row["calls"] for row in cost.estimate(profile(), 30))
    assert hours[1] == pytest.approx(calls / 2 / 60) and hours[0] < hours[1] / 10


# --- what is missing ----------------------------------------------------------------------------------


def test_a_replay_lacks_nothing() -> None:
    for name in ("example", "openai", "local", "paper"):
        assert cost.lacks(load_profile(name, {"mode": "recorded"})) == []


OWN = "base_url=http://localhost:8000/v1"
PAID = f"generator.{OWN} max_usd=5"
"""A server of one's own, which lacks nothing once there is a key; for vectors it needs none."""


@pytest.mark.parametrize(
    ("settings", "lack"),
    [
        ("", None),
        ("endpoints.chooser='{model: m, key_env: NO_KEY_HERE}'", "environment variable NO_KEY_HERE"),
        ("endpoints.chooser='{model: m}'", "price of 'm' is not known"),
        ("endpoints.chooser='{model: n, usd_per_million_in: 1}'", "price of 'n' is not known"),
        ("endpoints.chooser='{model: n, usd_per_million_in: 1, usd_per_million_out: 2}'", None),
        ("endpoints.chooser='{key_env: NO_KEY_HERE}' strategies=[greedy]", None),
        ("endpoints.judges='[{model: m, vision: true, key_env: NO_KEY_HERE}]'", "NO_KEY_HERE"),
        ("embedder=endpoint", "needs endpoints.embedder with a model"),
        ("embedder=endpoint embedder.model=e embedder.key_env=NO_KEY_HERE", "NO_KEY_HERE"),
        (f"embedder=endpoint embedder.model=e embedder.key_env=NO_KEY_HERE embedder.{OWN}", None),
    ],
)
def test_every_model_that_a_run_asks_is_looked_at_by_all_commands(settings, lack, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    profile = load_profile("openai", parse_settings(f"{PAID} {settings}"))
    missing = cost.lacks(profile)
    if lack is None:
        assert missing == [] and cost.check(profile) is None
    else:
        assert any(lack in one for one in missing)
        with pytest.raises(MemecmdError, match=lack):
            cost.check(profile)
    assert ("Not known of m: price" in cost.cost_text(profile)) == ("model: m" in settings)
    assert ("counts as 765 here" in cost.cost_text(profile)) == ("vision" in settings)


@pytest.mark.parametrize("url", ["", "http://h:99999/v1", "http://h/v1?key=sk-0123456789"])
@pytest.mark.parametrize("place", ["generator", "embedder"])
def test_an_address_that_is_none_is_one_sentence(url: str, place: str, monkeypatch, tmp_path) -> None:
    """In a profile or SET the setting is refused; in the SDK's variable before the first stage."""
    monkeypatch.setattr(paths, "processed", tmp_path)
    given = parse_settings(f"embedder=endpoint endpoints.{place}='{{model: m, base_url: \"{url}\"}}'")
    with pytest.raises(ProfileError, match=rf"endpoints\.{place}\.base_url: must be an http\(s\) address"):
        load_profile("openai", given)
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(MemecmdError, match=r"^OPENAI_BASE_URL must be an http\(s\) address[^\n]+$") as told:
        cost.check(load_profile("openai"))
    assert "sk-" not in str(told.value)
    assert cost.lacks(load_profile("openai", parse_settings(PAID))) == [], "it is not asked"
    with runs.open_run("openai", "mode=recorded").chat("generator", "s") as chat:
        assert chat.backend.source == "model gpt-4o-mini@default", "a replay asks nobody"
