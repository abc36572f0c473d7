"""Findings about memory, and about what the system lets a process have."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from dfq.node.finding import Finding, graded, ok, size, unknown, warn
from dfq.node.probe import Probe
from dfq.providers.filesystem.wake import MAX_WATCHES
from dfq.values import MIB

LOW_MEMORY, NO_MEMORY = 128 * MIB, 32 * MIB
SWAP_SHARE = 0.75
OPEN_FILES = 1024  # a lease that is held is a file that is open
PROCESSES = 256
THREADS = 1024
INSTANCES = 16  # one for each process that waits for tasks
INOTIFY = "/proc/sys/fs/inotify"


def limits(probe: Probe, shards: int) -> Iterator[Finding]:
    memory = probe.memory()
    shown = f"{size(memory.available)} of {size(memory.total)} available"
    fix = "fewer workers, or --max-rss for them"
    yield graded("memory", memory.available, shown, low=LOW_MEMORY, too_low=NO_MEMORY, fix=fix)
    yield _swap(memory.swap, memory.swap_used)
    yield _limit(probe, "open files", resource.RLIMIT_NOFILE, OPEN_FILES, "ulimit -n, or LimitNOFILE= of the service")
    yield _limit(probe, "processes", resource.RLIMIT_NPROC, PROCESSES, "ulimit -u, or TasksMax= of the service")
    yield _kernel(probe, "threads", "/proc/sys/kernel/threads-max", THREADS, "kernel.threads-max")
    # A worker that waits watches every shard of a lane and of the leases; more lanes take more.
    watches = min(MAX_WATCHES, 2 * shards + 16)
    yield _kernel(probe, "inotify watches", f"{INOTIFY}/max_user_watches", watches, "fs.inotify.max_user_watches")
    instances = f"{INOTIFY}/max_user_instances"
    yield _kernel(probe, "inotify instances", instances, INSTANCES, "fs.inotify.max_user_instances")


def _swap(total: int, used: int) -> Finding:
    if not total:
        return ok("swap", "none")
    shown = f"{size(used)} of {size(total)} used"
    if used > SWAP_SHARE * total:
        return warn("swap", shown, "fewer workers: swapping is slow, and wears an SD card")
    return ok("swap", shown)


def _limit(probe: Probe, name: str, kind: int, needed: int, how: str) -> Finding:
    soft, hard = probe.limit(kind)
    if soft is None:
        return ok(name, "no limit")
    shown = f"{soft:,}" + (f", may be raised to {hard:,}" if hard is not None and hard > soft else "")
    return ok(name, shown) if soft >= needed else warn(name, shown, f"{needed:,} are better: {how}")


def _kernel(probe: Probe, name: str, path: str, needed: int, setting: str) -> Finding:
    text = (probe.read(path) or "").strip()
    if not text.isdecimal():
        return unknown(name, f"{path} cannot be read")
    found = int(text[:18])
    if found >= needed:
        return ok(name, f"{found:,}; {needed:,} are wanted")
    return warn(name, f"{found:,}, fewer than the {needed:,} wanted", f"sudo sysctl {setting}={4 * needed}")
