"""Forks what may die. For processes of their own, so that imports are paid once and pytest is never forked.

Such a process reads one JSON request a line and answers each with one line: ``killed``, ``seconds``, and what the fork
told before it ended well.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from os import write as write_now  # the workload may put something in the place of ``os.write``
from typing import Any, TypeAlias

__all__ = ["TOUCHES_FILES", "serve"]

#: Calls into C that a kill comes before.
TOUCHES_FILES = frozenset((
    "open", "write", "writelines", "flush", "fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir",
    "ftruncate", "truncate", "close", "flock", "create", "create_hard", "write_direct_chunk", "scandir",
))  # fmt: skip

Request: TypeAlias = "dict[str, Any]"
Work: TypeAlias = "Callable[[Request], dict[str, Any]]"


def serve(work: Work) -> None:
    """Answer requests until standard input ends.

    Parameters
    ----------
    work
        Runs in a fork; what it returns is told. A request with ``{"how": "time", "when": …}`` has the fork killed after
        so many seconds.
    """
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), work)), flush=True)


def _answer(request: Request, work: Work) -> dict[str, Any]:
    began = time.monotonic()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _live(request, work, write_end)
    os.close(write_end)
    if request.get("how") == "time":
        time.sleep(request["when"])
        os.kill(child, signal.SIGKILL)
    told = os.read(read_end, 1000)
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status != 0:
        raise SystemExit(f"the fork failed: {request}")
    return {"killed": killed, "seconds": time.monotonic() - began, **json.loads(told or "{}")}


def _live(request: Request, work: Work, answer: int) -> None:
    code = 1
    try:
        told = work(request)
        sys.setprofile(None)
        write_now(answer, json.dumps(told).encode())
        code = 0
    except BaseException:  # noqa: BLE001 (os._exit would say nothing)
        traceback.print_exc()
    finally:
        os._exit(code)
