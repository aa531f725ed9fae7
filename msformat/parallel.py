"""Calls on several units at the same time: in processes of our own, or by an executor that spans machines.

A worker may die (out of memory, a machine that is switched off). What it was at is called again: by processes of our
own twice with the others and then alone, so that only a call that kills its own worker is given up; on a cluster as
often as its scheduler allows, and then as often once more alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from msformat.errors import StoreError
from msformat.workers import Workers

__all__ = ["run_all"]

Result = TypeVar("Result")
Call: TypeAlias = "tuple[Any, ...]"

_TOGETHER = 2
_DIED = "its worker process died each time (out of memory?)"


def run_all(
    calls: Sequence[Call],
    *,
    workers: int,
    executor: Executor | None = None,
    done: Callable[[Result], object] | None = None,
    lost: Callable[[int, StoreError], Result],
) -> list[Result]:
    """Run calls at the same time.

    Parameters
    ----------
    calls
        Function and arguments of each. Whatever was done by a call that died must not disturb its repetition.
    workers
        How many processes, without an executor.
    executor
        Runs them in their place; it stays open.
    done
        Told each result when it comes, in any order.
    lost
        Makes the result of a call that was given up, by its number.

    Returns
    -------
    list
        In the order of the calls.

    Raises
    ------
    StoreError
        The executor went away.
    """
    run: _Run[Result] = _Run(calls, done)
    if executor is not None:
        run.on_cluster(executor, lost)
    else:
        run.on_processes(workers, lost)
    return [run.results[number] for number in range(len(calls))]


@dataclass
class _Run(Generic[Result]):
    calls: Sequence[Call]
    done: Callable[[Result], object] | None
    results: dict[int, Result] = field(default_factory=dict)

    def on_processes(self, workers: int, lost: Callable[[int, StoreError], Result]) -> None:
        waiting = list(range(len(self.calls)))
        for _ in range(_TOGETHER):
            if waiting:
                waiting = self._round(waiting, min(workers, len(waiting)))
        for number in waiting:
            # Alone, so that none pays for the death of another.
            if self._round([number], 1):
                self._put(number, lost(number, StoreError(_DIED)))

    def _round(self, numbers: list[int], workers: int) -> list[int]:
        """Numbers of the calls whose worker died, and of those that were to follow it."""
        died: list[int] = []
        with _processes(workers) as pool:
            futures: dict[Future[Result], int] = {}
            try:
                for number in numbers:
                    futures[pool.submit(*self.calls[number])] = number
            except BrokenExecutor:
                died = [number for number in numbers if number not in futures.values()]
            for number, future in _each(futures):
                try:
                    result = future.result()
                except BrokenExecutor:
                    died.append(number)
                    continue
                self._put(number, result)
        return sorted(died)

    def on_cluster(self, executor: Executor, lost: Callable[[int, StoreError], Result]) -> None:
        # The scheduler blames whatever was on a worker that died: what it gives up is tried once more, alone.
        for number in self._ask(executor, range(len(self.calls))):
            if self._ask(executor, [number]):
                self._put(number, lost(number, StoreError(_DIED)))

    def _ask(self, executor: Executor, numbers: Sequence[int]) -> list[int]:
        """Numbers of the calls that the scheduler gave up."""
        died: list[int] = []
        for number, future in _each({executor.submit(*self.calls[number]): number for number in numbers}):
            try:
                result = future.result()
            except CancelledError as error:
                raise StoreError("the cluster went away; what was finished stays") from error
            except Exception as error:
                if not _is_of_cluster(error):
                    raise
                died.append(number)
                continue
            self._put(number, result)
        return sorted(died)

    def _put(self, number: int, result: Result) -> None:
        self.results[number] = result
        if self.done is not None:
            self.done(result)


def _each(futures: dict[Future[Result], int]) -> Iterator[tuple[int, Future[Result]]]:
    """Futures as they end; after an error or Ctrl-C none begins any more."""
    try:
        for future in as_completed(futures):
            yield futures[future], future
    finally:
        _cancel(futures)


def _cancel(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        if not future.done():
            future.cancel()


def _is_of_cluster(error: Exception) -> bool:
    """Whether the scheduler says it (``KilledWorker``), and not the call."""
    return type(error).__module__.partition(".")[0] == "distributed"


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    pool = Workers(workers)
    try:
        yield pool
    finally:
        # After an interrupt, workers still remove their temporaries before they go.
        pool.shutdown(wait=True, cancel_futures=True)
