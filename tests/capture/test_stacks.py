"""Call stacks: what traceback says, at the price of two attributes a frame."""

from __future__ import annotations

import gc
import json
import linecache
import re
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capture import stacks
from capture.stacks import Frames, StackTexts, frame_texts, frames_of


def here() -> Frames:
    return frames_of(sys._getframe(1))


def outer() -> tuple[Frames, list[traceback.FrameSummary]]:
    return here(), traceback.extract_stack()  # the same line, so that both agree


def test_texts_are_what_traceback_says() -> None:
    frames, judged = outer()
    wanted = [f"File {one.filename}, line {one.lineno}, in {one.name}, \n {one.line}" for one in reversed(judged)]
    assert frame_texts(frames) == wanted
    assert ", in outer, \n return here(), traceback" in wanted[0]


def test_form_is_the_one_of_real_dumps(golden: Callable[[str], Path]) -> None:
    document = golden("torch_8.1.0_L0_tensor") / "step0" / "rank" / "stack.json"
    real = [frame for _, frames in json.loads(document.read_text()).values() for frame in frames]
    form = r"File (.+), line (\d+), in (.+), \n .*"
    assert real
    assert all(re.fullmatch(form, text) for text in real + frame_texts(here()))


def test_the_line_is_that_of_the_instruction() -> None:
    lines = ["def f():", "    found = []"]
    lines += ["    found.append((", f"        {'x + ' * 90}0,", "    frames_of(me), me.f_lineno,", "))"] * 100
    names: dict[str, Any] = {"frames_of": frames_of, "x": 1, "me": None}
    lines.insert(1, "    me = current()")
    names["current"] = lambda: sys._getframe(1)
    exec(compile("\n".join([*lines, "    return found"]), "long.py", "exec"), names)
    found = names["f"]()
    assert len({line for _, _, line in found}) == 100
    for _, frames, line in found:
        assert frame_texts(frames)[0] == f"File long.py, line {line}, in f, \n "


def test_skip_leaves_out_the_innermost() -> None:
    assert frames_of(sys._getframe(), 1).codes == frames_of(sys._getframe()).codes[1:]
    assert len(frames_of(sys._getframe(), 10**6)) == 0
    assert frame_texts(frames_of(None)) == []


def test_frames_of_the_package_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stacks, "_OWN", str(tmp_path) + "/")
    names: dict[str, Any] = {"here": here}
    exec(compile("def hook(): return here()", tmp_path / "hook.py", "exec"), names)
    texts = frame_texts(names["hook"]())
    assert "in test_frames_of_the_package_are_left_out" in texts[0]
    assert stacks.__file__.startswith(str(Path(stacks.__file__).parent))


def made_in(path: str, source: str = "def f(): return here()") -> Callable[[], Frames]:
    names: dict[str, Any] = {"here": here}
    exec(compile(source, path, "exec"), names)
    made: Callable[[], Frames] = names["f"]
    return made


# Not "<string>": of that, Python 3.13 has a source when it was started with -c, as workers of tests are.
@pytest.mark.parametrize("path", ["<made>", "gone.py", "/no/such/place.py"])
def test_without_source_there_is_still_a_text(path: str) -> None:
    assert frame_texts(made_in(path)())[0] == f"File {path}, line 1, in f, \n "


def test_a_path_that_is_no_text() -> None:
    (text, *_) = frame_texts(made_in("caf\udce9 \u00e9.py")())
    assert text == "File caf\\udce9 \u00e9.py, line 1, in f, \n "
    text.encode()


def test_a_source_that_cannot_be_read_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ValueError("a loader of the user's")

    monkeypatch.setattr(linecache, "getline", fail)
    assert frame_texts(here())[0].endswith("in test_a_source_that_cannot_be_read_costs_nothing_else, \n ")


def test_nothing_is_read_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[object, ...]] = []

    def getline(*place: object) -> str:
        read.append(place)
        return "x"

    monkeypatch.setattr(linecache, "getline", getline)
    frames = here()
    assert not read
    texts = StackTexts()
    first = texts.texts(frames)
    count = len(read)
    assert count == len(set(zip(map(id, frames.codes), frames.offsets, strict=True)))
    second = texts.texts(frames)
    assert len(read) == count  # each place once
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_equal_stacks_are_one_key() -> None:
    found = {here() for _ in range(3)}
    assert len(found) == 1
    assert here() != here()
    assert here() != "another type"


def test_equal_code_of_two_files_is_not_confused() -> None:
    first, second = made_in("a.py"), made_in("b.py")
    assert first.__code__ == second.__code__  # why code objects are no keys
    frames = [make() for make in (first, second)]
    assert frames[0] != frames[1]
    texts = StackTexts()
    assert [texts.texts(one)[0].split(",")[0] for one in frames] == ["File a.py", "File b.py"]


def test_code_that_is_gone_leaves_no_wrong_text_behind() -> None:
    """An id may be given to another code object once its owner is gone."""
    texts = StackTexts()
    for number in range(200):
        assert texts.texts(made_in(f"{number}.py")())[0].startswith(f"File {number}.py,")


def test_no_local_variable_is_kept_alive() -> None:
    class Local:
        pass

    def inner() -> tuple[Frames, weakref.ref[Local]]:
        local = Local()
        return frames_of(sys._getframe()), weakref.ref(local)

    gc.disable()
    try:
        frames, gone = inner()
        assert gone() is None
    finally:
        gc.enable()
    assert len(frames) > 1
