"""What kind of filesystem a path lies on, and whether only this machine writes to it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

#: The numbers by which the kernel names filesystems, for those that matter here.
_KINDS = {
    0xEF53: "ext4",  # or ext2, ext3
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlay",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
    0x3153464A: "jfs",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb",
    0x65735546: "fuse",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x4D44: "vfat",
    0x2011BAB0: "exfat",
    0x7366746E: "ntfs3",
}
#: Filesystems whose locks this kernel alone hands out. Others (NFS, CIFS, FUSE, 9p, …) go by time.
_LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "overlay", "zfs", "bcachefs", "jfs")
)


def is_local(path: str) -> bool:
    """Tell whether a path lies on a filesystem that only this machine writes to."""
    return filesystem_kind(path) in _LOCAL


def filesystem_kind(path: str) -> str:
    """Return the kind of filesystem that a path lies on ("ext4"), or "unknown".

    The kernel is asked, not /proc/mounts: in a chroot that does not list what one stands on.
    """
    import ctypes

    # f_type is the first word of struct statfs, whatever else an architecture puts into it.
    buffer = (ctypes.c_long * 64)()
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), ctypes.byref(buffer)) != 0:
        return "unknown"
    return _KINDS.get(buffer[0] & 0xFFFFFFFF, "unknown")


class Mount(NamedTuple):
    """A line of the kernel's table of mounts."""

    device: str
    point: str
    kind: str
    options: tuple[str, ...]

    @property
    def local(self) -> bool:
        return self.kind in _LOCAL


def mount_of(path: str, table: str | None = None) -> Mount | None:
    """Return the mount that a path lies on; None if that cannot be told. The table is the kernel's unless given."""
    if table is not None:
        return _mount_in(table, path)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            listed = _mount_in(mounts.read(), path)
    except OSError:
        listed = None
    kind = filesystem_kind(path)
    if kind == "unknown" or (listed is not None and listed.kind in _SAME_NUMBER.get(kind, (kind,))):
        return listed
    return Mount("a device that is not listed", "here", kind, ())  # in a chroot: the table does not tell


def _mount_in(table: str, path: str) -> Mount | None:
    real, best = os.path.realpath(path) + "/", None
    for line in table.split("\n"):
        fields = [_OCTAL.sub(lambda m: chr(int(m[1], 8)), field) for field in line.split(" ")]
        if len(fields) < 4:
            continue
        mount = Mount(fields[0], fields[1], fields[2], tuple(fields[3].split(",")))
        # The last of equals counts: it was mounted over the others.
        if real.startswith(mount.point.rstrip("/") + "/") and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


_OCTAL = re.compile(r"\\([0-7]{3})")  # how the table writes a blank, a tab, a newline and a backslash
_SAME_NUMBER = {"ext4": ("ext2", "ext3", "ext4"), "nfs": ("nfs", "nfs4"), "tmpfs": ("tmpfs", "devtmpfs")}
