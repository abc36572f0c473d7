"""dfq doctor as a person or a script runs it, also where things are not as they should be."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node_kit import dfq, environment, not_run

LEVELS = {"ok", "warn", "fail", "unknown"}


def rows(text: str) -> dict[str, tuple[str, str, str]]:
    split = [line.split("\t") for line in text.splitlines()]
    assert all(len(row) == 4 and row[0] in LEVELS for row in split), text
    return {name: (level, found, fix) for level, name, found, fix in split}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def test_on_this_machine(root: Path) -> None:
    ran = dfq("doctor", "--root", str(root), home=root)
    seen = rows(ran.stdout)
    assert ran.returncode == (1 if any(level == "fail" for level, _, _ in seen.values()) else 0)
    assert seen["root"] == ("ok", str(root), "-")
    assert list(root.iterdir()) == []


def test_json_is_an_object_for_each_finding(root: Path) -> None:
    ran = dfq("doctor", "--root", str(root), "--json", home=root)
    findings = [json.loads(line) for line in ran.stdout.splitlines()]
    assert all(set(f) == {"name", "level", "found", "fix"} and f["level"] in LEVELS for f in findings)
    assert "config root" in {f["name"] for f in findings}


def test_on_a_terminal_it_is_a_table(root: Path) -> None:
    master, slave = pty.openpty()
    env = environment(root, COLUMNS="150", NO_COLOR="1")
    command = [sys.executable, "-m", "dfq", "doctor", "--root", str(root)]
    with subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=env, cwd=root):
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
    assert "Traceback" not in text
    assert all(word in text for word in ("level", "what to do", "clock synced", "free inodes"))
    assert "\x1b[3" not in text


def test_a_root_that_is_not_there(root: Path) -> None:
    ran = dfq("doctor", "--root", str(root / "a" / "b"), home=root)
    level, found, _ = rows(ran.stdout)["root"]
    assert (level, "not there yet" in found) == ("ok", True)
    assert list(root.iterdir()) == []


def test_a_root_that_is_a_file(root: Path) -> None:
    (root / "file").write_text("")
    ran = dfq("doctor", "--root", str(root / "file"), home=root)
    assert ran.returncode == 1
    assert rows(ran.stdout)["root"][0] == "fail"
    assert ran.stderr.startswith("dfq: this node is not fit: root")


def test_a_root_that_anyone_may_write_to(root: Path) -> None:
    root.chmod(0o777)
    ran = dfq("doctor", "--root", str(root), home=root)
    assert ran.returncode == 1
    assert rows(ran.stdout)["root"][2] == f"chmod o-w {root}"


def test_a_root_that_cannot_be_read(root: Path, tmp_path: Path) -> None:
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root reads everything, unless it gives that up
        if not shutil.which("setpriv"):
            not_run("there is no setpriv to be an ordinary user with")
        before = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all")
    root.chmod(0)
    try:
        for place in (root, root / "below"):
            ran = dfq("doctor", "--root", str(place), home=tmp_path, before=before)
            assert ran.returncode == 1
            seen = rows(ran.stdout)
            assert seen["root"][0] == "fail"
            assert seen["config"][0] == "fail"
            assert "Permission denied" in seen["config"][1]
            assert seen["memory"][0] in LEVELS
    finally:
        root.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"lease = = 3", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (b"leese = 3", "did you mean lease"),
        (b'lease = "soon"', "lease = 'soon'"),
        (b"x" * 70_000, "64 KiB"),
        (b'redis_url = "user:hunter2@host"', "***@host"),
    ],
)
def test_a_broken_config_is_told_and_the_rest_as_well(root: Path, text: bytes, said: str) -> None:
    (root / "dfq.toml").write_bytes(text)
    ran = dfq("doctor", "--root", str(root), home=root)
    assert ran.returncode == 1
    seen = rows(ran.stdout)
    level, found, fix = seen["config"]
    assert level == "fail"
    assert said in found
    assert str(root / "dfq.toml") in found
    assert "hunter2" not in ran.stdout + ran.stderr
    assert fix != "-"
    assert seen["root"] == ("ok", str(root), "-")


def test_a_wrong_variable_is_told(root: Path) -> None:
    ran = dfq("doctor", home=root, DFQ_LEESE="3", DFQ_ROOT=str(root))
    assert ran.returncode == 1
    assert "DFQ_LEESE" in rows(ran.stdout)["config"][1]
    assert rows(ran.stdout)["root"] == ("ok", str(root), "-")


def test_a_working_folder_that_is_gone(root: Path) -> None:
    script = f'mkdir gone && cd gone && rmdir ../gone && "{sys.executable}" -P -m dfq doctor --root "{root}"'
    ran = subprocess.run(["bash", "-c", script], env=environment(root), cwd=root, capture_output=True, text=True)
    assert "Traceback" not in ran.stderr
    assert rows(ran.stdout)["root"][0] == "ok"
