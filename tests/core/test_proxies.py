import openai
import pytest
from pydantic import SecretStr
from tiny_server import Answer, TinyServer, chat_reply

from memecmd_utils.core.encoders.text import EndpointEmbedder
from memecmd_utils.core.fetch import http
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import endpoint
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.llm.messages import EndpointError, Message, Request
from memecmd_utils.ops import doctor
from memecmd_utils.settings import Endpoint, Profile

FAR = Endpoint(base_url="http://models.example/v1", model="tiny", key_env="NO_SUCH_KEY")
REQUEST = Request(task="utterance", subject="x", messages=[Message(role="user", text="好")])


def chat() -> str:
    return llm_chat.run(OpenAIBackend(FAR, key=SecretStr("none")).complete(REQUEST)).text


def embed() -> list[list[float]]:
    return EndpointEmbedder(FAR).encode(["一"], "query").tolist()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "all_proxy"])
@pytest.mark.parametrize(
    "proxy", ["socks5://me:secret@127.0.0.1:9", "SOCKS://h", "quic://h:1", "http://h:99999", "http://[::1"]
)
def test_a_proxy_that_is_not_supported_is_told_alike_by_chat_embedder_and_check(
    variable: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy)
    profile = Profile(name="p", llm="openai", mode="auto", judges=[], endpoints={"generator": FAR})
    monkeypatch.setenv("NO_SUCH_KEY", "none")
    told = []
    for ask in (chat, embed, lambda: doctor.check(profile)):
        with pytest.raises((EndpointError, doctor.NotReady)) as caught:
            ask()
        told.append(str(caught.value))
    assert len(set(told)) == 1, "the same words"
    for word in (variable.upper(), "http://", "NO_PROXY", "models.example"):
        assert word in told[0]
    assert "secret" not in told[0] and ("socks" in told[0]) == proxy.lower().startswith("socks")
    with pytest.raises(http.FetchError, match=variable.upper()):
        http.proxy_for("http://feed.example/rss")


def test_the_check_before_a_run_sees_the_embedders_endpoint_and_replaying_sees_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    values = {"name": "p", "judges": [], "embedder": "endpoint", "endpoints": {"embedder": FAR}}
    with pytest.raises(doctor.NotReady, match="ALL_PROXY"):
        doctor.check(Profile(**values, mode="auto"))
    doctor.check(Profile(**values, mode="recorded"))


@pytest.mark.parametrize("named", ["127.0.0.1:{port}", "HTTP://127.0.0.1:{port}/"])
def test_an_http_proxy_is_used_whatever_other_variables_name(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(body: dict) -> Answer:
        data = [{"object": "embedding", "index": 0, "embedding": [1.0, 2.0]}]
        return Answer({"object": "list", "model": "m", "data": data} if "input" in body else chat_reply("好"))

    with TinyServer(serve).running() as server:
        port = server.url.rpartition(":")[2].partition("/")[0]
        monkeypatch.setenv("HTTP_PROXY", named.format(port=port))
        for name in ("ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "socks5://127.0.0.1:9")
        assert chat() == "好" and embed() == [[1.0, 2.0]]
        assert [headers["host"] for headers in server.headers] == ["models.example"] * 2


@pytest.mark.parametrize(
    ("url", "without"),
    [("http://models.example/v1", "models.example"), ("http://models.example:81/v1", "models.example:81"),
     ("http://a.models.example/v1", ".models.example"), ("http://models.example/v1", "*")],
)  # fmt: skip
def test_an_address_that_goes_without_a_proxy_is_not_held_up_by_one(
    url: str, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks4://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", without)
    options = endpoint.client_options(FAR.model_copy(update={"base_url": url}))
    assert options["proxy"] is None
    openai.DefaultHttpxClient(**options).close()
    local = FAR.model_copy(update={"base_url": "http://127.0.0.1:1/v1"})
    monkeypatch.delenv("NO_PROXY")
    assert endpoint.client_options(local) == {"proxy": None, "trust_env": False}
