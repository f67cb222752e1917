"""Ways to hurt one file of a store on a directory, each of which can be undone."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.sick import rot

HEADER_BYTES = 16
FAR = 1000
Change = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Hurt:
    what: str
    path: str
    """Of the file that is hurt, within the store."""
    change: Change
    """Given that file."""
    beside: str = ""
    """Another file that changes with it."""

    @property
    def name(self) -> str:
        return f"{self.path} {self.what}"

    def apply(self, store: Path, kept: Path) -> None:
        """Hurt it; `kept` gets what was there before."""
        for number, path in enumerate(self._paths(store)):
            if path.exists():
                shutil.copy2(path, kept / str(number))
        self.change(store / self.path)

    def heal(self, store: Path, kept: Path) -> None:
        """Put back what was there before, by renaming, as tools for backups do."""
        for number, path in enumerate(self._paths(store)):
            if path.is_dir():
                shutil.rmtree(path)
            if (kept / str(number)).exists():
                shutil.copy2(kept / str(number), path.with_name("restored"))
                path.with_name("restored").rename(path)
            else:
                path.unlink(missing_ok=True)

    def _paths(self, store: Path) -> list[Path]:
        return [store / name for name in (self.path, self.beside) if name]


def _cut(length: Callable[[int], int]) -> Change:
    return lambda path: os.truncate(path, length(path.stat().st_size))


def _flip(share: float) -> Change:
    return lambda path: rot.flip(path, int(share * (path.stat().st_size - 1)))


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _replace(other: str) -> Change:
    def change(path: Path) -> None:
        path.write_bytes(path.with_name(other).read_bytes())

    return change


def _swap(other: str) -> Change:
    def change(path: Path) -> None:
        mine = path.read_bytes()
        path.write_bytes(path.with_name(other).read_bytes())
        path.with_name(other).write_bytes(mine)

    return change


def _double(other: str) -> Change:
    def change(path: Path) -> None:
        shutil.copy2(path, path.with_name(other))

    return change


GONE: dict[str, Change] = {
    "cut to nothing": _cut(lambda _size: 0),
    "zeroed": _zero,
    "a directory": _make_directory,
}
"""Nothing of it is left."""
DAMAGED: dict[str, Change] = {
    "cut to half": _cut(lambda size: size // 2),
    "cut by a byte": _cut(lambda size: max(size - 1, 0)),
    "cut to a header": _cut(lambda size: min(size, HEADER_BYTES)),
    "flipped at its start": _flip(0.0),
    "flipped at a third": _flip(0.3),
    "flipped at its end": _flip(1.0),
}


def hurts_of(store: Path, path: Path, *, damaged: bool = True) -> Iterator[Hurt]:
    """All that can happen to one file."""
    name = str(path.relative_to(store))
    for what, change in {**GONE, **(DAMAGED if damaged else {})}.items():
        yield Hurt(what, name, change)
    if path.name.isdecimal():
        yield from _taken_for_another(store, path)


def _taken_for_another(store: Path, path: Path) -> Iterator[Hurt]:
    name, digits = str(path.relative_to(store)), len(path.name)
    numbers = [int(other.name) for other in path.parent.iterdir() if other.name.isdecimal()]
    before = max((number for number in numbers if number < int(path.name)), default=None)
    if before is not None:
        other = f"{before:0{digits}d}"
        beside = str(path.with_name(other).relative_to(store))
        yield Hurt("an older one", name, _replace(other))
        yield Hurt("swapped with an older one", name, _swap(other), beside)
    for further in (1, FAR):
        other = f"{int(path.name) + further:0{digits}d}"
        if not path.with_name(other).exists():
            yield Hurt(
                f"doubled {further} further",
                name,
                _double(other),
                str(path.with_name(other).relative_to(store)),
            )
