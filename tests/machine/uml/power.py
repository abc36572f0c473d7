"""Power cuts on a real disk: ext4 on a block device that logs its writes, replayed to any point at which power may go.

A machine of its own (User-Mode Linux) runs producers and workers on a queue with durability = full, and marks in the
log of writes what each call had promised when it returned. Then, for one possible power cut after another, the disk
that it leaves behind is put together, mounted, and looked at: by a checker that knows only files and promises, then by
a fresh worker and fsck. The same is done with flushing left out, which has to lose something.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from power_check import Files, Promises, lost, undone
from power_guest import SABOTAGES
from stage import Report, arguments, command, conduct, own_mounts, say, scratch
from uml import Crashed, machine, prepare, python
from writelog import Cut, WriteLog, choose, copy_sparse, replay

import dfq
from dfq.config import Settings
from dfq.ports import OsDisk, SystemClock
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.check import check_queue
from dfq.providers.filesystem.housekeeping import EVERY

DISK_MIB, MEMORY_MIB = 64, 768
ROUND = 16  # power cuts that are chosen at a time
CONTROL_CUTS = 12
IDLE_ROUNDS = 10
PATIENCE = 20.0  # seconds that a fresh worker may take for what is left
NOT_COVERED = [
    "filesystems other than ext4, and mount options other than its own",
    "a disk that lies about flushing, and one that damages sectors it did not write",
    "reruns (epochs), retention, on_ack = delete and index queues",
    "that a dead worker's lease outlives a power cut: leases are not flushed, and need not be",
]


class Recording:
    """The log of a run: the disk before it, all writes to it, and the marks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base, self._log_file = folder / "base", folder / "log"
        self.killed = 0

    def make(self, seconds: float, seed: int, sabotage: str) -> None:
        """Let a machine run the workload."""
        disk = self.folder / "disk"
        with disk.open("wb") as f:
            f.truncate(DISK_MIB << 20)
        options = ("-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0,nodiscard")
        command("mkfs.ext4", "-q", "-F", *options, str(disk))
        copy_sparse(disk, self.base)
        words = ("--seconds", f"{seconds:.1f}", "--seed", str(seed), "--sabotage", sabotage)
        program = python("power_guest.py", *words)
        with machine(self.folder / "machine", program, disks=[disk], memory=MEMORY_MIB) as uml:
            said = uml.wait(seconds + 90)
            shutil.move(uml.share / "log", self._log_file)
        self.killed = json.loads(said.splitlines()[-1])["killed"]
        disk.unlink()

    def open(self) -> WriteLog:
        return WriteLog(self._log_file)

    def keep(self) -> Path:
        """Copy what is needed to replay it to a place that stays."""
        kept = Path(tempfile.mkdtemp(prefix="dfq-power-evidence-"))
        for file in (self.base, self._log_file):
            copy_sparse(file, kept / file.name)
        return kept


@contextlib.contextmanager
def mounted(image: Path, point: Path) -> Iterator[None]:
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "ext4", "-o", "loop", str(image), str(point)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(point)], check=True)


