import json
from pathlib import Path

import pytest
from scripted import ScriptedBackend

from memecmd_utils import recordings as recordings_store
from memecmd_utils import runs
from memecmd_utils import settings as settings_
from memecmd_utils.core import paths
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm.messages import BudgetReached, EndpointError, Message, Reply, Request
from memecmd_utils.ops import doctor
from memecmd_utils.ops.doctor import NotReady
from memecmd_utils.runs import Run, StageMissing, open_run, prices
from memecmd_utils.settings import ProfileError


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def request(text: str) -> Request:
    return Request(task="rating", subject="x", messages=[Message(role="user", text=text)])


def ask(run: Run, role: str, text: str, number: int = 0) -> str:
    with run.chat(role, "made-up", number) as chat:
        return llm_chat.run(chat.ask(request(text), lambda reply: reply.text)).value


def test_a_missing_input_names_the_notebook_that_writes_it(tmp_path: Path) -> None:
    run = open_run("example", run_name="example")
    with pytest.raises(StageMissing, match=r"memes\.parquet of run 'example' .*run 01_library_build first"):
        run.read("memes.parquet")
    with pytest.raises(StageMissing, match=r"run 07_template_memes first \(or `make templates`\)"):
        run.read("template_memes.parquet")
    run.folder.mkdir(parents=True)
    run.write("memes.parquet").write_bytes(b"x")
    assert run.read("memes.parquet") == tmp_path / "processed" / "example" / "memes.parquet"


def test_by_hand_a_run_writes_to_lab_and_reads_from_either() -> None:
    made, lab = open_run("example", run_name="example"), open_run("example")
    assert lab.name == "example-lab" and made.fallback is None
    made.folder.mkdir(parents=True)
    made.write("memes.parquet").write_bytes(b"made")
    assert lab.read("memes.parquet") == made.write("memes.parquet")
    lab.folder.mkdir(parents=True)
    lab.write("memes.parquet").write_bytes(b"lab")
    assert lab.read("memes.parquet").read_bytes() == b"lab" and lab.write("x").parent == lab.folder


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile of one's own."""
    monkeypatch.setattr(paths, "profiles", tmp_path / "profiles")
    paths.profiles.mkdir()
    path = paths.profiles / "mine.yaml"
    path.write_text("n_turns: 4\nmax_usd: 5\n", encoding="utf-8")
    return path


def settled(name: str, settings: str = "") -> str:
    return settings_.settle(settings_.load_profile(name, settings_.parse_settings(settings)))


def test_all_stages_of_a_run_go_by_the_settings_it_was_settled_with(mine: Path) -> None:
    name = settled("mine", "seed=3")
    for edited in ("n_turns: 8\n", "n_turns: [", "unknown: 1\n", None):
        mine.write_text(edited, encoding="utf-8") if edited else mine.unlink()
        profile = open_run("mine", "seed=3", name).profile
        assert (profile.name, profile.dialogue.n_turns, profile.seed, profile.models.max_usd) == (
            "mine",
            4,
            3,
            5,
        )
    mine.write_text("n_turns: 8\n", encoding="utf-8")
    assert settled("mine", "seed=3") == name
    assert open_run("mine", "seed=3", name).profile.dialogue.n_turns == 8, "settled anew"
    assert open_run("mine", "seed=3").profile.dialogue.n_turns == 8, "by hand the file counts"


def test_a_settled_run_takes_other_caps_and_no_other_settings(mine: Path) -> None:
    name = settled("mine")
    assert open_run("mine", "max_usd=9 concurrency=2 n_turns=4", name).profile.models.max_usd == 5
    with pytest.raises(ProfileError, match=r"run 'mine' was made with other settings than these \(n_turns\)"):
        open_run("mine", "n_turns=6", name)
    (paths.processed / name / "profile.yaml").write_text("name: mine\nof_old: 1\n", encoding="utf-8")
    with pytest.raises(ProfileError, match="cannot be read by this version: make the run anew"):
        open_run("mine", "", name)


def test_recorded_runs_write_no_recordings_and_auto_runs_share_the_profiles_folder(tmp_path: Path) -> None:
    with pytest.raises(recordings_store.RecordingError, match="reading only"):
        open_run("example").recordings("s").put({}, {})
    auto = open_run("example", "mode=auto seed=5", "example-12345678")
    assert auto.write_dir == tmp_path / "raw" / "recordings" / "example"
    auto.recordings("s").put({}, {"text": ""})
    assert (auto.write_dir / "s" / "w0.jsonl").is_file()
    assert auto.read_dirs == [paths.example / "recordings", auto.write_dir], "tracked ones come first"


def test_a_live_run_needs_a_key() -> None:
    with pytest.raises(EndpointError, match="OPENAI_API_KEY"), open_run("openai").chat("generator", "s"):
        pass


