"""What kind of filesystem a path is on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dfq.mounts import filesystem_kind, mount_of


def test_the_kernel_knows_the_kind_also_where_the_table_of_mounts_does_not(tmp_path: Path) -> None:
    known = filesystem_kind(str(tmp_path))
    assert known != "unknown"
    if os.geteuid() != 0:
        pytest.fail("NOT RUN: chroot needs root")
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import ctypes, os; from dfq.mounts import filesystem_kind, is_local\n"
    )
    code += f"os.chroot({str(tmp_path)!r}); os.chdir('/'); print(filesystem_kind('/'), is_local('/'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told == [known, "True"]


def test_a_mount_point_with_odd_characters_is_found() -> None:
    table = "/dev/a / ext4 rw 0 0\nserver:/x /srv/a\\040b nfs4 rw 0 0\n/dev/b /srv/\udce9 xfs ro 0 0\n"
    kinds = {path: mount.kind for path in ("/srv/x", "/srv/a b/c", "/srv/\udce9/d") if (mount := mount_of(path, table))}
    assert kinds == {"/srv/x": "ext4", "/srv/a b/c": "nfs4", "/srv/\udce9/d": "xfs"}


def test_a_missing_path_is_of_no_kind() -> None:
    assert filesystem_kind("/nowhere/at/all") == "unknown"
