"""--help, --version, completion, and what they may cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_kit import REPO, Run, environment

from dfq import __version__
from dfq.cli import COMMANDS, main

SLOW = {"rich", "psutil", "asyncio", "boto3", "redis", "textual", "json", "tomllib", "logging", "subprocess"}


def test_help_imports_nothing_that_is_slow_and_no_command(root: Path) -> None:
    code = (
        "import sys; from dfq.cli import main; main(['--help'], standalone_mode=False);print('MODULES', *sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(root), capture_output=True, text=True, check=True
    )
    modules = set(ran.stdout.rpartition("MODULES ")[2].split())
    assert {m for m in modules if m.partition(".")[0] in SLOW} == set()
    assert {m for m in modules if m.startswith("dfq.")} == {"dfq.cli", "dfq.cli.options", "dfq.errors"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_help_has_its_own_words(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert command.short_help == COMMANDS[name][1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(dfq: Run, name: str) -> None:
    ran = dfq(name, "--help")
    assert ran.status == 0
    assert ran.out.startswith(f"Usage: dfq {name}")
    assert ("--queue" in ran.out) == (name not in ("completion", "verify-fs"))


def test_version(dfq: Run) -> None:
    assert dfq("--version").out == f"dfq, version {__version__}\n"


def test_an_unknown_command_or_option_is_a_usage_error(dfq: Run) -> None:
    assert dfq("frobnicate").status == 2
    assert dfq("ls", "--frobnicate").status == 2


def test_a_wrong_setting_is_a_usage_error_on_one_line(dfq: Run) -> None:
    ran = dfq("status", DFQ_LEESE="3")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "DFQ_LEESE" in ran.err
    assert dfq("--queue", "../up", "status").status == 2


def test_a_root_that_cannot_be_written_is_one_clear_line(dfq: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = dfq("--root", str(tmp_path / "file"), "push", "x")
    assert (ran.status in (1, 2), ran.out, ran.err.count("\n")) == (True, "", 1)
    assert ran.err.startswith("dfq: ")


def test_a_working_folder_that_is_gone_is_one_clear_line(root: Path, tmp_path: Path) -> None:
    script = f'mkdir gone && cd gone && rmdir ../gone && "{sys.executable}" -P -m dfq status'
    ran = subprocess.run(["bash", "-c", script], env=environment(root), cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("dfq: ")
    assert ran.stderr.count("\n") == 1


def test_arguments_that_are_not_utf8_are_one_clear_line(root: Path, tmp_path: Path) -> None:
    for args in ([b"push", b"\xff"], [b"push", b"x", b"--id", b"\xff"], [b"show", b"\xff"]):
        command = [sys.executable.encode(), b"-m", b"dfq", *args]
        ran = subprocess.run(command, env=environment(root), cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 2
        assert ran.stderr.startswith("dfq: ")
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["memory", "sqs", "rabbit"])
@pytest.mark.parametrize(
    "args",
    [
        ("init",),
        ("push", "x"),
        ("work", "--exec", "true", "--once"),
        ("status",),
        ("ls",),
        ("show", "a"),
        ("leases",),
        ("retry", "a"),
        ("cancel", "a"),
        ("purge",),
        ("pause",),
        ("resume",),
        ("claim",),
        ("ack", "1.aa.5.a"),
        ("nack", "1.aa.5.a"),
        ("heartbeat", "1.aa.5.a"),
    ],
    ids=lambda args: args[0],
)
def test_a_kind_of_queue_that_no_command_can_act_on_is_a_usage_error(
    dfq: Run, root: Path, args: tuple[str, ...], kind: str
) -> None:
    ran = dfq(*args, COCLI_QUEUE_TYPE=kind)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ("a memory queue lives in one process" in ran.err) == (kind == "memory")
    assert "COCLI_QUEUE_TYPE" in ran.err
    assert list(root.iterdir()) == []


def test_a_full_disk_under_stdout_names_stdout(dfq: Run, root: Path, tmp_path: Path) -> None:
    dfq("push", "x", "--id", "a")
    for args in (["ls"], ["ls", "--json"], ["show", "a"], ["status"], ["push", "y"]):
        with open("/dev/full", "w") as full:
            ran = subprocess.run(
                [sys.executable, "-m", "dfq", *args],
                env=environment(root),
                cwd=tmp_path,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert (ran.returncode, ran.stderr) == (1, "dfq: stdout: No space left on device\n")


def test_a_root_that_cannot_be_is_told_as_what_it_is(dfq: Run, tmp_path: Path) -> None:
    for command in (("push", "x"), ("status",), ("claim",)):
        proc = dfq("--root", "/proc/x", *command)
        assert (proc.status, proc.err.count("\n")) == (1, 1)
        assert "init" not in proc.err
        null = dfq("--root", "/dev/null", *command)
        assert (null.status, null.err) == (2, "dfq: /dev/null is not a folder\n")
        tmp_path.chmod(0o1777)
        everyones = dfq("--root", str(tmp_path), *command)
        assert everyones.status == 2
        assert f"such as {tmp_path}/my-queues" in everyones.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed(dfq: Run, shell: str) -> None:
    ran = dfq("completion", shell)
    assert ran.status == 0
    assert "_DFQ_COMPLETE" in ran.out


def test_completion_knows_commands_states_and_options(dfq: Run) -> None:
    def complete(words: str) -> list[str]:
        ran = dfq(COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1), _DFQ_COMPLETE="bash_complete")
        return [line.partition(",")[2] for line in ran.lines]

    assert complete("dfq he") == ["heartbeat"]
    assert complete("dfq ls fa") == ["failed"]
    assert "--id-field" in complete("dfq push --")


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test", "scripts/env.sh", ".ci/run"])
def test_scripts_are_valid_bash(script: str) -> None:
    path = REPO / script
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert script.endswith(".sh") or path.stat().st_mode & 0o111
