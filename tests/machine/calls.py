"""Kills a process at every system call of every operation, on a real ext4; then lets every call fail.

After each kill another process comes along: no task is lost, what was accepted stays, each is completed once,
nothing is left over, and fsck finds nothing. Then each call on a file returns EIO, and ENOSPC where it wants room: the
operation succeeds or raises QueueUnavailable, and the same holds. A small budget begins with the kills that leave a
state of their own: right after a call that changes something.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import logging
import os
import pkgutil
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from machine_kit import NotRun, Report, ext4, main, say

if True:  # found where machine_kit looks
    import sabotages
    from call_cases import CASES, Act, Case, Left
    from crash_kit import open_plain
    from traced import CAN_REFUSE, ON_FILES, WANT_ROOM, Call, CannotTrace, Traced

    import dfq
    from dfq import staleness

ENDLESS = 2000  # calls of one operation: more than any makes
REFUSED = "refused"
LATE = ("encodings.ascii", "_strptime")  # modules that Python itself imports when they are first needed
ERRORS = ((errno.EIO, ON_FILES), (errno.ENOSPC, WANT_ROOM))


class Job(NamedTuple):
    """A part of the stage: an operation, and what is done to it."""

    case: Case
    durability: str
    what: str  # "changes": kill after each call that changes something; "looks": after the others; "errors"


def plan(cases: list[Case]) -> tuple[list[Job], list[Job]]:
    """Return what is done in any case, and what is done as long as there is time, most telling first."""
    jobs = [
        Job(case, durability, what)
        for durability, what in [
            ("full", "changes"),
            ("full", "looks"),
            *([("full", "errors")] if CAN_REFUSE else []),
            ("fast", "changes"),
            ("fast", "looks"),
            *([("fast", "errors")] if CAN_REFUSE else []),
        ]
        for case in cases
    ]
    return jobs[: len(cases)], jobs[len(cases) :]


def run(report: Report, folder: Path) -> None:
    """Kill at every system call, then let every call fail."""
    cases = [case for case in CASES if not report.only or case.name in report.only]
    logging.getLogger("dfq").setLevel(logging.CRITICAL)  # it complains of the errors that we make
    staleness.TORN_GRACE = 0.05  # an empty lease counts as held for a second; hundreds of kills leave one
    gc.disable()  # each run of an operation makes the same calls
    for module in pkgutil.walk_packages(dfq.__path__, "dfq."):  # what is imported late would be a call that fails
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for late in LATE:
        importlib.import_module(late)
    always, more = plan(cases)
    with ext4(folder) as (disk, kind):
        report.figures["disk"] = kind
        report.figures["operations"] = len(cases)
        done = crew(report, disk, folder, always, more, len(os.sched_getaffinity(0)))
    all_jobs = Counter((job.durability, job.what) for job in [*always, *more])
    for (durability, what), count in all_jobs.items():
        if done[durability, what] < count:
            report.not_covered.append(f"{NAMED[what]}, durability {durability}: {done[durability, what]} of {count}")
    report.not_covered += [
        "a kill within a call: the kernel ends a write or a flush before it ends the process",
        "calls of the thread that renews leases: only the main thread's are counted",
    ]
    if not CAN_REFUSE:
        report.not_covered.append("calls that fail: only on x86-64")


NAMED = {
    "changes": "operations killed after each call that changes something",
    "looks": "operations killed after each call that only looks",
    "errors": "operations whose calls fail",
}


def crew(
    report: Report, disk: Path, folder: Path, always: list[Job], more: list[Job], workers: int
) -> Counter[tuple[str, str]]:
    """Do the jobs in some processes, each on a processor of its own; return how many of each kind were done."""
    jobs = [*always, *more]
    out, into = os.pipe()
    work_r, work_w = os.pipe()
    os.write(work_w, b"".join(number.to_bytes(2) for number in range(len(jobs))))
    os.close(work_w)
    processors = sorted(os.sched_getaffinity(0))
    pids = []
    for number in range(workers):
        pid = os.fork()
        if not pid:
            os.close(out)
            # A tracer and what it traces take turns: on one processor that is ten times as fast.
            os.sched_setaffinity(0, {processors[number % len(processors)]})
            _work(report, disk / f"w{number}", folder, jobs, len(always), work_r, into)
        pids.append(pid)
    os.close(into)
    os.close(work_r)
    done: Counter[tuple[str, str]] = Counter()
    try:
        with os.fdopen(out) as lines:
            for line in lines:
                told = json.loads(line)
                done[tuple(told["job"])] += told["whole"]
                for figure, count in told["figures"].items():
                    report.add(figure, count)
                report.violations += told["violations"]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    except BaseException:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # what they trace dies with them
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        raise
    if 3 in codes:
        raise NotRun("processes may not be traced here")
    if any(codes):
        report.violation(f"a part of the stage itself failed: {codes}")
    return done


def _work(report: Report, disk: Path, folder: Path, jobs: list[Job], always: int, work: int, into: int) -> NoReturn:
    code = 1
    try:
        disk.mkdir()
        while number := os.read(work, 2):
            job = jobs[int.from_bytes(number)]
            must = int.from_bytes(number) < always
            if not must and report.left <= 0:
                break
            mine = replace(report, violations=[], figures={})
            stage = Calls(mine, disk, folder, must=must)
            stage.do(job)
            told = {"job": job[1:], "figures": mine.figures, "violations": mine.violations, "whole": not stage.late}
            os.write(into, json.dumps(told).encode() + b"\n")
        code = 0
    except CannotTrace:
        code = 3
    except BaseException:  # noqa: BLE001 - a forked process must not return into its parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


class Calls:
    """Cuts operations off, and has what they leave looked at."""

    def __init__(self, report: Report, disk: Path, evidence: Path, *, must: bool) -> None:
        self._report = report
        self._must = must  # whatever time it takes
        self._disk = disk
        self._evidence = evidence
        self._number = 0

    @property
    def late(self) -> bool:
        """True when there is no time for more."""
        return not self._must and self._report.left <= 0

    def do(self, job: Job) -> None:
        begun = time.monotonic()
        if job.what == "errors":
            self._refuse_each_call(job.case, job.durability)
        else:
            self._kill_at_each_call(job.case, job.durability, after_changes=job.what == "changes")
        counts = ", ".join(f"{count} {what}" for what, count in self._report.figures.items())
        say(f"calls: {job.case.name} ({job.durability}, {job.what}): {counts} in {time.monotonic() - begun:.1f} s")

    def _kill_at_each_call(self, case: Case, durability: str, *, after_changes: bool) -> None:
        """Kill a process before its first call, another one before its second, and so on to the end."""
        for point in self._points(case, durability, after_changes):
            if self.late:
                return
            with self._folder() as folder:
                child = self._start(case, folder, durability)
                last = self._go(child, point)
                returned, raised = child.returned, child.raised
                child.kill()
                where = f"{case.name} ({durability}), killed {_before(last, point)}"
                if raised:
                    self._report.violation(f"{where}: it raised an error")
                    return
                self._report.add("crash points (system calls) hit")
                # A call that only looks leaves the state of the one before: a worker repairs the one, fsck the other.
                by_fsck = after_changes == (durability == "fast")
                self._judge(case, Left(folder, durability, where, returned), by_fsck=by_fsck)

    def _points(self, case: Case, durability: str, after_changes: bool) -> list[int]:
        """Return before which of its calls to kill an operation: those that follow a change, or the others.

        The first is among those that follow a change, and so is the one after the last: the operation has returned.
        """
        with self._folder() as folder:
            child = self._start(case, folder, durability)
            calls: list[Call] = []
            while (call := child.next()) is not None and len(calls) < ENDLESS:
                calls.append(call)
            child.kill()
        chosen = {1, len(calls) + 1} | {number + 1 for number, call in enumerate(calls, 1) if call.changes}
        return [point for point in range(1, len(calls) + 2) if (point in chosen) == after_changes]

    def _refuse_each_call(self, case: Case, durability: str) -> None:
        """Let the first call on a file fail, then the second, and so on; once with EIO, once with ENOSPC."""
        for code, calls in ERRORS:
            point, over = 0, False
            while not over and not self.late:
                point += 1
                with self._folder() as folder:
                    over = self._refuse(case, durability, folder, point, code, calls)

    def _refuse(self, case: Case, durability: str, folder: Path, point: int, code: int, calls: frozenset[str]) -> bool:
        """Let one call fail; True if the operation has no so many."""
        child = self._start(case, folder, durability)
        last = self._go(child, point, calls)
        if child.returned or child.raised:
            child.kill()
            return True
        child.refuse(last[-1], code)
        child.finish()
        returned, raised = child.returned, child.raised
        child.kill()
        where = f"{case.name} ({durability}), {errno.errorcode[code]} {_before(last, point)}"
        if raised or point > ENDLESS:
            self._report.violation(f"{where}: it raised something else than QueueUnavailable")
            return point > ENDLESS
        self._report.add("errors injected")
        refused = (folder.parent / REFUSED).exists()
        self._judge(case, Left(folder, durability, where, returned and not refused), by_fsck=False)
        return False

    def _start(self, case: Case, folder: Path, durability: str) -> Traced:
        refused = folder.parent / REFUSED

        def prepare() -> Act:
            act = case.prepare(folder, durability)
            if self._report.sabotage:
                sabotages.commit(self._report.sabotage)

            def acted() -> None:
                try:
                    act()
                except dfq.QueueUnavailable:
                    refused.touch()

            return acted

        return Traced(prepare)

    @staticmethod
    def _go(child: Traced, point: int, only: frozenset[str] | None = None) -> list[Call]:
        """Go on until a call (of some kinds) is about to be made for the point-th time; return the last few."""
        seen: list[Call] = []
        passed = 0
        while passed < point:
            call = child.next()
            if call is None:
                break
            seen = [*seen[-2:], call]
            passed += only is None or call.name in only
        return seen

    def _judge(self, case: Case, left: Left, by_fsck: bool) -> None:
        """Have another process repair what is left, and look at it."""

        def look() -> None:
            if case.fsck:
                _known_to_fsck(left, case.ahead, repair=by_fsck)
            case.check(left)
            if case.fsck:
                with open_plain(left.folder) as queue:
                    found = [f"{f.code} {f.path}: {f.found}" for f in queue.fsck(settle=0)]
                assert found == [], f"{left.where}: fsck: {found}"

        wrong = in_a_child(look)
        if not wrong:
            self._report.add("states repaired")
            return
        self._report.violation(f"{left.where}: {wrong}")
        with contextlib.suppress(OSError):
            shutil.copytree(left.folder, self._evidence / f"{case.name}-{os.getpid()}-{self._number}")

    def _folder(self) -> Folder:
        self._number += 1
        return Folder(self._disk / f"q{self._number}")


class Folder:
    """A place for one queue; it is gone afterwards."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        self._path.mkdir()
        return self._path / "q"

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path)


