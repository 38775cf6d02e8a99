"""Which proxy of the environment stands between us and an address: HTTP and HTTPS proxies are supported."""

import urllib.request
from urllib.parse import urlsplit

from memecmd_utils.errors import MemecmdError

SUPPORTED = ("http", "https")


class ProxyError(MemecmdError, ValueError):
    """The environment names a proxy that is not supported; the message says what to set."""


def proxy_for(url: str) -> str | None:
    """The proxy that the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`) names for `url`.

    Raises `ProxyError` for a SOCKS or other proxy that would be needed and is not supported.
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
        raise ProxyError(
            f"{variable} names {what}; supported are http:// and https:// proxies. Set "
            f"{parts.scheme.upper()}_PROXY to the HTTP port of your proxy program, or NO_PROXY to {host}"
        )
    return proxy
