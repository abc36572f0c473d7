"""Promises about files and folders: what others see of them, and when."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from dfq.providers.filesystem.foldertime import COARSE_TICK, TICK
from dfq.providers.filesystem.wake import CLOSE_WRITE, CREATE, DELETE
from dfq.verify_fs.processes import Helper
from dfq.verify_fs.promise import Broken, Ground, Weaker

PATIENCE = 3.0  # seconds after which a change that nobody saw counts as not seen
LEASE_BYTES = 1024
IF_BLIND = "an idle worker looks every second instead of being woken"
_HURRY = 500  # changes to a folder as fast as can be, before we slow down
_TICKS = 5  # different times of a folder that make a measurement
_SKEW_NS = 1_000_000_000


def link_count(ground: Ground) -> str:
    disk = ground.disk
    fd = disk.create("counted")
    try:
        disk.link_path("counted", "counted-twice")
        if (links := _links(ground, fd, 2)) != 2:
            raise Broken(f"a file with two names reports st_nlink {links}")
        _elsewhere(lambda: (disk.unlink("counted"), disk.unlink("counted-twice")))
        if (links := _links(ground, fd, 0)) != 0:
            raise Broken(f"an open file whose last name another process removed reports st_nlink {links}")
    finally:
        disk.close(fd)
    return "an open file whose last name is gone reports st_nlink 0"


def _links(ground: Ground, fd: int, awaited: int) -> int:
    """Return how many names an open file has; what is remembered of it elsewhere may take a moment to fade."""
    deadline = time.monotonic() + PATIENCE
    while (links := ground.disk.facts(fd).links) != awaited and time.monotonic() < deadline:
        time.sleep(0.01)
    return links


def writes_are_seen(ground: Ground) -> str:
    disk = ground.disk
    fd = disk.create("lease")
    try:
        for beat in range(ground.rounds):
            data = (b"%06d" % beat).ljust(LEASE_BYTES)
            disk.write(fd, data)
            if _content(ground, "lease") != data:
                raise Broken("what was written in place is not what another descriptor reads")
        data = b"to be read elsewhere".ljust(LEASE_BYTES)
        disk.write(fd, data)
        with Helper(lambda helper: helper.say() if _content(ground, "lease") == data else None) as helper:
            if not helper.hear():
                helper.wait_for_end()
                raise Broken("what was written in place is not what another process reads")
    finally:
        disk.close(fd)
    return f"{ground.rounds} renewals in place were read back, the last one by another process"


def _content(ground: Ground, path: str) -> bytes:
    fd = ground.disk.open(path)
    try:
        return ground.disk.read(fd, 2 * LEASE_BYTES)
    finally:
        ground.disk.close(fd)


def unnamed_files(ground: Ground) -> str:
    disk = ground.disk
    before = {found.name for found in disk.scan(".")}
    fd = disk.unnamed()
    try:
        disk.write(fd, b"whole")
        shown = {found.name for found in disk.scan(".")} - before
        if any(not name.startswith(".") for name in shown):
            raise Broken(f"a file that has no name yet is listed as {shown.pop()!r}")
        disk.link(fd, "named")
    finally:
        disk.close(fd)
    if shown:
        raise Weaker("a new file needs a temporary name (no O_TMPFILE)", "a crash leaves a dotfile behind: harmless")
    return "O_TMPFILE and linkat() work"


def flushing(ground: Ground) -> str:
    disk = ground.disk
    disk.mkdir("flushed")
    fd = disk.create("flushed/file")
    try:
        disk.write(fd, b"x" * 4096)
        started = time.monotonic()
        disk.fsync(fd)
        took = time.monotonic() - started
    finally:
        disk.close(fd)
    for folder in ("flushed", "."):
        disk.fsync_dir(folder)
    disk.sync_all()
    return f"fsync of files and folders succeeds, in {took * 1000:.1f} ms; whether the device obeys cannot be seen"


def directory_times(ground: Ground) -> str:
    grain = _grain(ground)
    disk = ground.disk
    changes: dict[str, Callable[[], object]] = {
        "creating": lambda: disk.close(disk.create("times/made")),
        "linking": lambda: disk.link_path("times/made", "times/linked"),
        "removing": lambda: disk.unlink("times/made"),
    }
    for what, change in changes.items():
        before = _time(ground)
        # What a worker relies on is that a change shows that comes so long after the last one.
        time.sleep(min(max(TICK, 1.1 * grain / 1e9), COARSE_TICK))
        change()
        deadline = time.monotonic() + PATIENCE
        while _time(ground) == before:
            if time.monotonic() > deadline:
                raise Broken(f"{what} a name in a folder did not change the folder's time")
            time.sleep(0.01)
    skew = _time(ground) - time.time_ns()
    found = f"a folder's time changes with its names, in steps of {_span(grain)}"
    if abs(skew) > max(_SKEW_NS, 2 * grain):
        raise Weaker(
            f"{found}, but is {_span(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine's clock",
            "a worker may look at folders more or less often than it should: set the clocks right",
        )
    if grain / 1e9 > TICK:
        raise Weaker(found, "a worker reads a folder anew for two seconds after each change")
    return found


def _grain(ground: Ground) -> int:
    """Return the smallest step, in nanoseconds, in which a folder's time was seen to change."""
    ground.disk.mkdir("times")
    seen = [_time(ground)]
    deadline = time.monotonic() + PATIENCE
    made = 0
    while len(seen) <= _TICKS and time.monotonic() < deadline:
        ground.disk.close(ground.disk.create("times/passing"))
        ground.disk.unlink("times/passing")
        made += 1
        if (now := _time(ground)) != seen[-1]:
            seen.append(now)
        if made > _HURRY:
            time.sleep(0.001)  # a coarse clock takes time, not thousands of writes
    if len(seen) < 2:
        raise Broken(f"a folder's time did not change in {PATIENCE:.0f} s while {made} files came and went")
    # The first step began somewhere between two ticks, so it says nothing unless it is the only one.
    steps = [abs(after - before) for before, after in itertools.pairwise(seen)]
    return min(steps[1:] or steps)