def test_a_replay_needs_no_key_no_server_and_no_engine() -> None:
    for settings, profile in (("mode=recorded", "openai"), ("mode=recorded", "local")):
        run = open_run(profile, settings)
        with run.chat("generator", "s") as chat:
            assert chat.backend.source.startswith("model ") and chat.mode == "recorded"


def test_two_judges_of_a_stage_both_leave_their_keys_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "OpenAIBackend", lambda endpoint, **_: ScriptedBackend(lambda r: "是"))
    judges = "judges='[{kind: rating, llm: openai}, {kind: yes_no, llm: openai}]'"
    run = open_run("openai", judges, "openai-x")
    assert ask(run, "judge", "一") == ask(run, "judge", "二", 1) == "是"
    usage = run.folder / "usage"
    assert len(json.loads((usage / "made-up.keys.json").read_text())) == 2
    assert json.loads((usage / "made-up.json").read_text())["calls"] == 1
    assert json.loads((usage / "made-up-2.json").read_text())["calls"] == 1


# --- money and caps -----------------------------------------------------------------------

PRICED = "endpoints='{generator: {model: g, usd_per_million_in: 1, usd_per_million_out: 2}}'"


def scripted(monkeypatch: pytest.MonkeyPatch, reply=None) -> list[Request]:
    """Every endpoint answers from here; the requests."""
    asked: list[Request] = []

    def answer(request: Request):
        asked.append(request)
        return reply(request) if reply else Reply(text="是", tokens_in=1_000_000, tokens_out=500_000)

    monkeypatch.setattr(runs, "OpenAIBackend", lambda endpoint, **_: ScriptedBackend(answer))
    return asked


def test_a_chat_has_the_caps_and_prices_of_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch)
    run = open_run("openai", f"{PRICED} max_usd=50 max_calls=7 concurrency=3", "openai-x")
    with run.chat("generator", "dialogue_generation") as chat:
        budget = chat.budget
        assert (budget.max_usd, budget.max_calls, budget.stage) == (50, 7, "dialogue_generation")
        assert budget.price(1_000_000, 1_000_000) == pytest.approx(3.0)
        assert chat.concurrency == 3


def test_all_chats_of_a_run_spend_from_one_file_that_outlives_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = scripted(monkeypatch)
    settings = f"{PRICED} max_usd=50 judges='[{{kind: rating, llm: openai}}]'"
    run = open_run("openai", settings, "openai-x")
    assert ask(run, "generator", "一") == ask(run, "judge", "二") == "是"
    assert run.spent.usd == pytest.approx(4.0), "a million in and half a million out, twice"
    assert {stage for stage, _ in run.spent.rows} == {"made-up"}
    assert (run.folder / "usage" / "spent.jsonl").is_file()
    again = open_run("openai", settings, "openai-x")
    assert again.spent.usd == pytest.approx(4.0)
    raised = open_run("openai", settings.replace("max_usd=50", "max_usd=4"), "openai-x")
    with pytest.raises(BudgetReached, match=r"max_usd=4(\.0)? would be passed"):
        ask(raised, "generator", "三")
    assert len(asked) == 2
    assert ask(open_run("openai", settings, "openai-x"), "generator", "三") == "是"


def test_the_counts_of_a_chat_that_a_cap_or_a_fault_ended_are_written_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted(monkeypatch)
    run = open_run("openai", f"{PRICED} max_calls=1", "openai-x")
    with pytest.raises(BudgetReached), run.chat("generator", "s") as chat:
        for text in "一二":
            llm_chat.run(chat.ask(request(text), lambda reply: reply.text))
    counts = json.loads((run.folder / "usage" / "s.json").read_text())
    assert counts["calls"] == 1 and counts["usd"] == pytest.approx(2.0)
    assert not (run.folder / "usage" / "s.keys.json").exists(), "keys are noted of whole stages only"


def test_a_replay_counts_no_money() -> None:
    run = open_run("openai", "mode=recorded", "openai-x")
    assert run.spent.path is None
    with run.chat("generator", "s"):
        pass
    assert not (run.folder / "usage" / "spent.jsonl").exists()


UNKNOWN = "endpoints='{generator: {model: g, base_url: \"https://api.example.com/v1\"}}'"
HALF = UNKNOWN.replace("model: g", "model: g, usd_per_million_in: 1")
HERE = UNKNOWN.replace("https://api.example.com", "http://localhost:8000")


