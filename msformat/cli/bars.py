"""Bars of progress on standard error, where a person looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msformat.cli.output import console, plain

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BytesBar", "EntriesBar"]


class _Bar:
    """A bar a unit; one that is done makes room, since hundreds would push those worked on off the screen.

    Parameters
    ----------
    columns
        Names of columns of :mod:`rich.progress`, behind the unit's name and its bar.
    enabled
        Whether to draw; a bar that is not enabled must not be called.
    transient
        Whether nothing of it stays at the end.
    """

    def __init__(self, *columns: str, enabled: bool, transient: bool) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        if enabled:
            from rich import progress  # noqa: PLC0415 (only commands that draw pay for it)

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                *(getattr(progress, name)() for name in columns),
                console=console(stderr=True),
                transient=transient,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, unit: object, done: int, total: int) -> None:
        """How far a unit is."""
        name = plain(str(unit))
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total)
        self._bar.update(self._tasks[name], completed=done, total=total, visible=done < total)


class EntriesBar(_Bar):
    """Entries done."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__("MofNCompleteColumn", "TimeRemainingColumn", enabled=enabled, transient=True)


class BytesBar(_Bar):
    """Bytes done; one more bar for the units that are."""

    def __init__(self, *, enabled: bool) -> None:
        columns = "DownloadColumn", "TransferSpeedColumn", "TimeRemainingColumn"
        super().__init__(*columns, enabled=enabled, transient=False)
        self._all: Any = None
        self._ended: dict[str, int] = {}

    def __call__(self, unit: object, done: int, total: int) -> None:
        """How far a unit is."""
        if self._all is None:
            self._all = self._bar.add_task("no unit done yet", total=None)
        super().__call__(unit, done, total)
        name = str(unit)
        if done >= total and name not in self._ended:
            self._ended[name] = done
            count = len(self._ended)
            text = f"{count} unit{'s' if count > 1 else ''} done"
            self._bar.update(self._all, description=text, completed=sum(self._ended.values()))
