"""One run of a scenario: its processes, and the moves that make it what it is.

A move is one thing that happens. A list of moves is the whole of a run: the same list gives the same run.

    ("go", "A", 3)       process A makes its next three calls on the disk
    ("crash", "A")       it dies before its next call
    ("fail", "A", 28)    its next call fails with this errno, and does nothing
    ("lose", "A", 5)     its next call does what it should, and reports this errno all the same
    ("lag", "A", 2)      its next listing misses the last two changes
    ("pass", 90.0)       time passes
    ("jump", -7200.0)    the wall clock is set
    ("cut", 4711)        what if the power went now? The number chooses what is left; the run itself goes on
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from checkers import Checker
from greenlet import getcurrent, greenlet
from simdisk import Crashed, Platter, SimClock, SimDisk, oserror
from workers import TTL, Scenario, Worker, set_actor

from dfq.staleness import Judge

Move = tuple[Any, ...]

#: Calls that no other process can tell from their absence (unless the power goes). The bounded search does not
#: switch before them.
UNSEEN = frozenset(
    ("unnamed", "prepare", "lock", "fsync", "fsync_dir", "sync_all", "close", "touch", "mkdir", "look", "kind"),
)
#: Calls before which a death makes a difference: one that happens before a look might as well happen after it.
CHANGES = frozenset(("create", "link", "link_path", "write", "unlink", "replace"))
MAX_CALLS = 4_000
WITHOUT_END = 1 << 60


class Violation(AssertionError):
    """A promise that a run broke, and the moves that show it again."""

    def __init__(self, run: Run) -> None:
        self.moves = list(run.moves)
        self.texts = list(run.checker.violations)
        super().__init__("\n".join([*self.texts, *run.trace_lines()]))


class Process:
    """A script on its way."""

    def __init__(self, run: Run, name: str, script: str) -> None:
        self.name = name
        self.over = False
        self.dead = False
        self.history = 0  # a digest of all it has learned, which is its state
        self.calls = 0
        self.pending: tuple[str, str | int] = ("start", "")
        self._run = run
        self._left = 0  # calls that it may make before it is asked to wait
        self._unseen = frozenset[str]() if run.every_call else UNSEEN
        self._fault: tuple[str, int] | None = None
        self._lost: int | None = None  # the reply to the call that is being made
        self._lag = 0
        self.disk = SimDisk(run.platter, self, local=run.scenario.local)
        self.worker = Worker(run.scenario, name, self.disk, run.clock, run.checker)
        self.worker.crowded = lambda: any(p.inside for p in run.processes.values() if p is not self)
        self._greenlet = greenlet(lambda: self._body(script))

    @property
    def changes(self) -> bool:
        """Tell whether its next call changes anything that others see."""
        return self.pending[0] in CHANGES

    @property
    def inside(self) -> bool:
        """Tell whether it is in the middle of something that it must not be stopped in for an hour."""
        return not self.over and self.worker.settling

    def go(self, calls: int) -> None:
        self._left = calls
        set_actor(self.worker)
        self._greenlet.switch()

    def crash(self) -> None:
        self._run.note(self.name, "CRASHES before", " ".join(map(str, self.pending)))
        self.stop()
        self._run.platter.kill(self.name)
        self._run.checker.let_go(self.name)

    def stop(self) -> None:
        """End a run that is not of interest any more."""
        self.over = self.dead = True
        if self._greenlet:
            self._greenlet.throw(Crashed)

    def fail(self, kind: str, code: int) -> None:
        """Let the next call fail, or its reply be lost."""
        self._fault = (kind, code)

    def lag_behind(self, changes: int) -> None:
        self._lag = changes

    def _body(self, script: str) -> None:
        try:
            self.worker.run(script)
        except Crashed:
            pass
        except Exception as e:  # noqa: BLE001 - whatever it is, the run has found something
            if not self.dead:
                self._run.checker.failure(self.name, e)
        self._run.platter.kill(self.name)
        self._run.checker.let_go(self.name)
        self.over = True

    # -- for the disk ------------------------------------------------------------------------------

    def step(self, what: str, where: str | int) -> None:
        if self.dead:
            raise Crashed
        if what not in self._unseen:
            if self._left <= 0:
                self.pending = (what, where)
                getcurrent().parent.switch()
                if self.dead:
                    raise Crashed
            self._left -= 1
            self.calls += 1
            if self.calls > MAX_CALLS:
                raise RuntimeError("it does not come to an end")
        if self._run.trace is not None:
            self._run.note(self.name, what, self.disk.named(where) if isinstance(where, int) else where)
        if self._fault is not None and what not in ("wait", "close"):
            (kind, code), self._fault = self._fault, None
            if kind == "lose":
                self._lost = code
            else:
                self._learn(code)
                raise oserror(code, str(where))

    def told(self, outcome: Any) -> None:
        self._learn(outcome)
        if self._lost is not None:
            code, self._lost = self._lost, None
            raise oserror(code, "the reply was lost")

    def lag(self) -> int:
        lag, self._lag = self._lag, 0
        return lag

    def _learn(self, outcome: Any) -> None:
        if self._run.exploring:
            self.history = hash((self.history, outcome))
        if self._run.trace is not None:
            self._run.trace[-1].append(outcome)


class Alone:
    """A process that nobody disturbs."""

    def __init__(self, run: Run, name: str) -> None:
        self.name = name
        self._run = run
        self.disk = SimDisk(run.platter, self, local=run.scenario.local)

    def step(self, what: str, where: str | int) -> None:
        if self._run.trace is not None:
            self._run.note(self.name, what, self.disk.named(where) if isinstance(where, int) else where)

    def told(self, outcome: Any) -> None:
        if self._run.trace is not None:
            self._run.trace[-1].append(outcome)

    def lag(self) -> int:
        return 0


class Run:
    """One schedule of a scenario. A run that starts from `start` finds what that one has done.

    With `power` it starts after a power cut, and has no processes but those that are let run alone.
    """

    def __init__(
        self,
        scenario: Scenario,
        start: Run | None = None,
        *,
        every_call: bool = False,
        exploring: bool = False,
        traced: bool = False,
        power: random.Random | None = None,
    ) -> None:
        self.scenario = scenario
        self.every_call = every_call
        self.exploring = exploring
        self.trace: list[list[Any]] | None = [] if traced else None
        self.moves: list[Move] = []
        self.seen: set[int] = set()  # ends that were looked at
        self.current: Process | None = None
        self.processes: dict[str, Process] = {}
        if start is None:
            self.platter = Platter(SimClock())
            self.clock = self.platter.clock
            patience = TTL if scenario.judge is Judge else None
            self.checker = Checker(self.platter, max_attempts=scenario.max_attempts, patience=patience)
            self.alone("setup", scenario.before)
            self.checker.let_go("setup")
        elif power is not None:
            self.platter = start.platter.power_cut(power)
            self.clock = self.platter.clock
            self.checker = start.checker.moved_to(self.platter)
            self.checker.booted()
            self.moves = start.moves
            if self.trace is not None:
                self.trace += start.trace or []
                self.note("-----", "POWER CUT, which left", " ".join(sorted(_files(self.platter))))
        else:
            self.platter = start.platter.copy()
            self.clock = self.platter.clock
            self.checker = start.checker.moved_to(self.platter)
            scripts = zip("ABCDEF", scenario.scripts, strict=False)
            self.processes = {name: Process(self, name, script) for name, script in scripts}

    def alive(self) -> list[Process]:
        return [p for p in self.processes.values() if not p.over]

    def follow(self, moves: Iterable[Move]) -> None:
        """Make moves, those that make no sense excepted. Raises Violation."""
        for move in moves:
            self.make(move)

    def make(self, move: Move) -> None:
        self.moves.append(move)
        verb = move[0]
        if verb == "go":
            self._go(move[1], move[2])
        elif verb == "cut":
            if self.scenario.durable:
                self._cut(move[1])
        elif verb == "jump":
            self.note("-----", "THE WALL CLOCK JUMPS by", f"{move[1]:+g} s")
            self.clock.jump(move[1])
        elif verb == "pass":
            self.note("-----", "TIME PASSES", f"{move[1]:g} s")
            self.clock.advance(move[1])
        elif (process := self.processes.get(move[1])) is not None and not process.over:
            if verb == "crash":
                process.crash()
            elif verb == "lag":
                process.lag_behind(move[2])
            else:
                process.fail(verb, move[2])
                self.note(process.name, "gets an error next:" if verb == "fail" else "loses a reply:", str(move[2]))
        self.check()

    def _go(self, name: str, calls: int) -> None:
        process = self.processes.get(name)
        if process is not None and not process.over:
            self.current = process
            process.go(calls)

    def _cut(self, number: int) -> None:
        after = Run(self.scenario, self, power=random.Random(number), traced=self.trace is not None)
        after.seen = self.seen
        try:
            after.check()
            after.finish_once()
        except Violation:
            self.abandon()
            raise
        if self.current is not None:
            set_actor(self.current.worker)

    def complete(self) -> None:
        """Let all processes come to their end, one after the other. Raises Violation."""
        for process in self.processes.values():
            if not process.over:
                self.make(("go", process.name, WITHOUT_END))

    def alone(self, name: str, script: str) -> None:
        """Run a process that nobody disturbs."""
        worker = Worker(self.scenario, name, Alone(self, name).disk, self.clock, self.checker)
        set_actor(worker)
        try:
            worker.run(script)
        except Exception as e:  # noqa: BLE001 - whatever it is, the run has found something
            self.checker.failure(name, e)
        self.platter.kill(name)

    def finish_once(self) -> None:
        """Finish, unless the same was left before. Raises Violation."""
        key = self.end_key()
        if key not in self.seen:
            self.finish()
            self.seen.add(key)

    def finish(self) -> None:
        """Let a fresh worker clear up, and look at what is left. Raises Violation."""
        fsck = self.scenario.fsck
        if not self.processes and self.scenario.after:
            self.alone("after", self.scenario.after)
        if fsck:
            self.alone("fsck", "fsck fsck_again")
        self.alone("fresh", "repair")
        if self.calm:  # then nobody has to clear up either
            self.checker.finish()
            self.check()
        self.alone("fsck" if fsck else "tidy", "fsck fsck_again" if fsck else "tidy")
        self.checker.finish()
        self.check()
        if self.scenario.fsck_at_end:
            self.alone("fsck", "fsck_clean")
            self.check()

    @property
    def calm(self) -> bool:
        """Tell whether every process came to its own end, and no call failed."""
        odd = ("fail", "lose", "crash", "lag")
        halfway = any("half_" in script for script in self.scenario.scripts)
        return bool(self.processes) and not halfway and not any(move[0] in odd for move in self.moves)

    def check(self) -> None:
        if self.checker.violations:
            self.abandon()
            raise Violation(self)

    def abandon(self) -> None:
        for process in self.processes.values():
            process.stop()

    def end_key(self) -> int:
        """Return a digest of what is left once all processes are over."""
        return hash((self.platter.key(), self.checker.key(), self.calm, self.clock.elapsed()))

    def key(self) -> tuple[Any, ...]:
        """Return the state of everything, as digests."""
        states = tuple((p.history, p.over) for p in self.processes.values())
        where = (self.clock.elapsed(), self.clock.wall(), self.current and self.current.name)
        return (self.platter.key(), states, where, self.checker.key())

    def note(self, *words: str) -> None:
        if self.trace is not None:
            self.trace.append([*words])

    def trace_lines(self) -> list[str]:
        """Return what happened, a line for each call."""
        lines = []
        for process, what, path, *outcome in self.trace or []:
            text = " ".join(_short(o) for o in outcome)
            lines.append(f"  {process:>5}  {what} {path}" + (f" -> {text}" if text else ""))
        return lines


def _short(outcome: Any) -> str:
    if isinstance(outcome, bytes):
        return repr(outcome.strip()[:60])
    return str(outcome)[:80]


def _files(platter: Platter) -> list[str]:
    return [path for path, inode in platter.names.items() if not inode.directory]
