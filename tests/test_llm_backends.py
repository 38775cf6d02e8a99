import pytest

from memecmd_utils import llm
from memecmd_utils.llm import Message, Reply, Request
from memecmd_utils.llm_backends import AuthoredBackend, MissingText, ScriptedBackend


def request(text: str = "你好", **changes) -> Request:
    values = {"task": "utterance", "subject": "d/1", "messages": [Message(role="user", text=text)]}
    return Request(**{**values, **changes})


def test_authored_texts_do_not_look_at_the_prompt_and_say_how_to_go_live() -> None:
    backend = AuthoredBackend({("utterance", "d/1"): "早"})
    assert llm.run(backend.complete(request("one"))) == llm.run(backend.complete(request("another")))
    for changes in ({"subject": "d/99"}, {"task": "summary"}):
        with pytest.raises(MissingText, match="PROFILE=local") as caught:
            llm.run(backend.complete(request(**changes)))
        assert caught.value.__suppress_context__


def test_scripted_replies_come_in_order_and_run_out_loudly() -> None:
    backend = ScriptedBackend(["一", Reply(text="二", tokens_in=3), KeyError("三")])
    assert [llm.run(backend.complete(request())).text for _ in range(2)] == ["一", "二"]
    with pytest.raises(KeyError, match="三"):
        llm.run(backend.complete(request()))
    with pytest.raises(RuntimeError, match=r"ran out at utterance d/1 \(request 4\)"):
        llm.run(backend.complete(request()))
    assert len(backend.requests) == 4


def test_a_function_sees_the_request_and_may_answer_with_a_fault() -> None:
    backend = ScriptedBackend(lambda r: KeyError("no") if r.subject == "bad" else f"{r.subject}!")
    assert llm.run(backend.complete(request())).text == "d/1!"
    with pytest.raises(KeyError):
        llm.run(backend.complete(request(subject="bad")))


def test_what_is_no_endpoint_is_always_there_and_drops_nothing() -> None:
    for backend in (AuthoredBackend({}), ScriptedBackend([])):
        assert llm.run(backend.alive(0.1)) is True and llm.run(backend.aclose()) is None
        assert not backend.dropped and not backend.in_bulk and backend.status == ""
    assert not AuthoredBackend.recordable and AuthoredBackend.source == "authored"
