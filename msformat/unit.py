"""One unit of a dump, read lazily: documents are indexed on first touch, an entry is decoded when it is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from msformat.arguments import require_instance, require_texts
from msformat.bulk import OnError, read_many
from msformat.contents import Contents, load_construct, load_contents, load_stack
from msformat.documents import ConstructDocument
from msformat.entries import Entry, Tensor
from msformat.errors import EntryNotFoundError, FormatError, StoreError, TensorNotFoundError
from msformat.families import find_family
from msformat.htmlview import unit_html
from msformat.layout import UnitKey, UnitLocation
from msformat.lazy import Lazy, reading
from msformat.model import Header
from msformat.names import parse_data_name
from msformat.stores.base import ReadOnlyBuffer, Store
from msformat.stores.registry import open_store
from msformat.table import Table
from msformat.tree import Tree
from msformat.unitcolumns import unit_table
from msformat.usage import DiskUsage, disk_usage
from msformat.xarrays import family_array

if TYPE_CHECKING:
    from xarray import DataArray

__all__ = ["Unit"]

# Near matches among more candidates than this take longer than an error message is worth.
_MOST_CANDIDATES = 2000

T = TypeVar("T")


class Unit(Mapping[str, Entry]):
    """One rank of one step: a mapping of entry keys to entries, in the document's order.

    A unit with both dump.json and debug.json gives the entries of both. May be pickled, read by several threads, and
    used in forked workers: each process opens the store for itself.

    Attributes
    ----------
    key
        Step, rank and branch.
    location
        Where it is kept.
    label
        The key as a path inside the dump: ``step0/rank3``.
    path
        Where it is kept, in words, for messages.

    Examples
    --------
    >>> import msformat
    >>> with msformat.open("my_dump")[0] as unit:
    ...     for key, entry in list(unit.items())[:2]:
    ...         print(key, [tensor.shape for tensor in entry.tensors])
    Functional.embedding.0.forward [(2, 5), (16, 8), (2, 5, 8)]
    Module.embed.Embedding.forward.0 [(2, 5), (2, 5, 8), (16, 8)]
    """

    def __init__(self, location: UnitLocation) -> None:
        self.location = location
        self.key: UnitKey = location.key
        self.label = location.key.path
        self.path = f"{location.location}/{location.group}" if location.group else location.location
        self._last_closing = object()
        self._store = Lazy(self._open, survives_fork=False)
        self._contents = Lazy(lambda: self.unclosed(self._load), survives_fork=True)
        self._stack = Lazy(lambda: self.unclosed(lambda: load_stack(*self._sources())), survives_fork=True)
        self._construct = Lazy(lambda: self.unclosed(lambda: load_construct(*self._sources())), survives_fork=True)
        self._tree = Lazy(self._build_tree, survives_fork=True)
        self._entry_of: Lazy[dict[str, str]] = Lazy(self._index_tensors, survives_fork=True)

    # --- entries ---------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Entry:
        """The entry of that key.

        Raises
        ------
        EntryNotFoundError
            No such entry; names near matches.
        """
        found: Entry | None = self.get(key)
        if found is None:
            raise EntryNotFoundError(key, self.path, _nearest(key, self), reason=_no_text(key))
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """The entry of that key, or ``default``."""
        # Mapping.get would build an error with near matches only to throw it away.
        source = self._contents.get().find(key)
        if source is None:
            return default
        with reading(key, self.path):
            return Entry(self, source[key])

    def __contains__(self, key: object) -> bool:
        return self._contents.get().find(key) is not None

    def __iter__(self) -> Iterator[str]:
        return self._contents.get().keys()

    def __len__(self) -> int:
        sources = self._contents.get().sources
        return len(sources[0]) if len(sources) == 1 else sum(1 for _ in self)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the unit, entry by entry in the document's order; entries are let go as you move on.

        An entry that cannot be decoded is left out with a warning.
        """
        return (tensor for entry in self._readable() for tensor in entry.tensors)

    def _readable(self) -> Iterator[Entry]:
        """Entries, but for those that a stranger made unreadable."""
        for key in self:
            try:
                entry = self[key]
            except FormatError as error:
                warnings.warn(f"left out: {error}", stacklevel=3)
                continue
            yield entry

    def tensor(self, data_name: str) -> Tensor:
        """The tensor that is stored under this name.

        Raises
        ------
        TensorNotFoundError
            No document names such a tensor; lists near matches.
        """
        if not isinstance(data_name, str):
            raise TensorNotFoundError(data_name, self.path, reason=_no_text(data_name))
        named = parse_data_name(data_name)
        found = _tensor_of(self.get(named.entry), data_name) if named is not None else None
        if found is None:
            # Names of other tools follow no grammar.
            found = _tensor_of(self.entry_of(data_name), data_name)
            if found is None:
                raise TensorNotFoundError(data_name, self.path, _nearest(data_name, self._entry_of.get()))
        return found

    def entry_of(self, data_name: str) -> Entry | None:
        """The entry that names a stored tensor, by an index of all that is made once; None where none does."""
        key = self._entry_of.get().get(data_name)
        return None if key is None else self.get(key)

    def read(
        self, tensors: Iterable[str | Tensor] | None = None, *, on_error: OnError | None = None
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Values of many tensors, in the order asked for: ``data_name`` and what :meth:`Tensor.numpy` gives.

        Faster than one after the other where tensors are small; behind a URL many are fetched at the same time. Memory
        is bounded: some 64 MiB besides what you keep.

        Parameters
        ----------
        tensors
            Names (``data_name``) or tensors of this unit; default: all whose values were saved.
        on_error
            Called with the name and the error of each tensor that cannot be read; the others go on. Default: it is left
            out with a warning. What ``on_error`` raises ends the reading.

        Raises
        ------
        TypeError
            One name or tensor alone; or, in its turn, something that is neither.

        Examples
        --------
        >>> import msformat
        >>> unit = msformat.open("my_dump")[0]
        >>> sum(values.nbytes for _, values in unit.read())
        91500
        """
        if tensors is None:
            tensors = (tensor for tensor in self.tensors() if tensor.data_name is not None)
        if isinstance(tensors, (str, Tensor)):
            raise TypeError(f"{self.path}: read() takes several names or tensors, not one alone: [{tensors!r}]")
        return read_many(self, tensors, on_error)

    def _index_tensors(self) -> dict[str, str]:
        return {t.data_name: t.entry.key for t in self.tensors() if t.data_name is not None}

    def table(self, *, filter: str | None = None) -> Table:  # noqa: A002 (what it is called everywhere)
        """Statistics and shapes of every tensor, a row each; see :class:`msformat.Table`.

        An entry that cannot be decoded is left out with a warning.

        Parameters
        ----------
        filter
            Only entries whose key contains this, or matches it as a glob (``Module.*.forward.*``).
        """
        if filter is not None:
            require_instance("filter", filter, str)
        return unit_table(self, self._contents.get, filter or "")

    def to_xarray(
        self,
        entry: str,
        tensor: str | None = None,
        *,
        dims: Sequence[str] | None = None,
        widen: bool = False,
        lazy: bool | None = None,
        fill_value: float | None = None,
    ) -> DataArray:
        """A tensor, or the same tensor of many entries, as one ``xarray.DataArray``; step and rank are coordinates.

        Parameters
        ----------
        entry
            Key of an entry, or a glob (``Module.layers.*.forward.0``): then ``entry`` is the first axis.
        tensor
            Which of its tensors, as slot and path of :meth:`table` spell it: ``output.0``, ``input_args.1``,
            ``parameters.weight``. Default: the only output, or the only tensor; with a glob ``output.0``.
        dims
            Names of the tensor's own axes; default ``dim_0``, ``dim_1``, …
        widen
            Make float32 of bfloat16, float8, HiFloat8 and int4, exactly. Otherwise they are of ``ml_dtypes``' types.
        lazy
            Read chunk by chunk when values are asked for, through dask. False reads all now, and refuses what cannot
            fit into memory. Default: lazy if dask is installed.
        fill_value
            What stands where a tensor is missing; must be a value of the element type. Without one that is an error.

        Raises
        ------
        EntryNotFoundError, TensorNotFoundError
            There is no such entry or tensor, or no values were saved; says why.
        FormatError
            Shapes or element types differ, or a tensor is missing in the middle; names the units.
        StoreError
            All of it is more than fits into memory.
        BackendMissingError
            xarray, or the dask that ``lazy=True`` asks for, is not installed.
        """
        family = find_family(self.path, [self], entry, tensor, over_units=False)
        return family_array(family, dims=dims, widen=widen, lazy=lazy, fill_value=fill_value)

    # --- documents -------------------------------------------------------------------------------------------------

    @property
    def header(self) -> Header:
        """Task, level and framework of the run."""
        return self._contents.get().header

    @property
    def documents(self) -> tuple[str, ...]:
        """Names of the documents in the store, sorted."""
        store = self._usable_store()
        return store.documents() if store is not None else ()

    def document(self, name: str) -> ReadOnlyBuffer | None:
        """The bytes of a document, None where there is none."""
        require_texts(name)
        return self.unclosed(lambda: self.store.get_document(name))

    @property
    def complete(self) -> bool:
        """Whether the dump was finished: False when entries come from a journal or a truncated document."""
        return self.incomplete_reason is None

    @property
    def incomplete_reason(self) -> str | None:
        """Why it is not complete."""
        return self._contents.get().incomplete

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the documents, in sentences. Looks into all of them, but into no tensor."""
        return (*self._contents.get().problems, *self._stack.get().problems, *self._construct.get().problems)

    def stack(self, entry: str) -> tuple[str, ...] | None:
        """The call stack of an entry, innermost frame first; None where none was recorded."""
        found = self._stack.get()
        if found.failure is not None:
            warnings.warn(found.failure, stacklevel=2)
        return found.document.frames(entry)

    def parent(self, entry: str) -> str | None:
        """Key of the enclosing module's entry; None at the top, or where none was recorded."""
        return self._parents().get(entry)

    def children(self, entry: str | None = None) -> tuple[str, ...]:
        """Keys of the entries directly inside an entry; without one, those at the top."""
        return self.tree().children(entry)

    def tree(self) -> Tree:
        """The call tree; print it to see it."""
        self._parents()
        return self._tree.get()

    def _parents(self) -> ConstructDocument:
        found = self._construct.get()
        if found.failure is not None:
            warnings.warn(found.failure, stacklevel=3)
        return found.document

    def _build_tree(self) -> Tree:
        return Tree(self._construct.get().document, self)

    # --- the store -------------------------------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """Name of the store: ``files``, ``hdf5``, ``zarr``."""
        return self.location.backend

    @property
    def store(self) -> Store:
        """The open store. Closed by :meth:`close`; opened again when needed."""
        return self._store.get()

    def unclosed(self, read: Callable[[], T]) -> T:
        """What ``read`` gives; again, with a store that is opened anew, where :meth:`close` came in between."""
        while True:
            closing = self._last_closing
            try:
                return read()
            except Exception:
                if closing is self._last_closing:
                    raise

    @property
    def usage(self) -> DiskUsage:
        """Bytes and files on disk. A unit inside a file with others counts the whole file."""
        return disk_usage(self.location.location)

    def orphans(self) -> tuple[str, ...]:
        """Tensors in the store that no document names."""
        named = self._entry_of.get()
        return tuple(key for key in self.store.keys() if key not in named)  # noqa: SIM118 (a Store is no mapping)

    def close(self) -> None:
        """Let go of open files. Views stay usable: what they need is opened again."""
        store = self._store.take()
        if store is not None:
            self._last_closing = object()  # before: who fails over it has to see it
            store.close()

    def __enter__(self) -> Unit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Store:
        where = self.location
        return open_store(where.backend, where.location, mode="r", group=where.group)

    def _usable_store(self) -> Store | None:
        """The store; None if a dying writer left one that cannot be opened, but a journal beside it."""
        try:
            return self.store
        except StoreError:
            if self.location.journal is None:
                raise
            return None

    def _load(self) -> Contents:
        return load_contents(self._usable_store(), self.path, self.location.journal)

    def _sources(self) -> tuple[Any, ...]:
        return self._usable_store(), self.path, self._contents.get().replayed

    # --- the rest --------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Callable[[UnitLocation], Unit], tuple[UnitLocation]]:
        return Unit, (self.location,)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return unit_html(self)

    def __repr__(self) -> str:
        return f"<Unit {self.label} in {self.path!r} ({self.backend})>"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def _tensor_of(entry: Entry | None, data_name: str) -> Tensor | None:
    tensors = entry.tensors if entry is not None else ()
    return next((tensor for tensor in tensors if tensor.data_name == data_name), None)


def _no_text(key: object) -> str:
    return "" if isinstance(key, str) else "it is looked up by its name, a text"


def _nearest(key: str, keys: Collection[str]) -> Collection[str]:
    """Keys worth comparing with a wrong one: all, or of very many those that begin alike."""
    if len(keys) <= _MOST_CANDIDATES or not isinstance(key, str):
        return keys
    head = key[: max(4, len(key) // 2)]
    return list(islice((other for other in keys if other.startswith(head)), _MOST_CANDIDATES))
