"""dfq verify-fs as a person or a script runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from node_kit import dfq, environment, mounted, run

from dfq.verify_fs import PROMISES, ROUNDS
from dfq.verify_fs.calls import Calls

NAMES = ["local filesystem", *(promise.name for promise in PROMISES)]


def test_piped_it_is_a_line_for_each_promise(tmp_path: Path) -> None:
    ran = dfq("verify-fs", str(tmp_path), "--rounds", "5", home=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    assert [row[1] for row in rows] == NAMES
    assert {len(row) for row in rows} == {4}
    assert list(tmp_path.iterdir()) == []


def test_json_is_an_object_for_each_promise(tmp_path: Path) -> None:
    ran = dfq("verify-fs", str(tmp_path), "--rounds", "5", "--json", home=tmp_path)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["promise"] for row in rows] == NAMES
    assert all(row["path"] == str(tmp_path) and row["outcome"] == "kept" and row["filesystem"] for row in rows)


def test_the_default_rounds_are_those_of_the_library(tmp_path: Path) -> None:
    ran = dfq("verify-fs", "--help", home=tmp_path)
    assert f"default: {ROUNDS}" in ran.stdout


def test_a_broken_filesystem_ends_with_status_1(tmp_path: Path) -> None:
    code = (
        "import dfq.verify_fs.calls as calls, os\n"
        "calls.Calls.create = lambda self, path: os.open(self._prefix + path, os.O_CREAT | os.O_RDWR)\n"
        "from dfq.cli import main; main(['verify-fs', '.', '--rounds', '5'])"
    )
    assert Calls.create  # the name that is sabotaged
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[1].startswith("broken\texclusive create\t5 of 5 rounds had")
    assert "not fit for a queue" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["missing", "file"])
def test_a_path_that_is_no_folder_is_a_usage_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    assert dfq("verify-fs", str(tmp_path / path), home=tmp_path).returncode == 2


def test_a_disk_that_is_full_or_read_only_is_one_clear_line(tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path) as disk:
        run("mount", "-o", "remount,nr_inodes=10", str(disk))
        ran = dfq("verify-fs", str(disk), home=tmp_path)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
        assert "free some space" in ran.stderr
        assert list(disk.iterdir()) == []
        run("mount", "-o", "remount,ro", str(disk))
        ran = dfq("verify-fs", str(disk), home=tmp_path)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
        assert "remount it for writing" in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_interrupted_it_leaves_no_process_and_no_folder(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "dfq", "verify-fs", str(tmp_path), "--rounds", "100000"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path), cwd=tmp_path
    )
    deadline = time.monotonic() + 60
    racers: list[psutil.Process] = []
    while len(racers) < 4 and time.monotonic() < deadline:
        racers = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.01)
    assert len(racers) == 4
    assert len(list(tmp_path.iterdir())) == 1
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"Traceback" not in err
    _, alive = psutil.wait_procs(racers, timeout=30)
    assert alive == []
    if number != signal.SIGKILL:  # nobody is left to clean up after that
        assert list(tmp_path.iterdir()) == []
