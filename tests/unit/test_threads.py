"""The same for many things, in a few threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest

from msformat.threads import each_in_threads, submit_or_run


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_each_is_done_once(count: int, threads: int) -> None:
    done: list[int] = []
    before = threading.active_count()
    each_in_threads(done.append, range(count), threads)
    assert sorted(done) == list(range(count))
    assert threading.active_count() == before


def test_threads_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=60)
    each_in_threads(lambda _: meeting.wait(), range(3), 3)


@pytest.mark.parametrize("kind", [OSError, IndexError, KeyboardInterrupt])
@pytest.mark.parametrize("bad", [0, 1, 150, 299])
def test_an_error_comes_out_whoever_had_it(bad: int, kind: type[BaseException]) -> None:
    def action(number: int) -> None:
        if number == bad:
            raise kind(f"no {number}")

    before = threading.active_count()
    with pytest.raises(kind, match=f"no {bad}"):
        each_in_threads(action, range(300), 4)
    assert threading.active_count() == before


def test_nothing_is_begun_after_an_error() -> None:
    begun: list[int] = []
    both = threading.Barrier(2, timeout=60)
    failed = threading.Event()

    def action(number: int) -> None:
        begun.append(number)
        if number < 2:
            both.wait()
        if threading.current_thread() is threading.main_thread():
            failed.set()
            raise KeyboardInterrupt
        failed.wait(60)

    with pytest.raises(KeyboardInterrupt):
        each_in_threads(action, range(10_000), 2)
    assert len(begun) < 100


def test_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """What closes at exit (a store, a debugger) comes after threads can no longer be had."""
    script = (
        "import atexit, sys\n"
        "import numpy as np\n"
        "from msformat.dtypes import dtype_named\n"
        "from msformat.stores.registry import open_store\n"
        "store = open_store('files', sys.argv[1], mode='w')\n"
        "for number in range(40): store.put(f'{number}.npy', np.full(3, number, np.float32), dtype_named('float32'))\n"
        "atexit.register(store.close)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "u")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert len(list((tmp_path / "u/dump_tensor_data").iterdir())) == 40


@pytest.mark.parametrize("fails", [False, True])
def test_a_pool_that_takes_nothing_any_more(fails: bool) -> None:
    """As all of them at the end of the interpreter."""
    with ThreadPoolExecutor(1) as pool:
        assert submit_or_run(pool, lambda: 1).result() == 1

    def job() -> int:
        if fails:
            raise ValueError("bad")
        return threading.get_ident()

    done = submit_or_run(pool, job)
    assert done.done()
    if fails:
        assert isinstance(done.exception(), ValueError)
    else:
        assert done.result() == threading.get_ident()


def test_what_a_pool_took_although_it_has_no_thread_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no more threads, the pool has queued the job before it says so."""
    ran: list[int] = []

    def none_left(self: ThreadPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(ThreadPoolExecutor, "_adjust_thread_count", none_left)
            submit_or_run(pool, lambda: ran.append(1)).result()
        submit_or_run(pool, lambda: ran.append(2)).result()
    assert ran == [1, 2]


def test_what_a_pool_drops_is_not_waited_for() -> None:
    started, go_on = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(1)

    def job() -> bool:
        started.set()
        return go_on.wait(60)

    first = submit_or_run(pool, job)
    second = submit_or_run(pool, lambda: 1)
    assert started.wait(60)
    pool.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    assert first.result(60) is True
    with pytest.raises(CancelledError):
        second.result(60)
