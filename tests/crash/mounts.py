"""Small and read-only file systems for a program of its own: they are mounted where nobody else sees them.

A child runs in a mount namespace (``unshare --mount``), which ends with it: nothing has to be unmounted, whatever dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

__all__ = ["mount_read_only", "mount_small", "run_with_mounts"]

ROOT = Path(__file__).parents[2]
# As root in a container that may mount; as a user where the kernel lets users have namespaces.
_WAYS = (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount"))


@lru_cache(maxsize=1)
def _way() -> tuple[str, ...] | str:
    """A command in front of a program that will mount something, or why there is none."""
    reasons = []
    for way in _WAYS:
        command = [*way, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt && mount -o remount,ro,bind /mnt"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"no command unshare: {error}"
        if done.returncode == 0:
            return way
        reasons.append(done.stderr.strip())
    return f"nothing can be mounted here: {'; '.join(reasons)}"


def run_with_mounts(module: str, *arguments: object) -> str:
    """What ``python -m module …`` prints, which may mount something; the test is skipped where that is forbidden."""
    way = _way()
    if isinstance(way, str):
        pytest.skip(way)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [*way, sys.executable, "-W", "error", "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mount_small(place: Path, size: int) -> Path:
    """In such a child: a disk of so many bytes."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=True)
    return place


def mount_read_only(place: Path) -> Path:
    """In such a child: a directory in which nothing changes any more, not even for root."""
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
    return place
