"""Everything at once, against one queue: kill -9, SIGSTOP past the lease, a disk that fills up, a clock that jumps.

Workers (`dfq work`, and processes that use the library) and customers come and go on a small ext4 of their own. They
push, run, fail, delay, cancel, retry and rerun tasks, and write down what they do; at the end a checker that knows
nothing of the code compares that with the files of the queue.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from machine_kit import FakeClock, NotRun, Report, environment, ext4, forget_faketime, main, say

if True:  # found where machine_kit looks
    import soak_parts
    from journal import judge
    from soak_parts import BUSY, LEASE, STOP_CUSTOMERS, STOP_WORKERS, open_soak

    import dfq
    from dfq.work.guard import dies_with

WORKERS, CUSTOMERS, REAL_WORKERS = 6, 2, 2
PAUSE = 0.2  # seconds between two misfortunes
KILLS, STOPS = 0.65, 0.2  # how many of them are a kill, a stop
FEW_KILLS, MANY_STOPS = 0.1, 0.9  # for a sabotage, which needs workers that wake too late
MEBIBYTES = 512
HOUR = 3600.0
JUMPS = (-3 * 24 * HOUR, -5 * HOUR, -HOUR, HOUR, 7 * HOUR, 40 * HOUR, 12 * 24 * HOUR)
CALM = 90.0  # seconds that the end may take
PATIENCE = 20.0  # and that the workers who were there all the time get for it


@dataclass
class Victim:
    """A process that things are done to."""

    pid: int
    role: str  # worker, customer, supervisor
    handle: int  # a pidfd: its number may be another's one day
    real: subprocess.Popen[bytes] | None = None
    goes_on: float | None = None  # when to let it, if it is stopped

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)

    @property
    def dead(self) -> bool:
        if self.real is not None:
            return self.real.poll() is not None
        try:
            signal.pidfd_send_signal(self.handle, 0)
        except ProcessLookupError:
            return True
        return False


class Crowd:
    """The processes, and what befalls them."""

    def __init__(self, report: Report, folder: Path, root: Path, clock: FakeClock, chance: random.Random) -> None:
        self._report = report
        self._folder = folder
        self._root = root
        self._chance = chance
        self._env = environment(
            **clock.environment(),
            SOAK_JOURNAL=str(folder / "journal"),
            DFQ_ROOT=str(root),
            DFQ_QUEUE="soak",
            DFQ_BACKOFF="0.1,1,0.1,0",
            **{f"DFQ_{name.upper()}": str(value) for name, value in soak_parts.SETTINGS.items()},
            **({"SABOTAGE": report.sabotage} if report.sabotage else {}),
        )
        self.pids: set[int] = set()
        self.victims: list[Victim] = []
        self._number = 0
        self._kills, self._stops = (FEW_KILLS, MANY_STOPS) if report.sabotage else (KILLS, STOPS)
        with (folder / "nursery").open("wb") as log:
            self._nursery = subprocess.Popen(
                [sys.executable, soak_parts.__file__, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                preexec_fn=dies_with(os.getpid()),
                text=True,
            )
        self.pids.add(self._nursery.pid)

    def fill(self, *, customers: bool = True) -> None:
        """Bury the dead, and have as many of each kind as there should be."""
        for victim in [victim for victim in self.victims if victim.dead]:
            os.close(victim.handle)
            self.victims.remove(victim)
        wanted = {"worker": WORKERS, "customer": CUSTOMERS if customers else 0, "supervisor": REAL_WORKERS}
        for role, count in wanted.items():
            for _ in range(count - sum(victim.role == role for victim in self.victims)):
                self.victims.append(self._start(role))

    def one_more(self) -> None:
        """Let a worker come along that knows nothing of what happened."""
        self.victims.append(self._start("worker"))

    def _start(self, role: str) -> Victim:
        self._number += 1
        self._report.add("customers started" if role == "customer" else "workers started")
        real = None
        if role == "supervisor":
            with open(self._folder / f"log-{self._number}", "ab") as log:
                command = [sys.executable, "-m", "dfq", "work", "soak_parts:handle", "--workers", "2"]
                real = subprocess.Popen(
                    [*command, "--log-format", "json"],
                    env=self._env,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    cwd=self._folder,
                    preexec_fn=dies_with(os.getpid()),
                )
            pid = real.pid
        else:
            assert self._nursery.stdin is not None
            assert self._nursery.stdout is not None
            print(role, self._number, file=self._nursery.stdin, flush=True)
            pid = int(self._nursery.stdout.readline())
        self.pids.add(pid)
        return Victim(pid, role, os.pidfd_open(pid), real)

    def harm_one(self) -> None:
        """Kill or stop one of them, or one of the processes that it has."""
        self.let_go_on()
        running = [victim for victim in self.victims if victim.goes_on is None]
        what = self._chance.random()
        if len(running) <= len(self.victims) // 2 or what > self._kills + self._stops:
            return
        victim = self._chance.choice(running)
        if what < self._kills:
            # A supervisor takes a second to start: most of the time, what it has started is killed.
            if victim.role == "supervisor" and self._chance.random() < 0.85:
                self._kill_below(victim)
            else:
                victim.send(signal.SIGKILL)
                self._report.add("kill -9")
            return
        # Best one that is at a long task: it wakes while another has it.
        busy = [each for each in running if (self._folder / f"{BUSY}{each.pid}").exists()]
        victim = self._chance.choice(busy or [each for each in running if each.role != "customer"] or [victim])
        if victim.role != "customer":
            victim.send(signal.SIGSTOP)
            victim.goes_on = time.monotonic() + LEASE * self._chance.uniform(1.2, 2.0)
            self._report.add("SIGSTOP longer than the lease")

    def _kill_below(self, supervisor: Victim) -> None:
        """Kill a worker's template, or one of the children of that."""
        below = descendants(supervisor.pid)
        if below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(below), signal.SIGKILL)
                self._report.add("kill -9")
            self.pids.update(below)

    def let_go_on(self, *, all_of_them: bool = False) -> None:
        for victim in self.victims:
            if victim.goes_on is not None and (all_of_them or victim.goes_on <= time.monotonic()):
                victim.send(signal.SIGCONT)
                victim.goes_on = None

    def dismiss(self) -> None:
        """Let all of them come to their end by themselves."""
        self.let_go_on(all_of_them=True)
        for victim in self.victims:
            if victim.real is not None:
                victim.send(signal.SIGTERM)
        end = time.monotonic() + 30
        while not all(victim.dead for victim in self.victims) and time.monotonic() < end:
            time.sleep(0.05)
        late = [victim.role for victim in self.victims if not victim.dead]
        if late:
            self._report.violation(f"these did not stop when told to: {late}")

    def kill(self) -> None:
        """End whatever is left."""
        for victim in self.victims:
            below = descendants(victim.pid) if victim.real else []
            victim.send(signal.SIGKILL)
            if victim.real is not None:
                victim.real.wait()
                self.pids.update(below)
            os.close(victim.handle)
        self.victims.clear()
        self._nursery.kill()
        self._nursery.communicate()
        forget_faketime(self.pids)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    try:
        below = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []
    return [each for child in below for each in (child, *descendants(child))]


