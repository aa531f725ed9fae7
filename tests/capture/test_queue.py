"""The queue between training and disk: bounded, in order, and never in the training's way."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from capture.queue import WriteQueue

ROOT = Path(__file__).parents[2]
SOON = 20.0


@pytest.fixture
def queue() -> Iterator[WriteQueue]:
    made = WriteQueue(100)
    yield made
    made.close()


class Blocker:
    """A job that runs until it is let go."""

    def __init__(self) -> None:
        self.running, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.running.set()
        assert self.may_end.wait(SOON)


def run(code: str) -> subprocess.CompletedProcess[str]:
    """A program of its own: forks and interrupts are not for the process of the tests."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


def writers() -> int:
    return sum(thread.name == "capture-writer" for thread in threading.enumerate())


def test_no_thread_before_there_is_work() -> None:
    before = writers()
    queue = WriteQueue(10)
    assert queue.drain(0)
    assert writers() == before
    queue.submit(lambda: None)
    assert writers() == before + 1
    queue.close()


def test_jobs_run_in_order_in_one_thread(queue: WriteQueue) -> None:
    done: list[int] = []
    threads: set[int] = set()

    def note(number: int) -> None:
        done.append(number)
        threads.add(threading.get_ident())

    for number in range(1000):
        queue.submit(partial(note, number), number % 7)
    assert queue.drain(SOON)
    assert done == list(range(1000))
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    assert queue.waiting_bytes == 0


def test_submit_blocks_at_the_bound_and_not_before(queue: WriteQueue) -> None:
    blocker, late = Blocker(), threading.Event()
    queue.submit(blocker, 60)
    queue.submit(lambda: None, 40)

    def submit() -> None:
        queue.submit(lambda: None, 1)
        late.set()

    thread = threading.Thread(target=submit)
    thread.start()
    assert not late.wait(0.2)
    queue.submit(lambda: None)  # what holds nothing waits for nothing
    assert queue.waiting_bytes == 100
    blocker.may_end.set()
    assert late.wait(SOON)
    thread.join()


def test_a_job_larger_than_the_bound_waits_until_it_is_alone(queue: WriteQueue) -> None:
    blocker = Blocker()
    queue.submit(blocker, 1)
    done: list[int] = []
    thread = threading.Thread(target=lambda: queue.submit(lambda: done.append(queue.waiting_bytes), 1000))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    blocker.may_end.set()
    thread.join(SOON)
    assert queue.drain(SOON)
    assert done == [1000]


def test_many_threads_never_exceed_the_bound(queue: WriteQueue) -> None:
    seen: list[int] = []
    done: dict[int, list[int]] = {number: [] for number in range(4)}

    def note(thread: int, number: int) -> None:
        seen.append(queue.waiting_bytes)
        done[thread].append(number)

    def submit(thread: int) -> None:
        for number in range(200):
            queue.submit(partial(note, thread, number), 30)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert queue.drain(SOON)
    assert max(seen) <= 100
    assert all(numbers == list(range(200)) for numbers in done.values())


def test_memory_stays_flat_behind_a_slow_writer() -> None:
    """At no time are there more blocks than fit the bound, plus the one that its owner holds while it waits."""
    alive: weakref.WeakSet[Block] = weakref.WeakSet()
    most = 0
    queue = WriteQueue(10 * Block.size)

    def write(block: Block) -> None:
        nonlocal most
        most = max(most, len(alive))
        time.sleep(0.001)

    for _ in range(200):
        block = Block()
        alive.add(block)
        queue.submit(partial(write, block), Block.size)
    queue.close()
    assert 10 <= most <= 12


class Block:
    size = 1000


def test_nothing_of_a_job_is_kept_while_idle(queue: WriteQueue) -> None:
    block = Block()
    gone = weakref.ref(block)
    queue.submit(partial(id, block), 1)
    del block
    assert queue.drain(SOON)
    gc.collect()
    assert gone() is None


def test_a_job_that_raises_is_logged_and_the_next_one_runs(queue: WriteQueue, caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("first"), SystemExit(3), KeyboardInterrupt()):
        queue.submit(partial(fail, error), 90)
    queue.submit(lambda: done.append(1), 90)
    assert queue.drain(SOON)
    assert done == [1]
    assert queue.waiting_bytes == 0
    assert "first" in caplog.text
    assert len(caplog.records) == 3


