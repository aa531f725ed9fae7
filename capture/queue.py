"""One thread that writes for a training that does not want to wait: jobs in order, bounded by the bytes they hold.

A training thread may be interrupted anywhere (Ctrl-C, a signal handler, a garbage collection that runs user code) and
may be forked anywhere. What is shared is therefore a ``SimpleQueue``, whose ``put`` may interrupt itself, and one
re-entrant lock around a few additions; whoever waits, waits on a lock of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Job", "WriteQueue"]

Job = Callable[[], object]
_NICENESS = 10
_log = logging.getLogger(__name__)


class WriteQueue:
    """Runs jobs one after the other in a daemon thread, which starts with the first of them.

    In a forked child every method does nothing, touches no lock and waits for nobody: the thread, the files and what
    waits to be written belong to the parent.

    Parameters
    ----------
    max_bytes
        ``submit`` blocks while a job would bring the bytes of waiting jobs above this. A job that is larger alone is
        taken when nothing else waits.

    Notes
    -----
    The thread dies with the process: whoever makes a queue calls :meth:`close` before the interpreter ends.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Job, int]] = queue.SimpleQueue()
        # No block under this lock calls anything: an interrupt or a signal handler never finds it taken by its own
        # thread, and never ends a block halfway.
        self._lock = threading.RLock()
        self._bytes = 0
        self._open_jobs = 0
        self._is_closed = False
        # Threads between counting a job and queueing it. A signal handler that runs there must not wait for that job.
        self._offering: set[int] = set()
        self._gates: deque[threading.Lock] = deque()
        self._serving = threading.Lock()
        self._thread: int | None = None
        self._end = _shut_gate()
        self._has_ended = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of jobs that are not done yet, the one being run included."""
        return self._bytes

    def submit(self, job: Job, nbytes: int = 0) -> None:
        """Have a job run after all earlier ones; block until there is room for its bytes.

        Called from a job, or without bytes, it never blocks. An interrupt (Ctrl-C) while it blocks is raised, but the
        job is kept all the same. What a job raises is logged; the queue goes on.

        Parameters
        ----------
        job
            Called once, without arguments; no reference to it is kept afterwards.
        nbytes
            Memory that is free once the job is done.

        Raises
        ------
        RuntimeError
            The queue is closed.
        """
        if os.getpid() != self._pid:
            return
        while not self._offer(job, nbytes):
            if self._is_closed:
                raise RuntimeError("the queue is closed")
            try:
                self._wait_for_change(nbytes)
            except BaseException:
                self._offer(job, nbytes, anyway=True)
                raise
        self._start()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until everything submitted so far is done.

        Parameters
        ----------
        timeout
            Seconds; None waits as long as it takes.

        Returns
        -------
        bool
            Whether it is done. In a job or a forked child, which cannot wait: True at once.
        """
        if os.getpid() != self._pid or self._is_own_thread() or not self._open_jobs:
            return True
        gate = _shut_gate()
        if not self._offer(gate.release):
            return self._has_ended
        self._start()
        return gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout))

    def close(self) -> None:
        """Do what is left, then end the thread. A job that closes does not wait; closing twice is fine."""
        if os.getpid() != self._pid or self._has_ended:
            return
        self._offer(_nothing, ending=True)
        self._start()
        if not self._is_own_thread() and threading.get_ident() not in self._offering:
            with self._end:
                pass

    # --- the threads that submit -------------------------------------------------------------------------------------

    def _offer(self, job: Job, nbytes: int = 0, *, anyway: bool = False, ending: bool = False) -> bool:
        """Queue the job, if there is room and the queue is open. What was counted is queued, whatever interrupts."""
        me = threading.get_ident()
        is_nested, is_taken = me in self._offering, False
        anyway = anyway or not nbytes or is_nested or me == self._thread
        try:
            self._offering.add(me)
            with self._lock:
                if not self._is_closed and (anyway or not self._bytes or self._bytes + nbytes <= self.max_bytes):
                    self._bytes += nbytes
                    self._open_jobs += 1
                    self._is_closed = ending
                    is_taken = True
        finally:
            try:
                if is_taken:
                    self._jobs.put((job, nbytes))
            finally:
                if not is_nested:
                    self._offering.discard(me)
        return is_taken

    def _wait_for_change(self, nbytes: int) -> None:
        """Sleep until a job is done."""
        gate = _shut_gate()
        self._gates.append(gate)
        # The last job may have ended before its thread could see the gate.
        if self._bytes and self._bytes + nbytes > self.max_bytes:
            gate.acquire()

    def _is_own_thread(self) -> bool:
        return self._thread == threading.get_ident()

    def _start(self) -> None:
        """Make sure that somebody runs the jobs. A thread too many (two starts at once) ends at once by itself."""
        if self._thread is not None or self._has_ended:
            return
        try:
            threading.Thread(target=self._serve_behind, name="capture-writer", daemon=True).start()
        except RuntimeError:  # no threads any more: the interpreter is ending, or the system has no more of them
            self._serve(block=False)

    # --- the thread that runs them -----------------------------------------------------------------------------------

    def _serve_behind(self) -> None:
        _yield_to_training()
        self._serve()

    def _serve(self, *, block: bool = True) -> None:
        """Run jobs, if nobody else does, until the queue is closed; without ``block`` those that wait."""
        if not self._serving.acquire(blocking=False):
            return
        self._thread = threading.get_ident()
        try:
            while self._run_next(block=block):
                pass
        finally:
            self._thread = None
            self._serving.release()

    def _run_next(self, *, block: bool) -> bool:
        """Run one job. A function of its own, so that no name holds on to the job while the next one is waited for.

        Returns
        -------
        bool
            Whether there may be another one.
        """
        try:
            job, nbytes = self._jobs.get(block)
        except queue.Empty:
            return False
        try:
            job()
        except BaseException:  # noqa: BLE001 (the thread must outlive whatever a job does)
            _log.exception("a job of the writing thread failed")
        del job  # its memory goes before its bytes count as free
        return self._count_done(nbytes)

    def _count_done(self, nbytes: int) -> bool:
        with self._lock:
            self._bytes -= nbytes
            self._open_jobs -= 1
            self._has_ended = self._is_closed and not self._open_jobs
        while self._gates:
            self._gates.popleft().release()
        if self._has_ended:
            self._end.release()
        return not self._has_ended


def _yield_to_training() -> None:
    """Give this thread, and those it will start (they inherit it), a low priority: the training's threads go first.

    A step of a small GPT on two cores waits half as long for tensors that are compressed meanwhile. Linux alone has
    priorities of threads; elsewhere the call would slow the whole process.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _nothing() -> None:
    """Wake the thread up, which looks whether it may go."""


def _shut_gate() -> threading.Lock:
    """A lock that is taken: the next one to acquire it sleeps until somebody releases it."""
    gate = threading.Lock()
    gate.acquire()
    return gate
