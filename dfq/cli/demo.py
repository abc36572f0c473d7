"""dfq demo: 200 tasks, four workers, one of them killed with -9 in the middle of a task.

What it reports is read from the queue's files, not from what the workers say of themselves.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dfq.cli.options import place_options, where
from dfq.cli.output import printable
from dfq.codec import loads, parse_iso
from dfq.errors import QueueError
from dfq.mounts import filesystem_kind, is_local
from dfq.names import encode

TASKS = 200
WORKERS = 4
LEASE = 600  # long, so that nobody can think the dead worker's lease had simply run out
PATIENCE = 60.0  # seconds for all of it
TRADES = ("dentist", "plumber", "florist", "bakery", "24/7 locksmith")


def handle(task: Any) -> dict[str, int]:
    """What the demo's workers do with a task: take 20 to 60 ms."""
    pause = random.randint(20, 60)
    time.sleep(pause / 1000)
    return {"slept_ms": pause}


@click.command(short_help="Show it: 200 tasks, four workers, one of them killed.")
@click.option("--keep", is_flag=True, help="Leave the folder for looking around, and print where it is.")
@place_options("Where to make its queue, which then stays.  [default: a temporary folder]", "[default: demo]")
def demo(keep: bool) -> None:
    """Show it: push 200 tasks, start four workers, kill one of them with -9 in the middle of a task.

    Then see who took its task over and how soon, and check in the files that each task was completed
    exactly once. Works in a temporary folder, or in --root.
    """
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dfq-demo-log-")))
        if (root := where().root) is not None:
            base, keep = Path(root).absolute(), True
        elif keep:
            base = Path(tempfile.mkdtemp(prefix="dfq-demo-"))
        else:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dfq-demo-")))
        tree = base / (where().queue or "demo")
        if tree.exists():
            raise click.UsageError(f"{tree} is there already; the demo wants a queue of its own")
        try:
            ok = Demo(tree, logs).run()
        except DemoFailed as e:
            click.echo(f"\nFAILED: {e}")
            for log in sorted(logs.iterdir()):
                click.echo(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
            ok = False
        if keep:
            look = f"{_this_command()} --root {shlex.quote(str(base))} --queue {tree.name}"
            click.echo(f"\nkept: {tree}\n  {look} status")
    raise click.exceptions.Exit(0 if ok else 1)


def _this_command() -> str:
    """Return how to run dfq from here, for a shell that knows nothing of our environment."""
    installed = Path(sys.executable).with_name("dfq")
    found = shutil.which("dfq")
    in_venv = sys.prefix != sys.base_prefix  # whose folder is in our PATH, but not in that of the shell that started us
    if not in_venv and found is not None and os.path.realpath(found) == os.path.realpath(installed):
        return "dfq"
    if not os.access(installed, os.X_OK):
        return f"{shlex.quote(sys.executable)} -m dfq"
    with contextlib.suppress(ValueError, OSError):
        installed = installed.relative_to(Path.cwd())
    return shlex.quote(str(installed))


class DemoFailed(Exception):
    """The demo could not get to its end."""


@dataclass
class Killed:
    """The worker that was killed, and what it was doing."""

    pid: int
    number: int
    at: float
    lease: dict[str, Any]


class Demo:
    """One run of the demo, on a queue of its own."""

    def __init__(self, tree: Path, logs: Path) -> None:
        self.tree = tree
        self.logs = logs
        self.started = time.monotonic()
        self.workers: list[subprocess.Popen[bytes]] = []

    def run(self) -> bool:
        """Run it all; return whether every check held."""
        ids = self.push()
        try:
            self.start_workers()
            killed = self.kill_one()
            self.wait_for(
                lambda: self.count("completed") >= len(ids),
                "all tasks completed",
                lambda: "" if self.has_witness(killed) else self.no_takeover(),
            )
        finally:
            self.stop_workers()
        witnesses = [loads(path.read_bytes(), str(path)) for path in self.files("completed")]
        took_over = self.report_takeover(killed, witnesses)
        self.report_workers(killed, witnesses)
        ok = self.check(ids, witnesses, took_over)
        self.report_tree(str(killed.lease["task_id"]))
        return ok

    def push(self) -> list[str]:
        from dfq.config import open_queue
        from dfq.queue import Push

        tiles = [(29.5 + n // 40 * 0.5, -98.5 + n // 5 % 8 * 0.5, TRADES[n % 5]) for n in range(TASKS)]
        begin = time.monotonic()
        with open_queue(self.tree.name, root=self.tree.parent, queue_type="filesystem", lease=LEASE) as queue:
            ids = queue.push_many(
                Push({"lat": lat, "lon": lon, "trade": trade}, id=f"{lat}/{lon}/{trade}") for lat, lon, trade in tiles
            )
        took = time.monotonic() - begin
        self.say(f"pushed {len(ids)} tasks in {took * 1000:.0f} ms, each a file under frontier/")
        return ids

    def start_workers(self) -> None:
        # The demo shows the defaults: what the user has set for queues of his own is left out.
        env = {k: v for k, v in os.environ.items() if not k.startswith("DFQ_") and k != "COCLI_QUEUE_TYPE"}
        package = str(Path(__file__).resolve().parents[2])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (package, env.get("PYTHONPATH"))))
        env["DFQ_QUEUE_TYPE"] = "filesystem"
        command = [sys.executable, "-m", "dfq", "--root", str(self.tree.parent), "--queue", self.tree.name]
        command += ["work", "dfq.cli.demo:handle", "--lease", str(LEASE)]
        for number in range(1, WORKERS + 1):
            with (self.logs / f"worker-{number}.log").open("wb") as log:
                self.workers.append(
                    subprocess.Popen(command, env=env, cwd=self.logs, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
        pids = ", ".join(str(w.pid) for w in self.workers)
        self.say(f"started {WORKERS} x `dfq work dfq.cli.demo:handle --lease {LEASE}`: pids {pids}")

    def kill_one(self) -> Killed:
        self.wait_for(lambda: self.count("completed") >= TASKS // 5, "the first tasks completed")
        number, victim = 2, self.workers[1]
        while True:
            self.wait_for(lambda: any(self.leases_of(victim.pid)), f"worker {number} has a task")
            # Stopped first: what it holds now is what it will have held when it dies.
            os.kill(victim.pid, signal.SIGSTOP)
            _, stopped = os.waitpid(victim.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(stopped):
                raise DemoFailed(f"worker {number} ended by itself, with {stopped}")
            held = next(self.leases_of(victim.pid), None)
            if held is not None:
                break
            os.kill(victim.pid, signal.SIGCONT)
        at = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        self.say(
            f"kill -9 {victim.pid} (worker {number}) with {self.count('completed')} of {TASKS} done; it held "
            f"{printable(held['task_id'])!r}, attempt {held['attempt']}, with a lease for {LEASE} s"
        )
        return Killed(victim.pid, number, at, held)

    def leases_of(self, pid: int) -> Iterator[dict[str, Any]]:
        done = {path.name for path in self.files("completed")}
        for path in self.files("active-leases"):
            with contextlib.suppress(OSError, QueueError):
                lease = loads(path.read_bytes(), str(path))
                task = path.name.removesuffix(".lease").partition("~")[0]
                above = path.with_name(f"{task}~{lease['generation'] + 1}.lease")
                over = f"{task}.json" in done or above.exists()
                if lease.get("pid") == pid and lease.get("state") == "leased" and not over:
                    yield lease

    def stop_workers(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    # -- what came of it ---------------------------------------------------------------------------

    def report_takeover(self, killed: Killed, witnesses: list[dict[str, Any]]) -> bool:
        task_id = killed.lease["task_id"]
        witness = next((w for w in witnesses if w["task_id"] == task_id), None)
        if witness is None:
            return False
        claimed = parse_iso(witness["claimed_at"]) or 0.0
        self.say(
            f"worker {self.number_of(witness)} took {printable(task_id)!r} over "
            f"{(claimed - killed.at) * 1000:.0f} ms after the kill, as attempt {witness['attempt']} "
            f"with token {witness['token']}: the lease had {LEASE} s to go, but its holder was dead"
        )
        return bool(
            witness["worker_id"] != killed.lease["worker_id"]
            and witness["token"] > killed.lease["token"]
            and claimed - killed.at < LEASE / 10
        )

    def report_workers(self, killed: Killed, witnesses: list[dict[str, Any]]) -> None:
        done = Counter(self.number_of(w) for w in witnesses)
        names = {self.number_of(w): w["worker_id"] for w in witnesses}
        self.say(f"all done after {time.monotonic() - self.started:.1f} s\n")
        click.echo(f"  {'worker':<8}{'id':<28}{'completed':>9}")
        for number in range(1, WORKERS + 1):
            end = "  killed" if number == killed.number else ""
            click.echo(f"  {number:<8}{names.get(number, '-'):<28}{done[number]:>9}{end}")
        click.echo(f"  {'':<8}{'':<28}{len(witnesses):>9}\n")

    def number_of(self, witness: dict[str, Any]) -> int:
        pid = witness.get("pid")
        parts = str(witness["worker_id"]).split("-")
        for number, worker in enumerate(self.workers, 1):
            if worker.pid == pid or str(worker.pid) in parts:
                return number
        return 0

    def check(self, ids: list[str], witnesses: list[dict[str, Any]], took_over: bool) -> bool:
        seen = Counter(w["task_id"] for w in witnesses)
        checks = {
            f"{TASKS} witnesses under completed/": len(witnesses) == TASKS,
            "every task exactly once": seen == Counter(ids) and set(seen.values()) == {1},
            "the dead worker's task was completed by another": took_over,
            "nothing left under frontier/": self.count("frontier") == 0,
            "nothing left under active-leases/": self.count("active-leases") == 0,
            "nothing under failed/": self.count("failed") == 0,
        }
        for what, held in checks.items():
            click.echo(f"  {'ok    ' if held else 'FAILED'}  {what}")
        if not took_over:
            click.echo(f"\n  {self.no_takeover()}")
        return all(checks.values())

    def no_takeover(self) -> str:
        """Return why the dead worker's task may not have been taken over."""
        kind = filesystem_kind(str(self.tree))
        if not is_local(str(self.tree)):
            return (
                f"{self.tree} is on a filesystem ({kind}) that is not known to be this machine's alone: there the "
                f"lease of a dead worker runs its {LEASE} s. Name a folder on a local one, such as ext4, with --root."
            )
        return (
            f"The dead worker's task was not taken over in time, though {self.tree} is on a local filesystem ({kind})."
        )

    def report_tree(self, task_id: str) -> None:
        click.echo(f"\n  {self.tree}/")
        for path in sorted(p for p in self.tree.iterdir() if not p.name.startswith(".")):
            if path.is_file():
                click.echo(f"    {path.name}")
                continue
            files = self.files(path.name)
            click.echo(f"    {path.name}/" + ("" if files else "    (no files)"))
            for file in files[:3]:
                click.echo(f"      {file.relative_to(path)}")
            if len(files) > 3:
                click.echo(f"      … and {len(files) - 3} more")
        for path in self.files("completed"):
            if path.stem == encode(task_id):
                click.echo(f"\n  $ cat '{path.relative_to(self.tree)}'")
                click.echo("  " + printable(path.read_text().strip()))

    # -- the files ---------------------------------------------------------------------------------

    def files(self, folder: str) -> list[Path]:
        found = (Path(at) / name for at, _, names in os.walk(self.tree / folder) for name in names)
        return sorted(path for path in found if not path.name.startswith("."))

    def count(self, folder: str) -> int:
        return len(self.files(folder))

    def has_witness(self, killed: Killed) -> bool:
        name = encode(killed.lease["task_id"])
        return any(path.stem == name for path in self.files("completed"))

    def wait_for(self, condition: Callable[[], bool], what: str, why: Callable[[], str] = str) -> None:
        while not condition():
            if time.monotonic() - self.started > PATIENCE:
                raise DemoFailed(f"gave up after {PATIENCE:.0f} s waiting for: {what}. {why()}".rstrip())
            if dead := [w for w in self.workers if w.poll() not in (None, -signal.SIGKILL)]:
                raise DemoFailed(f"a worker ended with {dead[0].returncode} while waiting for: {what}")
            time.sleep(0.005)

    def say(self, message: str) -> None:
        click.echo(f"{time.monotonic() - self.started:5.1f} s  {message}")
