"""dfq status, ls, show, leases."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cli_kit import Run

ESC = "evil\x1b[31m\ttab\nline\u202e"


@pytest.mark.parametrize(
    "args",
    [
        ("status",),
        ("ls",),
        ("show", "a"),
        ("leases",),
        ("stalled",),
        ("status", "--by", ""),
        ("status", "--watch"),
        ("retry", "a"),
        ("cancel", "a"),
        ("purge",),
        ("pause",),
        ("resume",),
        ("ack", "1.aa.5.a"),
    ],
)
def test_looking_for_a_queue_does_not_make_one(dfq: Run, root: Path, args: tuple[str, ...]) -> None:
    ran = dfq("--queue", "typo", *args)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("dfq: ")
    assert "typo" in ran.err
    assert ran.err.count("\n") == 1
    assert list(root.iterdir()) == []


def test_status_counts_and_says_who_works(dfq: Run, root: Path) -> None:
    for n in range(3):
        dfq("push", "x", "--id", f"t{n}")
    dfq("push", "x", "--delay", "600")
    dfq("claim")
    status = dfq("status", "--json").object
    (worker,) = status.pop("workers")
    assert worker == dfq("leases", "--json").object["worker_id"]
    assert status == {
        "queue": "default",
        "queue_type": "filesystem",
        "path": str(root / "default"),
        "paused": False,
        "pending": 2,
        "leased": 1,
        "scheduled": 1,
        "completed": 0,
        "failed": 0,
        "stalled": 0,
    }
    plain = dict(line.split("\t") for line in dfq("status").lines)
    assert (plain["pending"], plain["leased"], plain["worker"]) == ("2", "1", worker)


def test_ls_of_nothing_is_no_failure(dfq: Run) -> None:
    dfq("init")
    ran = dfq("ls", "failed")
    assert (ran.status, ran.out, ran.err) == (0, "", "dfq: no tasks are failed in queue default\n")
    assert dfq("ls", "--json").err == "dfq: no tasks in queue default\n"
    assert dfq("leases").status == 0
    assert dfq("ls", "unheard-of").status == 2


def test_ls_lists_a_state_with_tabs_and_no_heading(dfq: Run) -> None:
    for n in range(5):
        dfq("push", "x", "--id", f"t{n}")
    done = dfq("claim").object
    dfq("ack", done["receipt"])
    assert len(dfq("ls").lines) == 5
    assert len(dfq("ls", "pending", "--limit", "2").lines) == 2
    (line,) = dfq("ls", "completed").lines
    assert line.split("\t")[:3] == [done["id"], "completed", "1"]
    assert {o["id"] for o in dfq("ls", "pending", "--json").objects} == {f"t{n}" for n in range(5)} - {done["id"]}


def test_control_characters_are_escaped_in_text_and_exact_in_json(dfq: Run, dfq_tty: Run) -> None:
    assert dfq("push", "pay\x1b[0mload", "--id", ESC).lines == ["evil\\x1b[31m\\ttab\\nline\\u202e"]
    (line,) = dfq("ls").lines
    assert line.split("\t")[0] == "evil\\x1b[31m\\ttab\\nline\\u202e"
    assert dfq("ls", "--json").object["id"] == ESC
    shown = dfq("show", ESC)
    assert "\x1b" not in shown.out
    assert shown.out.splitlines()[0] == "id\tevil\\x1b[31m\\ttab\\nline\\u202e"
    missing = dfq("show", "\x1b[31mno")
    assert "\x1b" not in missing.err
    assert "\x1b[31m" not in dfq_tty("ls", NO_COLOR="1").out


def test_an_id_that_looks_like_markup_is_shown_as_it_is(dfq: Run, dfq_tty: Run) -> None:
    dfq("push", "x", "--id", "[red]a[/red]")
    assert "[red]a[/red]" in dfq_tty("ls").out
    assert "[red]a[/red]" in dfq_tty("show", "[red]a[/red]").out


def test_on_a_terminal_there_is_a_table_with_headings(dfq: Run, dfq_tty: Run) -> None:
    dfq("push", "x", "--id", "a")
    shown = dfq_tty("ls").out
    assert "attempt" in shown
    assert "\t" not in shown
    assert "pending" in dfq_tty("status").out


def test_no_color_means_no_escapes_at_all(dfq: Run, dfq_tty: Run, tmp_path: Path) -> None:
    dfq("push", "x", "--id", "a")
    (tmp_path / "t.ndjson").write_text('{"n": 1}\n')
    for command in (("ls",), ("status",), ("show", "a"), ("leases",), ("push", "--from", "t.ndjson")):
        assert "\x1b" not in dfq_tty(*command, NO_COLOR="1").out
    assert "\x1b" in dfq_tty("ls").out


def test_a_table_on_a_narrow_terminal_keeps_ids_in_one_piece(dfq: Run, dfq_tty: Run) -> None:
    made = dfq("push", "x").out.strip()
    dfq("nack", dfq("claim").object["receipt"], "--error", "a long story " * 20)
    ids = [f"29.5/-98.5/{'x' * n}" for n in (10, 60)]
    for task_id in ids:
        dfq("push", "x", "--id", task_id)
    lines = dfq_tty("ls", NO_COLOR="1", COLUMNS="80").out.strip().splitlines()
    assert lines[0].split()[:4] == ["id", "state", "attempt", "age"]
    assert "detail" in lines[0]
    for task_id in (made, *ids):
        assert sum(line.startswith(f"{task_id} ") for line in lines) == 1
    (story,) = (line for line in lines if line.startswith(made))
    assert story.rstrip().endswith("…")
    short = dfq_tty("ls", "pending", "--limit", "0", NO_COLOR="1", COLUMNS="80").out.strip()
    assert "last error" in short.splitlines()[0]


def test_times_are_local_and_to_the_second_on_a_terminal(dfq: Run, dfq_tty: Run) -> None:
    dfq("push", "x", "--id", "a")
    dfq("ack", dfq("claim").object["receipt"])
    done = dfq("show", "a", "--json").object["completed_at"]
    local = (datetime.fromisoformat(done) + timedelta(hours=3)).strftime("%Y-%m-%d %H:%M:%S")
    for command in (("ls", "completed"), ("show", "a")):
        assert local in dfq_tty(*command, TZ="XYZ-3").out
        assert done in dfq(*command, TZ="XYZ-3").out


def test_show_of_a_cancelled_task_says_when_that_was(dfq: Run, root: Path) -> None:
    dfq("push", "x", "--id", "a")
    dfq("cancel", "a")
    told = dfq("show", "a", "--json").object
    assert (told["state"], told["cancelled"]) == ("completed", True)
    assert told["path"] == f"{root}/default/completed/{Path(told['path']).parent.name}/a.json"
    text = dict(line.split("\t") for line in dfq("show", "a").lines)
    assert text["state"] == "cancelled"
    assert text["cancelled"] == told["completed_at"]
    assert "completed" not in text


def test_paths_are_whole_wherever_they_are_shown(dfq: Run, root: Path) -> None:
    dfq("push", "x", "--id", "a")
    dfq("claim")
    paths = {dfq(*command, "--json").object["path"] for command in (("ls",), ("leases",), ("show", "a"))}
    assert len(paths) == 1
    assert Path(paths.pop()).is_relative_to(root / "default")


def test_show_tells_all_of_a_dead_letter(dfq: Run, root: Path) -> None:
    dfq("push", '{"n": 1}', "--id", "24/7 plumber")
    for n in range(2):
        receipt = dfq("claim", DFQ_MAX_ATTEMPTS="2").object["receipt"]
        ran = dfq("nack", receipt, "--error", f"HTTP 50{n}", "--json", DFQ_MAX_ATTEMPTS="2")
    assert ran.object["state"] == "failed"
    told = dfq("show", "24/7 plumber", "--json").object
    assert (told["state"], told["payload"]) == ("failed", {"n": 1})
    assert [e["error"] for e in told["errors"]] == ["HTTP 500", "HTTP 501"]
    assert Path(told["path"]).is_file()
    assert Path(told["path"]).is_relative_to(root)
    text = dfq("show", "24/7 plumber").out
    assert "HTTP 500" in text
    assert "HTTP 501" in text


def test_show_of_a_completed_and_of_a_binary_task(dfq: Run, root: Path) -> None:
    import dfq as library

    with library.open_queue("default", root=root) as queue:
        queue.push(b"\x00\xff", id="raw")
    told = dfq("show", "raw", "--json").object
    assert (told["payload"], told["encoding"]) == ("AP8=", "base64")
    assert "base64:AP8=" in dfq("show", "raw").out
    claimed = dfq("claim").object
    assert (claimed["payload"], claimed["encoding"]) == ("AP8=", "base64")
    dfq("ack", claimed["receipt"], "--result", '{"items": 20}')
    told = dfq("show", "raw", "--json").object
    assert (told["state"], told["result"], told["attempt"]) == ("completed", {"items": 20}, 1)
    assert told["worker_id"]


def test_leases_tell_who_works_on_what(dfq: Run, dfq_tty: Run) -> None:
    dfq("push", "x", "--id", "a")
    dfq("claim", "--lease", "300")
    lease = dfq("leases", "--json").object
    assert (lease["id"], lease["attempt"]) == ("a", 1)
    assert 200 < lease["expires_in"] <= 300
    assert 0 <= lease["held_for"] < 60
    (line,) = dfq("leases").lines
    assert line.split("\t")[:3] == ["a", lease["worker_id"], "1"]
    assert "expires" in dfq_tty("leases").out


def test_a_reader_that_goes_away_is_no_drama(dfq: Run, root: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    from cli_kit import environment

    dfq("push", "--from", "-", input='{"n": 1}\n' * 3000)
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dfq ls --json | head -1"],
        env=environment(root),
        capture_output=True,
        text=True,
    )
    assert len(ran.stdout.splitlines()) == 1
    assert "Traceback" not in ran.stderr
