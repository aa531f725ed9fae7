"""Dumps of other tools, read as if they were ours: a form is a way to find units, and a read-only store over each.

A store of a foreign form gives its files as tensors and *makes* the documents (``dump.json`` or ``debug.json``) that
the tool never wrote; reader, ``convert``, ``verify`` and the commands then know nothing of it. A form is a module or
package here with two names, both imported on first use:

``find(fs, path, items, key) -> list[ForeignUnit]``
    Units in the directory ``path`` of ``fs``, whose content is ``items``: of this directory itself, or of the
    directories that the form has below it. Empty when the place is none of the form's, which is judged by names; a file
    is opened only where names do not tell. ``key`` is what the names of the directories above say.
``{Name}Store``
    A :class:`msformat.stores.base.Store`, opened as ``Store(location, mode="r", group=…)``. Other modes are refused.

Neither trusts what it finds. :mod:`msformat.layout` asks :func:`find_foreign` about a directory only after it turned
out not to be a dump of ours, and :mod:`msformat.stores.registry` takes the store's class from :data:`FORMS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import NamedTuple

from msformat.filesystem import FileSystem, Item
from msformat.units import UnitKey

__all__ = ["FORMS", "ForeignUnit", "Form", "find_foreign"]


class Form(NamedTuple):
    """Where a form's two names are.

    Attributes
    ----------
    find, store
        ``module:name``; no ``find`` for another view of what a form before it finds.
    """

    find: str
    store: str


class ForeignUnit(NamedTuple):
    """A unit of another tool's dump.

    Attributes
    ----------
    key
        Which rank of which step.
    path
        Its directory (or file), relative to the file system asked; where the store is opened.
    group
        What the store is told beside the place, ``""`` for nothing.
    """

    key: UnitKey
    path: str
    group: str = ""


# The name is the unit's backend. The first form that finds units has them.
FORMS = {
    "kernel_dump": Form("msformat.foreign.kernel_dump.places:find", "msformat.foreign.kernel_dump.store:KernelStore"),
    "kernel_dump_device": Form("", "msformat.foreign.kernel_dump.store:DeviceLayoutStore"),
    "mindspore_dump": Form(
        "msformat.foreign.mindspore_dump.find:find", "msformat.foreign.mindspore_dump.store:SaveDirectoryStore"
    ),
}


def find_foreign(fs: FileSystem, path: str, items: Sequence[Item], key: UnitKey) -> Iterator[tuple[str, ForeignUnit]]:
    """Units of the first form that knows the directory, each with the form's name."""
    for name, form in FORMS.items():
        if not form.find:
            continue
        module, _, function = form.find.partition(":")
        units = getattr(import_module(module), function)(fs, path, items, key)
        if units:
            return ((name, unit) for unit in units)
    return iter(())
