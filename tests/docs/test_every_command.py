"""No page shows a command that nobody runs: each is run by a test, here or elsewhere, or listed with the reason."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_DATA
from tests.docs.guides import ROOT, blocks_of, shell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted(DOCS.glob("*.md"))]
# Who runs what a page shows.
RUN_BY = {
    "README.md": "test_readme.py",
    "README.zh.md": "test_readme.py",
    "diff.md": "test_diff_guide.py",
    "integrations.md": "test_integrations_guide.py",
    "kernel.md": "test_every_command.py",
    "migrating.md": "test_migrating.py",
    "report.md": "test_report_guide.py",
    "tutorial.md": "test_tutorial.py",
}
# What no test runs as it stands.
NOT_RUN = {
    "make ": "makes environments of gigabytes; that the target exists is tested here",
    "python -m pytest tests/fuzz/": "what it runs is run by the suite itself",
    "pip install ": "asks a registry; that the extra exists is tested here",
    "msformat view ": "serves until Ctrl-C; tests/security and tests/browser serve pages",
    "msformat convert /nfs/dump /nfs/stored --to zarr --dask": "needs a cluster; tests/unit run it with LocalCluster",
    "msformat verify  /nfs/stored --dask": "as above",
    "msformat table   /nfs/stored --dask": "as above",
    "msformat convert dump/ s3://": "needs a bucket; tests/unit run it with moto's server",
    "msformat convert s3://": "as above",
}
PROGRAM = re.compile(r"^(?:\$ | {4})?((?:msformat|python|torchrun|make|pip|mkdocs) .*)$", re.MULTILINE)
KERNEL = "MatMul.fmt_nz.11.10.1735011096426359"


def commands(page: Path) -> list[str]:
    """The command lines of a page: in blocks, and indented by four blanks."""
    text = page.read_text("utf-8")
    blocks = [block.text for block in blocks_of(page) if block.language in {"", "console", "sh", "text"}]
    indented = re.findall(
        r"^ {4}\S.*$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return [line for part in [*blocks, *indented] for line in PROGRAM.findall(part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_is_run_or_has_a_reason(page: Path) -> None:
    guide = RUN_BY.get(page.name)
    if guide:
        assert page.name.removesuffix(".zh.md").removesuffix(".md") in (ROOT / "tests/docs" / guide).read_text("utf-8")
        return
    assert [line for line in commands(page) if not line.startswith(tuple(NOT_RUN))] == []


def test_no_reason_is_left_over() -> None:
    lines = [line for page in PAGES for line in commands(page)]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []


def test_extras_and_targets_exist() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"(?:pip install '(?:msformat|\.)|msformat)\[([a-z0-9,]+)\]", text)
    assert {name for names in named for name in names.split(",")} <= set(extras)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= targets


def test_options_exist(tmp_path: Path) -> None:
    """Also of commands that are named in running text."""
    known = {}
    for page in PAGES:
        for name, rest in re.findall(r"`msformat ([a-z]+)([^`]*)`", page.read_text("utf-8")):
            if name not in known:
                done = subprocess.run(
                    [sys.executable, "-m", "msformat", name, "--help"], capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{page.name}: msformat {name}"
                known[name] = set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))
            assert set(re.findall(r"--[a-z][a-z0-9-]*", rest)) <= known[name], f"{page.name}: msformat {name}{rest}"


def test_commands_of_the_kernel_guide(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN_DATA / "kernel" / "kernel_dump.zip") as archive:
        archive.extractall(tmp_path)
    (tmp_path / "kernel_dump" / "good").rename(tmp_path / "KERNEL_DIR")
    lines = commands(DOCS / "kernel.md")
    assert len(lines) == 5
    for line in lines:
        # Behind two blanks or more there is a remark.
        done = shell(re.split(r" {2,}", line)[0], tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}"


@pytest.mark.parametrize("page", ["capture.md", "capture-mindspore.md", "capture-mindtorch.md"])
def test_examples_of_capture_are_python(page: str) -> None:
    """They need a training around them: README's is run, the frameworks' own tests run each call of the others."""
    codes = [block.text for block in blocks_of(DOCS / page) if block.language == "python"]
    assert codes
    for code in codes:
        ast.parse(code)


def test_the_example_of_a_pytorch_training(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (code,) = [block.text for block in blocks_of(DOCS / "capture.md") if block.language == "python"]
    (tmp_path / "config.json").write_text('{"task": "statistics", "level": "L0", "dump_path": "dump"}')
    setup = "import torch\nmodel, data = torch.nn.Sequential(torch.nn.Linear(4, 4)), [torch.ones(2, 4)] * 2\n"
    (tmp_path / "train.py").write_text(setup + code)
    done = shell("python -W error train.py && msformat info dump", tmp_path)
    assert done.returncode == 0, done.stdout
