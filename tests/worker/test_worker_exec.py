"""Commands: what they get, and what becomes of what they say."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from worker_kit import Lab, alive

from dfq.config import Backoff
from dfq.errors import ConfigError
from dfq.queue import TaskInfo
from dfq.worker import Worker, WorkOptions, WorkReport

ONCE = WorkOptions(once=True)
QUICK = Backoff(first=0.01, factor=1, cap=0.01, jitter=0)


def run(lab: Lab, *command: str, payload: object = "hello", id: str = "a", **more: int) -> tuple[WorkReport, TaskInfo]:
    with lab.queue() as queue:
        queue.push(payload, id=id)
        report = Worker(queue, command=command, options=ONCE, backoff=QUICK, **more).run()
        return report, queue.get(id)


def sh(lab: Lab, script: str, **more: object) -> tuple[WorkReport, TaskInfo]:
    return run(lab, "sh", "-c", script, **more)  # type: ignore[arg-type]


def test_exit_0_completes_with_stdout_as_the_result(lab: Lab) -> None:
    report, task = sh(lab, "cat; echo; echo $DFQ_TASK_ID $DFQ_TASK_TOKEN $DFQ_TASK_ATTEMPT", id="24/7 plumber")
    assert (report.done, task.state) == (1, "completed")
    assert task.result == "hello\n24/7 plumber 1 1"


def test_a_mapping_is_a_line_of_json_on_stdin(lab: Lab) -> None:
    _, task = run(lab, "cat", payload={"n": [1, "é"]})
    assert task.result == '{"n": [1, "é"]}'


def test_bytes_arrive_as_they_are(lab: Lab) -> None:
    code = "import sys; print(sys.stdin.buffer.read().hex())"
    _, task = run(lab, sys.executable, "-c", code, payload=b"\x00\xff\n\x80")
    assert task.result == "00ff0a80"


def test_an_id_with_a_nul_is_escaped_in_the_environment_only(lab: Lab) -> None:
    report, task = sh(lab, 'printf %s "$DFQ_TASK_ID"', id="a\0b")
    assert (report.done, task.result) == (1, "a%00b")


def test_an_argument_is_not_seen_by_a_shell(lab: Lab) -> None:
    _, task = run(lab, "printf", "%s", "$HOME; `id` | *")
    assert task.result == "$HOME; `id` | *"


def test_exit_75_gives_back_without_counting(lab: Lab) -> None:
    report, task = sh(lab, "echo busy >&2; exit 75")
    assert (report.released, task.attempt) == (1, 0)
    assert task.state in ("pending", "scheduled")


def test_another_exit_fails_the_attempt_with_the_end_of_stderr(lab: Lab) -> None:
    report, task = sh(lab, "seq 100000 >&2; echo the reason >&2; exit 4")
    assert (report.failed, task.attempt) == (1, 1)
    assert task.error is not None
    assert task.error.startswith("exit 4: ")
    assert task.error.endswith("the reason")
    assert len(task.error) < 2100


def test_a_command_that_is_killed_says_by_what(lab: Lab) -> None:
    report, task = sh(lab, "kill -9 $$")
    assert (report.failed, task.error) == (1, "killed by SIGKILL")


def test_a_huge_stdout_is_cut_and_says_so(lab: Lab) -> None:
    report, task = sh(lab, "head -c 5000000 /dev/zero | tr '\\0' x")
    assert report.done == 1
    assert task.result.startswith("xxxx")
    assert task.result.endswith("[truncated: 5,000,000 bytes in all]")
    assert len(task.result) <= 256 * 1024


def test_output_that_is_not_utf_8_still_fits_once_it_is_replaced(lab: Lab) -> None:
    report, task = sh(lab, "head -c 1000 /dev/zero | tr '\\0' '\\377'", max_output=1000)
    assert report.done == 1
    assert task.result.startswith("\ufffd")
    assert len(task.result.encode()) <= 1000


def test_a_command_that_does_not_read_its_stdin_is_not_waited_for(lab: Lab) -> None:
    report, _ = run(lab, "true", payload="x" * 200_000)
    assert report.done == 1


def test_a_large_payload_and_a_large_output_do_not_block_each_other(lab: Lab) -> None:
    report, task = run(lab, "cat", payload="x" * 250_000)
    assert (report.done, len(task.result)) == (1, 250_000)


DAEMON = """
import os
if pid := os.fork():
    print(pid)
else:
    os.setsid()
    os.closerange(0, 1024)
    os.execve("/bin/sleep", ["sleep", "300"], {})
"""


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "sleep 300 & echo $!"],
        ["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"],
        [sys.executable, "-c", DAEMON],
    ],
    ids=["attached", "redirected", "daemon without descriptors and environment"],
)
def test_what_a_command_leaves_running_is_ended_with_the_task(lab: Lab, command: list[str]) -> None:
    begun = time.monotonic()
    report, task = run(lab, *command)
    assert report.done == 1
    assert time.monotonic() - begun < 60  # not as long as they would have run
    assert not alive(int(task.result))


def test_what_ends_by_itself_in_time_costs_no_child(lab: Lab) -> None:
    with lab.queue() as queue:
        ids = queue.push_many(["x"] * 3)
        command = ["sh", "-c", "(true &) ; true & echo $PPID"]
        assert Worker(queue, command=command, options=WorkOptions(drain=True)).run().done == 3
        assert len({queue.get(id).result for id in ids}) == 1


def test_a_log_line_does_not_go_on_where_a_command_left_off(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    with lab.queue() as queue:
        queue.push("x", id="a")
        options = WorkOptions(once=True, log_format="json")
        Worker(queue, command=["sh", "-c", "printf 'half a line' >&2"], options=options).run()
    half, line = capfd.readouterr().err.splitlines()
    assert half == "half a line"
    assert json.loads(line)["outcome"] == "done"


def test_a_command_that_is_not_there_is_told_before_anything_is_claimed(lab: Lab, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    for command in ("/no/such/command", "no-such-command-anywhere", str(plain), str(tmp_path)):
        with lab.queue() as queue:
            queue.push("x", id="a", if_exists="skip")
            with pytest.raises(ConfigError, match=r"cannot be run"):
                Worker(queue, command=[command], options=ONCE).run()
            assert (queue.get("a").state, queue.get("a").attempt) == ("pending", 0)


def test_a_file_that_the_kernel_cannot_run_does_not_cost_an_attempt(lab: Lab, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"\x7fELF nonsense")
    odd.chmod(0o755)
    report, task = run(lab, str(odd))
    assert (report.released, task.attempt) == (1, 0)


def test_nothing_of_the_payload_is_logged(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    sh(lab, "cat >/dev/null; exit 1", payload="a secret", id="line\nbreak\x1b[31m" + "x" * 200)
    said = capfd.readouterr().err
    assert "secret" not in said
    assert "line\\nbreak\\x1b[31mxxx" in said
    assert "x" * 81 not in said
    assert "exit 1" in said
