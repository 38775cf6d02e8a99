import pytest

from memecmd_utils import doctor
from memecmd_utils.settings import load_profile


def test_a_replay_lacks_nothing() -> None:
    text, good = doctor.report("example", "")
    assert good and "[OK]   example texts as frozen" in text
    for name in ("openai", "local", "paper"):
        assert doctor.lacks(load_profile(name, {"mode": "recorded"})) == []


def test_what_would_be_found_out_after_paying_is_said_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    with pytest.raises(doctor.NotReady, match="OPENAI_API_KEY"):
        doctor.check(load_profile("openai"))
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    assert doctor.lacks(load_profile("openai")) == []
    unpriced = load_profile("openai", {"generator.usd_per_million_in": None})
    with pytest.raises(doctor.NotReady, match="usd_per_million_in"):
        doctor.check(unpriced)
    monkeypatch.setenv("MEMECMD_GGUF", str(tmp_path / "gone.gguf"))
    with pytest.raises(doctor.NotReady, match=r"gone\.gguf|make local-llm"):
        doctor.check(load_profile("local"))


def test_a_wrong_profile_is_a_failed_check() -> None:
    text, good = doctor.report("example", "n_turns=1")
    assert not good and "[FAIL] dialogue.n_turns" in text
