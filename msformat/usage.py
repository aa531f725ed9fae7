"""What a store costs on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass

from msformat.filesystem import FileSystem, is_url, join, open_filesystem

__all__ = ["DiskUsage", "disk_usage"]


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes and regular files. A file with several hard links counts its bytes once, its names each.

    Attributes
    ----------
    bytes
        Apparent size in bytes (what ``ls -l`` adds up to), each inode once.
    files
        Names of regular files.
    inodes
        Files and directories that take an inode of their own: what a quota counts.
    """

    bytes: int
    files: int
    inodes: int


def disk_usage(path: str | os.PathLike[str]) -> DiskUsage:
    """Add up a file, a whole directory, or what lies under a URL.

    Links are not followed; what vanishes meanwhile is left out.
    """
    if is_url(os.fspath(path)):
        return _remote_usage(open_filesystem(os.fspath(path)))
    total = files = directories = 0
    seen: set[tuple[int, int]] = set()
    waiting = [os.fspath(path)]
    if not os.path.isdir(waiting[0]):
        return DiskUsage(os.stat(waiting[0]).st_size, 1, 1)
    while waiting:
        directories += 1
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files += 1
                    found = entry.stat(follow_symlinks=False)
                    identity = (found.st_dev, found.st_ino)
                    if identity not in seen:
                        seen.add(identity)
                        total += found.st_size
            except OSError:
                continue
    return DiskUsage(total, files, len(seen) + directories)


def _remote_usage(fs: FileSystem) -> DiskUsage:
    """Objects count as files; directories of an object store are only names."""
    if fs.kind("") == "file":
        return DiskUsage(fs.size(""), 1, 1)
    sizes: list[int] = []
    waiting = [""]
    while waiting:
        path = waiting.pop()
        for item in fs.list(path):
            if item.kind == "directory":
                waiting.append(join(path, item.name))
            elif item.kind == "file":
                sizes.append(item.size)
    return DiskUsage(sum(sizes), len(sizes), len(sizes))
