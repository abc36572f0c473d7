"""How long a task waits after kill -9 of its holder until an idle worker has it. Its lease would last ten minutes more.

Beside it, in the same run: how long a bare wake-up between two processes takes, and a bare kill -9 until somebody who
waits for it notices. And the kill of a worker whose task has started processes of its own: the task must not be handed
out while one of them still runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from machine_kit import Report, environment, main, ms, percentile, say

if True:  # found where machine_kit looks
    import sabotages
    from crash_kit import forked, reap

    import dfq
    from dfq.work.guard import dies_with

LEASE = 600.0
PROMISE = 0.050  # seconds that 99 of 100 takeovers take at most, on a machine that is otherwise idle
QUIET = 0.005  # a bare wake-up takes longer than this (99 of 100) where others compete for the processors
FOR_EVER = 10.0  # nobody was woken
FEWEST = 20
FAMILY_SHARE = 0.25  # of the time, for tasks with processes of their own


def run(report: Report, folder: Path) -> None:
    """Measure takeovers."""
    idle_before = load()
    with rig(report, folder) as bench:
        until = report.left * FAMILY_SHARE
        while len(bench.took) < FEWEST or report.left > until:
            if not bench.kill_a_holder():
                break
    if report.sabotage != "deaf":
        families(report, folder)
    figures(report, bench, idle_before)


def figures(report: Report, bench: Bench, idle_before: float) -> None:
    """Write down what was measured, and compare it with what is promised."""
    took, wakes, ends = bench.took, bench.wakes, bench.ends
    report.figures["holders killed"] = len(took)
    for name, values in (("takeover", took), ("bare wake-up", wakes), ("bare kill until it is noticed", ends)):
        if values:
            report.figures |= {
                f"{name}, p50 (ms)": ms(statistics.median(values)),
                f"{name}, p90 (ms)": ms(percentile(values, 0.90)),
                f"{name}, p99 (ms)": ms(percentile(values, 0.99)),
                f"{name}, longest (ms)": ms(max(values)),
            }
    quiet = percentile(wakes, 0.99) < QUIET and idle_before < 0.5
    report.figures["load of the machine when it began"] = idle_before
    report.figures["the machine was otherwise idle"] = "yes" if quiet else "no"
    if took and percentile(took, 0.99) >= PROMISE:
        text = f"99 of 100 takeovers take up to {ms(percentile(took, 0.99))} ms, more than {ms(PROMISE)} ms"
        if quiet:
            report.violation(text)
        else:
            report.not_covered.append(f"the promise of {ms(PROMISE):g} ms: others use this machine. {text}")


def load() -> float:
    """Return how many processes wanted a processor in the last minute, for each of them."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)


class Bench:
    """An idle worker, and holders that are killed one after the other."""

    def __init__(self, report: Report, root: Path) -> None:
        self._report = report
        self._root = root
        self._told_r, self._told_w = os.pipe()
        self._go_r, self._go_w = os.pipe()
        self.took: list[float] = []
        self.wakes: list[float] = []
        self.ends: list[float] = []
        self.opened().close()
        self._number = 0
        self.idle = self._fork(self._wait_for_work)

    def opened(self) -> dfq.QueueManager:
        return dfq.open_queue("q", self._root, durability="fast", lease=LEASE)

    def _fork(self, act: Callable[[], None]) -> int:
        me = os.getpid()

        def child() -> None:
            dies_with(me)()
            if self._report.sabotage:
                sabotages.commit(self._report.sabotage)
            act()

        return forked(child)

    def _wait_for_work(self) -> None:
        queue = self.opened()
        while (word := os.read(self._go_r, 1)) in (b"g", b"w"):
            if word == b"g":
                (task,) = queue.poll(wait=600)
                seen = time.monotonic()
                queue.ack(task)
            else:
                seen = time.monotonic()
            os.write(self._told_w, f"{seen:.6f}\n".encode())

    def _hold(self) -> None:
        held = self.opened().poll(wait=30)
        os.write(self._told_w, f"held {len(held)}\n".encode())
        signal.pause()

    def kill_a_holder(self) -> bool:
        """Measure once; False if nobody was woken."""
        self._number += 1
        self.wakes.append(self._wake())
        self.ends.append(self._end())
        pid = self._fork(self._push_and_hold)
        self._hear(30)
        os.write(self._go_w, b"g")
        wait_until_asleep(self.idle)
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        heard = self._hear(FOR_EVER)
        reap(pid)
        if not heard:
            self._report.violation(f"takeover {self._number}: nobody took the task over within {FOR_EVER:g} s")
            return False
        self.took.append(float(heard) - begun)
        return True

    def _push_and_hold(self) -> None:
        with self.opened() as queue:
            queue.push({}, id=f"t{self._number}")
        self._hold()

    def _wake(self) -> float:
        """Wake the same process by a byte in a pipe."""
        wait_until_asleep(self.idle, calm=1)
        begun = time.monotonic()
        os.write(self._go_w, b"w")
        return float(self._hear(30)) - begun

    def _end(self) -> float:
        """Kill a process that does nothing, and notice it by the end of its pipe."""
        out, into = os.pipe()
        pid = forked(signal.pause)
        os.close(into)
        wait_until_asleep(pid, calm=1)
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        os.read(out, 1)
        took = time.monotonic() - begun
        os.close(out)
        reap(pid)
        return took

    def _hear(self, seconds: float) -> str:
        """Return what was told; nothing if it was not in time."""
        ready, _, _ = select.select([self._told_r], [], [], seconds)
        return os.read(self._told_r, 100).decode().strip() if ready else ""

    def close(self) -> None:
        os.kill(self.idle, signal.SIGKILL)
        reap(self.idle)
        for fd in (self._told_r, self._told_w, self._go_r, self._go_w):
            os.close(fd)


