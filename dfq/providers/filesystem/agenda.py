"""Names and when to look at them again, with the soonest always at hand."""

from __future__ import annotations

from collections.abc import Container, Iterator

NEVER = float("inf")


class Agenda:
    """A time for each name. The soonest is found without going through all of them, unless the last soonest went."""

    __slots__ = ("_soonest", "_times")

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._soonest: float | None = NEVER  # None: to be worked out

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def __iter__(self) -> Iterator[str]:
        return iter(self._times)

    def at(self, name: str) -> float | None:
        """Return the time of a name; None if it has none."""
        return self._times.get(name)

    def put(self, name: str, at: float) -> None:
        """Set the time of a name."""
        before = self._times.get(name)
        self._times[name] = at
        if self._soonest is not None:
            if at <= self._soonest:
                self._soonest = at
            elif before == self._soonest:
                self._soonest = None

    def drop(self, name: str) -> bool:
        """Forget a name; False if it was not there."""
        before = self._times.pop(name, None)
        if before is not None and before == self._soonest:
            self._soonest = None
        return before is not None

    def keep(self, names: Container[str]) -> None:
        """Forget all others."""
        for name in [name for name in self._times if name not in names]:
            self.drop(name)

    def soonest(self) -> float:
        """Return the first of the times; never, if there is none."""
        if self._soonest is None:
            self._soonest = min(self._times.values(), default=NEVER)
        return self._soonest

    def due(self, now: float) -> list[str]:
        """Return the names whose time has come, in no order."""
        if self.soonest() > now:
            return []
        return [name for name, at in self._times.items() if at <= now]
