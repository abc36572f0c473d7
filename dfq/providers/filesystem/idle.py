"""An idle worker's sleep: on file events, with a slow poll behind them (ADR 015)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from dfq.ports import Clock, Disk
from dfq.providers.filesystem.frontier import Frontier
from dfq.providers.filesystem.schedule import Schedule
from dfq.providers.filesystem.wake import ATTRIB, CLOSE_WRITE, CREATE, DELETE, MOVED_TO, Events
from dfq.tree import FRONTIER, LEASES, SCHEDULED, Tree, is_lane, slot_name, task_name

SLOW_POLL = 30.0  # how long we sleep when file events work
BLIND_POLL = 1.0  # and when they do not
HASTE = 6  # looks at a lease whose holder seems to be dying this very moment


class Idle:
    """Sleeps until looking again is worth it, and tells the frontier what the events say."""

    def __init__(
        self,
        disk: Disk,
        tree: Tree,
        frontier: Frontier,
        schedule: Schedule,
        clock: Clock,
        scan_lock: threading.RLock,
        where: str,
    ) -> None:
        self._disk = disk
        self._tree = tree
        self._frontier = frontier
        self._schedule = schedule
        self._clock = clock
        self._scan_lock = scan_lock  # for the frontier and the schedule
        self._where = where
        self._one_sleeper = threading.Lock()
        self._events: Events | None = None
        self._dying: dict[str, int] = {}

    def sleep(self, left: float) -> None:
        """Sleep for up to `left` seconds; return early when something may have come."""
        if not self._one_sleeper.acquire(timeout=min(left, BLIND_POLL)):
            return  # another thread sleeps on the events; look, and try again
        try:
            if self._events is None:
                self._events = Events()
            events = self._events
            if events.watch(self._folders()):
                return  # something may have come before we watched: look once more
            with self._scan_lock:
                due = min(self._frontier.next_due(), self._schedule.next_due())
            quiet = SLOW_POLL if self.alert else BLIND_POLL
            seen = events.wait(max(0.0, min(left, quiet, due - self._clock.elapsed())))
            with self._scan_lock:
                self._notice(seen)
        finally:
            self._one_sleeper.release()

    @property
    def alert(self) -> bool:
        """True while the death of a lease's holder would wake us."""
        return self._events is not None and self._events.complete and self._disk.local

    def look_again_in(self, name: str) -> float | None:
        """Return when to look again at a lease whose file was just closed; None if it was not.

        The kernel tells of the closing a moment before it frees the lock.
        """
        looks = self._dying.pop(name, 0)
        if not looks:
            return None
        self._dying[name] = looks - 1
        return 0.002 * 2.0 ** (HASTE - looks)

    def wake(self) -> None:
        """End the sleep of another thread."""
        events = self._events
        if events is not None:
            events.ring()

    def close(self) -> None:
        """Free the descriptors; a sleeper is woken first."""
        self.wake()
        with self._one_sleeper:
            if self._events is not None:
                self._events.close()
                self._events = None

    def forked(self) -> None:
        """Let go of the events in a child process: they are its parent's, and each is read once."""
        if self._events is not None:
            self._events.close()

    def _folders(self) -> Iterator[tuple[str, str, int]]:
        yield ".", self._where, CREATE | DELETE
        yield SCHEDULED, f"{self._where}/{SCHEDULED}", CREATE | ATTRIB
        yield LEASES, f"{self._where}/{LEASES}", CREATE
        with self._scan_lock:
            folders = self._frontier.folders()
        for folder in folders:
            yield folder, f"{self._where}/{folder}", CREATE | MOVED_TO | ATTRIB
        for found in self._disk.scan(LEASES):
            if found.directory and self._tree.is_shard(found.name):
                yield f"{LEASES}/{found.name}", f"{self._where}/{LEASES}/{found.name}", CLOSE_WRITE

    def _notice(self, seen: list[tuple[str, str]] | None) -> None:
        if seen is None:
            self._frontier.look_everywhere()
            return
        for folder, filename in seen:
            top, _, rest = folder.partition("/")
            if top == LEASES:
                self._lease_closed(filename)
            elif top == FRONTIER:
                self._task_came(rest, filename)

    def _lease_closed(self, filename: str) -> None:
        slot = slot_name(filename)
        if slot is not None and self._frontier.unblock(slot[0]):
            if len(self._dying) > 1000:
                self._dying.clear()
            self._dying[slot[0]] = HASTE

    def _task_came(self, folder: str, filename: str) -> None:
        lane, _, shard = folder.partition("/")
        if is_lane(lane or filename):
            self._frontier.arrived(int(lane or filename))
            name = task_name(filename)
            if shard and name is not None:
                self._frontier.hint(self._tree.entry(name, int(lane)))
