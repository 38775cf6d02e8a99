"""What would be found out only after something was paid is said before the first stage, by every command."""

import pytest

from memecmd_utils import cost, runs
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.settings import ProfileError, load_profile, parse_settings


def test_a_replay_lacks_nothing() -> None:
    assert cost.lacks(load_profile("example")) == []
    for name in ("openai", "local", "paper"):
        assert cost.lacks(load_profile(name, {"mode": "recorded"})) == []


OWN = "base_url=http://localhost:8000/v1"
LIVE = f"generator.{OWN} max_usd=5"
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
        ("endpoints.judges='[{model: m, key_env: NO_KEY_HERE}]'", "NO_KEY_HERE"),
        ("embedder=endpoint", "needs endpoints.embedder with a model"),
        ("embedder=endpoint embedder.model=e embedder.key_env=NO_KEY_HERE", "NO_KEY_HERE"),
        (f"embedder=endpoint embedder.model=e embedder.key_env=NO_KEY_HERE embedder.{OWN}", None),
    ],
)
def test_every_model_that_a_run_asks_is_looked_at_by_all_commands(settings, lack, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    profile = load_profile("openai", parse_settings(f"{LIVE} {settings}"))
    missing = cost.lacks(profile)
    if lack is None:
        assert missing == [] and cost.check(profile) is None
    else:
        assert any(lack in one for one in missing)
        with pytest.raises(MemecmdError, match=lack):
            cost.check(profile)
    assert ("Not known of m: price" in cost.cost_text(profile)) == ("model: m" in settings)


@pytest.mark.parametrize("url", ["", "localhost:8000", "http://h:99999/v1"])
@pytest.mark.parametrize("place", ["generator", "embedder"])
def test_an_address_that_is_none_is_one_sentence(url: str, place: str, monkeypatch, tmp_path) -> None:
    """In a profile or SET the setting is refused; in the SDK's variable before the first stage."""
    monkeypatch.setattr(paths, "processed", tmp_path)
    given = parse_settings(f"embedder=endpoint endpoints.{place}='{{model: m, base_url: \"{url}\"}}'")
    with pytest.raises(ProfileError, match=rf"endpoints\.{place}\.base_url: must be an http\(s\) address"):
        load_profile("openai", given)
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(MemecmdError, match=r"^OPENAI_BASE_URL must be an http\(s\) address[^\n]+$"):
        cost.check(load_profile("openai"))
    assert cost.lacks(load_profile("openai", parse_settings(LIVE))) == [], "it is not asked"
    with runs.open_run("openai", "mode=recorded").chat("generator", "s") as chat:
        assert chat.backend.source == "model gpt-4o-mini@default", "a replay asks nobody"


def test_missing_weights_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("MEMECMD_GGUF", str(tmp_path / "gone.gguf"))
    with pytest.raises(MemecmdError, match=r"gone\.gguf|make local-llm"):
        cost.check(load_profile("local"))