@contextlib.contextmanager
def rig(report: Report, folder: Path) -> Iterator[Bench]:
    bench = Bench(report, folder / "root")
    try:
        yield bench
    finally:
        bench.close()


def wait_until_asleep(pid: int, calm: int = 3) -> None:
    """Wait until a process has been asleep, in the same wait, for a while."""
    end, still, before = time.monotonic() + 30, 0, ""
    while still < calm:
        if time.monotonic() > end:
            raise AssertionError("the idle worker does not get to rest")
        time.sleep(0.005)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
        switches = Path(f"/proc/{pid}/status").read_text().partition("voluntary_ctxt_switches:")[2]
        still = still + 1 if state == "S" and switches == before else 0
        before = switches


# -- tasks with processes of their own --------------------------------------------------------------


def have_a_family(task: object) -> None:
    """A handler for `dfq work`: start a process that starts another one in a session of its own, and go on for long."""
    payload = task.payload  # type: ignore[attr-defined]
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stamp = os.open(payload["stamp"], os.O_CREAT | os.O_RDWR, 0o644)
            if payload["closes"]:  # it keeps nothing of what it was given, the lease least of all
                os.dup2(stamp, 3)
                stamp = 3
                os.closerange(4, 4096)
            while True:  # a sign of life each millisecond
                os.pwrite(stamp, f"{time.monotonic():.6f} {os.getpid()}".encode(), 0)
                time.sleep(0.001)
        os._exit(0)
    time.sleep(600)


def families(report: Report, folder: Path) -> None:
    """Kill workers whose task has started others; nobody may get the task while one of them runs."""
    rounds, took = 0, []
    while rounds < 2 or report.left > 0:
        rounds += 1
        place = folder / f"family-{rounds}"
        place.mkdir()
        seconds = family(report, place, closes=bool(rounds % 2))
        if seconds is None:
            break
        took.append(seconds)
    report.figures["workers killed whose task had started processes"] = rounds
    if took:
        report.figures["takeover from them, p50 (ms)"] = ms(statistics.median(took))


def family(report: Report, place: Path, *, closes: bool) -> float | None:
    """Kill one such worker; return how long the takeover took, None if something was wrong."""
    stamp = place / "stamp"
    env = environment(DFQ_ROOT=str(place), DFQ_QUEUE="q", DFQ_LEASE=str(LEASE), DFQ_DURABILITY="fast")
    if report.sabotage:
        env["SABOTAGE"] = report.sabotage
    with dfq.open_queue("q", place, durability="fast", lease=LEASE) as queue:
        queue.push({"stamp": str(stamp), "closes": closes}, id="t")
        with (place / "log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "dfq", "work", "takeover:have_a_family"],
                env=env,
                stdout=log,
                stderr=log,
                cwd=place,
                preexec_fn=dies_with(os.getpid()),
            )
        try:
            end = time.monotonic() + 60
            while not _signs(stamp):
                if time.monotonic() > end:
                    report.violation(f"the task did not start: {(place / 'log').read_text()[-500:]}")
                    return None
                time.sleep(0.01)
            queue.poll(wait=0.2)  # it is being waited for
            begun = time.monotonic()
            worker.kill()
            tasks = queue.poll(wait=FOR_EVER)
            seen = time.monotonic()
            if not tasks:
                report.violation(f"a worker whose task had processes of its own was not taken over in {FOR_EVER:g} s")
                return None
            queue.ack(tasks[0])
            time.sleep(0.05)
            if float(_signs(stamp)[0]) > seen:
                report.violation("a task was handed out while a process of its last run was still at it")
                return None
            return seen - begun
        finally:
            worker.kill()
            worker.wait()
            if signs := _signs(stamp):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(signs[1]), signal.SIGKILL)  # only a sabotage leaves it


def _signs(stamp: Path) -> list[str]:
    """Return when a task's process last showed that it lives, and which it is; nothing before it did."""
    words = stamp.read_text().split() if stamp.exists() else []
    return words if len(words) == 2 else []


if __name__ == "__main__":
    say("takeover: every other load on this machine is in the figures")
    main("takeover", run)
