"""Which proxy of the environment stands between us and an address: HTTP and HTTPS proxies are supported."""

import urllib.request
from typing import Any
from urllib.parse import urlsplit

from memecmd_utils.key_guard import address, is_local
from memecmd_utils.llm_types import EndpointError
from memecmd_utils.settings import Endpoint

DEFAULT_ADDRESS = "https://api.openai.com/v1"
"""The SDK's own, where neither profile nor environment names one."""
SUPPORTED = ("http", "https")


def proxy_for(url: str) -> str | None:
    """The proxy that the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`) names for `url`.

    Raises `EndpointError` for a SOCKS or other proxy that would be needed and is not supported.
    """
    parts, named = urlsplit(url), urllib.request.getproxies()
    name = next((name for name in (parts.scheme, "all") if named.get(name)), None)
    host = parts.hostname or ""
    if name is None or urllib.request.proxy_bypass(host) or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxy = named[name] if "://" in named[name] else f"http://{named[name]}"
    kind = proxy.partition("://")[0].lower()
    try:
        its = urlsplit(proxy)
        good = kind in SUPPORTED and bool(its.hostname) and its.port != 0 and proxy.isprintable()
    except ValueError:
        good = False
    if not good:  # the address itself is not shown: it may hold a password
        variable = f"{name.upper()}_PROXY"
        what = f"a proxy of the kind {kind!r}" if kind not in SUPPORTED else "no address of a proxy"
        raise EndpointError(
            f"{variable} names {what}; supported are http:// and https:// proxies. Set "
            f"{parts.scheme.upper()}_PROXY to the HTTP port of your proxy program, or NO_PROXY to {host}"
        )
    return proxy


def client_options(endpoint: Endpoint) -> dict[str, Any]:
    """How a client of the SDK reaches an endpoint; a server on this machine never stands behind a proxy.

    The proxy is chosen here: of variables that are not for this address the SDK's libraries would take
    offence at any that they do not know.
    """
    proxy = None if is_local(endpoint) else proxy_for(address(endpoint) or DEFAULT_ADDRESS)
    others = set(urllib.request.getproxies()) & {"http", "https", "all"}
    return {"proxy": proxy, "trust_env": not is_local(endpoint) and (proxy is not None or not others)}
