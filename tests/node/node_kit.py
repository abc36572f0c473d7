"""Disks of every kind, made in a file and mounted; and dfq as a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

REPO = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

#: kind -> how its image is made, its size, the package that has the tool
IMAGES: dict[str, tuple[list[str], int, str]] = {
    "ext4": (["mkfs.ext4", "-q", "-F"], 64 * MIB, "e2fsprogs"),
    "ext4 with whole seconds": (["mkfs.ext4", "-q", "-F", "-I", "128"], 64 * MIB, "e2fsprogs"),
    "btrfs": (["mkfs.btrfs", "-q", "-f"], 256 * MIB, "btrfs-progs"),
    "xfs": (["mkfs.xfs", "-q", "-f"], 512 * MIB, "xfsprogs"),
    "vfat": (["mkfs.vfat"], 64 * MIB, "dosfstools"),
}


def not_run(why: str) -> NoReturn:
    """Say that a test could not be run; as root, who can do something about it, that is a failure."""
    if os.geteuid() != 0:
        pytest.skip(f"NOT RUN: {why}; mounting wants root")
    pytest.fail(f"NOT RUN: {why}")


def run(*command: str) -> None:
    """Run a command that must succeed."""
    env = os.environ | {"PATH": _PATH, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)
    except FileNotFoundError:
        not_run(f"there is no {command[0]}")
    if done.returncode != 0:
        not_run(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")


def need(tool: str, package: str) -> None:
    """Make sure that a tool is there; root gets it installed, once for all test processes."""
    if shutil.which(tool, path=_PATH):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        not_run(f"there is no {tool}: install {package}")
    with open(os.path.join(tempfile.gettempdir(), "dfq-test-apt.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shutil.which(tool, path=_PATH):
            run("apt-get", "update", "-qq")
            run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)


@contextlib.contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """A filesystem of its own, for as long as the block lasts."""
    if os.geteuid() != 0:
        not_run(f"{kind} cannot be mounted")
    point = folder / "mnt"
    point.mkdir()
    below: list[Path] = []
    try:
        MOUNTS.get(kind, _image)(kind, folder, point, below)
        yield point
    finally:
        for place in (point, *below):
            subprocess.run(["umount", str(place)], capture_output=True)
            subprocess.run(["umount", "-l", str(place)], capture_output=True)  # if something kept it busy


def _image(kind: str, folder: Path, point: Path, below: list[Path]) -> None:
    command, size, package = IMAGES[kind]
    need(command[0], package)
    image = folder / "image"
    with image.open("wb") as f:
        f.truncate(size)
    run(*command, str(image))
    run("mount", "-o", "loop", str(image), str(point))
    point.chmod(0o755)


def _tmpfs(kind: str, folder: Path, point: Path, below: list[Path]) -> None:
    run("mount", "-t", "tmpfs", "-o", "mode=755,size=64m", "dfq-test", str(point))


def _overlay(kind: str, folder: Path, point: Path, below: list[Path]) -> None:
    layers = folder / "layers"
    layers.mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "dfq-test", str(layers))
    below.append(layers)
    for name in ("lower", "upper", "work"):
        (layers / name).mkdir()
    options = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
    run("mount", "-t", "overlay", "-o", options, "dfq-test", str(point))


def _fat(kind: str, folder: Path, point: Path, below: list[Path]) -> None:
    """FAT by the kernel; where it does not know it, by a program (FUSE)."""
    if "\tvfat\n" in Path("/proc/filesystems").read_text():
        _image("vfat", folder, point, below)
        return
    need("mkfs.vfat", "dosfstools")
    need("fusefat", "fusefat")
    image = folder / "image"
    with image.open("wb") as f:
        f.truncate(IMAGES["vfat"][1])
    run("mkfs.vfat", str(image))
    run("fusefat", str(image), str(point), "-o", "rw+")
    _until_mounted(point)


def _fuse(kind: str, folder: Path, point: Path, below: list[Path]) -> None:
    """A filesystem that is not local, as far as the kernel can tell."""
    need("bindfs", "bindfs")
    (folder / "behind").mkdir()
    run("bindfs", str(folder / "behind"), str(point))
    _until_mounted(point)


def _until_mounted(point: Path) -> None:
    deadline = time.monotonic() + 20
    while not os.path.ismount(point):
        if time.monotonic() > deadline:
            not_run(f"{point} was not mounted in time")
        time.sleep(0.02)


MOUNTS: dict[str, Callable[[str, Path, Path, list[Path]], None]] = {
    "tmpfs": _tmpfs,
    "overlay": _overlay,
    "fat": _fat,
    "fuse": _fuse,
}


def environment(home: Path, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DFQ_", "COCLI_", "XDG_"))}
    return env | {"PYTHONPATH": str(REPO), "HOME": str(home), "TERM": "xterm"} | more


def dfq(*args: str, home: Path, before: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Run dfq with its streams piped, and never let a traceback pass."""
    command = [*before, sys.executable, "-m", "dfq", *args]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment(home, **env), cwd=home, timeout=200)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran
