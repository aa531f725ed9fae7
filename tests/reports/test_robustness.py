"""Reports on crashes, robustness and security (R148 to R168)."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import msformat
from msformat import FormatError, MsformatError
from msformat.cli import main
from tests.judges import judge
from tests.reports.cases import (
    BACKENDS,
    FLOAT32,
    call,
    everywhere,
    plain_record,
    ramp,
    run,
    run_python,
    save,
    write_documents,
    write_dump,
    writer,
)

torch = judge("torch")
zarr = judge("zarr")

KEY = "Functional.f.0.forward"


def raise_in_the_middle(unit: Path, backend: str) -> None:
    with writer(unit, backend, document="dump.json") as to:
        to.put_entry(KEY, call(plain_record(Max=1.0)))
        raise ValueError("boom")


@pytest.mark.parametrize("backend", BACKENDS)
def test_r148_a_step_that_broke_off_says_so(tmp_path: Path, backend: str) -> None:
    with pytest.raises(ValueError, match="boom"):
        raise_in_the_middle(tmp_path / "d/step0/rank0", backend)
    unit = msformat.open(tmp_path / "d")[0]
    assert (unit.complete, list(unit)) == (False, [KEY])
    for command in (("info",), ("ls",), ("table",), ("show", KEY), ("verify",)):
        done = run(command[0], tmp_path / "d", *command[1:])
        assert (done.code, done.err.count("ValueError: boom")) == (1, 1), (command, done.err)
    done = run("convert", tmp_path / "d", tmp_path / "o")
    assert (done.code, "never finished (ValueError: boom)" in done.err) == (1, True)
    # What comes out looks like any dump, but for the log.
    assert "ValueError: boom" in (tmp_path / "o/step0/rank0/dump_error_info.log").read_text()


def test_r149_a_full_disk_while_converting_leaves_nothing(tmp_path: Path) -> None:
    write_dump(tmp_path / "d", {"a.0.debug": ramp(200_000)})
    code = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)
from msformat.cli import main
sys.exit(main(["convert", *sys.argv[1:]]))
"""
    for name in ("o.h5", "o.zarr", "o"):
        done = run_python(code, tmp_path / "d", tmp_path / name)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "File too large" in done.stderr
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a.0.debug.pt", "debug.json"}
    assert msformat.open(tmp_path / "d")[0]["a.0.debug"].value.shape == (200_000,)


