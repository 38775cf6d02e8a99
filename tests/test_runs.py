"""A run reads, writes and asks as its profile says; what it may cost, and when a miss ends it."""

import json
from pathlib import Path

import pytest
from scripted import ScriptedBackend, request

from memecmd_utils import runs
from memecmd_utils.files import paths
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import recordings as recordings_store
from memecmd_utils.runs import Run, StageMissing, open_run
from memecmd_utils.settings import Endpoint


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")


def ask(run: Run, role: str, text: str, number: int = 0) -> str:
    with run.chat(role, "made-up", number) as chat:
        return llm_chat.run(chat.ask(request(text), lambda reply: reply.text)).value


def test_a_missing_input_names_the_notebook_that_writes_it(tmp_path: Path) -> None:
    run = open_run("example", run_name="example")
    with pytest.raises(StageMissing, match=r"memes\.parquet of run 'example' .*run 01_library_build first"):
        run.read("memes.parquet")
    with pytest.raises(StageMissing, match=r"run 07b_templates_with_data first \(or `make templates`\)"):
        run.read("template_memes.parquet")
    with pytest.raises(StageMissing, match=r"^memes/x\.png of run 'example' is not there: delete .*example"):
        run.read("memes/x.png")
    run.folder.mkdir(parents=True)
    run.write("memes.parquet").write_bytes(b"x")
    assert run.read("memes.parquet") == tmp_path / "processed" / "example" / "memes.parquet"


def test_recorded_runs_write_no_recordings_and_auto_runs_share_the_profiles_folder(tmp_path: Path) -> None:
    with pytest.raises(recordings_store.RecordingError, match="reading only"):
        open_run("example").recordings("s").put({}, {})
    auto = open_run("example", "mode=auto seed=5", "example-12345678")
    assert auto.write_dir == tmp_path / "raw" / "recordings" / "example"
    auto.recordings("s").put({}, {"text": ""})
    assert (auto.write_dir / "s" / "w0.jsonl").is_file()
    assert auto.read_dirs == [paths.example / "recordings", auto.write_dir], "tracked ones come first"
    open_run("example", "mode=recorded", "example-x").ocr_cache().put({}, {"text": "文字"})
    cache = open_run("example").ocr_cache()
    assert cache.get(recordings_store.key_of({})) == {"text": "文字"}, "a killed run reads it no second time"


def test_two_judges_of_a_stage_both_leave_their_keys_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScriptedBackend(lambda _: "是")
    backend.endpoint = Endpoint()
    monkeypatch.setattr(runs, "OpenAIBackend", lambda *_, **__: backend)
    judges = "max_usd=null judges='[{kind: rating, llm: openai}, {kind: yes_no, llm: openai}]'"
    run = open_run("openai", judges, "openai-x")
    assert ask(run, "judge", "一") == ask(run, "judge", "二", 1) == "是"
    usage = run.folder / "usage"
    assert len(json.loads((usage / "made-up.keys.json").read_text())) == 2
    assert json.loads((usage / "made-up.json").read_text())["calls"] == 1
    assert json.loads((usage / "made-up-2.json").read_text())["calls"] == 1


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
        usage = json.loads((run.folder / "usage" / "made-up.json").read_text())
        assert usage["outcomes"] == {"unrecorded": 1}
        assert run.embedder().compute
        with run.chat("annotator", "annotation") as chat:
            assert chat.strict, "a library without annotations is no data set"


def test_an_endpoint_s_embedder_is_never_asked_in_mode_recorded() -> None:
    ends = "endpoints='{embedder: {model: e, base_url: \"http://127.0.0.1:9/v1\"}}'"
    run = open_run("openai", f"{ends} mode=recorded embedder=endpoint")
    assert not run.strict and not run.embedder().compute
