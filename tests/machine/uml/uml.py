"""A Linux machine of our own within this one: User-Mode Linux, which boots in two seconds.

Its root is the host's, read-only. It has a CPU, some disks that are files of the host, and a folder that it shares
with the host, in which the program that it runs is found and what that says is left.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stage import PATH, REPO, CannotRun, die_with_parent, need

HERE = Path(__file__).resolve().parent
MODULES = Path("/usr/lib/uml/modules")


class Crashed(Exception):
    """The program in the machine failed, or the machine did; the text has the end of what it said."""


class Uml:
    """A machine that runs one program. `folder` gets what it says; it must not have blanks in its path."""

    def __init__(
        self, folder: Path, program: Sequence[str], *, disks: Sequence[Path] = (), memory: int = 256, **env: str
    ) -> None:
        self.folder = folder
        self.share = folder / "share"
        self.share.mkdir()
        self._began = time.monotonic()
        lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        lines.append(f"export PYTHONPATH={shlex.quote(str(REPO))} PYTHONDONTWRITEBYTECODE=1")
        lines.append(f"hostname {shlex.quote(platform.node() or 'uml')}")
        lines.append(f"exec {shlex.join(program)}")
        (self.share / "program").write_text("\n".join(lines) + "\n")
        self._console = (folder / "console").open("wb")
        self._process = subprocess.Popen(
            [
                *("taskset", "-c", str(_a_cpu())),  # its threads take turns: on one CPU that is six times as fast
                *("linux.uml", f"mem={memory}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
                *("con=null", "con0=null,fd:1", "ssl=null", "umid=dfq", f"uml_dir={folder}/"),
                *(f"ubd{n}={disk}" for n, disk in enumerate(disks)),
                *(f"HOST_FOLDER={self.share}", "init=/bin/sh", "--", str(HERE / "init.sh")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=subprocess.STDOUT,
            env={"PATH": PATH, "HOME": str(folder), "TMPDIR": str(folder)},  # its memory is a file in TMPDIR
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def wait(self, seconds: float) -> str:
        """Wait until the program has ended, and return what it said. Raises Crashed."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Crashed(f"the machine was still running after {seconds:.0f} s:\n{self._last_words()}") from None
        finally:
            self.off()
        status = self.share / "status"
        if not status.exists():
            raise Crashed(f"the machine stopped:\n{self._last_words()}")
        if status.read_text().strip() != "0":
            raise Crashed(f"its program ended with status {status.read_text().strip()}:\n{self._last_words()}")
        return (self.share / "output").read_text()

    def off(self) -> None:
        """Turn the machine off at once, as pulling its plug would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._console.close()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _last_words(self) -> str:
        said = ""
        for file in (self.folder / "console", self.share / "output"):
            if file.exists():
                said += f"-- {file.name}\n" + file.read_text(errors="replace")[-1500:]
        return said


@contextlib.contextmanager
def machine(folder: Path, program: Sequence[str], **options: object) -> Iterator[Uml]:
    """A machine that is off when the block is left."""
    folder.mkdir(parents=True)
    running = Uml(folder, program, **options)  # type: ignore[arg-type]
    try:
        yield running
    finally:
        running.off()


def python(script: str, *args: str) -> list[str]:
    """Return the command that runs a script of this folder within a machine."""
    return [sys.executable, str(HERE / script), *args]


def prepare(more: dict[str, str]) -> None:
    """Install what a machine needs, and try whether one starts at all. Raises CannotRun."""
    if os.geteuid() != 0:
        raise CannotRun("disks and network of a machine want root")
    if platform.machine() != "x86_64":
        raise CannotRun(f"User-Mode Linux is for x86_64, this is {platform.machine()}")
    need({"linux.uml": "user-mode-linux", "insmod": "kmod", "taskset": "util-linux"} | more)
    if " " in str(REPO):
        raise CannotRun(f"the path of the checkout has a blank in it, which a kernel's arguments cannot: {REPO}")


def load(*modules: str, **options: str) -> None:
    """Within the machine: load modules of its kernel, each with what it needs; options are for the last one."""
    base = MODULES / platform.release()
    order = {}
    for line in (base / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        order[Path(path).stem.replace("_", "-")] = [*reversed(needs.split()), path]
    for module in modules:
        for path in order.get(module.replace("_", "-"), []):
            if Path(path).stem.replace("-", "_") not in _loaded():
                given = [f"{name}={value}" for name, value in options.items()] if module == modules[-1] else []
                subprocess.run(["insmod", str(base / path), *given], check=True)


def _loaded() -> set[str]:
    return {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}


def _a_cpu() -> int:
    return random.choice(sorted(os.sched_getaffinity(0)))


def cleared(folder: Path) -> None:
    """Remove a folder of machines."""
    shutil.rmtree(folder, ignore_errors=True)
