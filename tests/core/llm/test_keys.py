import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from memecmd_utils.core.llm.endpoint import KeyGuard, address, api_key, is_local
from memecmd_utils.core.llm.messages import EndpointError
from memecmd_utils.settings import Endpoint

KEY = "sk-made/up+0123456789=abc"


@given(st.text(max_size=40), st.text(max_size=40))
def test_every_form_of_a_key_is_blotted_out_of_any_text(before: str, after: str) -> None:
    guard = KeyGuard(SecretStr(KEY))
    encoded = base64.b64encode((before + KEY + after).encode()).decode()
    for form in (KEY, quote(KEY, safe=""), KEY.encode().hex()):
        assert form not in guard.blot(before + form + after)
    inner = base64.b64encode(KEY.encode()).decode()[4:-4]
    assert inner not in guard.blot(encoded)


def test_what_holds_no_key_stays_as_it_is() -> None:
    guard = KeyGuard(SecretStr(KEY))
    assert guard.blot("好的，0123456789") == "好的，0123456789"
    assert guard.message("rate limit") == "rate limit" and "abc" not in repr(guard)


def test_a_piece_of_the_key_hides_a_servers_whole_message() -> None:
    guard = KeyGuard(SecretStr(KEY))
    assert KEY[5:17] not in guard.message(f"bad key …{KEY[5:17]}…")
    assert guard.message(f"bad key …{KEY[5:14]}…").startswith("bad key"), "shorter pieces are no secret"


def test_made_up_keys_of_servers_without_keys_are_no_secrets() -> None:
    for word in ("none", "EMPTY", "1"):
        assert KeyGuard(SecretStr(word)).message("status 401: none 1 EMPTY") == "status 401: none 1 EMPTY"


@pytest.mark.parametrize("value", ["密钥", "two words", "tab\tkey", "esc\x1bkey", "del\x7fkey"])
def test_odd_characters_are_refused_and_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_KEY", value)
    with pytest.raises(EndpointError, match="LAB_KEY") as caught:
        api_key(Endpoint(model="m", key_env="LAB_KEY"))
    assert value not in str(caught.value)


def test_the_sdks_own_variable_counts_as_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert is_local(Endpoint(model="m")) and address(Endpoint(model="m")) == "http://127.0.0.1:8000/v1"
    assert not is_local(Endpoint(model="m", base_url="https://host.example/v1"))
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://me:{KEY}@host.example/v1")
    with pytest.raises(EndpointError, match="OPENAI_BASE_URL") as caught:
        address(Endpoint(model="m"))
    assert KEY not in str(caught.value)
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert address(Endpoint(model="m")) is None and not is_local(Endpoint(model="m"))
