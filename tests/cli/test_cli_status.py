"""dfq status --by and --watch."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_kit import Run, environment, eventually

import dfq as library
from dfq.cli import groups as grouping
from dfq.cli.groups import Groups, group_of
from dfq.cli.watch import pace
from dfq.queue import Push, QueueManager, TaskState

TILES = [
    "29.5/-98.5/dentist.csv",
    "29.5/-98.5/bakery.csv",
    "29.5/-97.0/dentist.csv",
    "29.55/-98.5/dentist.csv",
    "30.0/-98.5/24-7 plumber.csv",
    "29.5/readme",
    "example.com",
]


def queue_of(root: Path, *ids: str) -> QueueManager:
    queue = library.open_queue("default", root=root, durability="fast")
    queue.push_many(Push({"n": 1}, id=i) for i in ids)
    return queue


def counted(dfq: Run, *args: str) -> dict[str, list[int]]:
    """Return what `dfq status --by …` says, by group."""
    rows = [line.split("\t") for line in dfq("status", "--by", *args).lines]
    return {name: [int(n) for n in numbers] for name, *numbers in rows}


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task_id", "prefix", "depth", "group"),
    [
        ("29.5/-98.5/dentist.csv", "", 1, "29.5/"),
        ("29.5/-98.5/dentist.csv", "", 2, "29.5/-98.5/"),
        ("29.5/-98.5/dentist.csv", "", 3, "29.5/-98.5/dentist.csv"),
        ("29.5/-98.5/dentist.csv", "", 9, "29.5/-98.5/dentist.csv"),
        ("29.5/-98.5/dentist.csv", "29.5/", 1, "29.5/-98.5/"),
        ("29.5/-98.5/dentist.csv", "29.5", 1, "29.5/"),
        ("29.55/-98.5/dentist.csv", "29.5", 1, "29.55/"),
        ("29.5/-98.5/dentist.csv", "2", 2, "29.5/-98.5/"),
        ("example.com", "", 1, "example.com"),
        ("/a//b", "", 1, "/"),
        ("/a//b", "/a/", 1, "/a//"),
        ("a/", "a/", 1, "a/"),
    ],
)
def test_a_group_is_the_id_up_to_a_slash(task_id: str, prefix: str, depth: int, group: str) -> None:
    assert group_of(task_id, prefix, depth) == group


def test_by_counts_what_is_under_a_prefix(dfq: Run, root: Path) -> None:
    with queue_of(root, *TILES) as queue:
        first = queue.poll(batch_size=1)[0]
        queue.ack(first)
    every = counted(dfq, "")
    assert list(every) == ["29.5/", "29.55/", "30.0/", "example.com"], "sorted, each once"
    assert {name: sum(numbers) for name, numbers in every.items()} == {
        "29.5/": 4,
        "29.55/": 1,
        "30.0/": 1,
        "example.com": 1,
    }
    assert every[group_of(first.id, "", 1)][0] == 1
    assert list(counted(dfq, "29.5/")) == ["29.5/-97.0/", "29.5/-98.5/", "29.5/readme"]
    assert list(counted(dfq, "29.5")) == ["29.5/", "29.55/"]
    assert len(counted(dfq, "29.5/", "--depth", "2")) == 4
    group = next(o for o in dfq("status", "--by", "29.5/", "--json").objects if o["group"] == "29.5/-98.5/")
    assert set(group) == {"group", "done", "active", "stalled", "pending", "scheduled", "failed"}


def test_by_knows_every_state(dfq: Run, dfq_tty: Run, root: Path) -> None:
    with queue_of(root, "t/done", "t/failed", "t/active") as queue:
        held = {task.id: task for task in queue.poll(batch_size=3)}
        queue.ack(held["t/done"])
        queue.push({}, id="t/pending")
        plain = dfq_tty("status", "--by", "t").out
        assert "active" in plain
        assert "scheduled" not in plain, "nothing is"
        queue.push({}, id="t/later", delay=600)
        queue.push({}, id="t/cancelled")
        queue.cancel("t/cancelled")
        queue.nack(held["t/failed"], error="no", delay=600)
        assert counted(dfq, "") == {"t/": [1, 1, 0, 1, 2, 0]}
        table = dfq_tty("status", "--by", "t").out
        assert "scheduled" in table
        assert "total" in table
        assert "\t" not in table
    assert sum(dfq("status", "--by", "", "--json").object[c] for c in grouping.COLUMNS) == 5


def test_by_tells_odd_and_long_ids_as_they_are(dfq: Run, root: Path) -> None:
    odd = "a~b/%2F/é🦉/.x/\x1b[31m"
    long = "long/" + "é/" * 400 + "end"
    twin = long + "2"
    with queue_of(root, odd, long, twin, "-/x", ".hidden/x") as queue:
        held = queue.poll(batch_size=5)
        queue.ack(next(task for task in held if task.id == long))
        queue.push({}, id=twin + "3", delay=600)
    assert list(counted(dfq, "")) == ["-/", ".hidden/", "a~b/", "long/"]
    assert counted(dfq, "long/", "--depth", "1") == {"long/é/": [1, 0, 0, 1, 1, 0]}
    deep = dfq("status", "--by", long, "--json").objects
    assert [o["group"] for o in deep] == [long, twin, twin + "3"]
    assert dfq("status", "--by", "a~b/%2F/", "--depth", "3", "--json").object["group"] == odd
    assert "\x1b" not in dfq("status", "--by", "a~b/%2F/", "--depth", "3").out


def test_by_reads_no_file_of_a_task_whose_name_tells_its_id(root: Path) -> None:
    with queue_of(root, *TILES) as queue:
        queue.ack(queue.poll()[0])
        for path in (root / "default").rglob("*.json"):
            if path.name != "queue.json":
                path.write_bytes(b"not read")
        assert sorted(task.id for task in queue.states()) == sorted(TILES)
        assert sum(task.state == "completed" for task in queue.states()) == 1


def test_nothing_under_a_prefix_is_nothing_to_do(dfq: Run, root: Path) -> None:
    dfq("init")
    assert dfq("status", "--by", "").status == 3
    queue_of(root, *TILES).close()
    ran = dfq("status", "--by", "29.6/")
    assert (ran.status, ran.out) == (3, "")
    assert "'29.6/'" in ran.err


@pytest.mark.parametrize(
    "args",
    [
        ("--depth", "2"),
        ("--by", "", "--depth", "0"),
        ("--by", "", "--depth", "101"),
        ("--by", "x" * 4097),
        ("--watch", "0.1"),
        ("--watch", "nan"),
        ("--watch", "soon"),
    ],
)
def test_a_wrong_option_is_a_usage_error(dfq: Run, args: tuple[str, ...]) -> None:
    dfq("init")
    ran = dfq("status", *args)
    assert (ran.status, ran.out) == (2, "")
    assert next(a for a in reversed(args) if a.startswith("--")) in ran.err


def test_a_prefix_that_is_not_utf8_is_a_usage_error(dfq: Run, root: Path, tmp_path: Path) -> None:
    dfq("init")
    command = [sys.executable.encode(), b"-m", b"dfq", b"status", b"--by", b"\xff"]
    ran = subprocess.run(command, env=environment(root), cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "UTF-8" in ran.stderr


def test_a_terminal_shows_so_many_groups_and_a_pipe_all(dfq: Run, dfq_tty: Run, root: Path) -> None:
    queue_of(root, *(f"g{n:03}/x" for n in range(130))).close()
    shown = dfq_tty("status", "--by", "").out
    assert "g099/" in shown
    assert "g100/" not in shown
    assert "first 100 of 130" in shown
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "130" in next(line for line in bare.splitlines() if line.lstrip().startswith("total"))
    assert len(dfq("status", "--by", "").lines) == 130


def test_no_more_groups_are_kept_than_memory_is_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MAX_GROUPS", 3)
    counted = Groups("").count(TaskState(f"{n}/x", "pending") for n in (4, 1, 2, 3, 3, 4, 0))
    assert [(name, row[3]) for name, row in counted.rows()] == [("1/", 1), ("2/", 1), ("4/", 2), (None, 3)]
    assert (len(counted), counted.total[3]) == (3, 7)
    assert counted.objects()[-1]["group"] is None


def test_groups_of_a_queue_in_memory() -> None:
    with library.open_queue("groups", queue_type="memory") as queue:
        queue.push_many(Push({}, id=i) for i in TILES)
        task = queue.poll()[0]
        counted = Groups("29.5/").count(queue.states("29.5/"))
        assert [name for name, _ in counted.rows()] == ["29.5/-97.0/", "29.5/-98.5/", "29.5/readme"]
        assert sum(counted.total) == 4
        assert (task.id, counted.total[1]) == (TILES[0], 1)


# -- watching --------------------------------------------------------------------------------------


@contextmanager
def watching(root: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run `dfq status --watch …` with its output piped."""
    command = [sys.executable, "-m", "dfq", "status", "--watch", *args]
    process = subprocess.Popen(
        command, env=environment(root), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def interrupted(process: subprocess.Popen[str]) -> None:
    """Press Ctrl-C; it must be a good end."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def test_watch_prints_a_line_an_interval_and_ends_well(root: Path) -> None:
    queue_of(root, *TILES).close()
    with watching(root, "0.2") as process:
        assert process.stdout is not None
        first, second = (process.stdout.readline().rstrip("\n").split("\t") for _ in range(2))
        assert first[1:] == ["0", "0", "0", str(len(TILES)), "0", "0", "0", "-", "-"]
        assert second[1:] == ["0", "0", "0", str(len(TILES)), "0", "0", "0", "0.0", "-"]
        assert first[0] < second[0]
        interrupted(process)


def test_watch_tells_the_rate_and_the_time_that_is_left(root: Path) -> None:
    with queue_of(root, *TILES) as queue, watching(root, "0.2", "--json") as process:
        assert process.stdout is not None
        seen = json.loads(process.stdout.readline())
        assert (seen["completed"], seen["per_minute"], seen["seconds_left"]) == (0, None, None)
        queue.ack_many(queue.poll(batch_size=4))
        while seen["completed"] < 4:
            seen = json.loads(process.stdout.readline())
        assert seen["per_minute"] > 0
        assert seen["seconds_left"] > 0
        queue.ack_many(queue.poll(batch_size=10))
        while seen["completed"] < len(TILES):
            seen = json.loads(process.stdout.readline())
        assert seen["seconds_left"] == 0
        interrupted(process)


def test_watch_goes_with_by(root: Path) -> None:
    queue_of(root, *TILES).close()
    with watching(root, "0.2", "--by", "29.5/", "--json") as process:
        assert process.stdout is not None
        for _ in range(2):
            seen = json.loads(process.stdout.readline())
            assert (seen["by"], seen["pending"]) == ("29.5/", 4)
            assert [group["group"] for group in seen["groups"]] == ["29.5/-97.0/", "29.5/-98.5/", "29.5/readme"]
        interrupted(process)
    with watching(root, "0.2", "--by", "29.5/-98.5/") as process:
        assert process.stdout is not None
        rows = [process.stdout.readline().rstrip("\n").split("\t") for _ in range(4)]
        assert [row[1:] for row in rows[:2]] == [row[1:] for row in rows[2:]]
        assert rows[0][1:] == ["29.5/-98.5/bakery.csv", "0", "0", "0", "1", "0", "0"]
        assert rows[0][0] == rows[1][0] < rows[2][0]
        interrupted(process)


def test_watch_without_seconds_may_be_followed_by_anything(root: Path) -> None:
    queue_of(root, *TILES).close()
    with watching(root, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pending"] == len(TILES)
        interrupted(process)


class Screen:
    """`dfq status --watch` on a terminal."""

    def __init__(self, root: Path, *args: str, **env: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        command = [sys.executable, "-m", "dfq", "status", "--watch", "0.2", *args]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment(root, **env))
        os.close(slave)
        self._shown = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(30)
        self._reader.join(10)
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._reader.join(10)
        os.close(self.master)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # nobody has the other side open any more
                return
            if not data:
                return
            self._shown += data


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


UP = "\x1b[1A"  # the cursor, by a line: what is redrawn in place begins with it
SHOW_CURSOR = "\x1b[?25h"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_watch_redraws_in_place_and_gives_the_terminal_back(
    root: Path, screens: list[Screen], number: int, status: int
) -> None:
    with queue_of(root, *TILES) as queue:
        screen = Screen(root, "--by", "", NO_COLOR="1")
        screens.append(screen)
        eventually(lambda: "a minute" in screen.shown and UP in screen.shown)
        assert "29.55/" in screen.shown
        assert "total" in screen.shown
        held = queue.poll(batch_size=3)
        eventually(lambda: "3 leased" in screen.shown)
        queue.ack_many(held)
        assert screen.end(number) == status
        assert "Traceback" not in screen.shown
        assert screen.shown.rindex(SHOW_CURSOR) > screen.shown.rindex(UP)
        assert "\x1b[3" not in screen.shown.replace("\x1b[3A", ""), "NO_COLOR"


def test_watch_shows_stalled_leases(root: Path, dfq: Run, screens: list[Screen]) -> None:
    dfq("push", "x", "--id", "lost/one")
    code = "import dfq, os; q = dfq.open_queue('default', lease=600); t = q.poll(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], env=environment(root), timeout=60)
    screen = Screen(root)
    screens.append(screen)
    eventually(lambda: "holder dead" in screen.shown)
    assert screen.end(signal.SIGINT) == 0


def test_a_terminal_that_cannot_redraw_gets_lines(root: Path, screens: list[Screen]) -> None:
    queue_of(root, *TILES).close()
    screen = Screen(root, TERM="dumb")
    screens.append(screen)
    eventually(lambda: screen.shown.count("\n") >= 2)
    assert "\x1b" not in screen.shown
    assert screen.end(signal.SIGINT) == 0


def test_status_imports_what_draws_only_to_draw(root: Path, dfq: Run) -> None:
    dfq("init")
    code = (
        "import sys; from dfq.cli import main; main(['status'], standalone_mode=False); print('MODULES', *sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(root), capture_output=True, text=True, check=True
    )
    modules = set(ran.stdout.rpartition("MODULES ")[2].split())
    assert "dfq.cli.status" in modules
    assert {m for m in modules if m.startswith("rich") or m == "dfq.cli.watch"} == set()


@pytest.mark.parametrize(
    ("watched", "completed", "waiting", "per_minute", "left"),
    [
        (0, 0, 5, None, None),
        (0, 0, 0, None, 0),
        (30, 10, 5, 20, 15),
        (30, 0, 5, 0, None),
        (30, 10, 0, 20, 0),
        (30, -2, 5, 0, None),  # somebody cleared completed/ up
    ],
)
def test_the_pace(watched: float, completed: int, waiting: int, per_minute: float | None, left: float | None) -> None:
    found = pace(watched, completed, waiting)
    assert (found.per_minute, found.left) == (per_minute, left)
