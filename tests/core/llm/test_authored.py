import pytest

from memecmd_utils.core.llm import chat
from memecmd_utils.core.llm.authored import AuthoredBackend, MissingText
from memecmd_utils.core.llm.messages import Message, Request


def request(text: str = "你好", **changes) -> Request:
    values = {"task": "utterance", "subject": "d/1", "messages": [Message(role="user", text=text)]}
    return Request(**{**values, **changes})


def test_authored_texts_do_not_look_at_the_prompt_and_say_how_to_go_live() -> None:
    backend = AuthoredBackend({("utterance", "d/1"): "早"})
    assert chat.run(backend.complete(request("one"))) == chat.run(backend.complete(request("another")))
    for changes in ({"subject": "d/99"}, {"task": "summary"}):
        with pytest.raises(MissingText, match="PROFILE=local") as caught:
            chat.run(backend.complete(request(**changes)))
        assert caught.value.__suppress_context__


def test_what_is_no_endpoint_is_always_there_and_drops_nothing() -> None:
    backend = AuthoredBackend({})
    assert chat.run(backend.alive(0.1)) is True and chat.run(backend.aclose()) is None
    assert not backend.dropped and not backend.in_bulk and backend.status == ""
    assert not AuthoredBackend.recordable and AuthoredBackend.source == "authored"
