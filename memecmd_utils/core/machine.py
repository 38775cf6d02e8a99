"""What of this machine a process may use."""

import os
import urllib.request
from urllib.parse import urlsplit

from memecmd_utils.core.errors import MemecmdError


def cores() -> int:
    """CPU cores that this process may use: those it is bound to, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Whether anybody can turn a knob: a run by `runner` has no reader, JupyterLab has one


VARIABLE = "MEMECMD_HEADLESS"
"""Set to 1 in the kernel of a headless run; panels then show a picture of their first position."""


def is_headless() -> bool:
    """Whether this process belongs to a headless run."""
    return os.environ.get(VARIABLE) == "1"


# --- Which proxy of the environment stands between us and an address: HTTP and HTTPS proxies are supported


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
