"""What would take no end: loops over what a stranger claims, texts that stall a search, files that are all holes."""

from __future__ import annotations

import csv
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.cli import main
from msformat.compare.values import PairMeasure
from msformat.credentials import hide_credentials
from msformat.errors import MsformatError, TensorNotFoundError, UnsafeInputError
from msformat.filesystem import LocalFileSystem
from msformat.journal import read_journal
from msformat.pages.histogram import histogram
from msformat.replay import replay
from msformat.selection import slabs
from msformat.stores.files import FilesStore
from msformat.sums import ContentSums
from tests.security.bounded import bounded
from tests.security.corpus import GOOD, RECORDS, VALUES, entry, good_unit
from tests.security.corpus_journals import head, line
from tests.security.corpus_tensors import saved
from tests.security.test_pt_attacks import tensor_pickle as strided_pickle
from tests.small_dumps import tree_bytes

# --- loops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 40, 1 << 20), (1 << 20, 1 << 40), (1 << 62, 1 << 62)])
def test_a_view_without_end_is_refused_by_whoever_reads_all(tmp_path: Path, shape: tuple[int, ...]) -> None:
    data = good_unit(tmp_path / "a/step0/rank0", {"Functional.x.0.forward": entry("x.pt", np.zeros(3, np.float32))})
    (data / "x.pt").write_bytes(saved(strided_pickle(shape=shape, stride=(0,) * len(shape))))
    unit = msformat.open(tmp_path / "a")[0]
    tensor = unit["Functional.x.0.forward"].tensors[0]
    with bounded():
        for read in (
            lambda: ContentSums().of(tensor.stored),
            lambda: PairMeasure().of(tensor.stored, "torch.float32", tensor.stored, "torch.float32"),
            tensor.stored.verify,
        ):
            with pytest.raises(UnsafeInputError, match="repeats a storage of 64"):
                read()
        assert "repeats a storage" in histogram(tensor)["problem"]
        assert main(["verify", str(tmp_path / "a")]) == 1
        assert main(["convert", str(tmp_path / "a"), str(tmp_path / "out.h5"), "--quiet"]) == 1


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 1, 9), (5, 0), ()])
@pytest.mark.parametrize("most", [1, 4, 17, 40, 1000])
def test_slabs_give_everything_once(shape: tuple[int, ...], most: int) -> None:
    values = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    pieces = [values[selection].reshape(-1) for selection in slabs(shape, values.nbytes, most)]
    assert np.concatenate([*pieces, np.zeros(0, np.int32)]).tolist() == values.reshape(-1).tolist()
    assert all(piece.nbytes <= max(most, 4) for piece in pieces) or shape == ()


def test_slabs_of_a_shape_without_end_take_no_memory() -> None:
    with bounded(32):
        first = next(slabs((1 << 40, 1 << 40, 1 << 30), 1 << 112, 1 << 20))
    assert first == (0, 0, slice(0, 1 << 18))


def test_a_long_stack_is_paid_for_once(tmp_path: Path) -> None:
    """As often as it is referred to, it would be hashed: 10**10 frames."""
    frames = [f"File {number}" for number in range(300_000)]
    again = line({"kind": "stack", "entries": ["k"], "ref": 0})
    content = head() + line({"kind": "stack", "entries": ["k"], "frames": frames}) + again * 30_000
    (tmp_path / "journal.jsonl").write_bytes(content + line({"kind": "stack", "entries": ["l"], "ref": 0}))
    with bounded(1024):
        found = replay(read_journal(tmp_path / "journal.jsonl").records)
    assert found.stack_groups == [(["k", "l"], frames)]


def test_frames_go_before_what_they_are_said_to_be_like(tmp_path: Path) -> None:
    lines = [line({"kind": "stack", "entries": ["k"], "frames": ["a"], "ref": "no number"})]
    (tmp_path / "journal.jsonl").write_bytes(head() + b"".join(lines))
    assert replay(read_journal(tmp_path / "journal.jsonl").records).stack_groups == [(["k"], ["a"])]


def test_bad_lines_of_a_sidecar_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good_unit(tmp_path / "step0/rank0")
    (tmp_path / "step0/rank0/tensors.jsonl").write_bytes(b"x\n" * 100_000)
    with bounded():
        assert main(["ls", str(tmp_path)]) == 1
    found = capsys.readouterr()
    assert GOOD in found.out
    assert len(found.err.splitlines()) == 11
    assert "99990 more lines are damaged" in found.err


def test_each_warning_is_told_once_however_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    from msformat.cli.output import spoken_warnings

    with bounded(), spoken_warnings() as said:
        for number in range(60_000):
            warnings.warn(f"warning {number % 30_000}", stacklevel=1)
    assert len(said) == len(capsys.readouterr().err.splitlines()) == 30_000


