"""dfq fsck as a person or a script runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from fsck_kit import Ground

from dfq.providers.filesystem.faults import Finding

REPO = Path(__file__).resolve().parents[2]


def environment(ground: Ground, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DFQ_", "COCLI_", "XDG_"))}
    return (
        env | {"DFQ_ROOT": str(ground.root), "PYTHONPATH": str(REPO), "HOME": str(ground.root), "TERM": "xterm"} | more
    )


def fsck(ground: Ground, *options: str, queue: str = "q", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dfq", "fsck", "--queue", queue, *options]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment(ground, **env), cwd=ground.root, timeout=60
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


@pytest.fixture
def leftover(ground: Ground) -> Ground:
    """A queue with something to repair."""
    ground.push()
    kept = ground.task().read_bytes()
    ground.queue.ack(ground.claim())
    ground.task().write_bytes(kept)
    return ground


def test_a_clean_queue_is_status_0_and_nothing_on_stdout(ground: Ground) -> None:
    ground.done()
    ran = fsck(ground)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr == "dfq: no findings: 0 must, 0 should; 0 repaired\n"


def test_a_finding_is_a_line_and_status_1(leftover: Ground) -> None:
    ran = fsck(leftover)
    assert ran.returncode == 1
    path = leftover.task().relative_to(leftover.folder)
    assert ran.stdout.split("\t")[:4] == ["should", "leftover-task", str(path), "its witness is there"]
    assert len(ran.stdout.splitlines()) == 1
    assert ran.stderr == "dfq: 1 finding: 0 must, 1 should; 0 repaired\n"


def test_json_is_an_object_for_each_finding(leftover: Ground) -> None:
    ran = fsck(leftover, "--json")
    (found,) = (json.loads(line) for line in ran.stdout.splitlines())
    assert set(found) == {field.name for field in fields(Finding)}
    assert (found["code"], found["repairable"], found["repaired"]) == ("leftover-task", True, False)


def test_a_repair_of_everything_is_status_0(leftover: Ground) -> None:
    ran = fsck(leftover, "--repair")
    assert ran.returncode == 0
    assert ran.stdout.startswith("repaired\tleftover-task\t")
    assert ran.stderr == "dfq: no findings: 0 must, 0 should; 1 repaired\n"
    assert not leftover.task().exists()
    assert fsck(leftover, "--repair").stdout == ""


def test_what_is_not_ours_remains_and_is_status_1(leftover: Ground) -> None:
    leftover.path("notes.txt").write_text("mine")
    ran = fsck(leftover, "--repair")
    assert ran.returncode == 1
    assert sorted(line.split("\t")[0] for line in ran.stdout.splitlines()) == ["repaired", "should"]
    assert leftover.path("notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "queue-missing"), ("", "queue-bad"), ("[]", "queue-bad"), ('{"format": 9, "shards": 4}', "queue-newer")],
)
def test_a_queue_that_cannot_be_opened_is_told(ground: Ground, content: str | None, code: str) -> None:
    ground.push()
    ground.path("queue.json").unlink()
    if content is not None:
        ground.path("queue.json").write_text(content)
    before = ground.tree_of_files()
    ran = fsck(ground, "--repair")
    assert ran.returncode == 1
    assert ran.stdout.split("\t")[:3] == ["must", code, "queue.json"]
    assert ground.tree_of_files() == before


def test_no_queue_at_all_is_told(ground: Ground) -> None:
    ran = fsck(ground, queue="nothing")
    assert ran.returncode == 1
    assert "nothing" in ran.stderr
    assert not (ground.root / "nothing").exists()


def test_a_queue_that_is_no_folder_is_told(ground: Ground) -> None:
    (ground.root / "link").symlink_to(ground.folder)
    ran = fsck(ground, queue="link")
    assert ran.returncode == 1
    assert "is no folder" in ran.stderr


def test_a_folder_that_everyone_may_write_to_is_a_finding_and_no_refusal(ground: Ground) -> None:
    ground.folder.chmod(0o777)
    ran = fsck(ground)
    assert ran.returncode == 1
    assert ran.stdout.startswith("should\tworld-writable\t.\t")


def test_a_queue_in_memory_has_no_files(ground: Ground) -> None:
    ran = fsck(ground, DFQ_QUEUE_TYPE="memory")
    assert ran.returncode == 2
    assert "no files to check" in ran.stderr


def test_an_unprintable_name_does_not_reach_the_terminal(ground: Ground) -> None:
    (ground.folder / "a\x1b[31m\nb").write_text("x")
    (ground.folder / os.fsdecode(b"\xff")).write_text("x")
    ran = fsck(ground)
    assert len(ran.stdout.splitlines()) == 2
    assert "\x1b" not in ran.stdout
    assert len(fsck(ground, "--json").stdout.splitlines()) == 2


def test_on_a_terminal_it_is_a_table(leftover: Ground) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "dfq", "fsck", "--queue", "q"]
    env = environment(leftover, COLUMNS="160", NO_COLOR="1")
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=leftover.root) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # nobody has the other side open any more
                break
            shown += data
    os.close(master)
    text = shown.decode()
    assert process.returncode == 1
    assert "what to do" in text
    assert "leftover-task" in text
    assert "1 finding" in text
