"""Lines of ``make bench`` for converting and verifying, and where the time of a conversion goes."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from msformat.cli.output import bytes_text
from msformat.convert import ConvertOptions, convert
from msformat.usage import disk_usage
from msformat.verify import verify
from tools.bench_lines import Action, Line, pairs, with_memory

__all__ = ["bench_convert", "bench_stages", "bench_verify"]

STORES = {"HDF5": ".h5", "Zarr": ".zarr"}
_MEMORY_DISK = Path("/dev/shm")


def shell(line: str) -> None:
    """Run a line of the shell."""
    subprocess.run(line, shell=True, check=True)


def msformat(*arguments: object) -> list[str]:
    """The command line of msformat."""
    return [sys.executable, "-m", "msformat", *map(str, arguments)]


def bench_convert(root: Path, repeats: int) -> list[Line]:
    """``root / "dump"`` into each store, verified, and back, against tar and zstd of the same tree.

    Leaves ``kept.h5``, ``kept.zarr`` and ``dump.tar.zst`` there.
    """
    dump, archive, out = root / "dump", root / "dump.tar.zst", root / "out"
    first, lines = disk_usage(dump), []
    pack = f"tar cf - -C {root} dump | zstd -q -f -1 -T0 -o {archive} && sync -f {archive}"
    unpack = f"mkdir {out} && zstd -q -d -c {archive} | tar x -C {out} && sync -f {out}"
    for store, suffix in STORES.items():
        target, kept = out.with_suffix(suffix), root / f"kept{suffix}"
        medians = pairs(
            lambda target=target: _convert(dump, target), lambda: shell(pack), repeats, before=lambda: _clean(root)
        )
        peaks = with_memory(msformat("convert", dump, kept), pack)
        size, packed = disk_usage(kept), archive.stat().st_size
        rate = (
            f"{bytes_text(int(first.bytes / medians[0]))}/s read, {bytes_text(int(size.bytes / medians[0]))}/s written"
        )
        lines.append(Line(f"files -> {store}, verified", *medians, "tar | zstd -1 -T0", "<= 1", rate, peaks=peaks))
        note = f"tar | zstd: {bytes_text(packed)}"
        lines.append(Line(f"size of the {store}", size.bytes, first.bytes, "the files", "<= 0.333", note, "MiB"))
        lines.append(Line(f"inodes of the {store}", size.inodes, first.inodes, "the files", "", "", "inodes"))
    for store, suffix in STORES.items():
        kept = root / f"kept{suffix}"
        medians = pairs(
            lambda kept=kept: _convert(kept, out, ConvertOptions(to="files", jobs=2)),
            lambda: shell(unpack),
            repeats,
            before=lambda: _clean(root),
        )
        _clean(root)
        peaks = with_memory(msformat("convert", kept, out.with_suffix(".mine"), "--to", "files"), unpack)
        lines.append(Line(f"{store} -> files, verified", *medians, "zstd -d | tar x; sync", "<= 1", peaks=peaks))
    _clean(root)
    return lines


def bench_verify(root: Path, repeats: int) -> list[Line]:
    """The dump and both stores of it, against tools that read the same bytes and check something."""
    sums = f"find {root / 'dump'} -type f -print0 | xargs -0 -n 64 -P 2 md5sum > /dev/null"
    test = f"zstd -q -t {root / 'dump.tar.zst'}"
    lines = []
    for what, path, line, peer in (
        ("files", root / "dump", sums, "md5sum, 2 at a time"),
        ("HDF5", root / "kept.h5", test, "zstd -t of the tar"),
        ("Zarr", root / "kept.zarr", test, "zstd -t of the tar"),
    ):
        medians = pairs(lambda path=path: _verify(path), lambda line=line: shell(line), repeats)
        lines.append(Line(f"verify {what}", *medians, peer, "", peaks=with_memory(msformat("verify", path), line)))
    return lines


def bench_stages(root: Path, repeats: int) -> list[tuple[str, str, str]]:
    """Rows (stage, seconds, rate): what a conversion into each store and back would take were it only this.

    Rates are of the dump's bytes where nothing else is written. What a store or a tree keeps once is written once.
    """
    dump = root / "dump"
    size = disk_usage(dump).bytes
    files = [path for path in dump.rglob("*") if path.is_file()]

    def digest() -> None:
        for path in files:
            xxhash.xxh3_128_digest(path.read_bytes())

    rows = [
        _stage("read the dump from the system's cache: cat", lambda: shell(f"cat {dump}/*/*/*/* > /dev/null"), size)
    ]
    rows.append(_stage("read and hash it (xxh3, one core)", digest, size))
    for store, suffix in STORES.items():
        written = disk_usage(root / f"kept{suffix}").bytes
        rows.append(_stage(f"write the {store}'s bytes and sync: dd", lambda: _write(root, written), written))  # noqa: B023
        rows += _without_disk(dump, f"out{suffix}", f"files -> {store}", _INTO, size, repeats)
    for store, suffix in STORES.items():
        kept = root / f"kept{suffix}"
        rows.append(_stage(f"read, unpack and hash the {store}: verify", lambda: _verify(kept), size))  # noqa: B023
        rows += _without_disk(kept, "out", f"{store} -> files", _BACK, size, repeats)
    return [*rows, _copy_stage(root)]


_INTO = {
    ", uncompressed, not verified": ConvertOptions(compression="none", verify=False, jobs=2),
    ", not verified": ConvertOptions(verify=False, jobs=2),
    "": ConvertOptions(jobs=2),
}
_BACK = {
    ", not verified": ConvertOptions(to="files", verify=False, jobs=2),
    "": ConvertOptions(to="files", jobs=2),
}


def _without_disk(
    source: Path, target: str, what: str, steps: dict[str, ConvertOptions], size: int, repeats: int
) -> Iterator[tuple[str, str, str]]:
    with _memory_disk(2 * size) as place:
        if place is None:
            yield (f"{what} without a disk", "not measured: /dev/shm is too small", "")
            return
        for label, options in steps.items():
            seconds = statistics.median(_timed(source, place / target, options) for _ in range(repeats))
            yield (f"{what} without a disk{label}", f"{seconds:.2f}", _rate(size, seconds))


def _copy_stage(root: Path) -> tuple[str, str, str]:
    """The tree that comes back, copied by cp: what its files and names cost the file system and the disk."""
    tree, copy = root / "out.tree", root / "out.copy"
    _convert(root / "kept.h5", tree, ConvertOptions(to="files", verify=False))
    written = disk_usage(tree).bytes
    seconds = statistics.median(_seconds(lambda: shell(f"cp -a {tree} {copy} && sync -f {copy}"), copy) for _ in "123")
    _clean(root)
    return ("write the files that come back and sync: cp -a", f"{seconds:.2f}", _rate(written, seconds))


def _stage(label: str, action: Action, size: int) -> tuple[str, str, str]:
    _, seconds = pairs(lambda: None, action, 3)
    return (label, f"{seconds:.2f}", _rate(size, seconds))


def _rate(size: int, seconds: float) -> str:
    return f"{bytes_text(int(size / seconds))}/s"


def _write(root: Path, size: int) -> None:
    """What is written counts, not what is in it: no file system of ours looks for zeros."""
    shell(f"dd if=/dev/zero of={root / 'out.dd'} bs=4M count={max(1, size >> 22)} conv=fsync status=none")
    (root / "out.dd").unlink()


@contextmanager
def _memory_disk(size: int) -> Iterator[Path | None]:
    """A directory in memory, if there is room for so much."""
    if not _MEMORY_DISK.is_dir() or shutil.disk_usage(_MEMORY_DISK).free < size:
        yield None
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY_DISK, prefix="msformat-bench-") as place:
        yield Path(place)


def _timed(source: Path, target: Path, options: ConvertOptions) -> float:
    return _seconds(lambda: _convert(source, target, options), target)


def _seconds(action: Action, target: Path) -> float:
    """What an action takes; what it made is removed."""
    began = time.perf_counter()
    action()
    seconds = time.perf_counter() - began
    _remove(target)
    return seconds


def _convert(source: Path, target: Path, options: ConvertOptions | None = None) -> None:
    report = convert(source, target, options or ConvertOptions(jobs=2))
    if report.exit_code:
        sys.exit(f"{source} -> {target}: exit code {report.exit_code}")


def _verify(path: Path) -> None:
    if (code := verify(path).exit_code) != 0:
        sys.exit(f"{path}: not verified, exit code {code}")


def _clean(root: Path) -> None:
    """Remove what was converted or unpacked; what was kept is kept."""
    for path in root.glob("out*"):
        _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
