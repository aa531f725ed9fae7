"""Doing the same for many things in a few threads, of which the caller's is one."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["each_in_threads"]

T = TypeVar("T")


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
