"""Where in a file each block's bytes lie: there is no index, only sizes that must add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msformat.errors import FormatError
from msformat.foreign.kernel_dump.elements import needed_bytes
from msformat.foreign.kernel_dump.record import Block, Doubt, DoubtName, Record

__all__ = ["doubt_places", "place_blocks", "repair_sizes"]


def place_blocks(record: Record, start: int, available: int, source: str) -> tuple[Record, int]:
    """Give each block its place, one behind the other.

    Parameters
    ----------
    record
        Blocks in the order of the data.
    start
        Where the data begin.
    available
        Bytes from there to the end of the file.

    Returns
    -------
    record
        With places.
    used
        Bytes that its blocks take.

    Raises
    ------
    FormatError
        The blocks need more bytes than there are, and that is no matter of null blocks.
    """
    total = sum(block.size for block in record.blocks)
    if total <= available:
        return replace(record, blocks=tuple(_in_order(record.blocks, start, frozenset()))), total
    # The device writer leaves out tensors without memory; other writers never set an address. Only sums tell.
    nulls = frozenset(at for at, block in enumerate(record.blocks) if _is_null(block) and record.family == "v2")
    missing = sum(record.blocks[at].size for at in nulls)
    if not nulls or total - missing != available:
        raise FormatError(f"{source}: the header announces {total} bytes of data, there are {available}")
    blocks = tuple(_in_order(record.blocks, start, nulls))
    return replace(record, blocks=blocks, doubts=(*record.doubts, *_doubt_nulls(record, nulls, source))), available


def _doubt_nulls(record: Record, nulls: frozenset[int], source: str) -> Iterator[Doubt]:
    """A writer that sets no address at all leaves the same file when it is cut behind the header."""
    if not any(block.address for block in record.blocks):
        text = f"{source}: there are no data behind the header: no tensor had memory, or the file is cut there"
        yield Doubt(DoubtName.cut_or_null, text)
        return
    for at in sorted(nulls):
        yield Doubt(DoubtName.null_block, f"{source}: {record.blocks[at]} had no memory: no data were dumped")


def _is_null(block: Block) -> bool:
    return block.slot in ("input", "output") and block.address == 0 and block.size > 0


def _in_order(blocks: Sequence[Block], start: int, missing: frozenset[int]) -> Iterator[Block]:
    for at, block in enumerate(blocks):
        yield block.at(None if at in missing else start)
        start += 0 if at in missing else block.size


def repair_sizes(record: Record, start: int, available: int, source: str) -> Record | None:
    """Take sizes from the shapes where header sizes are too small and shapes fill the file exactly; else None.

    Without this, a size that is too small shifts every following tensor to wrong values.
    """
    needs = [needed_bytes(block) for block in record.blocks]
    sizes = [max(block.size, need or 0) for block, need in zip(record.blocks, needs, strict=True)]
    short = [block for block, size in zip(record.blocks, sizes, strict=True) if size > block.size]
    if not short or sum(sizes) != available:
        return None
    widened = [replace(block, size=size) for block, size in zip(record.blocks, sizes, strict=True)]
    text = (
        f"{source}: the size of {', '.join(map(str, short))} is smaller than the shape needs, and the file "
        "holds exactly what the shapes need: places are taken from the shapes"
    )
    doubts = (*record.doubts, Doubt(DoubtName.sizes_repaired, text))
    return replace(record, blocks=tuple(_in_order(widened, start, frozenset())), doubts=doubts)


def doubt_places(record: Record, source: str) -> Record:
    """Say which blocks may begin elsewhere, where bytes are left over and a size before them is too small."""
    short = next((at for at, block in enumerate(record.blocks) if block.size < (needed_bytes(block) or 0)), None)
    behind = record.blocks[short + 1 :] if short is not None else ()
    if not behind or short is None:
        return record
    text = (
        f"{source}: {', '.join(map(str, behind))} may hold wrong values: the size of {record.blocks[short]} before "
        "is too small, and bytes are left over at the end"
    )
    return replace(record, doubts=(*record.doubts, Doubt(DoubtName.places_doubtful, text)))
