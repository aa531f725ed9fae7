"""Fixtures every folder shares: the real dumps that msprobe wrote, unzipped once a session."""

from __future__ import annotations

import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GOLDEN_DATA = Path(__file__).parent / "golden" / "data"
# Kernel dumps (L2) have no dump.json: another format, with tests of its own.
golden_names = sorted(path.stem for path in GOLDEN_DATA.glob("*.zip") if "_L2_" not in path.stem)


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """A shell makes what it starts in its background ignore Ctrl-C, and tests of interrupts would see nothing."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Root directory of a real dump (holding ``step0`` or, for debug dumps of 1.2.2, ``rank``). Do not write there."""
    made: dict[str, Path] = {}

    def unzip(name: str) -> Path:
        if name not in made:
            target = tmp_path_factory.mktemp(name)
            with zipfile.ZipFile(GOLDEN_DATA / f"{name}.zip") as archive:
                archive.extractall(target)
            made[name] = target / name
        return made[name]

    return unzip


@pytest.fixture
def memory_url() -> Iterator[str]:
    """A bucket that is the same for all of a process, empty before and after."""
    fs = pytest.importorskip("fsspec").filesystem("memory")

    def empty() -> None:
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]

    # Other tests leave things in it, too.
    empty()
    yield "memory://bucket"
    empty()
