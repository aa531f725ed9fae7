"""Members of real dumps, to begin with."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["golden_members", "kernel_files", "pack_tree", "unpack_tree"]

_DATA = Path(__file__).parents[1] / "golden" / "data"
# Small ones of each framework and each kind of task.
_DUMPS = (
    "torch_8.1.0_debug_statistics", "torch_1.2.2_debug_statistics", "torch_8.1.0_L1_structure", "torch_8.1.0_mix_md5",
    "torch_26.2.0_debug_tensor", "mindspore_8.1.0_debug_tensor", "mindspore_8.1.0_mix_structure",
)  # fmt: skip
_MOST_FILES = 200


def golden_members(suffix: str, most_bytes: int, *, dumps: tuple[str, ...] = _DUMPS) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of members of the golden dumps that end so and are no larger."""
    for dump in dumps:
        with zipfile.ZipFile(_DATA / f"{dump}.zip") as archive:
            for info in archive.infolist():
                if info.filename.endswith(suffix) and 0 < info.file_size <= most_bytes:
                    yield info.filename, archive.read(info)


def pack_tree(files: dict[str, bytes]) -> bytes:
    """Files as one input: a stored zip, so that anybody can look into it. The same files give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def unpack_tree(data: bytes) -> dict[str, bytes] | None:
    """The files of :func:`pack_tree`; None where the bytes are none of it any more."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if len(infos) > _MOST_FILES or any(info.compress_type or info.flag_bits & 1 for info in infos):
                return None
            return {info.filename: archive.read(info) for info in infos if _is_plain(info.filename)}
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, OverflowError):
        return None


def _is_plain(name: str) -> bool:
    """The harness makes the files: it must not be led outside itself."""
    parts = name.split("/")
    return "\0" not in name and len(name) < 200 and not {"", ".", ".."} & set(parts)


def kernel_files() -> dict[str, bytes]:
    """Small kernel dump files by name, one or two of each form."""
    with zipfile.ZipFile(_DATA / "kernel" / "kernel_dump.zip") as archive:
        infos = [info for info in archive.infolist() if not info.is_dir() and 0 < info.file_size <= 3000]
        return {info.filename.partition("/")[2]: archive.read(info) for info in infos}
