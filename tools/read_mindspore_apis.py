"""Makes capture/mindspore/api_names.json: the functions of MindSpore that msprobe records, and under which prefix.

Run it with any Python, on the list that msprobe packs (``support_wrap_ops.yaml``; those of several versions are
joined)::

    python tools/read_mindspore_apis.py capture/mindspore/api_names.json 8.1.0=FILE 26.2.0=FILE

The list names a place and its functions; which prefix a place's entries get was seen in dumps (``Functional.relu.0``
for ``mindspore.ops.relu``). Which of the functions a MindSpore has is asked when capture begins.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

PREFIXES = {
    "ops": ("Functional", "mindspore.ops"),
    "tensor": ("Tensor", "mindspore.Tensor"),
    "mint.ops": ("Mint", "mindspore.mint"),
    "mint.nn.functional": ("MintFunctional", "mindspore.mint.nn.functional"),
    "communication.comm_func": ("Distributed", "mindspore.communication.comm_func"),
    "mint.distributed": ("MintDistributed", "mindspore.mint.distributed"),
}


def _lists(text: str) -> dict[str, set[str]]:
    """Names by place; the file is YAML of the plainest kind."""
    found: dict[str, set[str]] = {}
    place = ""
    for line in text.splitlines():
        if heading := re.match(r"([a-z_.]+):\s*$", line):
            place = heading[1]
        elif item := re.match(r"\s+-\s+([\w.]+)\s*$", line):
            found.setdefault(place, set()).add(item[1])
    return found


def main() -> None:
    """Write the names of the given files to the file named first."""
    target, *sources = sys.argv[1:]
    replaced: dict[str, dict[str, set[str]]] = {}
    versions = []
    for source in sources:
        version, _, path = source.partition("=")
        versions.append(version)
        for listed, names in _lists(Path(path).read_text("utf-8")).items():
            prefix, place = PREFIXES[listed]
            for name in names:
                below, _, last = f"{place}.{name}".rpartition(".")
                replaced.setdefault(prefix, {}).setdefault(below, set()).add(last)
    listing = {p: {place: sorted(names) for place, names in sorted(d.items())} for p, d in sorted(replaced.items())}
    Path(target).write_text(json.dumps({"msprobe": versions, "replaced": listing}, indent=1) + "\n")


if __name__ == "__main__":
    main()
