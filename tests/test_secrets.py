"""The key stands in no file, output, log, message or traceback, also where servers repeat it."""

import json
import logging
import pickle
import traceback
import urllib.parse
from pathlib import Path
from typing import Any

import nbformat
import pytest
import stage_run
import whole_pipeline
from fault_server import Answer, FaultServer, chat_reply, error
from scripted import request
from whole_pipeline import KEY, KEY_VARIABLE, command, shows_key

from memecmd_utils import __main__ as commands
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import types
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.llm.recordings import Recordings
from memecmd_utils.settings import Endpoint, ProfileError, load_profile

ECHO = f"headers: {{'authorization': 'Bearer {KEY}', 'x-key': '{KEY}'}}"


@pytest.fixture(autouse=True)
def key(monkeypatch, quick):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("OPENAI_LOG", "debug")  # what a user may have set to see more


def test_a_whole_run_sends_the_key_and_writes_it_nowhere(whole) -> None:
    import pyarrow.parquet as pq  # Parquet is compressed: a search in its bytes sees nothing

    assert whole.status == 0, whole.shown[-3000:]
    assert whole.authorizations == [f"Bearer {KEY}"]
    kinds = {path.suffix for path in whole.files() if whole.run in path.parts or "raw" in path.parts}
    assert {".ipynb", ".html", ".json", ".jsonl", ".yaml", ".parquet", ".npz", ".png", ".md"} <= kinds
    assert [str(path) for path in whole.files() if shows_key(path.read_bytes()) or shows_key(str(path))] == []
    assert not shows_key(whole.shown)
    for path in whole.data.rglob("*.parquet"):
        assert not shows_key(repr(pq.read_table(path).to_pylist())), path
    assert f"key_env: {KEY_VARIABLE}" in (whole.data / "profile.yaml").read_text(encoding="utf-8")


def test_a_notebook_that_fails_shows_no_key_in_the_longest_traceback(whole, tmp_path) -> None:
    project = stage_run.project(tmp_path / "project")
    notebook = project / "notebooks" / "02_annotation.ipynb"
    cells = nbformat.read(notebook, as_version=4)
    cells.cells[2].source = "%xmode Verbose\n" + cells.cells[2].source
    nbformat.write(cells, notebook)
    run = project / "data" / "processed" / whole.run
    run.mkdir(parents=True)
    for name in ("memes.parquet", "memes"):
        (run / name).symlink_to(whole.data / name)
    with FaultServer(lambda _: Answer(error(ECHO), 401)).running() as server:
        whole_pipeline.write_profile(project, server.url)
        done = command(project, "run", "02_annotation", whole.run, OPENAI_LOG="debug")
    assert done.returncode == 2 and server.headers[0]["authorization"] == f"Bearer {KEY}"
    said = done.stdout + done.stderr
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert KEY_VARIABLE in told and "Traceback" not in done.stderr and not shows_key(said)
    executed = (project / "reports" / whole.run / "02_annotation.failed.ipynb").read_text(encoding="utf-8")
    assert "reporting mode: Verbose" in executed and "openai._base_client" in executed, "and logged"
    written = [path for path in project.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in written if shows_key(path.read_bytes())] == []


def ask(url: str, folder: Path) -> tuple[list[Any], BaseException | None]:
    """Ask a chat twice as a run does; the answers, and the fault that ended it."""
    asked = OpenAIBackend(Endpoint(base_url=url, model="simulated", key_env=KEY_VARIABLE))
    chat = llm_chat.Chat(asked, Recordings("utterance", [folder], folder))
    answers: list[Any] = []
    try:
        for number in range(2):
            answers.append(llm_chat.run(chat.ask(request(f"说 {number}"), lambda reply: reply.text)))
    except Exception as fault:
        return answers, fault
    return answers, None


GOOD = Answer(chat_reply("好"))
TOPS = [{"token": KEY, "logprob": -0.1}, {"token": "是", "logprob": -2.0}]
FIRST_TOKEN = {"content": [{**TOPS[0], "top_logprobs": TOPS}]}
SERVERS: dict[str, list[Answer]] = {
    "400 in every field": [Answer(error(ECHO, code=ECHO, param=ECHO), 400)],
    "an error with status 200": [Answer(error(ECHO))] * 10,
    "a rejected request": [GOOD, Answer(error(ECHO), 400)],
    "a reply that holds it": [Answer(chat_reply(f"你的是 {KEY} 吧", logprobs=FIRST_TOKEN))] * 2,
}


@pytest.mark.parametrize("name", SERVERS)
def test_whatever_a_server_says_the_key_is_not_shown(name: str, tmp_path: Path, caplog) -> None:
    from IPython.core.ultratb import VerboseTB

    caplog.set_level(logging.DEBUG)
    with FaultServer(SERVERS[name]).running() as server:
        answers, fault = ask(server.url, tmp_path)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    if (SERVERS[name][-1].status == 200 and len(SERVERS[name]) == 2) or "rejected" in name:
        assert fault is None and len(answers) == 2
    else:
        assert isinstance(fault, types.EndpointError)
        frames = fault.__traceback__.tb_next
        shown = VerboseTB(theme_name="nocolor").text(type(fault), fault, frames)
        assert not shows_key(str(fault) + shown) and not shows_key(pickle.dumps(fault.args))
        assert fault.__cause__ is None and fault.__context__ is None, "no frame of the SDK hangs on it"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    logged = [record.getMessage() + str(record.exc_text) for record in caplog.records]
    shown = [answer.model_dump_json() for answer in answers]
    assert not any(map(shows_key, [*written, *logged, *shown]))


def test_a_redirect_to_another_host_takes_no_key_along(tmp_path) -> None:
    with FaultServer(lambda _: GOOD).running() as other:
        away = other.url.replace("127.0.0.1", "localhost") + "/chat/completions"
        with FaultServer(lambda _: Answer("", 307, location=away)).running() as server:
            ask(server.url, tmp_path)
    assert not shows_key(repr(other.headers))


@pytest.mark.parametrize(
    "endpoints",
    [
        {"generator": {"base_url": f"http://u:{urllib.parse.quote(KEY, safe='')}@127.0.0.1/v1"}},
        {"judges": [{"base_url": f"http://h/v1?key={KEY}"}]},
        {"generator": {"key_env": KEY}},
        {"generator": {"api_key": KEY}},
    ],
)
def test_a_key_among_the_settings_is_refused_without_showing_it(endpoints, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PROFILE", "openai")
    monkeypatch.setenv("SET", f"endpoints='{json.dumps(endpoints)}'")
    with pytest.raises(SystemExit) as ended:
        commands.main(["cost"])
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and "endpoints." in err and not shows_key(urllib.parse.unquote(out + err))
    with pytest.raises(ProfileError) as caught:
        load_profile("openai", {"endpoints": endpoints})
    told = "".join(traceback.format_exception(caught.value))
    assert not shows_key(urllib.parse.unquote(told)), "nor in what the error carries"