class Filler:
    """Takes all the room that a disk has, and gives it back."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "filler"
        self._until: float | None = None
        self.times = 0

    def take(self, seconds: float) -> None:
        """Leave no room for some seconds."""
        if self._until is not None:
            return
        with self._file.open("wb") as f:
            size = 64 * 1024 * 1024
            at = 0
            while size >= 512:
                try:
                    os.posix_fallocate(f.fileno(), at, size)
                    at += size
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
                    size //= 4
        self.times += 1
        self._until = time.monotonic() + seconds

    def give_back(self, *, now: bool = False) -> None:
        if self._until is not None and (now or self._until <= time.monotonic()):
            self._file.unlink()
            self._until = None


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk that can be full; without the right to mount, none is."""
    if os.geteuid() != 0:
        raise NotRun("a disk that fills up has to be mounted, which wants root")
    with ext4(folder, mebibytes=MEBIBYTES, inodes=MEBIBYTES * 600) as (point, _):
        yield point


def run(report: Report, folder: Path) -> None:
    """Run everything at once for a while, then look what became of it."""
    chance = random.Random(report.seed)
    with small_disk(folder) as disk:
        root = disk / "root"
        (folder / "root").write_text(str(root))
        open_soak(root).close()
        clock = FakeClock(folder)
        crowd = Crowd(report, folder, root, clock, chance)
        try:
            torment(report, crowd, clock, Filler(disk), chance)
            say(f"soak: what is left is worked off, {report.left:.0f} s to go")
            (folder / STOP_CUSTOMERS).touch()
            calm_down(report, crowd, root)
            say(f"soak: the workers are told to stop, {report.left:.0f} s to go")
            (folder / STOP_WORKERS).touch()
            crowd.dismiss()
        finally:
            crowd.kill()
        say(f"soak: the checker looks at it, {report.left:.0f} s to go")
        look(report, folder, root)
        if report.violations:
            shutil.copytree(root, folder / "evidence", dirs_exist_ok=True)


