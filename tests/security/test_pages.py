"""Pages about a stranger's dump, and the server of pages: nothing runs, nobody else gets in."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import msformat
from msformat.cli import main
from msformat.pages.dumps import DumpPages
from msformat.pages.server import PageServer
from tests.unit.page_dumps import CALL, HOSTILE, Parsed, write_hostile, write_network

# Bidirectional controls, line and paragraph separators, C0 and C1 controls but for those that a page is laid out with.
INVISIBLE = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u2028\u2029\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def test_names_of_a_stranger_stay_text(tmp_path: Path) -> None:
    root = write_hostile(tmp_path / HOSTILE[0].replace("/", "_"))
    out = tmp_path / "a.html"
    main(["report", str(root), "-o", str(out)])
    page = out.read_text("utf-8")
    parsed = Parsed(page)
    plain = Parsed(_page_of_nobody(tmp_path))
    # The same elements as in a page about a dump without such names, so none came from a name.
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in plain.elements]
    assert [attributes for tag, attributes in parsed.elements if tag == "script"] == [
        attributes for tag, attributes in plain.elements if tag == "script"
    ]
    data = parsed.data()
    assert not any(INVISIBLE.search(text) for text in strings(data))
    shown = set(strings(data))
    assert any(HOSTILE[0] in text for text in shown)
    assert any("שלום" in text for text in shown)
    assert not INVISIBLE.search(page)


def _page_of_nobody(folder: Path) -> str:
    main(["report", str(write_network(folder / "net")), "-o", str(folder / "plain.html")])
    return (folder / "plain.html").read_text("utf-8")


def test_long_names_do_not_make_long_pages(tmp_path: Path) -> None:
    root = write_network(tmp_path / "net")
    document = root / "step0/rank0/dump.json"
    content = json.loads(document.read_text())
    content["data"]["x" * 2_000_000] = content["data"][CALL]
    document.write_text(json.dumps(content))
    (root / "step0/rank0/stack.json").write_text(json.dumps({"0": [[CALL], ["y" * 2_000_000] * 100]}))
    main(["report", str(root), "-o", str(tmp_path / "a.html")])
    assert (tmp_path / "a.html").stat().st_size < 300_000


# --- the server ------------------------------------------------------------------------------------------------------


@contextmanager
def serving(root: Path) -> Iterator[PageServer]:
    dump = msformat.open(root)
    with PageServer(DumpPages(dump, dump.units)) as server:
        worker = threading.Thread(target=server.serve_forever, args=(0.01,))
        worker.start()
        try:
            yield server
        finally:
            server.shutdown()
            worker.join()


def ask(
    server: PageServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    with serving(write_network(tmp_path / "net", steps=2)) as running:
        yield running


def test_it_listens_on_loopback_with_a_token_of_its_own(server: PageServer, tmp_path: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32
    with serving(tmp_path / "net") as other:
        assert other.token != server.token


def test_what_the_page_asks_for(server: PageServer) -> None:
    base = f"/{server.token}/"
    status, page, headers = ask(server, base)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert Parsed(page.decode()).data()["about"]["served"] is True
    status, body, headers = ask(server, f"{base}unit/1")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["label"] == "step1/rank0"
    assert json.loads(ask(server, f"{base}overview/0")[1])["tensors"] == 9
    assert json.loads(ask(server, f"{base}histograms/0/0")[1])[0]["elements"] == 12
    assert [point["step"] for point in json.loads(ask(server, f"{base}series/0/0")[1])] == [0, 1]


@pytest.mark.parametrize("path", ["/", "/unit/0", "/x/", "/{token}x/", "/{half}/", "/favicon.ico", "/..", "*"])
def test_without_the_token_there_is_nothing(server: PageServer, path: str) -> None:
    status, body, _ = ask(server, path.format(token=server.token, half=server.token[:10]))
    assert status in (400, 404)
    assert server.token.encode() not in body


@pytest.mark.parametrize("host", ["evil.example", "", "127.0.0.1", "localhost:1", "[::1]:80"])
def test_another_name_for_the_host_is_refused(server: PageServer, host: str) -> None:
    status, body, _ = ask(server, f"/{server.token}/", host=host)
    assert status == 403
    assert b"<" not in body


def test_localhost_is_this_machine_too(server: PageServer) -> None:
    assert ask(server, f"/{server.token}/", host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "<script>"])
def test_nothing_can_be_written(server: PageServer, method: str) -> None:
    status, _, headers = ask(server, f"/{server.token}/", method=method)
    assert status in (400, 501)
    assert headers["Content-Type"].startswith("text/plain")
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "question",
    ["unit/9", "unit/-1", "unit/x", "unit/%D9%A3", "unit", "unit/0/0", "histograms/0/99999", "histograms/0",
     "series/7/0", "unit/" + "9" * 5000, "nothing/0", "../etc/passwd", "unit/0?x=<script>"],
)  # fmt: skip
def test_strange_questions(server: PageServer, question: str) -> None:
    status, body, _ = ask(server, f"/{server.token}/{question}")
    assert status == (200 if question.startswith("unit/0?") else 404)
    assert b"script" not in body or status == 200


def test_head_has_no_body(server: PageServer) -> None:
    status, body, headers = ask(server, f"/{server.token}/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 10_000


def test_a_unit_that_cannot_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    root = write_network(tmp_path / "net")
    (root / "step0/rank0/dump.json").write_text("[]")
    with serving(root) as server:
        status, body, _ = ask(server, f"/{server.token}/unit/0")
        assert status == 500
        assert b"dump.json" in body
        assert "problem" in json.loads(ask(server, f"/{server.token}/overview/0")[1])


def test_a_silent_client_does_not_stop_it(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert ask(server, f"/{server.token}/")[0] == 200


def test_the_command_ends_with_ctrl_c(tmp_path: Path) -> None:
    root = write_network(tmp_path / "net")
    command = [sys.executable, "-m", "msformat", "view", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/[\w-]{32,}/", process.stdout.readline())
        assert found is not None
        with socket.create_connection(("127.0.0.1", int(found[1]))):
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


def test_a_port_that_is_taken_is_one_line(
    server: PageServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", str(tmp_path / "net"), "--port", str(server.server_port)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