def _known_to_fsck(left: Left, ahead: float, *, repair: bool) -> None:
    """A crash leaves nothing that a person has to look at; with repair, it is mended."""
    if not (left.folder / "queue.json").exists():  # killed while it was made
        return
    with left.open_later(ahead) as queue:
        bad = [f"{f.code} {f.path}" for f in queue.fsck(settle=0) if f.level == "must"]
        assert bad == [], f"fsck says that data was lost: {bad}"
        if repair:
            bad = [f"{f.code} {f.path}" for f in queue.fsck(repair=True, settle=0) if f.repairable and not f.repaired]
            assert bad == [], f"fsck could not repair {bad}"


def _before(last: list[Call], point: int) -> str:
    return f"before call {point} ({', '.join(call.name for call in last) or 'none'})"


def in_a_child(look: Callable[[], None]) -> str:
    """Do something in a forked process: this one must stay without threads. Return what went wrong."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        wrong = b""
        try:
            look()
        except BaseException as e:  # noqa: BLE001 - whatever it was, it is told
            at = traceback.extract_tb(e.__traceback__)[-1]
            wrong = f"{type(e).__name__}: {e} [{Path(at.filename).name}:{at.lineno}: {at.line}]".encode()[:4000]
        finally:
            os.write(into, wrong)
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        wrong = pipe.read()
    os.waitpid(pid, 0)
    return wrong.decode(errors="replace")


if __name__ == "__main__":
    main("calls", run)
