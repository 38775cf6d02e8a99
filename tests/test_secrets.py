"""The key stands in no file, output, message or exception, also where servers echo it."""

import json
import logging
import os
import pickle
import re
import types
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
import whole_pipeline
from tiny_server import Answer, TinyServer, chat_reply, error
from whole_pipeline import KEY, KEY_VARIABLE, command, forms_of_key, shows_key

from memecmd_utils import __main__ as commands
from memecmd_utils import settings
from memecmd_utils.core.encoders import text as encoders_text
from memecmd_utils.files import paths
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import delivery, messages
from memecmd_utils.llm.budget import Budget, Ledger
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.recordings import Recordings
from memecmd_utils.settings import Endpoint

ECHO = f"headers: {{'authorization': 'Bearer {KEY}', 'x-key': '{KEY}'}}"
OTHER_FORMS = ", ".join(form for name, form in forms_of_key().items() if name != "plain")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return whole_pipeline.shared(tmp_path_factory)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    # What a user may have set to see more.
    monkeypatch.setenv("OPENAI_LOG", "debug")
    monkeypatch.setenv("HTTPX_LOG_LEVEL", "debug")


def test_the_search_finds_the_key_in_all_its_forms() -> None:
    for form in forms_of_key().values():
        assert shows_key(form) and shows_key(f"…{form[5:17]}…") and not shows_key(form[5:16])
    assert not shows_key(KEY_VARIABLE) and len(set(KEY)) > 20


def test_a_whole_run_sends_the_key_and_writes_it_nowhere(whole) -> None:
    assert [done["status"] for done in whole.commands] == [0] * 10, whole.commands[-1]["stderr"][-3000:]
    assert whole.authorizations == [f"Bearer {KEY}"]
    kinds = {path.suffix for path in whole.files() if whole.run in path.parts or "raw" in path.parts}
    assert {".ipynb", ".html", ".json", ".jsonl", ".yaml", ".parquet", ".npz", ".png", ".md"} <= kinds
    assert [str(path) for path in whole.files() if shows_key(path.read_bytes())] == []
    assert [str(path) for path in whole.root.rglob("*") if shows_key(str(path))] == []
    assert [done["arguments"] for done in whole.commands if shows_key(done["stdout"] + done["stderr"])] == []


def test_columns_of_a_whole_run_do_not_hold_the_key(whole) -> None:
    import pyarrow.parquet as pq  # Parquet is compressed: the search in bytes sees nothing there

    tables = sorted(whole.data.rglob("*.parquet"))
    assert len(tables) >= 8
    for path in tables:
        assert not shows_key(repr(pq.read_table(path).to_pylist())), path


def test_a_whole_run_names_the_variable_in_its_profile(whole) -> None:
    written = (whole.data / "profile.yaml").read_text(encoding="utf-8")
    assert written.count(f"key_env: {KEY_VARIABLE}") == 4


@pytest.mark.parametrize("status", [401, 400])
def test_a_notebook_that_fails_shows_no_key_in_the_longest_traceback(whole, status, tmp_path) -> None:
    project = whole_pipeline.copy_project(tmp_path / "project")
    notebook = project / "notebooks" / "02_annotation.ipynb"
    cells = nbformat.read(notebook, as_version=4)
    cells.cells[2].source = "%xmode Verbose\n" + cells.cells[2].source
    nbformat.write(cells, notebook)
    run = project / "data" / "processed" / whole.run
    run.mkdir(parents=True)
    for name in ("memes.parquet", "memes"):
        (run / name).symlink_to(whole.data / name)
    with TinyServer(lambda _: Answer(error(ECHO), status)).running() as server:
        whole_pipeline.write_profile(project, server.url)
        done = command(
            project, "run", "02_annotation", whole.run, OPENAI_LOG="debug", HTTPX_LOG_LEVEL="debug"
        )
    assert done["status"] == 2 and server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert not shows_key(done["stdout"] + done["stderr"])
    said = done["stdout"] + done["stderr"]
    assert (KEY_VARIABLE if status == 401 else "refuses the request (400)") in said
    executed = (project / "reports" / whole.run / "02_annotation.failed.ipynb").read_text(encoding="utf-8")
    # The traceback is the verbose one, and the SDK did log.
    assert "OpenAIBackend object>" in executed and "openai._base_client" in executed
    written = [path for path in project.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in written if shows_key(path.read_bytes())] == []


