"""A library that is not installed is named, with the extra that brings it."""

from __future__ import annotations

import pytest

from tests.arch.test_without_extras import run


@pytest.mark.parametrize(("library", "extra"), [("transformers", "huggingface"), ("lightning", "lightning")])
def test_a_missing_library_is_named_with_its_extra(library: str, extra: str) -> None:
    done = run(f"import capture.integrations.{extra}", blocked={library, "pytorch_lightning"})
    assert done.returncode == 1
    assert f"needs {library}, which is not installed: pip install 'msformat[{extra}]'" in done.stderr


def test_nothing_else_needs_one() -> None:
    code = "import capture.integrations.loop, capture.launch.command"
    done = run(code, blocked={"transformers", "lightning", "pytorch_lightning"})
    assert done.returncode == 0, done.stderr
