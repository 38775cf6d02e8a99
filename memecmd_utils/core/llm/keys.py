"""Where a service's key comes from, and how it is kept out of everything that is written.

A profile names the variable that holds the key; addresses must hold none; what a server sends back may
repeat it, and is blotted out before it is shown or recorded.
"""

import base64
import os
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from memecmd_utils.core import machine
from memecmd_utils.core.llm.messages import EndpointError
from memecmd_utils.settings import Endpoint

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
DEFAULT_ADDRESS = "https://api.openai.com/v1"
"""The SDK's own, where neither profile nor environment names one."""
NO_KEY = SecretStr("none")
"""For servers that take any key, and for replaying, which asks nobody."""
SHORTEST = 12
"""Shorter ones are words such as `none` or `EMPTY` for servers without keys: they stand in ordinary texts."""
BLOT = "***"


def address(endpoint: Endpoint) -> str | None:
    """The endpoint's address, or that of the SDK's variable, which no profile checks; None: the SDK's own.

    Raises `EndpointError` for one that is none, or that holds a user, a password or a query.
    """
    url = endpoint.base_url or os.environ.get("OPENAI_BASE_URL") or None
    if url is not None:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or not url.isprintable() or set(url) & set("@?# "):
            name = "base_url" if endpoint.base_url else "OPENAI_BASE_URL"
            raise EndpointError(f"{name} must be an http(s) address without user, password or query")
    return url


def is_local(endpoint: Endpoint) -> bool:
    """Whether the endpoint is a server on this machine."""
    url = address(endpoint)
    return url is not None and urlsplit(url).hostname in LOOPBACK


def api_key(endpoint: Endpoint) -> SecretStr:
    """Read the key from the variable that the profile names; `EndpointError` says what to set."""
    key = SecretStr((os.environ.get(endpoint.key_env) or "").strip())
    plain = key.get_secret_value()
    if not plain:
        raise EndpointError(
            f"no API key: set the environment variable {endpoint.key_env} (its name is the profile's "
            "`key_env`), or use PROFILE=example, which needs none. A server without keys takes any text"
        )
    if not plain.isascii() or not plain.isprintable() or " " in plain:
        plain = ""  # a traceback may show variables
        raise EndpointError(f"what stands in {endpoint.key_env} is not an API key: it has odd characters")
    return key


class KeyGuard:
    """Knows one key in the forms in which it travels: as it is, quoted for a URL, in base64 and in hex."""

    def __init__(self, key: SecretStr) -> None:
        plain = key.get_secret_value()
        self._forms: list[str] = []
        if len(plain) < SHORTEST:
            return
        raw = plain.encode()
        # What stands before the key in an encoded text shifts it by none, one or two bytes.
        shifted = [base64.b64encode(bytes(n) + raw).decode().rstrip("=") for n in range(3)]
        inner = [text[start : len(text) - 1] for text, start in zip(shifted, (0, 2, 3), strict=True)]
        self._forms = [plain, quote(plain, safe=""), shifted[0], *inner, raw.hex()]

    def __repr__(self) -> str:
        return "KeyGuard(...)"

    def blot(self, text: str) -> str:
        """`text` without the key. Cheap, for every reply."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, BLOT)
        return text

    def message(self, text: str) -> str:
        """`text` without the key, or a word in its place where a piece remains. For messages of servers."""
        text = self.blot(text)
        pieces = (form[i : i + SHORTEST] for form in self._forms for i in range(len(form) - SHORTEST + 1))
        return "(not shown: it repeats the key)" if any(piece in text for piece in pieces) else text


def client_options(endpoint: Endpoint) -> dict[str, Any]:
    """How a client of the SDK reaches an endpoint; a server on this machine never stands behind a proxy.

    The proxy is chosen here: of variables that are not for this address the SDK's libraries would take
    offence at any that they do not know.
    """
    try:
        proxy = None if is_local(endpoint) else machine.proxy_for(address(endpoint) or DEFAULT_ADDRESS)
    except machine.ProxyError as error:
        raise EndpointError(str(error)) from error
    others = set(urllib.request.getproxies()) & {"http", "https", "all"}
    return {"proxy": proxy, "trust_env": not is_local(endpoint) and (proxy is not None or not others)}
