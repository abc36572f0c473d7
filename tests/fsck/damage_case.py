"""A damage, and what is to become of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fsck_kit import Ground

Plant = Callable[[Ground], "Path | str"]


@dataclass(frozen=True)
class Case:
    """A damage, and what is to become of it. `plant` returns the path that fsck must name."""

    code: str
    plant: Plant
    about: str = ""
    repaired: bool = False
    #: Ids that a worker completes afterwards, each once.
    then: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}{': ' if self.about else ''}{self.about}"


def other_shard(ground: Ground, path: Path) -> Path:
    """Move a file into another shard."""
    shard = f"{(int(path.parent.name, 16) + 1) % 4:x}"
    there = path.parent.parent / shard / path.name
    there.parent.mkdir(exist_ok=True)
    path.rename(there)
    return there


def written(path: Path, data: bytes | str = b"") -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path
