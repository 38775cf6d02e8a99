"""What a process may use of this machine, which proxies stand before it, how a headless run is watched."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from memecmd_utils.files import MemecmdError

STATUS_VARIABLE = "MEMECMD_STATUS"
"""Names the file in which a headless run's kernel writes one line on how far it is (see `llm.progress`)."""
LOOK_EVERY_S = 0.5
LOG_EVERY_S = 30.0
"""Between two lines where the output is no terminal, as in a log of a batch job."""
SUPPORTED = ("http", "https")


class ProxyError(MemecmdError, ValueError):
    """The environment names a proxy that is not supported; the message says what to set."""


def proxy_for(url: str) -> str | None:
    """The proxy that the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`) names for `url`.

    Raises `ProxyError` for a SOCKS or other proxy that would be needed and is not supported.
    """
    import urllib.request  # which loads TLS: a start without a network does without

    parts, proxies = urlsplit(url), urllib.request.getproxies()
    name = next((name for name in (parts.scheme, "all") if proxies.get(name)), None)
    host = parts.hostname or ""
    if name is None or urllib.request.proxy_bypass(host) or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxy = proxies[name] if "://" in proxies[name] else f"http://{proxies[name]}"
    kind = proxy.partition("://")[0].lower()
    try:
        address = urlsplit(proxy)
        is_good = kind in SUPPORTED and bool(address.hostname) and address.port != 0 and proxy.isprintable()
    except ValueError:
        is_good = False
    if not is_good:  # the address itself is not shown: it may hold a password
        variable = f"{name.upper()}_PROXY"
        problem = f"a proxy of the kind {kind!r}" if kind not in SUPPORTED else "no address of a proxy"
        raise ProxyError(
            f"{variable} names {problem}; supported are http:// and https:// proxies. Set "
            f"{parts.scheme.upper()}_PROXY to the HTTP port of your proxy program, or NO_PROXY to {host}"
        )
    return proxy


class StatusLine:
    """Copies the newest text of a status file to `out`: in place in a terminal, else line by line."""

    def __init__(self, file: Path, out: TextIO, label: str) -> None:
        self.file, self.out, self.label = file, out, label
        self._in_place = out.isatty()
        self._newest = ""

    def show(self) -> None:
        """Print the newest line if it is a new one."""
        try:
            text = self.file.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return
        if not text or text == self._newest:
            return
        self._newest = text
        # Erase to the end of the line: the next text may be shorter.
        line = f"\r{self.label}: {text}\x1b[K" if self._in_place else f"{self.label}: {text}\n"
        self.out.write(line)
        self.out.flush()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Show new lines while the block runs, and the last one at its end."""
        every, stop = LOOK_EVERY_S if self._in_place else LOG_EVERY_S, threading.Event()

        def watch() -> None:
            while not stop.wait(every):
                self.show()

        thread = threading.Thread(target=watch, name="memecmd-status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.show()
            if self._in_place and self._newest:
                self.out.write("\n")