def _time(ground: Ground) -> int:
    facts = ground.disk.look("times")
    return facts.mtime_ns if facts else 0


def events(ground: Ground) -> str:
    ground.disk.mkdir("events")
    told = {
        "creation": _told(ground, CREATE, lambda: _make(ground)),
        "closing": _told(ground, CLOSE_WRITE, lambda: _close_after_write(ground)),
        "removal": _told(ground, DELETE, lambda: ground.disk.unlink("events/file")),
    }
    untold = [what for what, seen in told.items() if not seen]
    if untold:
        raise Weaker(f"no file event told of the {', the '.join(untold)} of a file", IF_BLIND)
    return "file events (inotify) tell of what another process does"


def _told(ground: Ground, mask: int, action: Callable[[], object]) -> bool:
    """Tell whether an event comes of what another process does in a folder."""
    listener = ground.disk.events()
    try:
        watched = listener.watch([("events", f"{ground.disk.folder}/events", mask)])
        _elsewhere(action)
        deadline = time.monotonic() + PATIENCE
        while watched and (left := deadline - time.monotonic()) > 0:
            if listener.wait(left):
                return True
        return False
    finally:
        listener.close()


def _make(ground: Ground) -> None:
    ground.disk.close(ground.disk.create("events/file"))


def _close_after_write(ground: Ground) -> None:
    fd = ground.disk.open("events/file", write=True)
    ground.disk.write(fd, b"x")
    ground.disk.close(fd)


def _elsewhere(action: Callable[[], object]) -> None:
    """Do something in another process, and wait until it is done."""
    with Helper(lambda _: action()) as helper:
        helper.wait_for_end()


def _span(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"
