"""An idle worker's sleep: on file events, with a slow poll behind them (ADR 015)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

from dfq.ports import Clock, Disk
from dfq.providers.filesystem.foldertime import NEVER
from dfq.providers.filesystem.frontier import Frontier
from dfq.providers.filesystem.schedule import Schedule
from dfq.providers.filesystem.wake import ATTRIB, CLOSE_WRITE, CREATE, DELETE, MOVED_TO, Events
from dfq.tree import FAILED, LEASES, SCHEDULED, Tree, slot_name

SLOW_POLL = 30.0  # how long we sleep when file events work
BLIND_POLL = 1.0  # and when they do not
HURRIES = 50  # sleeps in a row that something due may cut to nothing
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
        locate: Callable[[str], str],
    ) -> None:
        self._disk = disk
        self._tree = tree
        self._frontier = frontier
        self._schedule = schedule
        self._clock = clock
        self._scan_lock = scan_lock  # for the frontier and the schedule
        self._where = where
        self._locate = locate  # where a folder of the frontier lies
        self._watched: set[str] = set()
        self._events: Events | None = None
        self._dying: dict[str, int] = {}
        self._turn = threading.Condition()  # for the one place on the events
        self._taken = False
        self._closed = False
        self._numbers = itertools.count(1)
        self._hurries = 0  # how often in a row there was no time to sleep
        self.news = 0  # another number whenever there may be something to do; a caller reads it before it looks

    def sleep(self, left: float, news: int, *, paused: bool = False) -> None:
        """Sleep for up to `left` seconds; return early when something may have come since `news` was read.

        While the queue is paused nothing that comes due is of interest.
        """
        ends = self._clock.elapsed() + left
        with self._turn:
            while self._taken and self.news == news and not self._closed:
                if not self._turn.wait(max(0.0, ends - self._clock.elapsed())):
                    return
            if self.news != news or self._closed:
                return
            self._taken = True
        try:
            self._doze(ends - self._clock.elapsed(), news, paused)
        finally:
            with self._turn:
                self._taken = False
                # Those who wait for their turn look for themselves: what woke us may be more than we can take.
                self.news = next(self._numbers)
                if self._closed:
                    self._drop_events()
                self._turn.notify_all()

    def _doze(self, left: float, news: int, paused: bool) -> None:
        try:
            if self._events is None:
                self._events = Events()
            if self._events.watch(self._folders()):
                with self._scan_lock:
                    self._frontier.unwatched()  # who died before we watched has gone unnoticed
                return  # and something may have come: look once more
            if self.news != news:
                return
            quiet = SLOW_POLL if self.alert else BLIND_POLL
        except OSError:  # out of descriptors, or folders that cannot be read
            quiet = BLIND_POLL
        nap = min(left, quiet, NEVER if paused else self._until_due())
        if self._events is None:
            time.sleep(max(0.0, nap))
            return
        seen = self._events.wait(max(0.0, nap))
        with self._scan_lock:
            self._notice(seen)

    def _until_due(self) -> float:
        with self._scan_lock:
            due = min(self._frontier.next_due(), self._schedule.next_due())
        nap = due - self._clock.elapsed()
        self._hurries = self._hurries + 1 if nap <= 0 else 0
        if self._hurries <= HURRIES:
            return nap
        # The caller looks before each sleep, so what is due should be dealt with. If it never is, do not spin.
        return min(BLIND_POLL, 0.001 * 2.0 ** min(self._hurries - HURRIES, 20))

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
        """End all sleeps of this process; callable from any thread and from a signal handler."""
        self.news = next(self._numbers)
        events = self._events
        if events is not None:
            events.ring()  # who sleeps on the events sends the others along

    def close(self) -> None:
        """End all sleeps for good and free the descriptors; who sleeps on them does that as it leaves."""
        with self._turn:
            self._closed = True
            if self._taken:
                self.wake()
            else:
                self._drop_events()

    def _drop_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def forked(self) -> None:
        """Let go of the events in a child process: they are its parent's, and each is read once."""
        self._drop_events()

    def _folders(self) -> Iterator[tuple[str, str, int]]:
        yield ".", self._where, CREATE | DELETE
        yield SCHEDULED, f"{self._where}/{SCHEDULED}", CREATE | ATTRIB
        yield LEASES, f"{self._where}/{LEASES}", CREATE
        yield FAILED, f"{self._where}/{FAILED}", CREATE | ATTRIB
        with self._scan_lock:
            folders = self._frontier.folders()
        self._watched = set(folders)
        for folder in folders:
            yield folder, self._locate(folder), CREATE | MOVED_TO | ATTRIB
        for found in self._disk.scan(LEASES):
            if found.directory and self._tree.is_shard(found.name):
                yield f"{LEASES}/{found.name}", f"{self._where}/{LEASES}/{found.name}", CLOSE_WRITE

    def _notice(self, seen: list[tuple[str, str]] | None) -> None:
        if seen is None:
            self._frontier.look_everywhere()
            return
        for folder, filename in seen:
            if folder.partition("/")[0] == LEASES:
                self._lease_closed(filename)
            elif folder == FAILED:
                self._frontier.touched()
            elif folder in self._watched:
                self._frontier.noticed(folder, filename)

    def _lease_closed(self, filename: str) -> None:
        slot = slot_name(filename)
        if slot is not None and self._frontier.unblock(slot[0]):
            if len(self._dying) > 1000:
                self._dying.clear()
            self._dying[slot[0]] = HASTE
