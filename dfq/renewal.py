"""The thread that renews leases, so that nobody has to remember a heartbeat."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from dfq.claim import Claim
from dfq.errors import LeaseLost
from dfq.ports import Clock
from dfq.queue import Task

log = logging.getLogger("dfq")


class Renewer:
    """Renews the leases of live tasks, and lets go of those whose task was forgotten or ran for too long."""

    def __init__(
        self,
        renew: Callable[[Claim], None],
        clock: Clock,
        *,
        automatic: bool,
        max_run: float | None,
        on_end: Callable[[Claim], None],
    ) -> None:
        self._renew = renew
        self._clock = clock
        self._automatic = automatic
        self._max_run = max_run
        self._on_end = on_end
        self._held: dict[Claim, weakref.ref[Task]] = {}
        self._lock = threading.Lock()
        # A SimpleQueue may be put to from a weakref callback, which can run in the middle of anything.
        self._inbox: SimpleQueue[Claim | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asleep_until = float("inf")

    def add(self, task: Task, claim: Claim) -> None:
        """Look after a claim until it ends. Raises RuntimeError if no thread can be started."""
        inbox = self._inbox
        reference = weakref.ref(task, lambda _: inbox.put(claim))
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="dfq-renewal", daemon=True)
                self._thread, before = thread, self._thread
                try:
                    thread.start()
                except RuntimeError:
                    self._thread = before
                    raise
            self._held[claim] = reference
            sooner = self._next_look(claim) < self._asleep_until
        if sooner:
            inbox.put(None)

    def remove(self, claim: Claim) -> None:
        """Stop looking after a claim."""
        with self._lock:
            self._held.pop(claim, None)

    def forked(self) -> None:
        """Let go of everything, in a child process: the leases are its parent's."""
        for claim in list(self._held):
            claim.mutex = threading.Lock()  # the one there was may have been held when the process was copied
            claim.lose()

    def claims(self) -> list[Claim]:
        """Return what is held now."""
        with self._lock:
            return list(self._held)

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            self._held.clear()
            thread, self._thread = self._thread, None
        self._inbox.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _run(self) -> None:
        me = threading.current_thread()
        while self._thread is me:
            try:
                forgotten = self._inbox.get(timeout=self._pause())
            except Empty:
                forgotten = None
            if forgotten is not None:
                self._let_go(forgotten)
            for claim in self.claims():
                self._look_after(claim)

    def _pause(self) -> float | None:
        with self._lock:
            if not self._held:
                self._asleep_until = float("inf")
                return None
            now = self._clock.elapsed()
            self._asleep_until = max(now + 0.005, min(self._next_look(claim) for claim in self._held))
            return self._asleep_until - now

    def _next_look(self, claim: Claim) -> float:
        beat = claim.beat_at + claim.ttl / 3 if self._automatic else now_plus_a_day(self._clock)
        if claim.retry_at > claim.beat_at and self._automatic:
            beat = claim.retry_at
        return beat if self._max_run is None else min(beat, claim.claimed_at + self._max_run)

    def _look_after(self, claim: Claim) -> None:
        now = self._clock.elapsed()
        if claim.ended:
            self.remove(claim)
        elif self._max_run is not None and now >= claim.claimed_at + self._max_run:
            log.warning("task %r ran longer than max_run (%g s): its lease ends", claim.entry.name, self._max_run)
            self._let_go(claim)
        elif self._automatic and now >= self._next_look(claim) and claim.mutex.acquire(blocking=False):
            try:
                if not claim.ended:
                    self._renew(claim)
            except LeaseLost as e:
                log.warning("%s", e)
                self.remove(claim)
                self._on_end(claim)
            except OSError as e:
                claim.retry_at = now + max(0.01, claim.ttl / 20)
                log.warning("task %r: cannot renew its lease: %s", claim.entry.name, e)
            finally:
                claim.mutex.release()

    def _let_go(self, claim: Claim) -> None:
        self.remove(claim)
        with claim.mutex:
            if claim.ended:
                return
            claim.lose()
        self._on_end(claim)


def now_plus_a_day(clock: Clock) -> float:
    """Return a time that is far enough away to sleep until it."""
    return clock.elapsed() + 86_400
