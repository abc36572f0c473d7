"""What the time of a directory tells: whether anything in it may have changed since it was read."""

from __future__ import annotations

from dfq.ports import Clock, Disk, Facts

TICK = 0.05  # seconds within which two changes may leave a directory with the same time
COARSE_TICK = 2.05  # the same where times are whole seconds (ext3, ext4 with small inodes), or every other
EVERYWHERE = 300.0  # how often directories are read again whatever their times say (ADR 015)
NEVER = float("inf")


class FolderTime:
    """The time that a directory had when it was last read, and whether it will tell of every later change.

    It does once the directory was read a tick after the time was set. That goes by our own clock since we first saw
    this time, so that neither a clock that was set back nor the clock of another machine has a say. Only on a disk
    that this machine alone writes to may the wall clock show sooner that a time is an old one.
    """

    __slots__ = ("_mtime_ns", "_settled", "_since")

    def __init__(self) -> None:
        self._mtime_ns = -1
        self._since = -NEVER
        self._settled = False

    def same(self, facts: Facts) -> bool:
        """Tell whether the time is the one that was seen last."""
        return facts.mtime_ns == self._mtime_ns

    def tells(self, facts: Facts) -> bool:
        """Tell whether nothing has changed since the directory was read."""
        return self._settled and self.same(facts)

    def was_read(self, facts: Facts, at: float, wall: float, disk: Disk) -> None:
        """Note that the directory was read in full; `at` (elapsed) and `wall` lie between the look and the reading."""
        if not self.same(facts):
            self._mtime_ns, self._since = facts.mtime_ns, at
        tick = self._tick()
        old = disk.local and wall - facts.mtime_ns / 1e9 > tick
        self._settled = old or at - self._since > tick

    def doubt(self) -> None:
        """Read the directory again, whatever its time says."""
        self._settled = False

    def settles(self) -> float:
        """Return when (elapsed time) reading it once more will do; never, if it did already."""
        return NEVER if self._settled else self._since + self._tick() + 0.001

    def _tick(self) -> float:
        return TICK if self._mtime_ns % 1_000_000_000 else COARSE_TICK


class Rounds:
    """When it is time to look without a reason: events and times are hints, looking is the truth."""

    __slots__ = ("_clock", "_due", "_every")

    def __init__(self, clock: Clock, every: float = EVERYWHERE) -> None:
        self._clock = clock
        self._every = every
        self._due = clock.elapsed() + every

    def due(self) -> bool:
        """Tell whether to do a round now; the next one is due a while after that."""
        now = self._clock.elapsed()
        if now < self._due:
            return False
        self._due = now + self._every
        return True
