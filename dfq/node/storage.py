"""Findings about the root: is it there, what is it on, how much room is left."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from dfq.mounts import Mount, mount_of
from dfq.node.finding import Finding, fail, graded, ok, size, unknown, warn
from dfq.node.probe import Probe
from dfq.values import MIB

LOW_SPACE, NO_SPACE = 256 * MIB, 16 * MIB
LOW_SHARE = 0.05
LOW_FILES, NO_FILES = 10_000, 100  # a task needs two or three at a time

_NO_LINKS = {"vfat", "msdos", "exfat"}
_IN_MEMORY = {"tmpfs", "ramfs"}
_UNSAFE = {"nobarrier", "barrier=0", "data=writeback"}


def storage(probe: Probe, root: str) -> Iterator[Finding]:
    yield _root(root)
    there = _nearest(root)
    mount = mount_of(there, probe.read("/proc/self/mounts") or "")
    yield _filesystem(mount, there)
    if mount is not None:
        yield _options(mount)
    yield from _room(probe, there)


def _nearest(path: str) -> str:
    """Return the folder itself, or the nearest above it that is there."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _root(root: str) -> Finding:
    name = "root"
    try:
        mode = os.stat(root).st_mode
    except FileNotFoundError:
        above = _nearest(root)
        if os.access(above, os.W_OK | os.X_OK, effective_ids=True):
            return ok(name, f"{root}: not there yet, the first queue makes it")
        return fail(name, f"{root}: not there, and {above} is not ours to write", f"sudo mkdir {root} and chown it")
    except OSError as e:
        return fail(name, f"{root}: {e.strerror}", "check the path and who owns it, or set another --root")
    if not stat.S_ISDIR(mode):
        return fail(name, f"{root} is not a folder", "set another --root")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        return fail(name, f"{root} cannot be read and written by this user", f"check who owns it: ls -ld {root}")
    if mode & stat.S_IWOTH:
        return fail(name, f"{root} is writable by everyone: anyone could plant tasks", f"chmod o-w {root}")
    return ok(name, root)


def _filesystem(mount: Mount | None, there: str) -> Finding:
    name = "filesystem"
    if mount is None:
        return unknown(name, "the table of mounts cannot be read")
    shown = f"{mount.kind}, {mount.device} on {mount.point}"
    if mount.kind in _NO_LINKS:
        return fail(name, f"{shown}: no hard links, which a queue needs", "use ext4, or see dfq verify-fs")
    if not mount.local:
        return warn(name, f"{shown}: not local, leases go by time", f"see what it promises: dfq verify-fs {there}")
    if mount.kind in _IN_MEMORY:
        return warn(name, f"{shown}: in memory", "a restart loses every task: set another root")
    if mount.kind == "overlay":
        return warn(name, f"{shown}: may be gone with the container or the next start", "put the root on a volume")
    return ok(name, f"{shown}: local")


def _options(mount: Mount) -> Finding:
    name = "mount options"
    shown = ",".join(mount.options)
    card = mount.device.startswith("/dev/mmcblk")
    if "ro" in mount.options:
        fix = f"sudo mount -o remount,rw {mount.point}; an SD card that fails turns read-only: look at dmesg"
        return fail(name, f"read-only: {shown}", fix)
    if unsafe := _UNSAFE & set(mount.options):
        return warn(
            name, f"{', '.join(sorted(unsafe))}: {shown}", "a power cut may lose what was flushed: leave it out"
        )
    if card and "sync" in mount.options:
        return warn(name, f"sync, on an SD card: {shown}", "each write waits and wears the card: leave it out")
    if card and not {"noatime", "relatime", "nodiratime"} & set(mount.options):
        return warn(name, f"no noatime, on an SD card: {shown}", "reading wears the card: mount it with noatime")
    return ok(name, f"{'on an SD card: ' if card else ''}{shown}")


def _room(probe: Probe, there: str) -> Iterator[Finding]:
    try:
        space = probe.space(there)
    except OSError as e:
        yield unknown("free space", str(e.strerror))
        return
    share = space.free / space.total if space.total else 1.0
    shown = f"{size(space.free)} of {size(space.total)} ({share:.0%})"
    low = max(LOW_SPACE, LOW_SHARE * space.total) if space.free < 4 * LOW_SPACE else LOW_SPACE
    yield graded("free space", space.free, shown, low=low, too_low=NO_SPACE, fix="make room, or use a larger disk")
    if not space.files:
        yield ok("free inodes", "not counted on this filesystem")
        return
    shown = f"{space.free_files:,} of {space.files:,}"
    fix = "remove small files; a filesystem gets its inodes when it is made (mkfs -N)"
    yield graded("free inodes", space.free_files, shown, low=LOW_FILES, too_low=NO_FILES, fix=fix)
