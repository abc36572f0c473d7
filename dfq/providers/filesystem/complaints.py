"""What cannot be read just now: said once, not at every look."""

from __future__ import annotations

import logging
from collections.abc import Container

log = logging.getLogger("dfq")

SOON = 1.0  # seconds until what could not be read is looked at again


class Complaints:
    """Remembers what failed, until it works again. The rest of the queue goes on meanwhile."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._errors: dict[str, tuple[OSError, float]] = {}  # path -> what went wrong, and when to look again

    def __len__(self) -> int:
        return len(self._errors)

    def about(self, path: str, error: OSError, now: float) -> None:
        """Say what is wrong with a path, unless that is known."""
        if path not in self._errors:
            log.warning("%s/%s: %s; the rest goes on without it", self._where, path, error.strerror or error)
        self._errors[path] = (error, now + SOON)

    def over(self, path: str) -> None:
        """Note that a path can be read."""
        if path in self._errors:
            del self._errors[path]
            log.info("%s/%s can be read again", self._where, path)

    def keep(self, paths: Container[str]) -> None:
        """Forget all but these: what is gone is no trouble any more."""
        for path in [path for path in self._errors if path not in paths]:
            del self._errors[path]

    def rests(self, path: str, now: float) -> bool:
        """Tell whether a path failed so recently that somebody busy had better leave it alone."""
        return path in self._errors and now < self._errors[path][1]

    def next_look(self) -> float:
        """Return when (elapsed time) to look again; never, if nothing is wrong."""
        return min((again for _, again in self._errors.values()), default=float("inf"))

    def first(self) -> OSError:
        """Return what went wrong first."""
        return next(iter(self._errors.values()))[0]
