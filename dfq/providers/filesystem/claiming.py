"""From the frontier to claims: what is tried, and what became of it is remembered for the next look."""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable

from dfq.claim import Blocked, Claim, Gone
from dfq.ports import Clock, Disk
from dfq.providers.filesystem.frontier import Frontier
from dfq.providers.filesystem.idle import Idle
from dfq.providers.filesystem.schedule import Schedule
from dfq.queue import Task
from dfq.slotlog import SlotLog
from dfq.tree import Entry

log = logging.getLogger("dfq")

RETURNED = 10_000  # names to remember until the next poll
WARNINGS = 2000  # things to complain of, each once
ENOUGH = 64 * 1024  # free bytes with which a disk is no longer full

HandOut = Callable[[Claim, str], Task]


class Claiming:
    """Tries what the frontier offers. Not thread-safe: its owner locks."""

    def __init__(
        self,
        slots: SlotLog,
        frontier: Frontier,
        schedule: Schedule,
        idle: Idle,
        disk: Disk,
        clock: Clock,
        locate: Callable[[str], str],
        *,
        owned: bool,
    ) -> None:
        self._slots = slots
        self._frontier = frontier
        self._schedule = schedule
        self._idle = idle
        self._disk = disk
        self._clock = clock
        self._locate = locate
        self._owned = owned
        self.returned: deque[str] = deque(maxlen=RETURNED)  # names to offer again; any thread may add to it
        self._disk_was_full = False
        self._warned: set[str] = set()

    def take(self, batch_size: int, ttl: float, liveness: str, hand_out: HandOut) -> list[Task]:
        """Claim up to batch_size tasks. Raises OSError if that fails before the first."""
        self._check_space()
        self._offer_again()
        for entry in self._schedule.promote():
            self._frontier.hint(entry)
        tasks: list[Task] = []
        try:
            for entry in self._frontier.candidates():
                claim = self._try(entry, ttl, liveness)
                if claim is not None:
                    tasks.append(hand_out(claim, liveness))
                    if len(tasks) == batch_size:
                        break
        except OSError:
            if not tasks:  # what is claimed already must reach the caller
                raise
        self._warn_of_strangers()
        return tasks

    def _try(self, entry: Entry, ttl: float, liveness: str) -> Claim | None:
        now = self._clock.elapsed
        try:
            got = self._slots.claim(entry, ttl=ttl, liveness=liveness)
        except OSError as e:
            self._disk_was_full = e.errno in (errno.ENOSPC, errno.EDQUOT)
            self._frontier.block(entry, now() + 1.0)
            raise
        if isinstance(got, Claim):
            self._frontier.block(entry, now() + ttl)  # nobody may be renewing it
            return got
        if isinstance(got, Gone):
            self._frontier.forget(entry)
        elif isinstance(got, Blocked):
            self._block(entry, got)
        else:
            self._frontier.block(entry, now() + ttl, held=True)
        return None

    def _block(self, entry: Entry, blocked: Blocked) -> None:
        until = blocked.until
        if blocked.in_the_way is not None:
            self._warn(blocked.in_the_way, "is no file, so it proves nothing: its task waits until this is removed")
        if blocked.held and until is not None:
            soon = self._idle.look_again_in(entry.name)
            until = until if soon is None else min(until, self._clock.elapsed() + soon)
        self._frontier.block(entry, until, dead=blocked.dead, held=blocked.held)

    def _offer_again(self) -> None:
        if len(self.returned) == RETURNED:  # some were dropped, we do not know which
            self.returned.clear()
            self._frontier.start_over()
        while self.returned:
            self._frontier.unblock(self.returned.popleft())

    def _check_space(self) -> None:
        if self._disk_was_full and self._disk.free_bytes() < ENOUGH:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk_was_full = False

    def _warn_of_strangers(self) -> None:
        for path in self._frontier.strangers() - self._warned:
            folder = self._owned and path.count("/") < 3
            self._warn(path, "is no folder: no task in it is seen" if folder else "is no task and is left alone")

    def _warn(self, path: str, what: str) -> None:
        if path not in self._warned and len(self._warned) < WARNINGS:
            self._warned.add(path)
            log.warning("%s %s", self._locate(path), what)
