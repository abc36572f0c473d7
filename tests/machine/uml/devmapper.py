"""Within the machine: a disk whose writes are all logged, in the order in which they became durable."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess

from uml import load

_DM_TARGET_MSG = 0xC138FD0E  # _IOWR(0xfd, 14, struct dm_ioctl)
_HEADER = "<3I 7I Q 128s 129s 7x"
_SIZE = struct.calcsize(_HEADER)


class LoggedDisk:
    """A device over another one; what is written to it is logged on a third (dm-log-writes)."""

    def __init__(self, name: str, device: str, log: str) -> None:
        self.name = name
        load("dm-mod", "dm-log-writes")
        sectors = int(subprocess.run(["blockdev", "--getsz", device], check=True, capture_output=True).stdout)
        self._dmsetup("create", name, "--noudevsync", "--table", f"0 {sectors} log-writes {device} {log}")
        self.path = f"/dev/mapper/{name}"

    def remove(self) -> None:
        """Take the device away; when this returns, the log is whole."""
        self._dmsetup("remove", "--noudevsync", self.name)

    @staticmethod
    def _dmsetup(*words: str) -> None:
        subprocess.run(["dmsetup", *words], check=True, env=os.environ | {"DM_DISABLE_UDEV": "1"})


class Marker:
    """Puts marks into a log: whatever was durable before a mark comes before it. Each process has its own."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._control = os.open("/dev/mapper/control", os.O_RDWR)

    def mark(self, *words: str) -> None:
        text = "|".join(words)
        if not text.isascii() or " " in text or "\\" in text or len(text) > 400:
            raise ValueError(f"not a mark: {text}")
        message = struct.pack("<Q", 0) + f"mark {text}".encode() + b"\0"
        size = _SIZE + len(message)
        header = struct.pack(_HEADER, 4, 0, 0, size, _SIZE, 0, 0, 0, 0, 0, 0, self._name, b"")
        fcntl.ioctl(self._control, _DM_TARGET_MSG, header + message)
