"""From a configuration file and a constructor's arguments to the values in force, with where each came from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capture.config_keys import INERT, KEYS, OTHER_TASKS, STORAGE_KEYS, TASKS, Inert, Key, Place
from capture.config_values import suggestion
from capture.errors import CaptureError

__all__ = ["ARGUMENTS", "Settings", "read_object", "read_settings"]

ARGUMENTS = "the constructor's arguments"
_BY_NAME = {key.name: key for key in KEYS}
_STORAGE = {key.name: key for key in STORAGE_KEYS}
_INERT = {inert.name: inert for inert in INERT}


@dataclass(slots=True)
class Settings:
    """What was found: ``values`` by key, translated; ``sources`` the place each was written; ``notes`` for the log."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def source(self, name: str) -> str:
        """Where a key was written, for an error about it."""
        return self.sources.get(name, ARGUMENTS)

    def put(self, key: Key, value: Any, source: str) -> None:
        """Read a value. None means that the key was not given, and so does an empty text, as for the peer."""
        if value is not None and not (isinstance(value, str) and value == "" and key.kind in ("text", "path")):
            self.values[key.name] = _read(key, value, source)
            self.sources[key.name] = source


def read_settings(config_path: str | None, arguments: Mapping[str, Any]) -> Settings:
    """Everything that was configured; arguments win over the file.

    Raises
    ------
    CaptureError
        The file cannot be read; an unknown key, a bad value, or a key written twice with different meanings.
    """
    given = Settings()
    for name, value in arguments.items():
        given.put(_known(name, _BY_NAME, ARGUMENTS), value, ARGUMENTS)
    if config_path is None:
        return given
    found = _read_file(read_object(config_path), config_path, given.values.get("task"))
    return Settings(found.values | given.values, found.sources | given.sources, found.notes)


def read_object(config_path: str) -> dict[str, Any]:
    """The object that a configuration file holds.

    Raises
    ------
    CaptureError
        No such file, no JSON, no object, or a key twice in one object.
    """
    try:
        text = Path(config_path).read_text("utf-8-sig")
        found = json.loads(text, object_pairs_hook=lambda pairs: _distinct(pairs, config_path))
    except CaptureError:
        raise
    except OSError as error:
        raise CaptureError(f"{config_path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise CaptureError(f"{config_path}: is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CaptureError(f"{config_path}: holds {type(found).__name__}, an object is needed")
    return found


def _distinct(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise CaptureError(f"{source}: {twice}: is written twice")
    return found


def _read_file(document: dict[str, Any], source: str, task: str | None) -> Settings:
    found = Settings()
    for name, value in document.items():
        if name not in TASKS and name not in OTHER_TASKS:  # the objects of other tasks are passed over
            _take(found, name, value, source, "top")
    section = task or found.values.get("task") or "statistics"
    settings = document.get(section)
    if settings is None:
        return found
    source = f"{source}: {section}"
    if not isinstance(settings, dict):
        raise CaptureError(f"{source}: {settings!r} is no object")
    for name, value in settings.items():
        _take(found, name, value, source, "task")
    return found


def _take(found: Settings, name: str, value: Any, source: str, place: Place) -> None:
    inert = _INERT.get(name)
    if inert is not None and inert.place == place:
        _pass_over(found, inert, value, source)
        return
    key = _known(name, _allowed(place), source)
    before = found.values.get(name)
    found.put(key, value, source)
    if before is not None and found.values[name] != before:
        raise CaptureError(f"{source}: {name}: {value!r}, but {before!r} beside the task; write it once")


def _allowed(place: Place) -> dict[str, Key]:
    # msprobe 8.1.0 has `precision` in the object of the task, 26.2.0 beside it.
    return {name: key for name, key in _BY_NAME.items() if place in (key.place, "task" if name == "precision" else "")}


def _known(name: str, allowed: Mapping[str, Key], source: str) -> Key:
    key = allowed.get(name)
    if key is not None:
        return key
    other = _BY_NAME.get(name)
    if other is not None:
        where = "in the object of the task" if other.place == "task" else "beside the task, not in its object"
        raise CaptureError(f"{source}: {name}: belongs {where}")
    hint = suggestion(name, (*allowed, *_objects(allowed))) or suggestion(name, _BY_NAME)
    raise CaptureError(f"{source}: {name}: no such key{hint}")


def _objects(allowed: Mapping[str, Key]) -> Iterable[str]:
    return TASKS if "task" in allowed else ()


def _pass_over(found: Settings, inert: Inert, value: Any, source: str) -> None:
    harmless = value is None or inert.anything or any(type(value) is type(ok) and value == ok for ok in inert.harmless)
    if harmless:
        return
    if inert.refused:
        raise CaptureError(f"{source}: {inert.name}: {inert.reason}")
    found.notes.append(f"{source}: {inert.name}: {inert.reason}")


def _refuse_by_name(name: str, value: Any, source: str) -> None:
    """Values of the peer that are no mistake, only not ours: say where to turn."""
    if not isinstance(value, str):
        return
    if name == "task" and value in OTHER_TASKS:
        raise CaptureError(f"{source}: task: {value!r} is another tool of msprobe; {OTHER_TASKS[value]}")
    if name == "summary_mode" and value == "xor":
        raise CaptureError(f"{source}: summary_mode: 'xor' is not available; use md5")


def _read(key: Key, value: Any, source: str) -> Any:
    if key.name == "storage":
        return _read_storage(value, f"{source}: storage")
    _refuse_by_name(key.name, value, source)
    try:
        return key.read(value)
    except ValueError as error:
        raise CaptureError(f"{source}: {key.name}: {error}") from error


def _read_storage(value: Any, source: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise CaptureError(f"{source}: {value!r} is no object; write {{'format': 'hdf5'}}")
    found = Settings()
    for name, item in value.items():
        found.put(_known(str(name), _STORAGE, source), item, source)
    return found.values
