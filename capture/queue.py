"""One thread that writes for a training that does not want to wait: jobs in order, bounded by the bytes they hold.

A training thread may be interrupted anywhere (Ctrl-C, a signal handler, a garbage collection that runs user code) and
may be forked anywhere. Python 3.10 calls signal handlers between any two instructions, so that one may find its own
thread in the middle of a submit, and wait there. Threads that submit therefore share a ``SimpleQueue``, whose ``put``
may interrupt itself, and a re-entrant lock, which the writing thread never takes: it goes on whatever they do. Each
count is changed by one side alone, and whoever waits, waits on a lock of its own.
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
from types import FrameType

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
        # Among those who submit. Bytes that came from them; from jobs; and that are done.
        self._lock = threading.RLock()
        self._offered_bytes = self._inner_bytes = self._done_bytes = 0
        self._is_closed = self._is_ending = False
        self._gates: deque[threading.Lock] = deque()
        self._serving = threading.Lock()
        self._thread: int | None = None
        self._end = _shut_gate()
        self._has_ended = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of jobs that are not done yet, the one being run included."""
        # A job may be done before its submit has counted it.
        return max(0, self._offered_bytes + self._inner_bytes - self._done_bytes)

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
        if os.getpid() != self._pid or self._is_own_thread() or (self._thread is None and self._jobs.empty()):
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
        is_nested = self._is_submitting()
        self._shut()
        self._start()
        if not self._is_own_thread() and not is_nested:
            with self._end:
                pass

    # --- the threads that submit -------------------------------------------------------------------------------------

    def _offer(self, job: Job, nbytes: int = 0, *, anyway: bool = False) -> bool:
        """Queue the job, if there is room and the queue is open. What is queued is done, whatever interrupts."""
        if self._is_own_thread():  # not behind the lock: who has it may be waiting for this thread
            return self._offer_from_job(job, nbytes)
        # A signal handler in the middle of the block below is not counted: both would change the same number.
        is_nested = self._is_submitting()
        nbytes = 0 if is_nested else nbytes
        with self._lock:
            try:
                if self._is_closed or (nbytes and not anyway and self._has_no_room(nbytes)):
                    return False
                # An interrupt right behind it leaves the job uncounted, and never a count without a job.
                self._jobs.put((job, nbytes))
                self._offered_bytes += nbytes
                return True
            finally:
                self._put_end(is_nested=is_nested)

    def _offer_from_job(self, job: Job, nbytes: int) -> bool:
        if self._is_closed:
            return False
        self._inner_bytes += nbytes
        self._jobs.put((job, nbytes))
        return True

    def _shut(self) -> None:
        if self._is_own_thread():
            self._is_closed = True
            if self._lock.acquire(blocking=False):  # whoever has it puts the end behind its own job
                self._put_end(is_nested=False)
                self._lock.release()
            return
        is_nested = self._is_submitting()
        with self._lock:
            try:
                self._is_closed = True
            finally:
                self._put_end(is_nested=is_nested)

    def _put_end(self, *, is_nested: bool) -> None:
        """Behind the last job. A signal handler leaves it to what it found, which may be about to queue a job."""
        if self._is_closed and not is_nested and not self._has_ended:
            self._jobs.put((_end_of_jobs, 0))

    def _is_submitting(self) -> bool:
        """Whether this thread is in the middle of a submit, and what runs is a signal handler or a finalizer."""
        is_owned: bool = self._lock._is_owned()  # type: ignore[attr-defined] # threading.Condition asks it, too
        if not is_owned:
            return False
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code in _LOCKING:
                return True
            frame = frame.f_back
        # Python 3.10 may be interrupted between the end of a block and the release of its lock.
        self._lock.release()
        return False

    def _has_no_room(self, nbytes: int) -> bool:
        waiting = self.waiting_bytes
        return waiting > 0 and waiting + nbytes > self.max_bytes

    def _wait_for_change(self, nbytes: int) -> None:
        """Sleep until a job is done."""
        gate = _shut_gate()
        self._gates.append(gate)
        # The last job may have ended before its thread could see the gate.
        if self._has_no_room(nbytes):
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
        # What jobs have submitted may stand behind the end.
        self._is_ending = self._is_ending or job is _end_of_jobs
        try:
            job()
        except BaseException:  # noqa: BLE001 (the thread must outlive whatever a job does)
            _log.exception("a job of the writing thread failed")
        del job  # its memory goes before its bytes count as free
        self._done_bytes += nbytes
        self._has_ended = self._is_ending and self._jobs.empty()
        while self._gates:
            self._gates.popleft().release()
        if self._has_ended:
            self._end.release()
        return not self._has_ended


# What holds the lock while it runs.
_LOCKING = frozenset({WriteQueue._offer.__code__, WriteQueue._shut.__code__})


def _yield_to_training() -> None:
    """Give this thread, and those it will start (they inherit it), a low priority: the training's threads go first.

    A step of a small GPT on two cores waits half as long for tensors that are compressed meanwhile. Linux alone has
    priorities of threads; elsewhere the call would slow the whole process.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _end_of_jobs() -> None:
    """The last job, behind which only jobs of jobs stand."""


def _shut_gate() -> threading.Lock:
    """A lock that is taken: the next one to acquire it sleeps until somebody releases it."""
    gate = threading.Lock()
    gate.acquire()
    return gate