def test_near_matches_are_for_the_first_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{'x' * 150}{number:06}.npy" for number in range(1000)]
    data = good_unit(tmp_path / "step0/rank0")
    for name in names[:20]:
        (data / name).touch()
    listed = 0
    keys = FilesStore.keys

    def counted(self: FilesStore) -> Any:
        nonlocal listed
        listed += 1
        return keys(self)

    monkeypatch.setattr(FilesStore, "keys", counted)
    with FilesStore(str(tmp_path / "step0/rank0")) as store:
        for number, name in enumerate(names[20:]):
            with pytest.raises(TensorNotFoundError) as caught:
                store.get(name)
            assert bool(caught.value.near) == (number < 10)
    assert listed == 10


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", ["?sig", "?", "&", "?sig&", "sig", "=", "://", "?a=b?", "://x", "?key=", "@"])
def test_hiding_credentials_takes_linear_time(piece: str) -> None:
    with bounded():
        found = hide_credentials("https://host/" + piece * 100_000)
    assert found.startswith("https://")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/x?a=1&sig=s3cret&b=2", "https://h/x?a=1&sig=***&b=2"),
        ("https://h/x?y=https://z?token=s3cret", "https://h/x?y=https://z?token=***"),
        ("https://h/x?X-Amz-Signature=s3cret?more", "https://h/x?X-Amz-Signature=***"),
        ("https://h/x??sig=s3cret 'https://me:s3cret@h'", "https://h/x??sig=*** 'https://***@h'"),
        ("https://h/x?sig=&a=b", "https://h/x?sig=&a=b"),
        ("x?sig=1", "x?sig=1"),
    ],
)
def test_what_is_hidden(text: str, shown: str) -> None:
    assert hide_credentials(text) == shown


FORMULAS = ("=cmd|'/c calc'!A1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\uff1d1+1")


def test_formulas_stay_text(tmp_path: Path) -> None:
    value = entry("x.npy", type=FORMULAS[0], dtype=FORMULAS[1], Max=FORMULAS[2], md5=FORMULAS[3])
    entries = dict.fromkeys(FORMULAS, value) | {"a": {FORMULAS[0]: [{FORMULAS[3]: value["output"][0]}]}}
    good_unit(tmp_path / "a/step0/rank0", entries)
    good_unit(tmp_path / "b/step0/rank0")
    main(["table", str(tmp_path / "a"), "--csv", str(tmp_path / "t.csv")])
    main(["diff", *(str(tmp_path / side) for side in "ab"), "--csv", str(tmp_path / "d.csv"), "--quiet"])
    for name in ("t.csv", "d.csv"):
        with (tmp_path / name).open(encoding="utf-8-sig", newline="") as stream:
            cells = [cell for row in csv.reader(stream) for cell in row]
        assert not [cell for cell in cells if cell.startswith(FORMULAS) or cell[:1] in ("=", "@", "\t")]
        assert [cell for cell in cells if cell.startswith(f"'{FORMULAS[0]}")]


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    """Strict JSON has infinities as text, and negative ones begin as a formula does; so may a name."""
    good_unit(tmp_path / "a/step0/rank0", {"-1.5": entry("x.npy", Max="-Infinity", Min=-1.5, Mean="NaN", Norm="-0.0")})
    good_unit(tmp_path / "b/step0/rank0")
    main(["table", str(tmp_path / "a"), "--csv", str(tmp_path / "t.csv")])
    main(["diff", *(str(tmp_path / side) for side in "ab"), "--csv", str(tmp_path / "d.csv"), "--quiet"])
    for name in ("t.csv", "d.csv"):
        with (tmp_path / name).open(encoding="utf-8-sig", newline="") as stream:
            cells = [cell for row in csv.reader(stream) for cell in row]
        assert {"-1.5", "-Infinity", "NaN", "-0.0"} <= set(cells)
        assert not {"'-1.5", "'-Infinity", "'-0.0"} & set(cells)


def test_a_nul_is_spelled(tmp_path: Path) -> None:
    good_unit(tmp_path / "a/step0/rank0", {"a\0b": entry("x.npy", md5="c\0")})
    good_unit(tmp_path / "b/step0/rank0")
    main(["table", str(tmp_path / "a"), "--csv", str(tmp_path / "t.csv")])
    main(["diff", *(str(tmp_path / side) for side in "ab"), "--csv", str(tmp_path / "d.csv"), "--quiet"])
    for name in ("t.csv", "d.csv"):
        text = (tmp_path / name).read_text("utf-8-sig")
        assert "a\\x00b" in text
        assert "\0" not in text