def torment(report: Report, crowd: Crowd, clock: FakeClock, filler: Filler, chance: random.Random) -> None:
    """Let everything happen that can, for as long as there is time."""
    next_jump = next_full = time.monotonic() + 2
    told = time.monotonic()
    reserve = min(15.0, 0.3 * report.seconds)  # for the end
    while report.left > reserve:
        crowd.fill()
        time.sleep(PAUSE)
        crowd.harm_one()
        filler.give_back()
        now = time.monotonic()
        if now >= next_jump:
            clock.jump(chance.choice(JUMPS) if chance.random() < 0.8 else 0.0)
            report.add("clock jumps")
            next_jump = now + chance.uniform(2, 6)
        if now >= next_full:
            filler.take(chance.uniform(0.3, 1.2))
            next_full = now + chance.uniform(4, 9)
        if now - told > 20:
            told = now
            say(f"soak: {report.figures}, {report.left:.0f} s to go")
    filler.give_back(now=True)
    report.figures["times the disk was full"] = filler.times
    clock.jump(0.0)
    crowd.let_go_on(all_of_them=True)


def calm_down(report: Report, crowd: Crowd, root: Path) -> None:
    """Leave the workers alone until nothing is left to do."""
    told = time.monotonic()
    end = told + CALM
    with open_soak(root) as queue:
        while True:
            if time.monotonic() - told > PATIENCE:
                # A customer may have been killed in the middle of a retry: workers that know the task as dead look
                # again every few minutes (ADR 015), a new one at once.
                told = time.monotonic()
                say(f"soak: a fresh worker comes; still to be done: {open_tasks(queue)}")
                crowd.one_more()
                report.add("fresh workers needed at the end")
            crowd.fill(customers=False)
            crowd.let_go_on()
            counts = queue.counts()
            customers = any(victim.role == "customer" for victim in crowd.victims)
            if counts.pending + counts.leased + counts.scheduled == 0 and not customers:
                return
            if time.monotonic() > end:
                report.violation(f"{CALM:g} s after the last misfortune there is work left: {counts}")
                return
            time.sleep(0.3)


def open_tasks(queue: dfq.QueueManager) -> list[str]:
    """Tell of the tasks that keep us from the end."""
    return [
        f"{task.id}: {task.state}, attempt {task.attempt}, held by {task.worker_id} since {task.claimed_at} "
        f"for another {task.expires_in} s, due {task.due_at}, stalled: {task.stalled}"
        for state in ("pending", "leased", "scheduled")
        for task in queue.tasks(state, limit=3)
    ]


def look(report: Report, folder: Path, root: Path) -> None:
    """Compare what was written down with what is on the disk."""
    for _ in range(2):
        with open_soak(root) as queue:
            queue.poll(wait=0.3)  # idle for a moment, which is when a queue clears up
    for crash in sorted(folder.glob("crash-*")):
        report.violation(f"a process ended with an error: {crash.name}: {crash.read_text()[-600:]}")
    logs = [line for path in sorted(folder.glob("log-*")) for line in path.read_text(errors="replace").splitlines()]
    for line in logs:
        if "Traceback" in line:
            report.violation(f"a worker had an error: {line}")
    found = judge((folder / "journal").read_text().splitlines(), root / "soak", logs)
    for wrong in found.all:
        report.violation(wrong)
    with open_soak(root) as queue:
        for finding in queue.fsck(settle=0):  # type: ignore[attr-defined]
            report.violation(f"fsck: {finding.code} {finding.path}: {finding.found}")
    minutes = (time.monotonic() - report.begun) / 60
    report.figures |= {
        "tasks": found.tasks,
        "runs": found.runs,
        "acks of `dfq work`": found.logged,
        "acks of processes that use the library": found.acks,
        "completed": found.completed,
        "cancelled": found.cancelled,
        "dead letters": found.failed,
        "put back after they were done": found.reruns,
        "calls refused while the disk was full": found.refused,
        "lost": len(found.lost),
        "double": len(found.double),
        "runs per minute": round(found.runs / minutes),
        "kills per minute": round(int(report.figures.get("kill -9", 0)) / minutes),
    }
    report.not_covered += [
        "a file that is written after a jump keeps the time of the real clock: only what processes read is faked",
        "power cuts: the disk itself never loses anything here",
    ]


if __name__ == "__main__":
    main("soak", run)
