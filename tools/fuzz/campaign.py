"""All targets for a given time, on all processors: who found what, and how far each came."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.target import KEPT_CORPUS, KEPT_FINDS, Target, load_target

__all__ = ["Campaign", "Outcome", "read_log"]

ROOT = Path(__file__).resolve().parents[2]
# An input takes milliseconds; the machine may be busy with other things.
_TIMEOUT_S = 25
_RSS_MIB = 2048
_DONE = re.compile(rb"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_PROGRESS = re.compile(rb"^#(\d+)\s+\w+\s+cov: (\d+) ft: \d+ corp: (\d+)/", re.MULTILINE)
_REASON = re.compile(rb"=== Uncaught Python exception: ===\n(.*)|^==\d+== ?ERROR: libFuzzer: (.*)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What became of a target.

    Attributes
    ----------
    name
        Of the target.
    runs
        Inputs it was given.
    coverage
        Edges of the library's code that were met.
    corpus
        Inputs that each met something new.
    find
        Where the input lies that broke a promise; None for none.
    reason
        Which promise, or why nothing was tried.
    """

    name: str
    runs: int
    coverage: int
    corpus: int
    find: Path | None = None
    reason: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it was tried and kept its promises."""
        return self.find is None and not self.reason


@dataclass(frozen=True)
class Campaign:
    """How to fuzz.

    Attributes
    ----------
    seconds
        For each target.
    corpus
        Where inputs are gathered, a directory each target; outlives the campaign.
    workers
        Targets at a time.
    keep
        Put the smallest set of inputs that meets as much into the committed corpus.
    finds
        Where finds go.
    """

    seconds: int
    corpus: Path
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    keep: bool = False
    finds: Path = KEPT_FINDS

    def run(self, names: Iterable[str]) -> list[Outcome]:
        """Fuzz the targets."""
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(self._run_one, names))

    def _run_one(self, name: str) -> Outcome:
        target = load_target(name)
        corpus = self.corpus / name
        corpus.mkdir(parents=True, exist_ok=True)
        for data in target.seeds():
            (corpus / _digest(data)).write_bytes(data)
        with _workplace() as work:
            kept = [str(place) for place in (KEPT_CORPUS / name,) if place.is_dir()]
            options = [*self._options(target, work), str(corpus), *kept]
            log = _fuzz(name, options, work)
            outcome = self._outcome(name, log, work)
            if self.keep:
                self._keep(name, target, work)
        print(f"{name}: {outcome.runs} runs{f', {outcome.reason}' if outcome.reason else ''}", flush=True)
        return outcome

    def _options(self, target: Target, work: Path) -> list[str]:
        options = {
            "max_total_time": self.seconds, "timeout": _TIMEOUT_S, "rss_limit_mb": _RSS_MIB,
            "max_len": target.most_bytes,
            "artifact_prefix": f"{work}/find-", "print_final_stats": 1,
        }  # fmt: skip
        if target.words:
            words = work / "words"
            words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
            options["dict"] = str(words)
        return [f"-{name}={value}" for name, value in options.items()]

    def _outcome(self, name: str, log: bytes, work: Path) -> Outcome:
        found = next((path for path in sorted(work.glob("find-*")) if _is_find(name, path, work)), None)
        kept = None if found is None else self._kept_find(name, found)
        runs, coverage, corpus, reason = read_log(log)
        if found is None and any(work.glob("find-*")):
            reason = ""
        if kept is None and runs == 0 and not reason:
            reason = log.decode("utf-8", "replace").strip().rpartition("\n")[2] or "nothing was tried"
        return Outcome(name, runs, coverage, corpus, kept, reason)

    def _kept_find(self, name: str, found: Path) -> Path:
        place = self.finds / name
        place.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(found, place / _digest(found.read_bytes())))

    def _keep(self, name: str, target: Target, work: Path) -> None:
        """The smallest inputs first: libFuzzer's merge takes those that meet something new."""
        new = work / "merged"
        new.mkdir()
        sources = [str(place) for place in (self.corpus / name, KEPT_CORPUS / name) if place.is_dir()]
        _fuzz(name, ["-merge=1", f"-max_len={target.most_bytes}", f"-timeout={_TIMEOUT_S}", str(new), *sources], work)
        kept = sorted(new.iterdir(), key=lambda path: (path.stat().st_size, path.name))
        if not kept:
            return
        place = KEPT_CORPUS / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        room = _KEPT_BYTES
        for path in kept:
            room -= path.stat().st_size
            if room >= 0:
                shutil.copyfile(path, place / _digest(path.read_bytes()))


def _is_find(name: str, path: Path, work: Path) -> bool:
    """What took too long is tried once more: the machine may have been busy, or asleep."""
    if not path.name.startswith(("find-timeout", "find-slow")):
        return True
    return b"ERROR: libFuzzer" in _fuzz(name, [f"-timeout={_TIMEOUT_S}", str(path)], work)


# Of each target.
_KEPT_BYTES = 100_000


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _escaped(word: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}" for byte in word)


@contextmanager
def _workplace() -> Iterator[Path]:
    """A directory in memory, where there is one: millions of small files are written."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="msformat-fuzz-", dir=memory) as place:
        yield Path(place)


def _fuzz(name: str, options: list[str], work: Path) -> bytes:
    command = [sys.executable, "-m", "tools.fuzz.one", name, *options]
    environment = {**os.environ, "PLACE": str(work / "place"), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    ).stdout


def read_log(log: bytes) -> tuple[int, int, int, str]:
    """Runs, coverage, size of the corpus, and why it ended early, out of what libFuzzer prints."""
    progress = _PROGRESS.findall(log)
    runs, coverage, corpus = map(int, progress[-1]) if progress else (0, 0, 0)
    done = _DONE.search(log)
    reason = _REASON.search(log)
    text = b"" if reason is None else (reason[1] or reason[2] or b"")
    return int(done[1]) if done else runs, coverage, corpus, text.decode("utf-8", "replace").strip()
