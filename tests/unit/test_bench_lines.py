"""What the benchmark's tables rest on: goals, memory of processes, and documents whose text stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench_lines import Line, code, pairs, peak_memory
from tools.report import MARK, markdown_table, replace_tables


@pytest.mark.parametrize(
    ("goal", "met"), [("<= 0.5", True), ("<= 0.49", False), ("<= 2 s", True), ("<= 0.9 s", False), ("", None)]
)
def test_a_goal_is_of_the_ratio_or_of_seconds(goal: str, met: bool | None) -> None:
    assert Line("what", 1.0, 2.0, "peer", goal).met is met


def test_both_run_in_turn_and_the_first_pair_does_not_count() -> None:
    order: list[str] = []
    pairs(lambda: order.append("ours"), lambda: order.append("theirs"), 2)
    assert order == ["ours", "theirs"] * 3


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_memory_is_that_of_all_processes_together() -> None:
    child = "import time; x = bytearray(64 << 20); time.sleep(1)"
    alone = peak_memory(code(child))
    assert 64 << 20 < alone < 128 << 20
    parent = f"import subprocess, sys; x = bytearray(64 << 20); subprocess.run([sys.executable, '-c', {child!r}])"
    assert peak_memory(code(parent)) > alone + (64 << 20)


def test_tables_are_replaced_and_the_text_above_stays(tmp_path: Path) -> None:
    document = tmp_path / "bench.md"
    document.write_text(f"# Bench\n\nBy hand.\n\n{MARK}\n\nold\n")
    table = markdown_table(("a", "b"), [("x | y", 1)])
    for _ in range(2):
        replace_tables(document, table)
    assert document.read_text() == f"# Bench\n\nBy hand.\n\n{MARK}\n\n| a | b |\n| --- | --- |\n| x \\| y | 1 |\n"
