"""How a dataset is laid out and compressed, and threads that compress while HDF5 writes.

The default was chosen by measurement among what every HDF5 reads without a plug-in (one core, megabytes a second of
input; transformer activations and gradients, convolution, token ids):

====================  ===========  ============  ==========
filter                float32      bfloat16      int64 ids
====================  ===========  ============  ==========
deflate 1, ISA-L      1.21x   495  1.40x   310   2.8x   500
shuffle + deflate 1   1.27x   351  1.53x   354   4.1x  1046
shuffle + deflate 3   1.27x   165  1.52x   186   4.0x   234
the same 1, by zlib   1.25x    45  1.49x    51   4.0x   137
the same 4, by zlib   1.27x    36  1.52x    35   4.1x    96
====================  ===========  ============  ==========
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msformat.errors import StoreError
from msformat.stores.base import ReadOnlyBuffer
from msformat.stores.codecs import Compression
from msformat.threads import submit_or_run

__all__ = [
    "COMPACT_BELOW",
    "FILTER_FROM",
    "UNPACK_ERRORS",
    "ChunkFilter",
    "ChunkPipeline",
    "choose_filter",
    "inflate",
    "pieces",
]

# A chunk index node costs HDF5 about 3 KiB, so filters save nothing on less than this.
FILTER_FROM = 16 << 10
# Up to here the values stand in the object header.
COMPACT_BELOW = 1 << 10
_PENDING_LIMIT = 64 << 20
_DEFAULT_LEVEL = 1
# Half of deflate's window: what repeats is found, and a look costs an eighth of packing half a MiB of floats.
_SAMPLE = 16 << 10
_HARDLY = 0.97
_PLUGIN_ADVICE = "every HDF5 reads gzip with shuffle, our default; others are plug-ins: pip install hdf5plugin"

Packed: TypeAlias = "tuple[bytes | memoryview, int]"


@dataclass(frozen=True, slots=True)
class ChunkFilter:
    """Filters of a chunked dataset.

    Attributes
    ----------
    level
        Deflate level, None where a plug-in compresses.
    shuffle
        Whether bytes of equal significance are brought together first.
    plugin
        Filter number and parameters of a plug-in, which then runs inside HDF5.
    """

    level: int | None
    shuffle: bool
    plugin: tuple[int, tuple[int, ...]] | None = None

    def pack(self, data: NDArray[np.uint8], itemsize: int) -> Packed:
        """The bytes of one stored chunk, and the mask of the filters that were skipped because they save nothing."""
        assert self.level is not None
        shuffled = self.shuffle and itemsize > 1
        planes = np.ascontiguousarray(data.reshape(-1, itemsize).T) if shuffled else data.reshape(1, -1)
        packed = _deflate(planes, self.level)
        if len(packed) < data.nbytes:
            return packed, 0
        return data.data, 0b11 if self.shuffle else 0b1


def choose_filter(compression: Compression) -> ChunkFilter | None:
    """Filters for a parsed compression, None for none.

    Raises
    ------
    StoreError
        HDF5 has no such combination, or it is a plug-in and the package with the plug-ins is not installed.
    """
    if compression.name == "none":
        return None
    if compression.name in ("auto", "gzip"):
        if compression.shuffle == "bitshuffle":
            raise StoreError(f"compression {compression}: HDF5 has no bitshuffle for gzip; {_PLUGIN_ADVICE}")
        level = _DEFAULT_LEVEL if compression.level is None else compression.level
        return ChunkFilter(level, compression.shuffle != "noshuffle")
    return _plugin_filter(compression)


def _plugin_filter(compression: Compression) -> ChunkFilter:
    try:
        hdf5plugin: Any = import_module("hdf5plugin")
    except ImportError as error:
        raise StoreError(f"compression {compression} is not installed; {_PLUGIN_ADVICE}") from error
    shuffle = compression.shuffle or "shuffle"
    if compression.name == "blosc":
        kinds = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
        level = 5 if compression.level is None else compression.level
        options = hdf5plugin.Blosc(cname=compression.inner, clevel=level, shuffle=kinds[shuffle])
        shuffle = "noshuffle"  # blosc shuffles by itself
    elif shuffle == "bitshuffle":
        level = 3 if compression.level is None else compression.level
        kind = {"cname": compression.name, **({"clevel": level} if compression.name == "zstd" else {})}
        options = hdf5plugin.Bitshuffle(**kind)
    elif compression.name == "zstd":
        options = hdf5plugin.Zstd(clevel=3 if compression.level is None else compression.level)
    else:
        options = hdf5plugin.LZ4()
    plugin = (int(options["compression"]), tuple(options["compression_opts"]))
    return ChunkFilter(None, shuffle == "shuffle", plugin)


def _deflate(planes: NDArray[np.uint8], level: int) -> ReadOnlyBuffer:
    """One stream of all planes. Those that look random (the low bytes of floats) are stored, not searched for repeats.

    Saves nearly half of the time for dense floats, and as good as no bytes are lost. Any inflate reads it.
    """
    engine = _isal if 1 <= level <= 3 and _isal is not None else zlib
    random = [_looks_random(plane, engine) for plane in planes]
    if not any(random):
        return bytes(engine.compress(planes.reshape(-1).data, level))
    parts: list[bytes | memoryview] = [b"\x78\x01"]
    start = 0
    for is_random, run in groupby(random):
        end = start + len(list(run))
        data = planes[start:end].reshape(-1).data
        parts += _stored(data) if is_random else [_packed_blocks(data, level, engine)]
        start = end
    parts += [b"\x01\x00\x00\xff\xff", engine.adler32(planes.reshape(-1).data).to_bytes(4, "big")]
    return _joined(parts)


def _joined(parts: list[bytes | memoryview]) -> memoryview:
    """All bytes in a row. numpy lets other threads run meanwhile, ``bytes.join`` does not."""
    whole = np.empty(sum(map(len, parts)), np.uint8)
    at = 0
    for part in parts:
        whole[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return whole.data


def _looks_random(plane: NDArray[np.uint8], engine: Any) -> bool:
    """Whether neither the beginning nor the middle of a long row of bytes can be packed."""
    if len(plane) < 4 * _SAMPLE:
        return False
    samples = (plane[start : start + _SAMPLE].data for start in (0, len(plane) // 2))
    return all(len(engine.compress(sample, 1)) > _HARDLY * _SAMPLE for sample in samples)


def _packed_blocks(data: memoryview, level: int, engine: Any) -> bytes:
    """Deflate blocks that end at a byte and are not the last."""
    stream = engine.compressobj(level, zlib.DEFLATED, -15)
    return bytes(stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH))


def _stored(data: memoryview) -> list[bytes | memoryview]:
    """Stored blocks (RFC 1951, section 3.2.4)."""
    parts: list[bytes | memoryview] = []
    for start in range(0, len(data), 0xFFFF):
        piece = data[start : start + 0xFFFF]
        parts += [struct.pack("<BHH", 0, len(piece), len(piece) ^ 0xFFFF), piece]
    return parts


def inflate(data: ReadOnlyBuffer, size: int) -> bytes:
    """Unpack a deflate stream that holds ``size`` bytes; what follows it is ignored, as HDF5 does.

    Raises
    ------
    ValueError
        It holds less.
    OverflowError
        It holds more, of which one byte was unpacked.
    UNPACK_ERRORS
        It is no such stream, or a damaged one.
    """
    stream = (_isal or zlib).decompressobj()
    found: bytes = stream.decompress(data, size + 1)
    if len(found) > size:
        raise OverflowError(f"a chunk of {size} bytes unpacks to more")
    if not stream.eof or len(found) < size:
        raise ValueError(f"a chunk of {size} bytes ends after {len(found)}")
    return found


def _find_isal() -> Any | None:
    """ISA-L packs ordinary deflate streams about eight times as fast as zlib, and unpacks them 1.6 times as fast."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return None


