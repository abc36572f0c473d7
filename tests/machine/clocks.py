"""The time of day jumps by hours and by years under live processes, in the middle of leases, delays and retention.

In each round one jump (or a jump and the way back) comes at a random moment. A lease that is renewed is not taken over,
and can be acked; one whose holder is stopped is taken over when its time is up, not earlier and not never; delays
neither fire early nor freeze; nothing that is over is removed.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from os import getpid
from pathlib import Path
from typing import Any

from machine_kit import FakeClock, Report, environment, forget_faketime, main, say

if True:  # found where machine_kit looks
    from dfq.work.guard import dies_with

HOUR, DAY, YEAR = 3600.0, 86400.0, 365.25 * 86400.0
JUMPS = (40 * DAY, -HOUR, HOUR, -40 * DAY, YEAR, -YEAR, 9 * HOUR, -9 * HOUR, 10 * YEAR, -10 * YEAR)
DELAY = 2.0
STOPPED_LEASE = 1.5
LATEST = "latest of what had to come (s)"
LATE = 20.0  # seconds after which something that should have come counts as frozen
COMING = {"delayed", "nacked", "stopped"}


class Process:
    """A servant that lives under the clock."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("clock_parts.py")), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
            preexec_fn=dies_with(getpid()),
        )
        self.pid = self._popen.pid

    def tell(self, what: str, **given: Any) -> Any:
        """Have something done; return the answer with its times."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        print(json.dumps({"what": what, **given}), file=self._popen.stdin, flush=True)
        line = self._popen.stdout.readline()
        if not line:
            raise AssertionError(f"the process ended at {what} {given}: see above")
        return json.loads(line)

    def ask(self, what: str, **given: Any) -> Any:
        return self.tell(what, **given)["answer"]

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def close(self) -> None:
        self._popen.kill()
        self._popen.communicate()


class Scene:
    """One round: processes, tasks in every state, and a jump."""

    def __init__(self, report: Report, folder: Path, clock: FakeClock, chance: random.Random) -> None:
        self._report = report
        self._root = folder
        self._clock = clock
        self._chance = chance
        self._env = environment(**clock.environment())
        if report.sabotage:
            self._env["SABOTAGE"] = report.sabotage

    def play(self, jump: float, *, back: bool) -> None:
        self._what = f"the clock jumps by {jump / HOUR:+,.0f} h{' and back' if back else ''}"
        self._clock.jump(0.0)
        with self._process() as holder, self._process() as stopped, self._process() as worker:
            self._prepare(holder, stopped, worker)
            self._pause()
            self._jump(jump, worker)
            came = self._come(worker, back)
            self._judge(came, holder, stopped, worker)
            with self._process() as fresh:  # one that knows no other time
                if fresh.ask("claim", wait=0.1):
                    self._wrong("something was handed out twice")
                self._kept(fresh)
            self._kept(worker)

    def _prepare(self, holder: Process, stopped: Process, worker: Process) -> None:
        for process, task, lease in ((holder, "held", 8.0), (stopped, "stopped", STOPPED_LEASE)):
            worker.tell("push", id=task)
            answer = process.tell("claim", wait=10, lease=lease)
            assert answer["answer"] == [task], answer
            self._claimed = answer["begun"]
        for task in ("done", "dead", "nacked"):
            worker.tell("push", id=task)
            assert worker.ask("claim", wait=10) == [task]
        worker.tell("ack", id="done")
        worker.tell("nack", id="dead")
        assert worker.ask("claim", wait=10) == ["dead"]
        worker.tell("nack", id="dead")
        self._nacked = worker.tell("nack", id="nacked", delay=DELAY, count=False)["begun"]
        self._pushed = worker.tell("push", id="delayed", delay=DELAY)["begun"]
        stopped.send(signal.SIGSTOP)
        self._stopped = time.monotonic()

    def _jump(self, seconds: float, process: Process) -> None:
        self._clock.jump(seconds)
        self._report.add("clock jumps")
        seen = process.ask("wall") - time.time()
        if abs(seen - seconds) > 60:
            raise AssertionError(f"the clock did not jump: {seen:+.0f} s instead of {seconds:+.0f} s")

    def _come(self, worker: Process, back: bool) -> dict[str, float]:
        """Claim what comes, and tell when that was."""
        came: dict[str, float] = {}
        end = time.monotonic() + LATE
        while not came.keys() >= COMING and time.monotonic() < end:
            answer = worker.tell("claim", wait=0.5)
            came |= dict.fromkeys(answer["answer"], answer["ended"])
            if back and self._chance.random() < 0.5:
                self._jump(0.0, worker)
                back = False
        return came

    def _judge(self, came: dict[str, float], holder: Process, stopped: Process, worker: Process) -> None:
        if "held" in came:
            self._wrong("a lease that its holder renews was taken over")
        elif holder.ask("ack", id="held") != "done":
            self._wrong("a lease that nobody took over could not be acked")
        since = {"delayed": (self._pushed, DELAY), "nacked": (self._nacked, DELAY)}
        since["stopped"] = (self._claimed, STOPPED_LEASE)
        for task, (begun, wanted) in since.items():
            if task not in came:
                self._wrong(f"{task}: it did not come within {LATE:g} s")
                continue
            late = came[task] - begun - wanted
            since_stop = came[task] - self._stopped - wanted if task == "stopped" else late
            self._report.figures[LATEST] = round(max(since_stop, float(self._report.figures.get(LATEST, 0.0))), 2)
            if late < 0:
                self._wrong(f"{task}: it came {-late:.2f} s early")
            if worker.ask("ack", id=task) != "done":
                self._wrong(f"{task}: it could not be acked")
        stopped.send(signal.SIGCONT)
        if "stopped" in came and stopped.ask("ack", id="stopped") != "lost":
            self._wrong("a lease that was taken over could be acked")

    def _kept(self, process: Process) -> None:
        for task, state in (("done", "completed"), ("delayed", "completed"), ("dead", "failed")):
            if (found := process.ask("state", id=task)) != state:
                self._wrong(f"{task}: it should be {state}, and is {found}")

    def _pause(self) -> None:
        time.sleep(self._chance.random() * 0.5)

    def _wrong(self, what: str) -> None:
        self._report.violation(f"{self._what}: {what}")

    @contextlib.contextmanager
    def _process(self) -> Iterator[Process]:
        process = Process(self._root, self._env)
        try:
            yield process
        finally:
            process.close()
            forget_faketime({process.pid})


def run(report: Report, folder: Path) -> None:
    """Jump at the worst moments."""
    chance = random.Random(report.seed)
    clock = FakeClock(folder)
    rounds = 0
    while rounds < (1 if report.sabotage else 2) or report.left > 0:
        place = folder / f"root-{rounds}"
        jump = JUMPS[rounds % len(JUMPS)]
        Scene(report, place, clock, chance).play(jump, back=rounds // len(JUMPS) % 2 == 1)
        say(f"clocks: {jump / HOUR:+,.0f} h")
        rounds += 1
    report.figures["rounds"] = rounds
    report.figures["jumps tried (h)"] = ", ".join(f"{jump / HOUR:+.0f}" for jump in JUMPS[:rounds])
    report.not_covered += [
        "times that the kernel gives to files: they follow the real clock",
        "a clock that jumps while the machine boots",
    ]


if __name__ == "__main__":
    main("clocks", run)
