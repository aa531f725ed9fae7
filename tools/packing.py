"""The archives that people install, made without a network and without a trace in the working tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

__all__ = ["build_sdist", "build_wheel"]

ROOT = Path(__file__).resolve().parents[1]


def build_sdist(target: Path) -> Path:
    """``msformat-….tar.gz`` in the directory ``target``, of the packages as they stand in the working tree."""
    source = target / "tree"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("msformat", "capture"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    return _build("build_sdist", source, target, "*.tar.gz")


def build_wheel(sdist: Path, target: Path) -> Path:
    """``msformat-….whl`` in the directory ``target``, of nothing but what the sdist holds."""
    with tarfile.open(sdist) as archive:
        # Python 3.12 warns without one; what we packed ourselves needs none where there is none yet.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(target)
    return _build("build_wheel", target / sdist.name.removesuffix(".tar.gz"), target, "*.whl")


def _build(function: str, source: Path, target: Path, pattern: str) -> Path:
    code = f"import sys, setuptools.build_meta as backend; backend.{function}(sys.argv[1])"
    command = [sys.executable, "-c", code, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{function} failed:\n{done.stderr[-2000:]}")
    (made,) = target.glob(pattern)
    return made
