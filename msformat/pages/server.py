"""Pages served to this machine alone, for dumps that are too big for one file.

Whoever may open the address may read the dump, so it holds a random token, and nobody else on the network can open it:
the server listens on loopback. A page of another site that makes the browser ask (DNS rebinding) names another host.
Nothing can be written.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

from msformat.errors import MsformatError
from msformat.pages.packing import script_json
from msformat.pages.page import served_page
from msformat.pages.unitpage import PageSource, encode_unit
from msformat.plaintext import plain

__all__ = ["PageServer"]

_LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 24
# A client that sends nothing for so long is let go.
_SECONDS = 60
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}

Answer = Callable[..., Any]


class PageServer(ThreadingHTTPServer):
    """Serves the page of a dump, or of a comparison, on loopback.

    Parameters
    ----------
    source
        What it shows.
    port
        0 for any that is free.

    Raises
    ------
    OSError
        The port is taken.

    Examples
    --------
    >>> import msformat
    >>> from msformat.pages.dumps import DumpPages
    >>> dump = msformat.open("my_dump")
    >>> with PageServer(DumpPages(dump, dump.units)) as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True
    # A browser may keep a connection; leaving must not wait for it.
    block_on_close = False

    def __init__(self, source: PageSource, port: int = 0) -> None:
        self.source = source
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        # One question at a time: each may need as much memory as a unit.
        self.working = threading.Lock()
        self.page = served_page(source).encode()
        super().__init__((_LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """What to open."""
        return f"http://{_LOOPBACK}:{self.server_port}/{self.token}/"

    def hosts(self) -> tuple[str, ...]:
        """What a browser on this machine may call us."""
        return tuple(f"{name}:{self.server_port}" for name in (_LOOPBACK, "localhost"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no event."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "msformat"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS
    # Number of the unit, and of the tensor, behind the name.
    _questions: ClassVar[dict[str, tuple[int, Answer]]] = {
        "unit": (1, lambda source, at: encode_unit(source.unit(at))),
        "overview": (1, lambda source, at: source.overview(at)),
        "histograms": (2, lambda source, at, row: source.histograms(at, row)),
        "series": (2, lambda source, at, row: source.series(at, row)),
    }

    def do_GET(self) -> None:
        """The page, or what it asks for."""
        if self.headers.get("Host") not in self.server.hosts():
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers to its own address only")
            return
        token, _, rest = urlsplit(self.path).path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "open the whole address that msformat view printed")
        elif not rest:
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        else:
            self._answer(rest)

    do_HEAD = do_GET  # noqa: N815 (the base class looks for these names)

    def _answer(self, question: str) -> None:
        name, *numbers = question.split("/")
        count, answer = self._questions.get(name, (-1, None))
        if answer is None or len(numbers) != count or not all(text.isascii() and text.isdigit() for text in numbers):
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such thing")
            return
        try:
            with self.server.working:
                found = answer(self.server.source, *(int(text[:18]) for text in numbers))
                body = script_json(found).encode()
        except IndexError:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such unit or tensor")
        except (MsformatError, OSError, MemoryError) as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, plain(str(error) or type(error).__name__)[:2000])
        else:
            self._send(HTTPStatus.OK, "application/json", body)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(status, "text/plain; charset=utf-8", reason.encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """As plain text: what a stranger asked is no HTML of ours."""
        self.close_connection = True
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class calls it so)
        """The terminal belongs to whoever started us."""
