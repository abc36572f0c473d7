"""dfq init, retry, cancel, purge, pause, resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_kit import Run


def bury(dfq: Run, *ids: str) -> None:
    for task_id in ids:
        dfq("push", "x", "--id", task_id)
        receipt = dfq("claim", DFQ_MAX_ATTEMPTS="1").object["receipt"]
        dfq("nack", receipt, "--error", "no", DFQ_MAX_ATTEMPTS="1")


def test_init_makes_the_queue_and_says_where(dfq: Run, root: Path) -> None:
    ran = dfq("init", "--shards", "16")
    assert (ran.status, ran.out) == (0, f"{root}/default\n")
    assert [p.name for p in (root / "default").iterdir()] == ["queue.json"]
    assert json.loads((root / "default" / "queue.json").read_text())["shards"] == 16
    assert dfq("init", "--json").object["path"] == f"{root}/default"
    assert dfq("init", "--shards", "0").status == 2
    assert dfq("init", "--shards", "16").status == 0
    other = dfq("init", "--shards", "32")
    assert (other.status, other.out) == (2, "")
    assert "has 16 shards, not 32" in other.err
    assert dfq("init", DFQ_SHARDS="32").status == 0


def test_root_and_queue_may_stand_before_or_after_the_command_or_in_the_environment(
    dfq: Run, root: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert dfq("--root", str(other), "--queue", "a", "init").out == f"{other}/a\n"
    assert dfq("init", "--root", str(other), "--queue", "b").out == f"{other}/b\n"
    assert dfq("--queue", "x", "init", "--queue", "c").out == f"{root}/c\n"
    assert dfq("init", DFQ_QUEUE="d").out == f"{root}/d\n"
    assert dfq("--queue", "default", "init", DFQ_QUEUE="d").out == f"{root}/default\n"


def test_retry_puts_failed_tasks_back(dfq: Run) -> None:
    bury(dfq, "a", "b", "c")
    assert dfq("retry", "a").lines == ["a"]
    assert dfq("show", "a", "--json").object["state"] == "pending"
    some = dfq("retry", "nope", "b")
    assert (some.status, some.lines) == (1, ["b"])
    assert "'nope'" in some.err
    assert dfq("retry", "a").status == 3  # it has not failed any more
    assert dfq("retry", "--all-failed", "--json").objects == [{"id": "c"}]
    none = dfq("retry", "--all-failed")
    assert (none.status, none.out) == (3, "")
    assert dfq("retry").status == 2
    both = dfq("retry", "a", "--all-failed")
    assert both.status == 2
    assert "not both" in both.err


def test_an_id_that_nobody_knows_is_a_failure_and_one_that_cannot_be_is_usage(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    for command in ("show", "retry", "cancel"):
        unknown = dfq(command, "nope")
        assert (unknown.status, unknown.out) == (1, "")
        assert "there is no task 'nope'" in unknown.err
        assert unknown.err.count("\n") == 1
        assert dfq(command, "").status == 2
    some = dfq("cancel", "nope", "a")
    assert (some.status, some.lines) == (1, ["a"])
    assert dfq("cancel", "a").status == 3  # it is known, and over
    assert dfq("push", "x", "--id", "").status == 2


def test_cancel_takes_a_task_out_and_its_worker_is_told(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    receipt = dfq("claim").object["receipt"]
    assert dfq("cancel", "a").lines == ["a"]
    late = dfq("ack", receipt)
    assert late.status == 1
    assert late.err.startswith("dfq: ")
    assert dfq("cancel", "a").status == 3
    assert dfq("show", "a", "--json").object["cancelled"] is True
    assert dfq("cancel").status == 2


def test_purge_says_how_many_and_does_it_only_without_dry_run(dfq: Run) -> None:
    for n in range(3):
        dfq("push", "x", "--id", f"t{n}")
    dfq("push", "x", "--delay", "600")
    assert dfq("purge", "--dry-run").out == "4\n"
    assert dfq("status", "--json").object["pending"] == 3
    assert dfq("purge", "--json").object == {"purged": 4, "dry_run": False}
    assert dfq("purge").status == 3
    assert dfq("purge", "--dry-run").status == 3


@pytest.mark.parametrize(("keys", "left"), [("n\n", 1), ("y\n", 0)])
def test_purge_asks_on_a_terminal(dfq: Run, dfq_tty: Run, keys: str, left: int) -> None:
    dfq("push", "x")
    ran = dfq_tty("purge", keys=keys)
    assert "Cancel 1 tasks" in ran.out
    assert ran.status == (1 if left else 0)
    assert dfq("status", "--json").object["pending"] == left


def test_purge_does_not_ask_when_told_not_to(dfq: Run, dfq_tty: Run) -> None:
    dfq("push", "x")
    assert dfq_tty("purge", "--yes").status == 0


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    ran = dfq("pause")
    assert (ran.status, ran.out) == (0, "")
    assert dfq("status", "--json").object["paused"] is True
    assert dfq("claim").status == 3
    assert dfq("pause").status == 0
    assert dfq("resume").status == 0
    assert dfq("claim").object["id"] == "a"
