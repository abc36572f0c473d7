"""scripts/env.sh: what makes .venv fit for use, on machines that get in its way."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_kit import REPO

PYTHON = "#!/bin/sh\nexit 0\n"  # of a .venv: it has pip, dfq and all that


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A checkout with nothing but the scripts, in a place that any user can reach."""
    with tempfile.TemporaryDirectory(prefix="dfq checkout ") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(REPO / "scripts", folder / "scripts")
        shutil.copy(REPO / "pyproject.toml", folder)
        yield folder


def bash(folder: Path, script: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    # `command -v` and calls find functions first: a script can put its own apt-get or id in place.
    sourced = f'set -euo pipefail; source "$1"; {script}'
    command = ["bash", "-c", sourced, "bash", str(folder / "scripts" / "env.sh")]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", user=user, timeout=60)


def make_venv(folder: Path) -> None:
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)


def test_a_venv_is_prepared_once(checkout: Path) -> None:
    make_venv(checkout)
    first = bash(checkout, 'need_env ""')
    assert (first.returncode, "installing dfq" in first.stderr) == (0, True)
    again = bash(checkout, 'need_env ""')
    assert (again.returncode, again.stderr) == (0, "")


def test_a_venv_that_was_moved_is_built_anew(checkout: Path, tmp_path: Path) -> None:
    make_venv(checkout)
    bash(checkout, 'need_env ""')
    moved = tmp_path / "moved"
    shutil.copytree(checkout, moved)
    ran = bash(moved, '_make_venv() { _note "made anew"; rm "$VENV"/.stamp*; }; need_env ""')
    assert ran.returncode == 0
    assert f"{moved}/.venv was made for another folder" in ran.stderr
    assert "made anew" in ran.stderr
    assert bash(moved, 'need_env ""').stderr == ""


def test_a_venv_of_another_user_is_told_as_that(checkout: Path) -> None:
    make_venv(checkout)
    for folder in (checkout, checkout / ".venv"):
        folder.chmod(0o555)
    ran = bash(checkout, 'need_env ""', user=65534 if os.geteuid() == 0 else None)
    for folder in (checkout, checkout / ".venv"):
        folder.chmod(0o755)
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert f"env: {checkout} belongs to " in ran.stderr
    assert "may not write there" in ran.stderr


def test_what_apt_says_is_shown_only_if_it_fails(checkout: Path) -> None:
    fine = bash(checkout, "id() { echo 0; }; apt-get() { echo noise; echo noise >&2; }; _apt_install python3-venv")
    assert (fine.returncode, fine.stdout) == (0, "")
    assert fine.stderr == "env: installing python3-venv with apt-get\n"
    failing = bash(checkout, "id() { echo 0; }; apt-get() { echo no network; return 100; }; _apt_install python3-venv")
    assert (failing.returncode, failing.stdout) == (1, "")
    assert "no network" in failing.stderr
    assert "env: failed: apt-get update" in failing.stderr


def test_without_rights_the_line_to_run_is_told(checkout: Path) -> None:
    ran = bash(checkout, "id() { echo 1000; }; apt-get() { echo noise; }; _apt_install python3-venv")
    assert ran.returncode == 1
    assert "sudo apt-get install python3-venv" in ran.stderr
