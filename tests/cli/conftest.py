"""Running the command line as a user does: as a process of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_kit import Ran, Run, environment


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the queues of a test lie."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def dfq(root: Path, tmp_path: Path) -> Run:
    """Run dfq with its streams piped, and never let a traceback pass."""

    def run(*args: str, input: str | bytes | None = None, **env: str) -> Ran:
        data = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            [sys.executable, "-m", "dfq", *args],
            input=data if data is not None else b"",
            capture_output=True,
            env=environment(root, **env),
            cwd=tmp_path,
            timeout=120,
        )
        ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in ran.err, ran.err
        return ran

    return run


@pytest.fixture
def dfq_tty(root: Path, tmp_path: Path) -> Run:
    """Run dfq on a terminal; what it shows, on either stream, comes back as `out`."""

    def run(*args: str, keys: str = "", **env: str) -> Ran:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "dfq", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(root, **{"COLUMNS": "160"} | env),
            cwd=tmp_path,
        )
        os.close(slave)
        shown: list[bytes] = []

        def read() -> None:
            while True:
                try:
                    data = os.read(master, 65536)
                except OSError:  # nobody has the other side open any more
                    return
                if not data:
                    return
                shown.append(data)

        reader = threading.Thread(target=read)
        reader.start()
        os.write(master, keys.encode())
        status = process.wait(60)
        reader.join(10)
        os.close(master)
        ran = Ran(status, b"".join(shown).decode(), "")
        assert "Traceback" not in ran.out, ran.out
        return ran

    return run