def test_drain_gives_up_at_its_timeout(queue: WriteQueue) -> None:
    blocker = Blocker()
    queue.submit(blocker, 1)
    began = time.monotonic()
    assert not queue.drain(0.05)
    assert time.monotonic() - began < SOON / 2
    blocker.may_end.set()
    assert queue.drain(SOON)


def test_a_job_may_submit_beyond_the_bound_drain_and_close(queue: WriteQueue) -> None:
    done: list[int] = []
    is_over = threading.Event()

    def outer() -> None:
        for number in range(5):
            queue.submit(partial(done.append, number), 90)
        assert queue.drain()
        queue.close()
        with pytest.raises(RuntimeError):
            queue.submit(lambda: done.append(99))
        done.append(-1)
        is_over.set()

    queue.submit(outer, 90)
    assert is_over.wait(SOON)
    queue.close()
    assert done == [-1, 0, 1, 2, 3, 4]


def test_close_does_what_is_left_and_refuses_more() -> None:
    queue = WriteQueue(1000)
    done: list[int] = []
    for number in range(50):
        queue.submit(partial(time.sleep, 0.001), 1)
        queue.submit(partial(done.append, number))
    queue.close()
    assert done == list(range(50))
    queue.close()
    assert queue.drain()
    with pytest.raises(RuntimeError, match="closed"):
        queue.submit(lambda: None)
    with pytest.raises(RuntimeError, match="closed"):
        queue.submit(lambda: None, 10**6)


def test_close_releases_who_waits_for_room() -> None:
    queue, blocker = WriteQueue(10), Blocker()
    outcome: list[str] = []
    queue.submit(blocker, 10)
    assert blocker.running.wait(SOON)

    def submit() -> None:
        try:
            queue.submit(lambda: outcome.append("written"), 10)
        except RuntimeError:
            outcome.append("refused")

    waiting = threading.Thread(target=submit)
    waiting.start()
    closing = threading.Thread(target=queue.close)
    closing.start()
    time.sleep(0.05)
    blocker.may_end.set()
    waiting.join(SOON)
    closing.join(SOON)
    assert outcome in (["written"], ["refused"])


def test_the_thread_ends_with_close_and_sleeps_before() -> None:
    others = set(threading.enumerate())
    queue = WriteQueue(10)
    queue.submit(lambda: None)
    assert queue.drain(SOON)
    (thread,) = [one for one in threading.enumerate() if one.name == "capture-writer" and one not in others]
    assert thread.daemon
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    began = time.clock_gettime(clock)
    time.sleep(0.3)
    assert time.clock_gettime(clock) - began < 0.05
    queue.close()
    thread.join(SOON)
    assert not thread.is_alive()


def test_without_threads_jobs_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the interpreter, or where the system has no more threads."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    queue = WriteQueue(10)
    done: list[int] = []

    def outer() -> None:
        done.append(1)
        queue.submit(lambda: done.append(2), 100)

    queue.submit(outer, 100)
    queue.submit(lambda: done.append(3), 100)
    assert done == [1, 2, 3]
    assert queue.drain()
    queue.close()


INTERRUPT = """
import os, signal, threading, time
from capture.queue import WriteQueue
queue, done, may_end = WriteQueue(10), [], threading.Event()
queue.submit(lambda: may_end.wait(30), 10)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    queue.submit(lambda: done.append("kept"), 10)
except KeyboardInterrupt:
    print("interrupted", done)
may_end.set()
queue.submit(lambda: done.append("later"), 10)
queue.close()
print(done, queue.waiting_bytes)
"""


def test_ctrl_c_while_blocked_keeps_the_job() -> None:
    done = run(INTERRUPT)
    assert done.stdout == "interrupted []\n['kept', 'later'] 0\n", done.stderr


STORM = """
import os, signal, threading
from capture.queue import WriteQueue
queue, done, told, armed = WriteQueue(10), [], 0, False
ending = threading.Event()
def storm():
    while not ending.wait(0.0005):
        os.kill(os.getpid(), signal.SIGINT)
def interrupt(*_):
    global armed
    if armed:  # not outside the submit
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
queue.submit(lambda: None)  # starts the thread
thread = threading.Thread(target=storm)
thread.start()
for number in range(3000):
    try:
        armed = True
        queue.submit(lambda number=number: done.append(number), 7)
        armed = False
    except KeyboardInterrupt:
        told += 1
ending.set()
thread.join()
assert queue.drain(20), queue.__dict__
print(sorted(set(done)) == sorted(done), len(done) > 0, queue.waiting_bytes, told > 0)
queue.close()
"""


