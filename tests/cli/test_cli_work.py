"""dfq work, and dfq demo."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_kit import Run, environment

from dfq.cli.demo import Demo, DemoFailed

PY = shlex.quote(sys.executable)


def test_an_exec_worker_gets_the_payload_and_its_stdout_is_the_result(dfq: Run) -> None:
    dfq("push", '{"n": 20}', "--id", "a/1")
    code = (
        "import sys, os, json; n = json.load(sys.stdin)['n'];"
        "print(json.dumps([n, *(os.environ['DFQ_TASK_' + k] for k in ('ID', 'TOKEN', 'ATTEMPT'))]))"
    )
    ran = dfq("work", "--once", "--exec", f"{PY} -c {shlex.quote(code)}", "--json")
    assert ran.status == 0, ran.err
    assert ran.object == {"done": 1, "failed": 0, "dead": 0, "released": 0, "lost": 0, "stuck": 0}
    result = dfq("show", "a/1", "--json").object["result"]
    assert (json.loads(result) if isinstance(result, str) else result) == [20, "a/1", "1", "1"]


def test_once_on_an_empty_queue_has_nothing_to_do(dfq: Run) -> None:
    ran = dfq("work", "--once", "--exec", "true")
    assert (ran.status, ran.out) == (3, "")


def test_a_failing_command_fails_the_attempt_with_its_stderr(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    ran = dfq("work", "--once", "--exec", "sh -c 'echo went wrong >&2; exit 4'")
    assert ran.status == 1
    told = dfq("show", "a", "--json").object
    assert "went wrong" in told["error"]
    assert told["attempt"] == 1


def test_exit_75_gives_the_task_back_without_counting(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    assert dfq("work", "--once", "--exec", "sh -c 'exit 75'", "--json").object["released"] == 1
    assert dfq("show", "a", "--json").object["attempt"] == 0


def test_a_function_next_to_where_one_stands_is_found(dfq: Run, tmp_path: Path) -> None:
    (tmp_path / "tiles.py").write_text("def scrape(task):\n    return {'seen': task.payload['n']}\n")
    dfq("push", "--from", "-", "--id-field", "n", input="".join(f'{{"n": {n}}}\n' for n in range(10)))
    ran = dfq("work", "tiles:scrape", "--drain", "--workers", "2", "--lease", "60", "--log-format", "json")
    assert ran.status == 0, ran.err
    assert ran.out == ""
    assert dfq("status", "--json").object["completed"] == 10
    assert dfq("show", "7", "--json").object["result"] == {"seen": 7}


def test_a_handler_or_a_command_that_is_not_there_is_one_clear_line(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    for args in (("nowhere.at:all",), ("json:nothing",), ("--exec", "/no/such/command")):
        ran = dfq("work", "--once", *args)
        assert ran.status == 2, ran.err
        assert ran.out == ""
        assert ran.err.startswith("dfq: ")
    assert dfq("show", "a", "--json").object["state"] == "pending"


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("a.b:c", "--exec", "true"),
        ("nocolon",),
        ("--exec", ""),
        ("--exec", "'open"),
        ("--exec", "true", "--workers", "0"),
        ("--exec", "true", "--timeout", "0"),
        ("--exec", "true", "--log-format", "xml"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(dfq: Run, args: tuple[str, ...]) -> None:
    ran = dfq("work", *args)
    assert (ran.status, ran.out) == (2, "")
    assert ("not both" in ran.err) == (args[:2] == ("a.b:c", "--exec"))


def test_a_command_that_takes_too_long_is_ended(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    begin = time.monotonic()
    assert dfq("work", "--once", "--exec", "sleep 60", "--timeout", "0.5").status == 1
    assert time.monotonic() - begin < 30


def test_sigterm_lets_the_running_task_finish(dfq: Run, root: Path, tmp_path: Path) -> None:
    for task_id in ("a", "b"):
        dfq("push", "x", "--id", task_id)
    started = tmp_path / "started"
    worker = subprocess.Popen(
        [sys.executable, "-m", "dfq", "work", "--exec", f"sh -c 'touch {started}; sleep 1'"],
        env=environment(root),
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    while not started.exists():
        assert worker.poll() is None
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(30) == 0
    status = dfq("status", "--json").object
    assert (status["completed"], status["pending"], status["leased"]) == (1, 1, 0)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_worker_without_stderr_works_and_can_be_stopped(dfq: Run, root: Path, tmp_path: Path, closed: str) -> None:
    dfq("push", "x", "--id", "a")
    worker = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "dfq", "work", "--exec", "true"],
        env=environment(root),
        cwd=tmp_path,
    )
    try:
        end = time.monotonic() + 20
        while dfq("show", "a", "--json").object["state"] != "completed":
            assert time.monotonic() < end
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()


def test_a_drain_tells_what_became_of_it(dfq: Run, tmp_path: Path) -> None:
    quick = {"DFQ_BACKOFF": "0.01,1,0.01,0", "DFQ_MAX_ATTEMPTS": "2"}
    empty = dfq("work", "--drain", "--exec", "true")
    assert (empty.status, empty.out) == (3, "")

    dfq("push", "x", "--id", "bad")
    dfq("push", "x", "--id", "tomorrow", "--delay", "86400")
    bad = dfq("work", "--drain", "--exec", "false", **quick)
    assert bad.status == 1
    assert "0 done, 2 attempts failed, 1 dead letter, 0 given back" in bad.err
    assert "1 scheduled left" in bad.err

    # Given back once, then done: that is waited for.
    dfq("push", "x", "--id", "later")
    once = f"sh -c 'test -e {tmp_path}/seen || {{ touch {tmp_path}/seen; exit 75; }}'"
    later = dfq("work", "--drain", "--exec", once, **quick)
    assert later.status == 0, later.err
    assert "1 done, 0 attempts failed, 1 given back" in later.err

    dfq("push", "x", "--id", "never")
    never = dfq("work", "--drain", "--exec", "sh -c 'exit 75'", **quick)
    assert never.status == 1
    assert "1 task given back again and again" in never.err

    dfq("push", "x", "--id", "waiting")
    dfq("pause")
    paused = dfq("work", "--drain", "--exec", "true")
    assert paused.status == 3
    assert "1 pending, 2 scheduled left; the queue is paused" in paused.err


@pytest.mark.slow
def test_the_demo_keeps_its_promises(dfq: Run, tmp_path: Path) -> None:
    base = tmp_path / "demo-root"
    ran = dfq("--root", str(base), "demo", DFQ_LEASE="1", COCLI_QUEUE_TYPE="memory")
    assert ran.status == 0, ran.out + ran.err
    assert "FAILED" not in ran.out
    assert ran.out.count("  ok  ") == 6
    assert "as attempt 2" in ran.out
    kept = ran.out.partition("\nkept: ")[2].splitlines()
    assert kept[0] == f"{base}/demo"
    # The line that it ends with can be pasted into a shell that knows nothing of this environment.
    pasted = subprocess.run(["bash", "-c", kept[1]], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert b"completed\t200" in pasted.stdout, pasted
    assert dfq("--root", str(base), "--queue", "demo", "status", "--json").object["completed"] == 200
    assert dfq("--root", str(base), "demo").status == 2  # it wants a queue of its own


@pytest.mark.slow
def test_the_demo_leaves_nothing_behind(dfq: Run, tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    ran = dfq("demo", TMPDIR=str(scratch))
    assert ran.status == 0
    assert "kept" not in ran.out
    assert list(scratch.iterdir()) == []


def test_the_demo_speaks_of_no_settings_that_it_ignores(dfq: Run) -> None:
    text = dfq("demo", "--help").out
    assert "DFQ_" not in text
    assert "a temporary folder" in " ".join(text.split())
    assert "[default: demo]" in text


@pytest.mark.parametrize(("kind", "why"), [("nfs4", "not known to be this machine's alone"), ("ext4", "local")])
def test_a_demo_without_a_takeover_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, why: str
) -> None:
    monkeypatch.setattr("dfq.mounts.filesystem_kind", lambda path: kind)
    monkeypatch.setattr("dfq.cli.demo.filesystem_kind", lambda path: kind)
    monkeypatch.setattr("dfq.cli.demo.PATIENCE", 0.0)
    demo = Demo(tmp_path / "demo", tmp_path)
    demo.check([], [], took_over=False)
    shown = capsys.readouterr().out
    assert "FAILED  the dead worker's task was completed by another" in shown
    assert f"({kind})" in shown
    assert why in shown
    with pytest.raises(DemoFailed, match=why):
        demo.wait_for(lambda: False, "all tasks completed", demo.no_takeover)
