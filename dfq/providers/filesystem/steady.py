"""For how long the wall clock has run without a jump: only then does the time of a file tell its age (ADR 018)."""

from __future__ import annotations

import contextlib

from dfq.codec import dumps, iso, loads
from dfq.errors import InvalidTask
from dfq.lease import number
from dfq.ports import Clock, Machine
from dfq.stores.disk import DiskStore
from dfq.tree import CLOCK

READ_LIMIT = 64 * 1024
SLACK = 2.0  # seconds by which two readings may differ
DRIFT = 0.001  # and for each second between them: more than any clock is slewed


class Steadiness:
    """Compares the wall clock with CLOCK_BOOTTIME, over this boot and all processes of this machine.

    With notes=False it goes by what others noted, and writes nothing: for those who only look.
    """

    def __init__(self, store: DiskStore, clock: Clock, machine: Machine, *, notes: bool = True) -> None:
        self._store = store
        self._clock = clock
        self._machine = machine
        self._notes = notes
        self._since: float | None = None
        self._offset = 0.0
        self._at = 0.0
        self.wall = 0.0  # the wall clock when it was last asked

    def seconds(self) -> float:
        """Return for how many seconds the clock is known to have been steady."""
        now = self._clock.elapsed()
        self.wall = self._clock.wall()
        offset = self.wall - now
        if self._since is None:
            self._since = self._remembered(now, offset)
        elif not self._same(offset - self._offset, now - self._at):
            self._since = None
        if self._since is None:
            self._since = now
            self._remember(now, offset)
        self._offset, self._at = offset, now
        return now - self._since

    @staticmethod
    def _same(difference: float, seconds: float) -> bool:
        return abs(difference) <= SLACK + DRIFT * seconds

    def _remembered(self, now: float, offset: float) -> float | None:
        if not self._store.disk.local:  # other machines write there, and their boots are not ours
            return None
        try:
            record = loads(self._store.read(CLOCK, READ_LIMIT) or b"", CLOCK)
        except InvalidTask:
            return None
        since, before = number(record.get("since_boottime")), number(record.get("offset"))
        if record.get("boot_id") != self._machine.boot_id or since is None or before is None or since > now:
            return None
        return since if self._same(offset - before, now - since) else None

    def _remember(self, now: float, offset: float) -> None:
        if not self._notes or not self._store.disk.local:
            return
        record = {
            "boot_id": self._machine.boot_id,
            "since_boottime": round(now, 3),
            "offset": round(offset, 3),
            "written_at": iso(self._clock.wall()),
        }
        staged = self._store.disk.unnamed()
        try:
            self._store.disk.write(staged, dumps(record) + b"\n")
            self._store.remove(CLOCK)
            with contextlib.suppress(FileExistsError):  # another process noticed the same jump
                self._store.disk.link(staged, CLOCK)
        finally:
            self._store.drop(staged)