def test_formulas_in_a_workbook_are_texts(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    good_unit(tmp_path / "a/step0/rank0", {text: entry("x.npy", dtype=text) for text in FORMULAS})
    main(["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--xlsx", str(tmp_path / "d.xlsx"), "--quiet"])
    cells = [cell for row in openpyxl.load_workbook(tmp_path / "d.xlsx").active for cell in row]
    assert [cell for cell in cells if str(cell.value).startswith(FORMULAS[0])]
    assert "f" not in {cell.data_type for cell in cells}


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", RECORDS)
def test_numbers_beyond_floats(tmp_path: Path, lie: str) -> None:
    """Each against itself, against a good one, as a table, drawn."""
    from msformat.plotdata import points_of

    good_unit(tmp_path / "a/step0/rank0", {"Functional.x.0.forward": entry("x.npy", **RECORDS[lie])})
    good_unit(tmp_path / "b/step0/rank0", {"Functional.x.0.forward": entry("x.npy")})
    for ours, theirs in ("ab", "ba", "aa"):
        files = [f"--{kind}={tmp_path / f'{ours}{theirs}.{kind}'}" for kind in ("csv", "xlsx", "parquet")]
        assert main(["diff", str(tmp_path / ours), str(tmp_path / theirs), *files, "--quiet"]) in (0, 1)
    table = msformat.open(tmp_path / "a").table()
    assert not np.isnan(points_of(table, None, None).sizes()).any()
    table.to_pandas()
    table.to_arrow()


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dump.json", "stack.json", "construct.json", "tensors.jsonl", "more.json"])
@pytest.mark.parametrize("start", [b"", b'{"data": {', b"[" * 10])
def test_documents_full_of_holes(tmp_path: Path, name: str, start: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """A terabyte that takes no place; nothing of it may be copied anywhere."""
    good_unit(tmp_path / "a/step0/rank0")
    good_unit(tmp_path / "a/step1/rank0")
    with (tmp_path / "a/step0/rank0" / name).open("wb") as stream:
        stream.write(start)
        stream.truncate(1 << 40)
    with bounded():
        for command in ("info", "ls", "verify", "show"):
            assert main([command, str(tmp_path / "a"), *([GOOD] if command == "show" else [])]) in (0, 1)
        assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b.h5"), "--quiet"]) == 1
        assert main(["convert", str(tmp_path / "a"), str(tmp_path / "c"), "--quiet"]) == 1
    assert name in capsys.readouterr().err
    made = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and "/a/" not in str(path)]
    assert sum(made) < 1 << 24
    with msformat.open(tmp_path / "b.h5") as dump:
        np.testing.assert_array_equal(dump[1][GOOD].tensors[0].numpy(), VALUES)


@pytest.mark.parametrize("said", [None, 512])
def test_a_large_document_without_holes_is_read(
    tmp_path: Path, said: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system says some seconds late that it takes more than a block (ZFS)."""
    good_unit(tmp_path / "step0/rank0")
    path = tmp_path / "step0/rank0/dump.json"
    path.write_bytes(b" " * (70 << 20) + path.read_bytes())
    if said is not None:
        monkeypatch.setattr(LocalFileSystem, "stored_size", lambda *_: said)
    assert msformat.open(tmp_path)[0][GOOD].tensors[0].shape == (3,)


def test_a_link_that_changes_after_it_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = good_unit(tmp_path / "dump/step0/rank0")
    np.save(tmp_path / "secret.npy", np.array([42.0]))
    (data / "y.npy").write_bytes((data / f"{GOOD}.output.0.npy").read_bytes())
    (data / "x.npy").symlink_to("y.npy")
    real_open = os.open

    def swapping(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).endswith("y.npy"):
            (data / "y.npy").unlink(missing_ok=True)
            (data / "y.npy").symlink_to(tmp_path / "secret.npy")
        return real_open(path, *arguments, **more)

    monkeypatch.setattr(os, "open", swapping)
    with FilesStore(str(tmp_path / "dump/step0/rank0")) as store, pytest.raises((MsformatError, OSError)):
        store.get("x.npy").bits()


@pytest.mark.parametrize("link", ["../../step0/rank0/dump.json", "{victim}", "hard"])
def test_a_journal_that_is_another_file(tmp_path: Path, link: str) -> None:
    """Repairing ends with the removal of the journal: of its name, never of what it leads to."""
    victim = tmp_path / "victim"
    victim.write_bytes(head() + line({"kind": "entry", "key": "k", "value": None}))
    good_unit(tmp_path / "a/step0/rank0")
    good_unit(tmp_path / "a/step1/rank0")
    (tmp_path / "a/step1/rank0/dump.json").unlink()
    journal = tmp_path / "a/step1/rank0/journal.jsonl"
    if link == "hard":
        journal.hardlink_to(victim)
    else:
        journal.symlink_to(link.format(victim=victim))
    before = victim.read_bytes(), tree_bytes(tmp_path / "a/step0")
    assert main(["recover", str(tmp_path / "a"), "--orphans"]) in (0, 1)
    assert (victim.read_bytes(), tree_bytes(tmp_path / "a/step0")) == before
