"""A headless Chromium, driven over a pipe by its own protocol: no driver, no port, no library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Page", "find_chromium"]

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_SECONDS = 60.0


def find_chromium() -> str | None:
    """The browser of the system, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


# The browser reads its descriptor 3 and writes 4.
_WITH_DESCRIPTORS = """
import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def _start(command: list[str]) -> tuple[subprocess.Popen[bytes], int, int]:
    """The browser, and the descriptors to write to and to read from."""
    to_browser, ours_out = map(_high, os.pipe())
    ours_in, from_browser = map(_high, os.pipe())
    python = [sys.executable, "-c", _WITH_DESCRIPTORS, str(to_browser), str(from_browser)]
    process = subprocess.Popen(
        [*python, *command],
        pass_fds=(to_browser, from_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    return process, ours_out, ours_in


def _high(descriptor: int) -> int:
    """The same under a number that is out of the way of 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Page:
    """One page in a browser of its own.

    Attributes
    ----------
    errors
        Uncaught exceptions, and what the browser reports as an error: a script that the policy refused, for one.
    requests
        Addresses that the page asked for.
    """

    def __init__(self, width: int = 1400, height: int = 900) -> None:
        chromium = find_chromium()
        assert chromium is not None
        self._profile = tempfile.mkdtemp(prefix="msformat-browser-")
        command = [chromium, *_FLAGS, f"--user-data-dir={self._profile}", f"--window-size={width},{height}"]
        self._process, self._out, self._in = _start(command)
        self._buffer = b""
        self._number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str, ready: str = "document.documentElement?.dataset.ready === 'yes'") -> None:
        """Go to an address and wait until it says that it is drawn."""
        self._ask("Page.navigate", url=url)
        self.wait(ready)

    def run(self, script: str) -> Any:
        """What an expression gives; promises are awaited."""
        found = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, f"never: {condition}; errors: {self.errors}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """The text that a person sees of the first element of a selector; empty where there is none."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a mouse does."""
        spot = f"""(() => {{
            const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        x, y = self.run(spot)
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._ask("Input.insertText", text=text)

    def dark(self) -> None:
        """What a person with a dark desktop sees."""
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        self._ask("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """What is in sight, as PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    # --- the protocol ----------------------------------------------------------------------------------------------

    def _ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], _SECONDS)
            assert ready, "the browser says nothing"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:1000])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
