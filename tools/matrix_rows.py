"""The environments of ``make test-matrix``: which interpreter, what is installed, which part of the suite."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

__all__ = ["NOWHERE", "ROOT", "ROWS", "Row", "declared", "minima", "requirements"]

ROOT = Path(__file__).resolve().parents[1]
# Extras that bring a framework: only a row that names them has them.
FRAMEWORKS = ("torch", "mindspore", "huggingface", "lightning")
# Extras of developers, who have the newest.
TOOLS = ("test", "fuzz")
# What the extra "test" has and judges no test: the checkers, and the botocore that goes with the newest s3fs only.
NO_JUDGES = {"msformat", "mypy", "ruff", "aiobotocore", "boto3"}
# aiobotocore is what the oldest s3fs takes, and says which boto3: left to itself, pip tries hundreds to find that out.
OLD_S3 = ("aiobotocore[boto3]~=2.11.0",)
# matplotlib 3.7 calls what the pyparsing of today warns about, and warnings are errors.
OLD_PLOT = ("pyparsing~=3.1.0",)
# pyarrow 26 wants numpy 2, 22 takes either.
NUMPY_1 = ("numpy==1.26.*", "pyarrow<23")
FRAMEWORK_FREE = (
    "tests",
    *(f"--ignore=tests/capture/{name}" for name in ("integrations", "mindspore", "mindtorch", "pytorch")),
    "--ignore=tests/browser",
    "--ignore=tests/crash/test_capture_training.py",
    "--ignore=tests/installed",
    "--ignore=tests/mindtorch",
    "--ignore=tests/peer",
)
# For a row between two that run everything: kills, attacks and fuzzing are left out, which judge the operating system
# and the formats more than a release of a library.
BETWEEN = (
    "tests/arch",
    "tests/contract",
    "tests/docs",
    "tests/golden",
    "tests/property",
    "tests/reports",
    "tests/unit",
)
# Capture of torch, and every test that torch judges.
WITH_TORCH = (
    "tests/capture/pytorch",
    "tests/contract/test_files.py",
    "tests/crash/test_capture_training.py",
    "tests/docs",
    "tests/golden",
    "tests/reports",
    "tests/security/test_pt_attacks.py",
    "tests/unit",
)
# h5py 3.8 asks numpy 1.26 for what that calls deprecated; our tests take every warning for an error.
OLD_WARNINGS = ("-W", "ignore:`product` is deprecated:DeprecationWarning")
# PyTorch 2.1 warns of its own storages when it loads a tensor.
OLD_STORAGES = ("-W", "ignore:TypedStorage is deprecated:UserWarning")
# lightning 2.1 brings the newest of its other name, and imports pkg_resources, which says each time that it will go.
OLD_TRAINERS = ("pytorch-lightning==2.1.0", "setuptools<81")
PKG_RESOURCES = ("-W", "ignore:pkg_resources is deprecated", "-W", "ignore:Deprecated call to `pkg_resources")
INSTALLED = ("tests/installed",)
# What no row has: its tests have an environment of their own.
NOWHERE = frozenset({"mindspore"})


@dataclass(frozen=True)
class Row:
    """One environment and what is tried in it.

    Parameters
    ----------
    name : str
        Of the row on the command line, and of its folder.
    python : str
        Major and minor version.
    about : str
        What the row is for, in words.
    oldest : bool
        Every dependency that pyproject.toml names is at its declared minimum, as are ``frameworks``.
    frameworks : tuple of str
        Extras of pyproject.toml that bring a framework, none of which is installed otherwise.
    pins : tuple of str
        Requirements beside those of pyproject.toml.
    tests : tuple of str
        Arguments of pytest.
    absent : frozenset of str
        Libraries that the row lacks on purpose.
    archive : str
        The row is what a user has: this archive, made of the working tree, without an extra and without pytest, which
        runs outside and starts the row's interpreter.
    """

    name: str
    python: str
    about: str
    oldest: bool = False
    frameworks: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    tests: tuple[str, ...] = FRAMEWORK_FREE
    absent: frozenset[str] = frozenset({"torch"})
    archive: Literal["", "sdist", "wheel"] = ""


# zarr-python 3.0, which brings google_crc32c, is not for Python 3.10, torch 2.1 not for numpy 2: the oldest of each is
# where the others can be.
# What `make test` runs, Python 3.11 and torch with the newest of all, is no row: torch-2.13 is that with numpy 1.
ROWS = (
    Row("oldest", "3.10", "every minimum", oldest=True, pins=(*OLD_S3, *OLD_PLOT), tests=FRAMEWORK_FREE + OLD_WARNINGS,
        absent=frozenset({"torch", "zarr", "google_crc32c"})),
    Row("zarr-3.0", "3.11", "zarr 3.0, numpy 1.26", pins=("zarr==3.0.0", *NUMPY_1), tests=BETWEEN),
    Row("python-3.10", "3.10", "newest libraries", tests=BETWEEN, absent=frozenset({"torch", "zarr"})),
    Row("python-3.12", "3.12", "newest libraries", tests=BETWEEN),
    Row("python-3.13", "3.13", "newest libraries"),
    Row("torch-2.1", "3.10", "every minimum, torch too", oldest=True, frameworks=("torch",), pins=(*OLD_S3, *OLD_PLOT),
        tests=WITH_TORCH + OLD_WARNINGS + OLD_STORAGES, absent=frozenset({"zarr"})),
    Row("integrations-oldest", "3.10", "every minimum, trainers too", oldest=True,
        frameworks=("torch", "huggingface", "lightning"), pins=(*OLD_S3, *OLD_PLOT, *OLD_TRAINERS),
        tests=("tests/capture/integrations", "tests/docs/test_integrations_guide.py", *PKG_RESOURCES),
        absent=frozenset({"zarr"})),
    Row("torch-2.13", "3.11", "torch 2.13, numpy 1.26", frameworks=("torch",), pins=("torch==2.13.0", *NUMPY_1),
        tests=WITH_TORCH, absent=frozenset()),
    Row("bare-3.10", "3.10", "no extra, from the sdist", archive="sdist", tests=INSTALLED),
    Row("bare-3.13", "3.13", "no extra, from the wheel", archive="wheel", tests=INSTALLED),
)  # fmt: skip


def declared() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        return dict(tomllib.load(stream)["project"])


def requirements(row: Row, project: dict[str, Any]) -> list[str]:
    """What pip is asked to install, all at once, so that what contradicts itself is refused."""
    if not row.oldest:
        return ["-e", f"{ROOT}[{','.join(('test', *row.frameworks))}]", *row.pins]
    judges = [text for text in project["optional-dependencies"]["test"] if Requirement(text).name not in NO_JUDGES]
    return ["-e", str(ROOT), *minima(row, project), *judges, *row.pins]


def minima(row: Row, project: dict[str, Any]) -> list[str]:
    """Every dependency at its declared minimum, in the extras too: ``numpy>=1.26`` as ``numpy==1.26``."""
    extras = project["optional-dependencies"]
    left_out = {*TOOLS, *FRAMEWORKS} - set(row.frameworks)
    texts = [*project["dependencies"], *(text for name in extras if name not in left_out for text in extras[name])]
    found: dict[str, str] = {}
    for wanted in map(Requirement, texts):
        here = wanted.marker is None or wanted.marker.evaluate({"python_version": row.python, "extra": ""})
        if wanted.name != "msformat" and here:
            (least,) = [one.version for one in wanted.specifier if one.operator == ">="]
            found[wanted.name] = f"{wanted.name}=={least}"
    return list(found.values())
