"""Names of kernel dump files: what a name says stands in it, and such a file is read, or named as not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msformat.errors import MsformatError
from msformat.foreign.kernel_dump.filenames import KernelName, is_hash_name, parse_kernel_name, sanitised
from msformat.foreign.kernel_dump.store import KernelStore
from tests import kernel_files as kf
from tests.fuzz.samples import kernel_files
from tests.fuzz.target import Target

_MOST_FILES = 4


def check(data: bytes, place: Path) -> None:
    """Paths of files, a line each; every file holds the same small dump."""
    content, *_ = kf.small_dump()
    texts = data.decode("utf-8", "surrogateescape").split("\n")[:_MOST_FILES]
    for text in texts:
        name = text.rpartition("/")[2]
        found = parse_kernel_name(name)
        if found is not None:
            _check_name(found, name)
        assert sanitised(sanitised(name)) == sanitised(name)
        assert not set(sanitised(name)) & set(" ./\\")
        is_hash_name(name)
        _make(place, text, content)
    _read(place)


def _check_name(found: KernelName, name: str) -> None:
    assert name.startswith(found.stem)
    assert found.is_tensor == (found.index is not None)
    texts = (found.op_type, found.op_name, found.slot if found.suffix == "" else "", found.format, found.dtype)
    assert all(text in name for text in texts)
    numbers = (found.task_id, found.stream_id, found.timestamp, found.task_type, found.thread_id, found.device_id)
    assert all(number is None or str(number) in name for number in numbers)
    if not found.is_tensor and found.op_type:
        assert found.stem == name


def _make(place: Path, text: str, content: bytes) -> None:
    parts = text.split("/")
    if "\0" in text or {"", ".", ".."} & set(parts) or len(parts) > 6:
        return
    path = place.joinpath("dump", *parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError:  # too long, or a directory and a file of one name
        return


def _read(place: Path) -> None:
    try:
        store = KernelStore(str(place / "dump"))
        keys = list(store.keys())
        for key in keys:
            store.get(key).bits()
        bytes(store.get_document("dump.json") or b"")
    except MsformatError:
        return
    assert len(set(keys)) == len(keys)
    assert all(isinstance(sentence, str) for sentence in (*store.problems, *store.notes))


def seeds() -> Iterator[bytes]:
    """Real ones, of each form."""
    names = sorted(kernel_files())
    yield from (name.encode() for name in names)
    yield "\n".join(names[:_MOST_FILES]).encode()


TARGET = Target(
    check,
    seeds,
    words=(b".input.0", b".output.1", b".1735011096426349", b".npy", b".65535", b".4.7.0.0", b"exception_info."),
    most_bytes=512,
)