def test_r149_a_truncated_pt_is_skipped_by_name(tmp_path: Path) -> None:
    write_dump(tmp_path / "d", {"a.0.debug": ramp(1000), "b.0.debug": ramp(1000, 1)})
    path = tmp_path / "d/step0/rank0/dump_tensor_data/a.0.debug.pt"
    path.write_bytes(path.read_bytes()[:1500])
    done = run("convert", tmp_path / "d", tmp_path / "o.h5")
    (line,) = done.err.splitlines()
    assert (done.code, "a.0.debug.pt" in line) == (1, True)
    with h5py.File(tmp_path / "o.h5") as file:
        assert np.array_equal(file["step0/rank0/tensors/b.0.debug.pt"][()], ramp(1000, 1))


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o027])
@pytest.mark.parametrize("backend", BACKENDS)
def test_r150_permissions_follow_the_umask_which_is_left_alone(tmp_path: Path, backend: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_dump(tmp_path / "d", {"a.0.debug": ramp(9000)}, backend=backend)
        targets = [tmp_path / "d", *everywhere(tmp_path / "d")]
    finally:
        assert os.umask(before) == umask
    for path in (found for target in targets for found in (target, *target.rglob("*"))):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask, path


@pytest.mark.parametrize("backend", BACKENDS)
def test_r152_a_name_is_data_and_never_a_path(tmp_path: Path, backend: str) -> None:
    keys = [f"{name}.0.debug" for name in ("a/../../b", "../../../../x", str(tmp_path / "abs"), "..")]
    write_dump(tmp_path / "deep/er/d", {key: ramp(3, number) for number, key in enumerate(keys)}, backend=backend)
    with writer(tmp_path / "deep/er/d/step1/rank0", backend) as to:
        to.put_tensor("../../../evil.pt", ramp(3), FLOAT32)
        with pytest.raises(FormatError, match="expected a file name"):
            to.put_entry("evil.0.debug", plain_record((3,), data_name="../../../evil.pt"))
        save(to, "fine.0.debug", ramp(3))
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep/er").iterdir()] == ["d"]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(("evil", "x."))]
    unit = msformat.open(tmp_path / "deep/er/d")[0]
    assert [entry.value.numpy().tolist() for entry in unit.values()] == [ramp(3, n).tolist() for n in range(4)]
    for name in unit:
        data_name = unit[name].value.data_name
        assert "/" not in data_name
        assert data_name not in (".", "..")


def test_r153_names_in_documents_are_never_followed(tmp_path: Path) -> None:
    unit = tmp_path / "d/step0/rank0"
    data = unit / "dump_tensor_data"
    data.mkdir(parents=True)
    np.save(tmp_path / "outside.npy", np.ones(2, np.float32))
    np.save(data / "ok.npy", np.ones(2, np.float32))
    os.mkfifo(data / "fifo.npy")
    for name, target in (("link", tmp_path / "outside.npy"), ("device", "/dev/zero"), ("passwd", "/etc/passwd")):
        (data / f"{name}.npy").symlink_to(target)
    names = [
        "../../../etc/passwd", "/abs.npy", str(tmp_path / "outside.npy"), "../../../../outside.npy", "/dev/zero",
        "fifo.npy", "device.npy", "link.npy", "passwd.npy", "ok.npy",
    ]  # fmt: skip
    entries = {f"e{number}.0.debug": plain_record(data_name=name) for number, name in enumerate(names)}
    write_documents(unit, entries, name="debug.json", level="debug", dump_data_dir=str(tmp_path))
    for name in ("o.h5", "o.zarr", "o"):
        done = run("convert", tmp_path / "d", tmp_path / name)
        assert done.code == 1
        assert [line.split("'")[1::2][:2] for line in done.err.splitlines()] == [
            [f"e{number}.0.debug", text] for number, text in enumerate(names[:-1])
        ]
        assert all("is refused" in line for line in done.err.splitlines())
    with h5py.File(tmp_path / "o.h5") as file:
        assert list(file["step0/rank0/tensors"]) == ["ok.npy"]
    dump = msformat.open(tmp_path / "d")[0]
    for number in range(len(names) - 1):
        with pytest.raises(MsformatError):
            dump[f"e{number}.0.debug"].value.numpy()


def test_r154_nothing_of_a_stranger_is_ever_removed(tmp_path: Path) -> None:
    source = write_dump(tmp_path / "d", {"a.0.debug": ramp(3)})
    before = sorted(str(path) for path in source.rglob("*"))
    thesis = tmp_path / "home/thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    (tmp_path / "not.h5").write_text("mine")
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["x"] = 1
    refused = ["/", tmp_path, tmp_path / "home", source, source / "inside", source / "step0"]
    refused += [tmp_path / "not.h5", tmp_path / "mine.h5"]
    for target in refused:
        assert run("convert", source, target, "--overwrite").code == 2, target
    assert sorted(str(path) for path in source.rglob("*")) == before
    assert thesis.read_text() == "years of work"
    assert (tmp_path / "not.h5").read_text() == "mine"
    with h5py.File(tmp_path / "mine.h5") as file:
        assert list(file) == ["x"]
    # A dump of ours is replaced when asked, and what else lies there stays.
    target = tmp_path / "o"
    assert run("convert", source, target).code == 0
    (target / "step0/rank0/notes.txt").write_text("mine")
    assert run("convert", source, target).code == 2
    assert run("convert", source, target, "--overwrite", "--to", "hdf5").code == 0
    assert {path.name for path in (target / "step0/rank0").iterdir()} == {"dump.h5", "notes.txt"}


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_r156_r157_pickles_are_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "pwned"
    unit = tmp_path / "d/step0/rank0"
    data = unit / "dump_tensor_data"
    data.mkdir(parents=True)
    torch.save(Payload(mark), data / "reduce.pt")
    torch.save({"weights": [Payload(mark)]}, data / "nested.pt")
    torch.save(Payload(mark), data / "legacy.pt", _use_new_zipfile_serialization=False)
    (data / "bare.pt").write_bytes(pickle.dumps(Payload(mark)))
    with tarfile.open(data / "tar.pt", "w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            member = tarfile.TarInfo(name)
            content = pickle.dumps(Payload(mark))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), data / "script.pt")
    np.save(data / "object.npy", np.array([Payload(mark)], object), allow_pickle=True)
    shutil.copy(data / "object.npy", data / "object_as.pt")
    bad = sorted(path.name for path in data.iterdir())
    np.save(data / "ok.npy", np.ones(2, np.float32))
    names = [*bad, "ok.npy"]
    entries = {f"e{number}.0.debug": plain_record(data_name=name) for number, name in enumerate(names)}
    write_documents(unit, entries, name="debug.json", level="debug")
    stdin = io.StringIO("y\ny\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        for command in (("convert", tmp_path / "o.h5"), ("verify",)):
            done = run(command[0], tmp_path / "d", *command[1:])
            assert done.code == 1
            assert len(done.err.splitlines()) == len(bad)
            assert all(name in done.err for name in bad)
    assert stdin.tell() == 0
    for number in range(len(bad)):
        with pytest.raises(MsformatError, match=bad[number]):
            msformat.open(tmp_path / "d")[0][f"e{number}.0.debug"].value.numpy()
    assert not mark.exists()
    with h5py.File(tmp_path / "o.h5") as file:
        assert list(file["step0/rank0/tensors"]) == ["ok.npy"]


@pytest.mark.parametrize("kind", ["external", "soft", "storage", "virtual", "intermediate"])
def test_r158_hdf5_never_reads_other_files(tmp_path: Path, kind: str) -> None:
    write_dump(tmp_path / "d", {"a.0.debug": ramp(4), "ok.0.debug": ramp(4, 1)})
    path, secret = tmp_path / "d.h5", tmp_path / "secret.h5"
    assert run("convert", tmp_path / "d", path).code == 0
    (tmp_path / "secret.bin").write_bytes(b"topsecret" * 4)
    with h5py.File(secret, "w") as file:
        file["tensors/a.0.debug.pt"] = np.arange(4, dtype=np.float32)
    with h5py.File(path, "a") as file:
        unit = file["step0/rank0"]
        if kind == "intermediate":
            del unit["tensors"]
            unit["tensors"] = h5py.ExternalLink(str(secret), "/tensors")
        else:
            tensors = unit["tensors"]
            del tensors["a.0.debug.pt"]
        if kind == "external":
            tensors["a.0.debug.pt"] = h5py.ExternalLink(str(secret), "/tensors/a.0.debug.pt")
        elif kind == "soft":
            tensors["a.0.debug.pt"] = h5py.SoftLink("/step0/rank0/tensors/ok.0.debug.pt")
        elif kind == "storage":
            external = [(str(tmp_path / "secret.bin"), 0, 16)]
            tensors.create_dataset("a.0.debug.pt", (4,), "f4", external=external)
        elif kind == "virtual":
            layout = h5py.VirtualLayout((4,), "f4")
            layout[:] = h5py.VirtualSource(str(secret), "tensors/a.0.debug.pt", (4,))
            tensors.create_virtual_dataset("a.0.debug.pt", layout)
    done = run("convert", path, tmp_path / "o")
    (line,) = done.err.splitlines()
    if kind == "intermediate":
        assert (done.code, "link to another file" in line) == (2, True)
        return
    assert (done.code, "tensor 'a.0.debug.pt'" in line) == (1, True)
    found = [item.name for item in (tmp_path / "o").rglob("*.pt")]
    assert found == ["ok.0.debug.pt"]
    assert np.array_equal(torch.load(next((tmp_path / "o").rglob("*.pt"))).numpy(), ramp(4, 1))
    with pytest.raises(MsformatError):
        msformat.open(path)[0]["a.0.debug"].value.numpy()


@pytest.mark.parametrize("first", ["numcodecs.zlib", "vlen-utf8", "bytes"])
def test_r160_a_codec_of_pickles_behind_a_harmless_one(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMCODECS_ALLOW_UNSAFE_PICKLE_DECODE", "1")
    write_dump(tmp_path / "d", {"a.0.debug": ramp(20_000), "ok.0.debug": ramp(20_001, 1)})
    assert run("convert", tmp_path / "d", tmp_path / "d.zarr").code == 0
    array = tmp_path / "d.zarr/step0/rank0/tensors/0"
    metadata = json.loads((array / "zarr.json").read_text())
    metadata["codecs"] = [{"name": first}, {"name": "numcodecs.pickle", "configuration": {"protocol": 5}}]
    (array / "zarr.json").write_text(json.dumps(metadata))
    for chunk in array.rglob("*"):
        if chunk.is_file() and chunk.name != "zarr.json":
            chunk.write_bytes(pickle.dumps(Payload(tmp_path / "pwned")))
    done = run("convert", tmp_path / "d.zarr", tmp_path / "o")
    (line,) = done.err.splitlines()
    assert (done.code, "tensor 'a.0.debug.pt'" in line, "allow-list" in line) == (1, True, True)
    assert not (tmp_path / "pwned").exists()
    old = tmp_path / "old.zarr"
    old.mkdir()
    filters = [{"id": "vlen-utf8"}, {"id": "pickle"}]
    (old / ".zarray").write_text(json.dumps({"zarr_format": 2, "shape": [2], "filters": filters}))
    assert run("convert", old, tmp_path / "o2").code == 2


FUZZ = """
import faulthandler, sys, warnings
import numpy as np
faulthandler.enable()
from msformat.cli import main
path, seed = sys.argv[1], int(sys.argv[2])
whole = open(path, "rb").read()
rng = np.random.default_rng(seed)
codes = set()
for _ in range(60):
    data = bytearray(whole)
    for at in rng.integers(0, len(data), 3):
        data[at] = int(rng.integers(0, 256))
    open(path, "wb").write(data)
    codes.add(main(["verify", path]))
print("alive", sorted(codes))
"""


def test_r161_fuzzed_files_crash_nothing(tmp_path: Path) -> None:
    """Best effort: HDF5 itself parses the file."""
    if h5py.version.hdf5_version_tuple < (1, 14):
        pytest.skip("HDF5 before 1.14 crashes on a header whose link information is damaged")
    write_dump(tmp_path / "d", {"a.0.debug": ramp(3000), "b.0.debug": ramp(3)}, backend="hdf5")
    done = run_python(FUZZ, tmp_path / "d/step0/rank0/dump.h5", 1)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].startswith("alive")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("document", ["dump.json", "stack.json", "construct.json"])
@pytest.mark.parametrize("kind", ["deep", "unclosed", "digits"])
def test_r162_bottomless_json_and_endless_numbers(tmp_path: Path, document: str, kind: str) -> None:
    text = {
        "deep": '{"data": ' + "[" * 200_000 + "]" * 200_000 + "}",
        "unclosed": '{"data":' * 200_000,
        "digits": '{"task": "tensor", "data": {"a": {"type": "int", "value": ' + "9" * 5000 + "}}}",
    }[kind]
    unit = write_documents(tmp_path / "d/step0/rank0", {KEY: call()})
    (unit / document).write_text(text)
    write_documents(tmp_path / "d/step0/rank1", {KEY: call()})
    for command in (("info",), ("verify",), ("ls",), ("table",), ("convert", tmp_path / "o.h5")):
        done = run(command[0], tmp_path / "d", *command[1:])  # run() lets no traceback pass
        assert done.code in (0, 1)
        if command[0] in ("verify", "convert") and (document == "dump.json" or command[0] == "verify"):
            assert done.code == 1
            assert "step0/rank0" in done.err
            assert "more than" in done.err
    assert len(msformat.open(tmp_path / "o.h5")[0, 1]) == 1


@pytest.mark.parametrize("text", ["[]", '{"0": 5}', "null", '{"0": [[1], ["x"]]}', '"x"', '{"a": {"b": 1}}'])
@pytest.mark.parametrize("document", ["stack.json", "construct.json"])
def test_r164_side_documents_of_a_strange_shape(tmp_path: Path, document: str, text: str) -> None:
    unit = write_documents(tmp_path / "d/step0/rank0", {KEY: call(plain_record(Max=1.0))})
    (unit / document).write_text(text)
    done = run("info", tmp_path / "d")
    (line,) = done.err.splitlines()
    assert (done.code, "left out" in line, document in line) == (1, True, True)
    done = run("show", tmp_path / "d", KEY)
    assert "input_args" in done.out
    assert run("convert", tmp_path / "d", tmp_path / "o").code == 0
    assert (tmp_path / "o/step0/rank0" / document).read_text() == text


def test_r164_a_call_tree_in_circles(tmp_path: Path) -> None:
    unit = write_documents(tmp_path / "d/step0/rank0", dict.fromkeys("abc"))
    (unit / "construct.json").write_text('{"a": "b", "b": "c", "c": "a"}')
    found = msformat.open(tmp_path / "d")[0]
    assert sorted(node.key for node in found.tree()) == ["a", "b", "c"]
    assert "is among its own parents" in run("info", tmp_path / "d").err
    assert run("convert", tmp_path / "d", tmp_path / "o", "--filter", "a").code == 0


def test_r165_many_writers_of_one_destination(tmp_path: Path) -> None:
    """One wins, or all write the same; a lock of a process that was killed is no lock."""
    write_dump(tmp_path / "d", {f"a{number}.0.debug": ramp(50_000, number) for number in range(8)})
    command = [sys.executable, "-m", "msformat", "convert", str(tmp_path / "d"), str(tmp_path / "o.h5")]
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    running[0].kill()
    done = [(process.communicate()[1], process.returncode) for process in running]
    for error, code in done[1:]:
        assert code in (0, 2)
        assert "Traceback" not in error
        assert code == 0 or "another process" in error or "already exists" in error
    if not (tmp_path / "o.h5").exists():
        assert main(command[3:]) == 0
    assert run("verify", tmp_path / "o.h5").code == 0
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


HOLDING = """
import sys, time
from msformat.destination import exclusive
with exclusive(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("name", ["o.h5", "o.zarr", "o"])
def test_r165_the_lock_of_a_process_that_was_killed(tmp_path: Path, name: str) -> None:
    write_dump(tmp_path / "d", {"a.0.debug": ramp(10)})
    target = tmp_path / name
    place = target if target.suffix else target / "step0/rank0"
    place.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HOLDING, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "held\n"
        done = run("convert", tmp_path / "d", target)
        holding.kill()
    assert (done.code, "another process" in done.err) == (2, True), done.err
    assert run("convert", tmp_path / "d", target).code == 0
    assert run("verify", target).code == 0
    assert not [path for path in tmp_path.rglob("*") if "lock" in path.name]


@pytest.mark.parametrize("share", [0.1, 0.35, 0.667, 0.99])
def test_r166_a_truncated_document_gives_its_complete_entries(tmp_path: Path, share: float) -> None:
    entries = {f"Functional.a.{number}.forward": call(plain_record(Max=float(number))) for number in range(20)}
    for rank in range(2):
        write_documents(tmp_path / f"d/step0/rank{rank}", entries)
    path = tmp_path / "d/step0/rank1/dump.json"
    text = path.read_text()
    path.write_text(text[: int(share * len(text))])
    # The judge: entries whose closing brace stands before the cut.
    whole = sum(1 for part in path.read_text().split('\n  "Functional.')[1:] if part.rstrip(",").endswith("\n  }"))
    for command in ("info", "verify", "ls", "table"):
        done = run(command, tmp_path / "d")
        assert done.code == 1
        assert "step0/rank1" in done.err
        assert "step0/rank0" not in done.err
    done = run("convert", tmp_path / "d", tmp_path / "o.h5")
    assert (done.code, "step0/rank1" in done.err) == (1, True)
    found = msformat.open(tmp_path / "o.h5")
    assert (len(found[0, 0]), found[0, 0].complete) == (20, True)
    assert list(found[0, 1]) == list(entries)[:whole]
    assert not found[0, 1].complete


def test_r168_nothing_is_fetched_while_installing() -> None:
    """No setup script, no build step of our own, no dependency by URL; the wheel itself is built in R024's test."""
    root = Path(msformat.__file__).parents[1]
    assert not (root / "setup.py").exists()
    text = (root / "pyproject.toml").read_text()
    assert 'requires = ["setuptools' in text
    assert not [line for line in text.splitlines() if "://" in line or "git+" in line or " @ " in line]


def test_r168_what_is_locked_is_all_that_is_needed() -> None:
    """tools/requirements.lock: a version and hashes for each package, and for what it needs in turn."""
    from importlib.metadata import PackageNotFoundError, requires
    from importlib.metadata import version as installed

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    root = Path(msformat.__file__).parents[1]
    text = (root / "tools/requirements.lock").read_text("ascii")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace(" \\\n", " ")
    locked: dict[str, list[Requirement]] = {}
    for line in body.splitlines():
        wanted, *hashes = line.split(" --hash=")
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", one.strip()) for one in hashes), line
        pinned = Requirement(wanted.strip())
        assert [part.operator for part in pinned.specifier] == ["=="], line
        assert pinned.url is None
        locked.setdefault(canonicalize_name(pinned.name), []).append(pinned)

    def check(given: str, extra: str) -> None:
        needed = Requirement(given)
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            return
        name = canonicalize_name(needed.name)
        (found,) = [one for one in locked[name] if one.marker is None or one.marker.evaluate()]
        (version,) = found.specifier
        assert needed.specifier.contains(version.version), (given, str(found))
        if f"{name}{needed.extras}" not in seen:
            seen.add(f"{name}{needed.extras}")
            names.add(name)
            try:
                # What another release needs says nothing of the one that is locked.
                further = requires(name) or [] if installed(name) == version.version else []
            except PackageNotFoundError:  # an extra that is not installed here
                return
            for one in further:
                for wanted in needed.extras or {""}:
                    check(one, wanted)

    seen: set[str] = set()
    names: set[str] = set()
    for line in requires("msformat") or []:
        for extra in ("", "hdf5", "zarr"):
            check(line, extra)
    assert names >= {"numpy", "msgspec", "h5py", "numcodecs"}