@pytest.mark.parametrize("endpoint", [UNKNOWN, HALF])
def test_a_cap_in_dollars_needs_the_price(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    run = open_run("openai", f"{endpoint} max_usd=5", "openai-x")
    said = r"max_usd=5.*price of 'g' is not known.*usd_per_million_in"
    with pytest.raises(EndpointError, match=said):
        prices(run.profile.models.endpoints.generator, run.profile)
    with pytest.raises(NotReady, match=said):
        doctor.check(run.profile)
    with pytest.raises(EndpointError, match="price of 'g'"), run.chat("generator", "s"):
        pass


@pytest.mark.parametrize(
    "settings",
    [
        f"{UNKNOWN} max_usd=null",
        f"{UNKNOWN} max_usd=5 mode=recorded",
        f"{HERE} max_usd=5",
        f"{PRICED} max_usd=5",
    ],
)
def test_where_no_price_is_needed(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    run = open_run("openai", settings, "openai-x")
    assert prices(run.profile.models.endpoints.generator, run.profile) in ((0.0, 0.0), (1.0, 2.0))
    doctor.check(run.profile)


EMBEDS = "embedder=endpoint endpoints='{generator: {model: g}, embedder: {model: e, base_url: \"%s\"%s}}'"
OUTSIDE = "https://api.example.com/v1"


def test_vectors_of_an_endpoint_are_held_against_the_caps_at_its_price_for_reading() -> None:
    run = open_run("openai", f"{EMBEDS % (OUTSIDE, ', usd_per_million_in: 2')} max_usd=5", "openai-x")
    budget = run.embedder().embedder.budget
    assert (budget.max_usd, budget.stage, budget.ledger) == (5, "embedding", run.ledger)
    assert budget.price(1_000_000, 1_000_000) == pytest.approx(2.0)
    other = open_run("openai", f"{EMBEDS % (OUTSIDE, ', usd_per_million_in: 2')} max_usd=1", "openai-y")
    assert other.paying(run.embedder().embedder).budget.ledger is other.ledger, "who asks pays"
    unpriced = open_run("openai", f"{EMBEDS % (OUTSIDE, '')} max_usd=5", "openai-x")
    with pytest.raises(EndpointError, match=r"price of 'e' is not known: give usd_per_million_in of its"):
        unpriced.embedder()
    with pytest.raises(doctor.NotReady, match="price of 'e'"):
        doctor.check(unpriced.profile)
    for settings in ("max_usd=null", "max_usd=5 mode=recorded", f"{EMBEDS % ('http://127.0.0.1:9/v1', '')}"):
        open_run("openai", f"{EMBEDS % (OUTSIDE, '')} {settings}", "openai-x").embedder()


@pytest.mark.parametrize("mode", ["mode=auto", "mode=recorded"])
def test_texts_of_pictures_are_kept_and_noted_as_used(tmp_path: Path, mode: str) -> None:
    run = open_run("example", mode, "example-x")
    cache = run.ocr_cache()
    cache.put("picture", "文字")
    run.note_used("ocr", cache.used_keys)
    assert len(json.loads((run.folder / "usage" / "ocr.keys.json").read_text())) == 1
    assert open_run("example", mode).ocr_cache().get("picture") == "文字", (
        "a killed run reads it no second time"
    )


def test_a_run_that_a_user_changed_counts_what_is_not_on_record_and_one_as_shipped_ends() -> None:
    for settings, name in (("theta0=0.3", "example-12345678"), ("", ""), ("concurrency=2", "example")):
        run = open_run("example", settings, name)
        with run.chat("judge", "made-up") as chat:
            asked = chat.ask(request("一"), lambda reply: reply.text)
            if run.strict:
                with pytest.raises(recordings_store.RecordingMiss, match="no recorded reply"):
                    llm_chat.run(asked)
                continue
            answer = llm_chat.run(asked)
        assert (answer.value, answer.outcome, answer.reason) == (None, "unrecorded", "no recorded answer")
        assert json.loads((run.folder / "usage" / "made-up.json").read_text())["outcomes"] == {
            "unrecorded": 1
        }
        assert run.embedder().mode == "auto"
        with run.chat("annotator", "annotation") as chat:
            assert chat.strict, "a library without annotations is no data set"


def test_the_example_is_as_shipped_until_its_file_is_changed(tmp_path, monkeypatch) -> None:
    shipped = settings_.load_profile("example")
    assert settings_.settings_digest(shipped) == settings_.SHIPPED, "who changes the example changes it there"
    assert open_run("example", "max_calls=3 concurrency=2", "example").strict
    text = (paths.profiles / "example.yaml").read_text(encoding="utf-8")
    for name in ("example", "mine"):
        (tmp_path / f"{name}.yaml").write_text(f"{text}weights: [0.4, 0.2, 0.2, 0.2]\n", encoding="utf-8")
    (tmp_path / "copy.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(paths, "profiles", tmp_path)
    for name in ("example", "mine", "copy"):
        run = open_run(name, "", name)
        assert run.name == name and not run.strict and run.embedder().mode == "auto"


def test_an_endpoint_s_embedder_is_never_asked_in_mode_recorded() -> None:
    ends = "endpoints='{embedder: {model: e, base_url: \"http://127.0.0.1:9/v1\"}}'"
    run = open_run("openai", f"{ends} mode=recorded embedder=endpoint")
    assert not run.strict and run.embedder().mode == "recorded"
