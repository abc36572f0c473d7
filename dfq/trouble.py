"""What the operating system says, as an error that tells a person what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from dfq.errors import QueueUnavailable

_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "raise the quota or free some space",
    errno.EROFS: "remount it for writing; an SD card that fails turns read-only",
    errno.EACCES: "check who owns the folder",
    errno.EPERM: "check who owns the folder, and with 'dfq verify-fs' whether the filesystem has hard links",
    errno.EOPNOTSUPP: "this filesystem cannot do it: 'dfq verify-fs' tells what else it lacks",
    errno.ENOSYS: "this filesystem cannot do it: 'dfq verify-fs' tells what else it lacks",
    errno.ENOLCK: "this filesystem hands out no locks: 'dfq verify-fs' tells what else it lacks",
    errno.EIO: "the device fails: look at dmesg",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


@contextlib.contextmanager
def trouble(what: str, where: str) -> Iterator[None]:
    """Turn an OSError into a QueueUnavailable that names the file and the way out."""
    try:
        yield
    except OSError as e:
        file = e.filename2 or e.filename or where
        text = os.path.join(where, os.fsdecode(file)) if isinstance(file, str | bytes) else where
        hint = _HINTS.get(e.errno or 0)
        raise QueueUnavailable(f"{what}: {text}: {e.strerror}{f' ({hint})' if hint else ''}") from e