_isal = _find_isal()
#: What a damaged stream raises.
UNPACK_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    OverflowError,
    zlib.error,
    *((_isal.error,) if _isal is not None else ()),
)


def pieces(bits: NDArray[Any], chunk: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], NDArray[np.uint8]]]:
    """Offsets and bytes of each chunk of a C-contiguous array; chunks as :func:`codecs.chunk_shape` cuts them.

    A last chunk that sticks out is filled up with zeros: HDF5 stores whole chunks.
    """
    axis = next((i for i, part in enumerate(chunk) if part > 1), len(chunk) - 1)
    flat = bits.reshape(-1).view(np.uint8)
    row = math.prod(chunk[axis + 1 :]) * bits.itemsize
    full = chunk[axis] * row
    line = bits.shape[axis] * row
    for lead, offset in enumerate(np.ndindex(*bits.shape[:axis])):
        for start in range(0, bits.shape[axis], chunk[axis]):
            first = lead * line + start * row
            data = flat[first : min(first + full, (lead + 1) * line)]
            if data.nbytes < full:
                data = np.concatenate([data, np.zeros(full - data.nbytes, np.uint8)])
            yield (*offset, start, *(0,) * (len(chunk) - axis - 1)), data


@dataclass(slots=True)
class _Pending:
    key: str
    write: Callable[[Packed], None]
    packed: Future[Packed]
    size: int


class ChunkPipeline:
    """Compresses in threads, and writes in the thread that calls, in the order of :meth:`add`. Its threads unpack, too.

    Holds at most about 64 MiB of chunks that are not written yet.

    Parameters
    ----------
    threads
        0 compresses in the calling thread.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="msformat-hdf5") if threads > 0 else None
        self._pending: deque[_Pending] = deque()
        self._size = 0
        #: Key whose chunk is being written, or could not be; "" between writes.
        self.writing: str = ""

    def add(self, key: str, pack: Callable[[], Packed], size: int, write: Callable[[Packed], None]) -> None:
        """Pack a chunk of ``size`` bytes soon, and hand the result to ``write`` in its turn."""
        if self._executor is None:
            self.writing = key
            write(pack())
            self.writing = ""
            return
        while self._pending and self._size + size > _PENDING_LIMIT:
            self._write_first()
        self._pending.append(_Pending(key, write, submit_or_run(self._executor, pack), size))
        self._size += size
        while self._pending and self._pending[0].packed.done():
            self._write_first()

    def submit(self, job: Callable[[], None]) -> Future[None] | None:
        """Have a thread do something; None, and nothing is done, where there is none."""
        return None if self._executor is None else submit_or_run(self._executor, job)

    def _write_first(self) -> None:
        first = self._pending.popleft()
        self._size -= first.size
        self.writing = first.key
        first.write(first.packed.result())
        self.writing = ""

    def drain(self) -> None:
        """Write all that waits."""
        while self._pending:
            self._write_first()

    def close(self) -> None:
        """Forget all that waits, and end the threads."""
        self._pending.clear()
        self._size = 0
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None
