"""Where a conversion may write at a URL, and how what is unfinished there is known.

Object stores have no rename, so a unit is written where it belongs, beside a *marker*: an object with a temporary's
name, put before anything else and removed when all is written and verified. Whoever finds a marker leaves the rest
alone; the next conversion that wants the place clears it. A finished unit is replaced only by one that is whole: that
is written and verified under a temporary prefix and then copied by the store itself.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from msformat.atomic import is_temporary, temporary_sibling
from msformat.credentials import hide_credentials
from msformat.destination import SKELETON, Destination, holds_units, suffix_backend, unit_files, zarr_files
from msformat.errors import StoreError, UnsafeInputError
from msformat.filesystem import Item, RemoteFileSystem, is_url, join, open_remote
from msformat.stores.uploads import Uploads
from msformat.unitfiles import MARKER, backend_of, is_marked, without_special

__all__ = ["Place", "check_remote_relation", "check_remote_state", "leftovers_at", "resolve_remote"]

_WORDS = b"A conversion by msformat writes here, or died here. What lies beside this is not whole.\n"
_NOT_IN_NAMES = re.compile(r"[?*#\[\]{}\\\s\x00]")


def resolve_remote(dst: str, to: str | None) -> Destination:
    """The destination that a URL means.

    Raises
    ------
    StoreError
        A suffix that contradicts ``to``.
    UnsafeInputError
        Parts such as ``..``, which would lead elsewhere, wildcards, or several URLs in one.
    """
    scheme, _, rest = dst.rstrip("/").partition("://")
    parts = rest.split("/")
    if "::" in dst or _NOT_IN_NAMES.search(rest) or not {"", ".", ".."}.isdisjoint(parts[1:]) or not rest.strip("/."):
        raise UnsafeInputError(f"{hide_credentials(dst)}: give a plain URL, such as s3://bucket/path, to write to")
    backend = suffix_backend(parts[-1], to, hide_credentials(dst))
    return Destination(f"{scheme}://{rest}", backend or to or "files", single=backend is not None)


def check_remote_relation(src: str, destination: Destination) -> None:
    """Refuse a URL that is the source, holds it, or lies in it.

    Raises
    ------
    StoreError
        Writing there could destroy what is being read.
    """
    if not is_url(src):
        return
    source, target = _plain(src), _plain(destination.path)
    for document in ("dump.json", "debug.json", "stack.json", "construct.json"):
        source = source.removesuffix(f"/{document}")
    if source == target or target.startswith(source + "/") or source.startswith(target + "/"):
        raise StoreError(f"{hide_credentials(destination.path)}: source and destination lie in each other")


def _plain(url: str) -> str:
    """Without what does not name a place, so that two spellings compare."""
    scheme, _, rest = url.partition("://")
    parts: list[str] = []
    for part in rest.rpartition("@")[2].split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join([{"s3a": "s3", "gcs": "gs"}.get(scheme, scheme), *parts])


def check_remote_state(destination: Destination, *, overwrite: bool, resume: bool) -> None:
    """Refuse a URL that holds something, unless it was asked for and is a store of ours.

    Raises
    ------
    StoreError
        Something stands there, or the place cannot be reached.
    """
    fs = open_remote(destination.path)
    kind = fs.kind("")
    if kind is None or (kind == "directory" and _is_vacant(fs, "")):
        return
    where = hide_credentials(destination.path)
    if not (overwrite or resume):
        raise StoreError(
            f"{where}: already exists; --overwrite replaces units, --resume goes on with an unfinished run"
        )
    if (kind == "file") != (destination.single and destination.backend == "hdf5"):
        raise StoreError(f"{where}: is no {destination.backend} store; nothing was touched")
    if not holds_units(destination):
        raise StoreError(f"{where}: holds no dump, so nothing there is replaced; choose another destination")


def _is_vacant(fs: RemoteFileSystem, path: str) -> bool:
    """Nothing there but what unfinished conversions left."""
    items = _items(fs, path)
    return is_marked(items) or all(_is_leftover(fs, path, item) for item in items)


def _is_leftover(fs: RemoteFileSystem, path: str, item: Item) -> bool:
    is_skeleton = SKELETON.fullmatch(item.name) is not None and item.kind == "directory"
    return is_temporary(item.name) or (is_skeleton and _is_vacant(fs, join(path, item.name)))


def _items(fs: RemoteFileSystem, path: str) -> list[Item]:
    try:
        return fs.list(path)
    except FileNotFoundError:
        return []


class Place:
    """A unit's prefix, or that of one Zarr group with many.

    Parameters
    ----------
    url
        The prefix.
    zarr
        It is one of the groups of a Zarr store, or its root.

    Attributes
    ----------
    is_finished
        A unit stands there and no marker beside it.
    is_marked
        A conversion writes there, or died.
    """

    def __init__(self, url: str, *, zarr: bool = False) -> None:
        self.url = url
        self._is_zarr = zarr
        self.fs = open_remote(url)
        items = _items(self.fs, "")
        self._markers = [item.name for item in items if is_temporary(item.name) and item.name.startswith(MARKER)]
        self.is_marked = bool(self._markers)
        is_zarr = any(item.name == "zarr.json" for item in items)
        self.is_finished = not self._markers and (is_zarr or backend_of(without_special(items)) is not None)

    @contextlib.contextmanager
    def claimed(self, documents: Iterable[str] = (), *, replacing: bool = False, keep: bool = False) -> Iterator[None]:
        """Mark the place as unfinished for as long as the block runs; what an unfinished run left is cleared first.

        An error in the block clears what it wrote. The marker also tells two writers apart: who finds it gone, because
        another one came and cleared the place (a worker that was only thought dead), does not finish.

        Parameters
        ----------
        documents
            Names of documents of the unit, beyond the usual ones.
        replacing
            Clear a finished unit, too.
        keep
            Clear nothing, now or after an error: what stands there is gone on with.

        Raises
        ------
        StoreError
            Another conversion took the place over.
        """
        marker = temporary_sibling(MARKER.lstrip("."))
        self.fs.write(marker, _WORDS)
        try:
            if (self._markers or replacing) and not keep:
                self.clear(documents)
            for old in self._markers:
                self.fs.remove(old)
            yield
            if not self._holds(marker):
                raise StoreError(f"{hide_credentials(self.url)}: another conversion took this place over")
        except BaseException:
            with contextlib.suppress(OSError):
                if not keep and self._holds(marker):
                    self.clear(documents)
                    self.fs.remove(marker)
            raise
        self.fs.remove(marker)

    def _holds(self, marker: str) -> bool:
        # Opened anew: fsspec would remember what it listed before.
        return open_remote(self.url).kind(marker) == "file"

    def clear(self, documents: Iterable[str] = ()) -> None:
        """Remove what is ours, the documents first, so that nothing half removed looks finished."""
        is_ours = zarr_files if self._is_zarr else unit_files(documents)
        self._remove(filter(is_ours, self.fs.files()))

    def _remove(self, names: Iterable[str]) -> None:
        with contextlib.closing(Uploads(self.fs)) as uploads:
            for name in sorted(names, key=_when, reverse=True):
                if _when(name)[0]:
                    self.fs.remove(name)
                else:
                    uploads.remove(name)
            uploads.drain()

    def temporary(self) -> str:
        """URL of a prefix beside this one that nothing else uses."""
        above, _, name = self.url.rpartition("/")
        return f"{above}/{PurePosixPath(temporary_sibling(name)).name}"

    def discard_leftovers(self) -> None:
        """Remove temporary prefixes for this place that killed runs left."""
        above, _, name = self.url.rpartition("/")
        start = PurePosixPath(temporary_sibling(name)).name[:-12]
        for item in _items(open_remote(above), ""):
            if item.name.startswith(start) and is_temporary(item.name):
                Place(f"{above}/{item.name}").discard()

    def discard(self) -> None:
        """Remove everything below: this place is a temporary of ours."""
        if not is_temporary(self.url.rpartition("/")[2]):
            raise StoreError(f"{self.url}: is no temporary of msformat")
        self._remove(self.fs.files())

    def replace_by(self, temporary: str, documents: Iterable[str] = ()) -> None:
        """Put what is whole below another prefix here, in place of what is ours; documents come last.

        Raises
        ------
        StoreError
            Somebody removed what lay there.
        """
        whole = sorted(Place(temporary).fs.files(), key=_when)
        if not whole:
            raise StoreError(f"{hide_credentials(temporary)}: another conversion removed this")
        above, _, name = self.url.rpartition("/")
        parent = open_remote(above)
        inside = temporary.rpartition("/")[2]
        with self.claimed(documents, replacing=True), contextlib.closing(Uploads(parent)) as uploads:
            for found in whole:
                if _when(found)[0]:
                    uploads.drain()
                uploads.copy(f"{inside}/{found}", f"{name}/{found}")
            uploads.drain()


def _when(name: str) -> tuple[bool, int, bool]:
    """When an object is written, as a key of a sort: data, then documents and metadata of groups, outermost last."""
    parts = name.split("/")
    is_last = (len(parts) == 1 and not is_temporary(name)) or parts[-1] == "zarr.json"
    return is_last, -len(parts), parts[-1] in ("dump.json", "debug.json")


def leftovers_at(url: str) -> list[str]:
    """Temporaries and markers below a URL, at most where a unit's own are."""
    fs = open_remote(url)
    found: list[str] = []
    level = [""]
    for _ in range(4):
        items = [(path, item) for path in level for item in _items(fs, path)]
        found += [fs.describe(join(path, item.name)) for path, item in items if is_temporary(item.name)]
        below = [join(path, item.name) for path, item in items if item.kind == "directory"]
        level = [path for path in below if SKELETON.fullmatch(path.rpartition("/")[2])]
    return sorted(found)
