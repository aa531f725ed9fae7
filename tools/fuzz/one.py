"""One target in a process of its own: ``python -m tools.fuzz.one TARGET [options of libFuzzer] [corpus ...]``.

A find ends the process (exit code 77), with the input in a file that libFuzzer names. ``PLACE`` in the environment is
a directory for what the target needs.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from random import Random

import atheris

from tests.fuzz.guard import MOST_MEMORY, run
from tests.fuzz.target import load_target

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    with atheris.instrument_imports(include=["msformat"], enable_loader_override=False):
        target = load_target(arguments[0])
    place = Path(os.environ["PLACE"])

    def check(data: bytes) -> None:
        run(target, data, place)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)

        def change(part: bytes) -> bytes:
            # An empty input cannot be changed, only made.
            return bytes(atheris.Mutate(part or b"\0", max(len(part) + 64, 1)))

        assert target.mutate is not None
        for _ in range(random.choice((1, 1, 2, 4))):
            data = target.mutate(data, change, random)
        return data[:most]

    structured = {} if target.mutate is None else {"custom_mutator": mutate}
    # libFuzzer starts itself again to merge, by a shell that takes the first argument apart.
    again = f"{sys.executable} -m tools.fuzz.one {arguments[0]}"
    atheris.Setup([again, *arguments[1:]], check, **structured)
    # What the first inputs bring is imported; from here on memory is for reading.
    run(target, next(iter(target.seeds())), place)
    _limit_memory()
    atheris.Fuzz()


def _limit_memory() -> None:
    """An allocation that no input of some KiB justifies is a MemoryError, also where nothing would be touched of it."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + 2 * MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(sys.argv[1:])
