"""Doing the same for many things in a few threads, of which the caller's is one."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["each_in_threads", "submit_or_run"]

T = TypeVar("T")


def submit_or_run(pool: ThreadPoolExecutor, job: Callable[[], T]) -> Future[T]:
    """Have a pool do something, or do it here where the pool takes nothing any more.

    Pools of threads end before ``atexit`` handlers run, which is where capture writes what a program that broke off
    had recorded.
    """
    done: Future[T] = Future()
    # A pool that cannot start a thread has queued the job all the same: another of its threads may come to it.
    is_begun = threading.Lock()

    def run() -> None:
        if not is_begun.acquire(blocking=False):
            return
        try:
            result = job()
        except BaseException as error:  # noqa: BLE001 (whoever asks for the result gets it)
            done.set_exception(error)
        else:
            done.set_result(result)

    try:
        queued = pool.submit(run)
    except RuntimeError:
        run()
    else:
        # A pool that ends drops what it has not begun; whoever waits for it must not wait for ever.
        queued.add_done_callback(lambda queued: done.cancel() if queued.cancelled() else None)
    return done


def each_in_threads(action: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """Do something for each item; returns when all is done and no thread is left.

    Parameters
    ----------
    action
        Called in any order, by several threads.
    threads
        In all; 1 does one after the other.

    Raises
    ------
    BaseException
        The first error, Ctrl-C included. What was not begun by then is left.
    """
    waiting = deque(items)
    helpers = min(threads, len(waiting)) - 1
    if helpers < 1:
        _work(action, waiting)
        return
    with ThreadPoolExecutor(helpers, thread_name_prefix="msformat-helper") as pool:
        running = []
        # At the end of the interpreter there are no new threads: then this one does it all.
        with contextlib.suppress(RuntimeError):
            running += [pool.submit(_work, action, waiting) for _ in range(helpers)]
        try:
            _work(action, waiting)
            for helper in running:
                helper.result()
        except BaseException:
            waiting.clear()
            raise


def _work(action: Callable[[T], object], waiting: deque[T]) -> None:
    while True:
        try:
            item = waiting.popleft()
        except IndexError:  # all is begun
            return
        try:
            action(item)
        except BaseException:
            waiting.clear()
            raise
