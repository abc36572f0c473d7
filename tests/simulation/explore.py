"""Schedules of simulated processes: all of them up to a bound, or random ones. Any can be replayed.

A run is a list of choices, one per decision: which process makes its next call on the disk, or which one dies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checkers import Checker
from greenlet import getcurrent, greenlet
from simdisk import Crashed, Platter, SimClock
from workers import Scenario, Worker, deterministic, set_actor

from dfq.staleness import Judge

#: Calls that no other process can tell from their absence (unless the power goes). The bounded search does not
#: switch before them.
UNSEEN = frozenset(
    ("unnamed", "prepare", "lock", "fsync", "fsync_dir", "sync_all", "close", "touch", "mkdir", "look", "kind"),
)
#: Calls before which a death makes a difference: one that happens before a look might as well happen after it.
CHANGES = frozenset(("create", "link", "link_path", "write", "unlink"))
MAX_STEPS = 2_000

Choose = Callable[["Run", list[tuple[str, "Process"]]], int | None]


class Violation(AssertionError):
    """A promise that a run broke, and how to see it again."""

    def __init__(self, scenario: Scenario, run: Run) -> None:
        self.choices = list(run.choices)
        self.texts = list(run.checker.violations)
        how = f"replay({scenario.name}, {self.choices}, every_call={run.every_call})"
        super().__init__("\n".join([*self.texts, how, *run.trace_lines()]))


class Process:
    """A script on its way."""

    def __init__(self, run: Run, name: str, script: str) -> None:
        self.name = name
        self.over = False
        self.dead = False
        self.history = 0  # a digest of all it has learned, which is its state
        self._run = run
        self._pending = ("start", "")
        args = (run.scenario, name, run.platter, run.clock, run.checker, self._step, self._seen)
        self.worker = Worker(*args)
        self._greenlet = greenlet(lambda: self._body(script))

    @property
    def changes(self) -> bool:
        """Tell whether its next call changes anything that others see."""
        return self._pending[0] in CHANGES

    def go(self) -> None:
        set_actor(self.worker)
        self._greenlet.switch()

    def crash(self) -> None:
        self.over = self.dead = True
        self._run.trace.append([self.name, "CRASHES before", " ".join(self._pending)])
        if self._greenlet:
            self._greenlet.throw(Crashed)
        self._run.platter.kill(self.name)

    def stop(self) -> None:
        """End a run that is not of interest any more."""
        self.over = self.dead = True
        if self._greenlet:
            self._greenlet.throw(Crashed)

    def _body(self, script: str) -> None:
        try:
            self.worker.run(script)
        except Crashed:
            pass
        except Exception as e:  # noqa: BLE001 - whatever it is, the run has found something
            if not self.dead:
                self._run.checker.failure(self.name, e)
        self._run.platter.kill(self.name)
        self.over = True

    def _step(self, what: str, path: str) -> None:
        if self.dead:
            raise Crashed
        if self._run.every_call or what not in UNSEEN:
            self._pending = (what, path)
            getcurrent().parent.switch()
            if self.dead:
                raise Crashed
        self._run.trace.append([self.name, what, path])

    def _seen(self, outcome: Any) -> None:
        if type(outcome) is not str or outcome:
            self.history = hash((self.history, outcome))
        self._run.trace[-1].append(outcome)


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
        power: random.Random | None = None,
    ) -> None:
        self.scenario = scenario
        self.every_call = every_call
        self.clock = SimClock()
        self.trace: list[list[Any]] = []
        self.choices: list[int] = []
        self.current: Process | None = None
        self.processes: list[Process] = []
        if start is None:
            self.platter = Platter()
            patient = scenario.judge is Judge
            self.checker = Checker(self.platter, max_attempts=scenario.max_attempts, patient=patient)
            self.alone("setup", scenario.before)
        elif power is not None:
            self.platter = start.platter.power_cut(power)
            self.checker = start.checker.moved_to(self.platter)
            self.choices = start.choices
            self.trace = [*start.trace, ["-----", "POWER CUT, which left", " ".join(sorted(_files(self.platter)))]]
        else:
            self.platter = start.platter.copy()
            self.checker = start.checker.moved_to(self.platter)
            self.processes = [Process(self, "ABCDEF"[n], script) for n, script in enumerate(scenario.scripts)]

    def alone(self, name: str, script: str) -> Worker:
        """Run a process that nobody disturbs."""
        trace = self.trace

        def step(what: str, path: str) -> None:
            trace.append([name, what, path])

        worker = Worker(
            self.scenario, name, self.platter, self.clock, self.checker, step, lambda outcome: trace[-1].append(outcome)
        )
        set_actor(worker)
        try:
            worker.run(script)
        except Exception as e:  # noqa: BLE001 - whatever it is, the run has found something
            self.checker.failure(name, e)
        return worker

    def options(self, *, crash: bool) -> list[tuple[str, Process]]:
        """Return what can happen next; going on with the same process comes first."""
        alive = [p for p in self.processes if not p.over]
        current = self.current if self.current is not None and not self.current.over else None
        order = alive if current is None else [current, *(p for p in alive if p is not current)]
        # A process that is not running can as well die at the moment when it would be resumed.
        mortal = (order if current is None else [current]) if crash else []
        return [("go", p) for p in order] + [("crash", p) for p in mortal if self.every_call or p.changes]

    def play(self, choose: Choose, *, crashes: int, ends: set[Any] | None = None) -> bool:
        """Run to the end; False if `choose` gave up on it. Ends that are in `ends` were checked. Raises Violation."""
        left = crashes
        while options := self.options(crash=left > 0):
            index = choose(self, options)
            if index is None:
                self.abandon()
                return False
            self.choices.append(index)
            verb, process = options[index]
            if verb == "crash":
                left -= 1
                process.crash()
            else:
                self.current = process
                process.go()
            if len(self.choices) > MAX_STEPS:
                self.checker.failure(process.name, RuntimeError("it does not come to an end"))
            self.check()
        end = (self.platter.key(), self.checker.key(), self.calm)
        if ends is None or end not in ends:
            self.finish()
        if ends is not None:
            ends.add(end)
        return True

    def finish(self) -> None:
        """Let a fresh worker clear up, and look at what is left."""
        if self.scenario.fsck:
            self.alone("fsck", "fsck fsck_again")
        self.alone("fresh", "repair")
        if self.calm:  # then nobody has to clear up either
            self.checker.finish()
            self.check()
        if self.scenario.fsck:
            self.alone("fsck", "fsck fsck_again fsck_clean")
        else:
            self.alone("tidy", "tidy")
        self.checker.finish()
        self.check()

    @property
    def calm(self) -> bool:
        """Tell whether every process came to its own end."""
        return bool(self.processes) and not any(p.dead for p in self.processes)

    def check(self) -> None:
        if self.checker.violations:
            self.abandon()
            raise Violation(self.scenario, self)

    def abandon(self) -> None:
        for process in self.processes:
            process.stop()

    def key(self) -> tuple[Any, ...]:
        """Return the state of everything."""
        states = tuple((p.history, p.over) for p in self.processes)
        return (self.platter.key(), states, self.current and self.current.name, self.checker.key())

    def trace_lines(self) -> list[str]:
        lines = []
        for process, what, path, *outcome in self.trace:
            text = " ".join(_short(o) for o in outcome)
            lines.append(f"  {process:>5}  {what} {path}" + (f" -> {text}" if text else ""))
        return lines


def _short(outcome: Any) -> str:
    if isinstance(outcome, bytes):
        return repr(outcome.strip()[:60])
    return str(outcome)[:80]


@dataclass
class Tally:
    """How much was looked at."""

    runs: int = 0
    states: int = 0
    images: int = 0
    complete: bool = True  # False if it stopped at max_runs


@dataclass
class _Search:
    """Depth first, without the states that were seen with as large a budget."""

    preemptions: int
    crashes: int
    seen: dict[Any, list[tuple[int, int]]] = field(default_factory=dict)
    todo: list[list[int]] = field(default_factory=lambda: [[]])

    def chooser(self, prefix: list[int]) -> Choose:
        preemptions, crashes = self.preemptions, self.crashes

        def choose(run: Run, options: list[tuple[str, Process]]) -> int | None:
            nonlocal preemptions, crashes
            at = len(run.choices)
            running = run.current is not None and not run.current.over
            if at >= len(prefix):
                budgets = self.seen.setdefault(run.key(), [])
                if any(p >= preemptions and c >= crashes for p, c in budgets):
                    return None
                budgets.append((preemptions, crashes))
                for index in range(1, len(options)):
                    verb, _ = options[index]
                    if (crashes if verb == "crash" else preemptions or not running) > 0:
                        self.todo.append([*run.choices, index])
            index = prefix[at] if at < len(prefix) else 0
            if options[index][0] == "crash":
                crashes -= 1
            elif running and index > 0:
                preemptions -= 1
            return index

        return choose


def explore(scenario: Scenario, *, preemptions: int, crashes: int, max_runs: int = 1_000_000) -> Tally:
    """Try every schedule with so many preemptions and crashes. Raises Violation."""
    search, tally = _Search(preemptions, crashes), Tally()
    with deterministic():
        start, ends = Run(scenario), set[Any]()
        while search.todo and tally.runs < max_runs:
            run = Run(scenario, start)
            run.play(search.chooser(search.todo.pop()), crashes=crashes, ends=ends)
            tally.runs += 1
    tally.states, tally.complete = len(search.seen), not search.todo
    return tally


def wander(scenario: Scenario, seeds: range, *, crashes: int = 1, cuts: float = 0) -> Tally:
    """Try random schedules at every call; at so many of its steps (0 to 1) also look what a power cut would leave."""
    tally = Tally()
    with deterministic():
        start = Run(scenario)
        for seed in seeds:
            rng = random.Random(seed)
            run = Run(scenario, start, every_call=True)

            def choose(run: Run, options: list[tuple[str, Process]], rng: random.Random = rng) -> int:
                if rng.random() < cuts:
                    tally.images += 1
                    _cut(run, rng)
                return _random_choice(options, rng)

            try:
                run.play(choose, crashes=crashes)
            except Violation as violation:
                violation.add_note(f"seed {seed}")
                raise
            tally.runs += 1
            tally.states += len(run.choices)
    return tally


def _random_choice(options: list[tuple[str, Process]], rng: random.Random) -> int:
    going = sum(1 for verb, _ in options if verb == "go")
    if len(options) > going and rng.random() < 0.01:
        return rng.randrange(going, len(options))
    return 0 if rng.random() < 0.85 else rng.randrange(going)


def _cut(run: Run, rng: random.Random) -> None:
    """Look at the queue as it would be if the power went now. The run itself goes on."""
    after = Run(run.scenario, run, power=rng)
    try:
        after.finish()
    except Violation:
        run.abandon()
        raise
    if run.current is not None:
        set_actor(run.current.worker)


def _files(platter: Platter) -> list[str]:
    return [path for path, inode in platter.names.items() if not inode.directory]


def replay(scenario: Scenario, choices: list[int], *, every_call: bool = False) -> list[str]:
    """Return what a run did, step by step, whether or not it broke a promise."""
    with deterministic():
        run = Run(scenario, Run(scenario), every_call=every_call)
        try:
            run.play(
                lambda run, options: choices[len(run.choices)] if len(run.choices) < len(choices) else 0, crashes=99
            )
        except Violation as violation:
            return str(violation).splitlines()
        return run.trace_lines()
