"""Is a directory one that MindSpore's TensorDump wrote into? Judged by file names; nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence

from msformat.filesystem import FileSystem, Item
from msformat.foreign import ForeignUnit
from msformat.foreign.mindspore_dump.names import SUFFIX, parse_file_names
from msformat.units import UnitKey, is_rank_label

__all__ = ["EXPECTED", "find"]

# Beside the files: which gradients were asked for (capture.mindspore writes it).
EXPECTED = "save_grad.jsonl"


def find(fs: FileSystem, path: str, items: Sequence[Item], key: UnitKey) -> list[ForeignUnit]:
    """The directory itself, if tensors were saved into it.

    Below ``step{N}`` one fitting name is enough. Elsewhere a directory of arrays may be anything: every name has to
    fit.
    """
    files = [item.name for item in items if item.kind == "file" and item.name.endswith(SUFFIX)]
    saved, strangers = parse_file_names(files)
    is_labelled = is_rank_label(path.rpartition("/")[2] or fs.describe("").rpartition("/")[2])
    asked = any(item.name == EXPECTED and item.kind == "file" for item in items)
    if (saved and (is_labelled or not strangers)) or (asked and not strangers):
        return [ForeignUnit(key, path)]
    return []