def verbose(fault: BaseException) -> str:
    """The traceback of `%xmode Verbose`, with the values of variables, without the frames of the test."""
    from IPython.core.ultratb import VerboseTB

    frames = fault.__traceback__
    while frames.tb_next is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return VerboseTB(theme_name="nocolor").text(type(fault), fault, frames)


PLAIN = (str, bytes, int, float, type(None), types.TracebackType, types.ModuleType, type, types.FunctionType)


def reached_from(thing: Any, where: str = "fault", depth: int = 9, seen: set | None = None) -> Iterator:
    """Walk all that hangs on an exception: causes, contexts, notes, attributes, headers."""
    seen = set() if seen is None else seen
    if depth == 0 or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, str | bytes):
        yield where, thing
        return
    if isinstance(thing, PLAIN):
        return
    yield f"{where} (repr)", repr(thing)
    parts: list[tuple[str, Any]] = []
    if isinstance(thing, BaseException):
        yield f"{where} (str)", str(thing)
        parts += [
            (f".{n}", getattr(thing, n, None)) for n in ("__cause__", "__context__", "__notes__", "args")
        ]
    if isinstance(thing, Mapping) or hasattr(thing, "multi_items"):
        parts += [(f"[{name!r}]", (name, value)) for name, value in dict(thing).items()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts += [(f"[{number}]", part) for number, part in enumerate(thing)]
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    parts += [(f".{name}", getattr(thing, name, None)) for name in [*getattr(thing, "__dict__", {}), *names]]
    for name, part in parts:
        yield from reached_from(part, where + name, depth - 1, seen)


def shown_by(fault: BaseException) -> list[str]:
    """Where an exception shows the key."""
    found = [where for where, text in reached_from(fault) if shows_key(text)]
    if shows_key(pickle.dumps(fault)):
        found.append("pickle")
    if shows_key(verbose(fault)):
        found.append("verbose traceback")
    return found


async def at_once(_: float) -> None:
    """Wait for nothing."""


def parse_text(reply: messages.Reply) -> str:
    if not reply.text:
        raise messages.UnusableReply("空的回复")
    return reply.text


def endpoint(server: TinyServer | str, **more: Any) -> Endpoint:
    url = server if isinstance(server, str) else server.url
    return Endpoint(base_url=url, model="simulated", key_env=KEY_VARIABLE, **more)


def ask(server: TinyServer | str, folder: Path, times: int = 1) -> tuple[list[Any], BaseException | None]:
    """Ask a chat as a run does; the answers, and the fault that ended it."""
    store = Recordings("utterance", [folder], folder)
    budget = Budget(Ledger(folder / "ledger.sqlite"), "utterance")
    answers: list[Any] = []

    async def work() -> None:
        chat = llm_chat.Chat(OpenAIBackend(endpoint(server)), store, budget=budget, sleep=at_once)
        for number in range(times):
            message = messages.Message(role="user", text=f"说 {number}")
            request = messages.Request(task="utterance", subject=f"d/{number}", messages=[message])
            answers.extend(await chat.side_by_side([chat.ask(request, parse_text)]))

    try:
        llm_chat.run(work())
    except Exception as fault:
        return answers, fault
    return answers, None


def nothing_shown(answers: list[Any], fault: BaseException | None, folder: Path, caplog: Any) -> None:
    if fault is not None:
        assert shown_by(fault) == []
    assert [answer for answer in answers if shows_key(answer.model_dump_json())] == []
    assert [path for path in folder.rglob("*") if path.is_file() and shows_key(path.read_bytes())] == []
    assert [
        record for record in caplog.records if shows_key(record.getMessage() + str(record.exc_text))
    ] == []


@pytest.fixture
def all_logs(caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "httpx", "httpcore", "aiohttp", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


FAULTS: dict[str, Answer] = {
    "401": Answer(error(f"Incorrect API key provided: {KEY}"), 401),
    "401 in another form": Answer(error(OTHER_FORMS), 401),
    "401 as text": Answer(ECHO, 401, kind="text/plain"),
    "403": Answer(error(ECHO, code=ECHO, param=ECHO), 403),
    "400 with a piece": Answer(error(f"key {KEY[:20]}… is not known"), 400),
    "400 as text": Answer(ECHO, 400, kind="text/plain"),
    "400 about a parameter": Answer(error(ECHO, param="temperature"), 400),
    "402 without credit": Answer(error(ECHO, code="insufficient_quota"), 402),
    "429": Answer(error(ECHO), 429),
    "500 as text": Answer(ECHO, 500, kind="text/html"),
    "an error with status 200": Answer(error(ECHO)),
    "no JSON": Answer(ECHO, kind="text/plain"),
    "half a body": Answer(chat_reply(ECHO * 20), cut=True),
    "a broken connection": Answer(reset=True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_of_the_endpoint_shows_the_key(name, tmp_path, all_logs) -> None:
    with TinyServer(lambda _: FAULTS[name]).running() as server:
        answers, fault = ask(server, tmp_path)
    assert isinstance(fault, messages.EndpointError) and server.headers[0]["authorization"] == f"Bearer {KEY}"
    nothing_shown(answers, fault, tmp_path, all_logs)


@pytest.mark.parametrize("echo", [ECHO, OTHER_FORMS], ids=["plain", "in other forms"])
def test_a_rejected_request_is_kept_without_the_key(echo, tmp_path, all_logs) -> None:
    script = [Answer(chat_reply("好")), Answer(error(echo), 400)]
    with TinyServer(script).running() as server:
        answers, fault = ask(server, tmp_path, times=2)
    assert fault is None and [answer.outcome for answer in answers] == ["accepted", "rejected"]
    nothing_shown(answers, fault, tmp_path, all_logs)


@pytest.mark.parametrize("form", ["plain", "base64", "URL"])
def test_a_reply_that_holds_the_key_is_blotted_out_before_it_is_recorded(form, tmp_path, all_logs) -> None:
    with TinyServer(lambda _: Answer(chat_reply(f"你的是 {forms_of_key()[form]} 吧"))).running() as server:
        answers, fault = ask(server, tmp_path)
    assert fault is None and answers[0].value.startswith("你的是 ") and answers[0].value.endswith(" 吧")
    nothing_shown(answers, fault, tmp_path, all_logs)


def test_the_first_token_of_a_reply_does_not_show_the_key(tmp_path, all_logs) -> None:
    tops = [{"token": KEY, "logprob": -0.1}, {"token": "是", "logprob": -2.0}]
    reply = chat_reply("是", logprobs={"content": [{**tops[0], "top_logprobs": tops}]})
    with TinyServer(lambda _: Answer(reply)).running() as server:
        answers, fault = ask(server, tmp_path)
    nothing_shown(answers, fault, tmp_path, all_logs)


@pytest.mark.parametrize("short", ["1", "none", "EMPTY", "token"])
def test_a_makeshift_key_is_not_blotted_out_of_texts(short, tmp_path, monkeypatch) -> None:
    # Servers without keys take any text, and such a word also stands in ordinary replies and messages.
    monkeypatch.setenv(KEY_VARIABLE, short)
    said = f"status {short} of 400, {short} more"
    script = [Answer(chat_reply(said)), Answer(error(said), 400)]
    with TinyServer(script).running() as server:
        answers, fault = ask(server, tmp_path, times=2)
    assert fault is None and answers[0].value == said and said in answers[1].reason


@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_redirect_to_another_host_takes_no_key_along(status, tmp_path) -> None:
    with TinyServer(lambda _: Answer(chat_reply("好"))).running() as other:
        away = other.url.replace("127.0.0.1", "localhost") + "/chat/completions"
        with TinyServer(lambda _: Answer("", status, location=away)).running() as server:
            ask(server, tmp_path)
    assert not shows_key(json.dumps(other.headers))


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:99999/v1", "http://[::1/v1", "http://127.0.0.1:1/v1", "http://\u2603.invalid\x7f/v1"],
)
def test_an_address_that_leads_nowhere_shows_no_key(url, tmp_path, all_logs) -> None:
    answers, fault = ask(url, tmp_path)
    assert fault is not None
    nothing_shown(answers, fault, tmp_path, all_logs)


@pytest.mark.parametrize("sign", ["\x01", "\x1b", "\x7f", "\n", "é", " "])
def test_a_key_with_an_odd_sign_is_refused_without_showing_it(sign, tmp_path, monkeypatch, all_logs) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY[:22] + sign + KEY[22:])
    with TinyServer(lambda _: Answer(chat_reply("好"))).running() as server:
        answers, fault = ask(server, tmp_path)
    assert isinstance(fault, messages.EndpointError) and KEY_VARIABLE in str(fault)
    nothing_shown(answers, fault, tmp_path, all_logs)


QUOTED = urllib.parse.quote(KEY, safe="")
KEY_IN_URL = [
    f"http://user:{KEY}@127.0.0.1:9/v1",
    f"http://user:{QUOTED}@127.0.0.1:9/v1",
    f"http://{KEY}@127.0.0.1:9/v1",
    f"http://127.0.0.1:9/v1?key={KEY}",
    f"http://127.0.0.1:9/v1#{KEY}",
    f"http://127.0.0.1:9/v1?key={KEY}&a=b c",
    f"ftp://user:{KEY}@127.0.0.1",
]


@pytest.mark.parametrize(
    ("role", "url"),
    [
        *(("generator", url) for url in KEY_IN_URL),
        *((r, KEY_IN_URL[0]) for r in ("annotator", "judges", "embedder")),
    ],
    ids=range(len(KEY_IN_URL) + 3),
)
def test_an_address_with_a_key_in_it_is_refused_without_showing_it(url, role, capsys, monkeypatch) -> None:
    setting = f"[{{base_url: '{url}'}}]" if role == "judges" else f"{{base_url: '{url}'}}"
    monkeypatch.setenv("PROFILE", "openai")
    monkeypatch.setenv("SET", f'endpoints="{{{role}: {setting}}}"')
    assert commands.main(["resolve"]) == 2
    shown = capsys.readouterr()
    assert "base_url" in shown.err and not shows_key(shown.out + shown.err)


@pytest.mark.parametrize("name", ["key_env", "api_key", "key"])
def test_a_key_in_a_profile_is_refused_without_showing_it(name, tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"llm: openai\nendpoints: {{generator: {{{name}: '{KEY}'}}}}\n", encoding="utf-8")
    with pytest.raises(settings.ProfileError, match=name) as caught:
        settings.load_profile(str(path))
    assert shown_by(caught.value) == []


@pytest.mark.parametrize("value", [f"https://user:{KEY}@host/v1", f"[{KEY}]"], ids=["address", "list"])
def test_an_endpoint_that_is_no_mapping_is_refused_without_showing_it(value, tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"llm: openai\nendpoints: {{generator: '{value}'}}\n", encoding="utf-8")
    with pytest.raises(settings.ProfileError, match="generator") as caught:
        settings.load_profile(str(path))
    assert shown_by(caught.value) == []


def test_an_address_of_the_environment_with_a_key_in_it_is_not_shown(tmp_path, monkeypatch, all_logs) -> None:
    # `base_url` unset means the SDK's own variable, which no profile has checked.
    with TinyServer(lambda _: Answer(error("no"), 400)).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("http://", f"http://user:{QUOTED}@"))
        monkeypatch.setenv(KEY_VARIABLE, "another-key")
        monkeypatch.setattr(__name__ + ".endpoint", lambda _: Endpoint(model="m", key_env=KEY_VARIABLE))
        answers, fault = ask(server, tmp_path)
    assert fault is not None
    nothing_shown(answers, fault, tmp_path, all_logs)


def test_a_missing_key_names_the_variable(monkeypatch, capsys) -> None:
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv("PROFILE", "openai")
    monkeypatch.setenv(
        "SET", f'endpoints="{{generator: {{model: m, key_env: {KEY_VARIABLE}}}}}" max_usd=null'
    )
    assert commands.main(["resolve"]) == 2
    assert KEY_VARIABLE in capsys.readouterr().err


def embed(url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, BaseException | None]:
    monkeypatch.setattr(delivery, "MAX_TRIES", 1)
    embedder = encoders_text.EndpointEmbedder(endpoint(url))
    try:
        return embedder.encode(["一句话"], "query"), None
    except Exception as fault:
        return None, fault


@pytest.mark.parametrize(
    "name", ["401 in another form", "400 about a parameter", "no JSON", "a broken connection"]
)
def test_no_fault_of_the_embedder_shows_the_key(name, monkeypatch, tmp_path, all_logs) -> None:
    with TinyServer(lambda _: FAULTS[name]).running() as server:
        _, fault = embed(server.url, monkeypatch)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert isinstance(fault, messages.EndpointError)
    nothing_shown([], fault, tmp_path, all_logs)
    if name.startswith(("401", "403")):
        assert KEY_VARIABLE in str(fault)


def test_few_modules_read_a_key() -> None:
    package = paths.root / "memecmd_utils"
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"get_secret_value|environ.*key_env", path.read_text(encoding="utf-8"))
    }
    assert readers == {"llm/endpoint.py"}
    assert os.environ[KEY_VARIABLE] == KEY