def test_a_storm_of_interrupts_breaks_nothing() -> None:
    """Whatever instruction an interrupt hits: no lock stays taken, no byte stays counted, no job runs twice."""
    done = run(STORM)
    assert done.stdout == "True True 0 True\n", done.stderr


EVERYWHERE = """
import sys, threading
from capture.queue import WriteQueue
def interrupt():
    if {what!r} == "raise":
        raise KeyboardInterrupt
    if {what!r} == "close":
        queue.close()
        return
    queue.submit(lambda: done.append("handler"), 9)
    assert queue.drain()
def trace(frame, event, _):
    global reached
    if frame.f_code.co_filename.endswith("queue.py"):
        frame.f_trace_opcodes = True
        reached += event == "opcode"
        if reached == wanted and event == "opcode":
            sys.settrace(None)
            interrupt()
        return trace
wanted, ends = 0, set()
while True:
    wanted, reached = wanted + 1, 0
    queue, done, end = WriteQueue(10), [], ""
    queue.submit(lambda: done.append("first"))
    try:
        sys.settrace(trace)
        queue.submit(lambda: done.append("outer"), 8)
    except (KeyboardInterrupt, RuntimeError) as error:
        end = type(error).__name__
    sys.settrace(None)
    if reached < wanted:
        break
    queue.close()
    threading.Thread(target=lambda: queue.close()).start()  # nothing is left locked
    ends.add((end, " ".join(done), queue.waiting_bytes))
print(wanted > 80, sorted(ends))
"""


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        ("submit and drain", [("", "first handler outer", 0), ("", "first outer handler", 0)]),
        ("close", [("", "first outer", 0), ("RuntimeError", "first", 0)]),
        ("raise", [("KeyboardInterrupt", "first", 0), ("KeyboardInterrupt", "first outer", 0)]),
    ],
)
def test_a_signal_handler_between_any_two_instructions_of_a_submit(what: str, ends: list[Any]) -> None:
    """Python 3.10 calls it between any two, later releases at calls and jumps backwards; a tracer does so in all."""
    done = run(EVERYWHERE.format(what=what))
    assert done.stdout == f"True {ends}\n", done.stderr


FORK = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from capture.queue import WriteQueue
queue, done, may_end = WriteQueue(10), [], threading.Event()
queue.submit(lambda: may_end.wait(30), 10)
queue.submit(lambda: done.append("waiting"))
hold = {hold}
if hold:  # as if another thread of the parent were in the middle of a submit
    threading.Thread(target=lambda: (queue._lock.acquire(), time.sleep(1), queue._lock.release())).start()
    time.sleep(0.1)
child = os.fork()
if child == 0:
    queue.submit(lambda: done.append("child"), 100)
    queue.submit(lambda: done.append("child"))
    assert queue.drain() and queue.drain(5)
    queue.close()
    time.sleep(0.1)
    assert threading.active_count() == 1
    sys.exit(7 if done == [] else 8)
deadline = time.monotonic() + 20
while (state := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
    time.sleep(0.01)
may_end.set()
queue.submit(lambda: done.append("parent"), 10)
queue.close()
print(os.waitstatus_to_exitcode(state[1]) if state[0] else "hangs", done)
"""


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_nothing_and_waits_for_nothing(hold: bool) -> None:
    done = run(FORK.format(hold=hold))
    assert done.stdout == "7 ['waiting', 'parent']\n", done.stderr


def test_interrupts_are_the_default_ones() -> None:
    """No signal handler was set."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads")
def test_the_writer_and_its_threads_come_after_the_training() -> None:
    found: dict[str, int] = {}

    def note(name: str) -> None:
        found[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def job() -> None:
        note("writer")
        helper = threading.Thread(target=note, args=("its own",))
        helper.start()
        helper.join()

    note("training")
    queue = WriteQueue(1)
    queue.submit(job)
    queue.close()
    after = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert found["writer"] == found["its own"] > found["training"] == after