class FastClock(SystemClock):
    """A clock that can be put forward, so that nobody waits for what only time tells."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def wall(self) -> float:  # type: ignore[override]
        return time.time() + self.ahead

    def elapsed(self) -> float:
        return super().elapsed() + self.ahead


def work_off(root: Path) -> list[str]:
    """Do all that there is to do, as the first worker after a reboot; return what it was given."""
    ran, end, clock = [], time.monotonic() + PATIENCE, FastClock()
    settings = Settings(root=str(root), lease=30.0, max_attempts=2, durability="fast")
    folder = root / "q"
    folder.mkdir(exist_ok=True)
    with FilesystemQueue("q", settings, OsDisk(str(folder)), clock=clock, where=str(folder)) as queue:
        while time.monotonic() < end:  # if that is not enough the checker says what is left
            tasks = queue.poll(20)
            for task in tasks:
                queue.ack(task, result={"later": task.id})
                ran.append(task.id)
            if not tasks:
                counts = queue.counts()
                if not counts.pending + counts.leased + counts.scheduled:
                    break
                clock.ahead += 0.3
        for _ in range(IDLE_ROUNDS):  # then it clears up, a little each minute
            clock.ahead += EVERY + 1
            queue.poll()
            if not any((folder / "active-leases").rglob("*.lease")):
                break
    return ran


def fsck(root: Path) -> list[str]:
    settings = Settings(root=str(root))
    return [f"fsck: {f.level} {f.code} {f.path}: {f.found}" for f in check_queue("q", settings, repair=False)]


class Examination:
    """Power cuts of one recording, one after another."""

    def __init__(self, recording: Recording, seed: int) -> None:
        self.recording = recording
        self.log = recording.open()
        self.seed = seed
        self.images = self.promises = self.ran = 0
        self.kinds: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.losing = 0  # images in which something was lost
        self._work = recording.folder / "image"
        began = next((n for n, step in enumerate(self.log.steps) if "mounted" in step.marks), 0)
        told = [n for n, step in enumerate(self.log.steps) if any(mark.startswith("end|") for mark in step.marks)]
        # Half of the cuts are right after a promise, the others anywhere.
        self._steps = [told or [began], range(began, len(self.log.steps))]

    def round(self, number: int, cuts: int, *, deep: bool = True) -> None:
        """Try some power cuts, at random; `deep` lets a worker and fsck have a look as well."""
        chosen = choose(self.log, random.Random(f"{self.seed}-{number}"), cuts, self._steps)
        for cut, marks in replay(self.log, self.recording.base, self._work, chosen):
            wrong = self._examine(Promises.of(marks), cut, deep=deep)
            self.losing += bool(wrong)
            self.wrong += [f"round {number}, step {cut.step}, {cut.kind} done: {what}" for what in wrong]

    def _examine(self, promises: Promises, cut: Cut, *, deep: bool) -> list[str]:
        point = self.recording.folder / "mnt"
        self.images += 1
        self.kinds[cut.kind] += 1
        self.promises += len(promises)
        with mounted(self._work, point):
            queue = point / "q"
            before = Files.of(queue)
            wrong = lost(promises, before)
            if deep:
                try:
                    ran = work_off(point)
                except dfq.QueueError as e:
                    return [*wrong, f"the fresh worker failed: {e}"]
                self.ran += len(ran)
                wrong += undone(promises, before, Files.of(queue), ran)
                wrong += fsck(point)
        return wrong


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="run this alone, as if it were sound: it must be caught")
    parser.add_argument("--replay", metavar="FOLDER", help="look again at what a violation left behind")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    report = Report("power cuts on ext4", not_covered=NOT_COVERED)

    def run() -> None:
        prepare({"dmsetup": "dmsetup", "mkfs.ext4": "e2fsprogs", "mount": "mount"})
        own_mounts()
        folder = scratch("power", 2 * DISK_MIB + 600)
        try:
            _stage(report, folder, options.seconds, seed, options.sabotage or "none", options.replay)
        except Crashed as e:
            report.violations.append(str(e))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    conduct(report, run)


def _stage(report: Report, folder: Path, seconds: float, seed: int, sabotage: str, again: str | None) -> None:
    began = time.monotonic()
    controls = [] if sabotage != "none" or again else list(SABOTAGES[1:])
    if seconds < 60:
        controls = controls[:1]
    share = min(max(seconds / 6, 4), 60)
    until = began + seconds - len(controls) * 12
    recording = Recording(Path(again) if again else folder / "sound")
    if not again:
        recording.folder.mkdir()
        recording.make(share, seed, sabotage)
    examination = Examination(recording, seed)
    say(f"seed {seed}: {examination.log.figures} after {time.monotonic() - began:.1f} s")
    looking, number = time.monotonic(), 0
    while number == 0 or (time.monotonic() < until and not examination.wrong):
        examination.round(number, ROUND)
        number += 1
    spent = time.monotonic() - looking
    figures = examination.log.figures
    report.figures |= {
        "writes recorded": figures.writes,
        "flushes recorded": figures.flushes,
        "MiB written": round(figures.written / (1 << 20), 1),
        "calls marked": figures.marks,
        "workers killed meanwhile": recording.killed,
        "crash images mounted": examination.images,
        "crash images per minute": round(60 * examination.images / spent),
        "promises checked": examination.promises,
        "tasks run by the fresh workers": examination.ran,
        "images by what was done of the last writes": ", ".join(f"{k}: {n}" for k, n in examination.kinds.items()),
    }
    report.violations += examination.wrong
    if examination.wrong and not again and sabotage == "none":
        say(f"replay it: {sys.executable} {__file__} --seed {seed} --replay {recording.keep()}")
    for control in controls:
        _control(report, folder / control.replace(" ", "-"), seed, control)


def _control(report: Report, folder: Path, seed: int, sabotage: str) -> None:
    """Show that the stage fails when it has to: leave flushing out, and something must be lost."""
    folder.mkdir()
    recording = Recording(folder)
    recording.make(3, seed, sabotage)
    examination = Examination(recording, seed)
    examination.round(0, CONTROL_CUTS, deep=False)
    name = f"control: {sabotage}" if sabotage != "fast" else "control: durability = fast"
    images = f"{examination.losing} of {examination.images} images"
    report.figures[name] = f"{len(examination.wrong)} promises broken, in {images}"
    if not examination.wrong:
        report.violations.append(f"{name} lost nothing: this stage proves nothing")


if __name__ == "__main__":
    main()
