"""Witnesses that are too old: their tiles are due again, as a new epoch."""

from __future__ import annotations

import json

import pytest
from index_kit import DAY, Ahead, Index, claim

import dfq
from dfq.ports import Found


def test_a_witness_that_is_too_old_makes_its_tile_due_again(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a/b.csv", "1")
    first = claim(q)
    q.ack(first, result=1)
    clock.by += 29 * DAY
    assert q.poll() == []
    assert q.counts() == dfq.Counts(completed=1)
    clock.by += 2 * DAY
    assert q.counts() == dfq.Counts(pending=1)
    second = claim(q)
    assert (second.id, second.attempt) == ("a/b.csv", 1)
    assert second.token > first.token
    q.ack(second, result=2)
    witness = json.loads((index.witnesses / "a/b.csv").read_text())
    assert (witness["result"], witness["epoch"]) == (2, 1)
    assert list(index.witnesses.rglob(".*")) == []


def test_a_late_worker_of_an_old_epoch_completes_nothing(index: Index) -> None:
    clock = Ahead()
    late, q = (index.queue_with(clock, refresh_after=30 * DAY, lease=60 * DAY) for _ in range(2))
    index.add("a.csv")
    old = claim(late)
    # Another tool (or a worker that took it over and is done) witnessed the tile meanwhile, long ago.
    index.witnesses.mkdir(exist_ok=True)
    (index.witnesses / "a.csv").write_text('{"epoch": 0}')
    clock.by += 31 * DAY
    new = claim(q)
    assert new.token > old.token
    with pytest.raises(dfq.LeaseLost):
        late.ack(old, result="late")
    q.ack(new, result="new")
    assert json.loads((index.witnesses / "a.csv").read_text())["result"] == "new"


def test_a_view_that_was_set_back_is_repaired_and_nothing_runs_twice(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a.csv")
    q.ack(claim(q), result=0)
    old = (index.witnesses / "a.csv").read_bytes()
    clock.by += 31 * DAY
    q.ack(claim(q), result=1)
    (index.witnesses / "a.csv").write_bytes(old)  # as a worker would that slept since before the second run
    assert index.queue_with(clock, refresh_after=30 * DAY).poll() == []
    assert json.loads((index.witnesses / "a.csv").read_text())["result"] == 1


def test_a_tile_that_was_redone_by_hand_is_not_overwritten_by_an_older_run(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a.csv")
    q.ack(claim(q), result=0)
    clock.by += 31 * DAY
    q.ack(claim(q), result=1)
    (index.witnesses / "a.csv").unlink()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    clock.by += 1
    q.ack(claim(q), result=2)
    clock.by += 31 * DAY
    q.ack(claim(q), result=3)
    assert json.loads((index.witnesses / "a.csv").read_text())["result"] == 3


def test_a_clock_that_jumps_makes_no_tile_due_again(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a.csv")
    q.ack(claim(q), result=0)
    clock.jump(365 * DAY)
    q._frontier.look_everywhere()
    assert q.poll() == []
    assert q.counts() == dfq.Counts(completed=1)
    # A process that is new looks at what the others noted, and is no more sure.
    assert index.queue_with(clock, refresh_after=30 * DAY).poll() == []
    # And back again, as after an hour with a wrong server: nothing was done again.
    clock.jump(-365 * DAY)
    clock.by += 29 * DAY
    assert q.poll() == []
    clock.by += 2 * DAY
    q.ack(claim(q), result=1)
    assert json.loads((index.witnesses / "a.csv").read_text())["epoch"] == 1


def test_a_clock_that_was_set_right_is_believed_after_a_while(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY, lease=60)
    index.add("a.csv")
    q.ack(claim(q), result=0)
    clock.jump(365 * DAY)
    assert q.poll() == []
    clock.by += 3500
    q._frontier.look_everywhere()
    assert q.poll() == []
    clock.by += 200  # over an hour since the jump
    q._frontier.look_everywhere()
    q.ack(claim(q), result=1)


def test_looking_at_an_index_writes_nothing(index: Index) -> None:
    index.add("a.csv")
    q = index.queue(refresh_after=5)
    before = sorted(p for p in index.folder.rglob("*"))
    assert q.counts() == dfq.Counts(pending=1)
    assert q.get("a.csv").state == "pending"
    assert sorted(p for p in index.folder.rglob("*")) == before


def test_the_time_of_a_witness_may_be_before_all_time(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a.csv")
    q.ack(claim(q), result=0)
    clock.by += 31 * DAY
    q.ack(claim(q), result=1)
    witness = index.witnesses / "a.csv"
    witness.write_text("another tool's")
    scan = q._disk.scan

    def ancient(path: str, **options: bool) -> list[Found]:
        # Some filesystems have times before the year 1, the one under this test may not.
        return [
            f._replace(mtime_ns=-(10**20)) if f.name == "a.csv" and path[0] == "@" else f for f in scan(path, **options)
        ]

    q._disk.scan = ancient  # type: ignore[method-assign]
    clock.by += 1
    q._frontier.look_everywhere()
    assert q.poll() == []
    assert json.loads(witness.read_text())["result"] == 1


def test_what_a_crash_left_among_the_witnesses_is_swept(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock)
    index.add("a/b.csv")
    ours, theirs = (index.witnesses / "a" / name for name in (".tmp-77-0123456789abcdef", ".tmp-of-another-tool"))
    ours.parent.mkdir(parents=True)
    for path in (ours, theirs):
        path.write_text("{}")
    q.ack(claim(q))
    for _ in range(4):
        assert q.poll() == []
        assert ours.exists()
        clock.by += 1500
    q._frontier.look_everywhere()
    assert q.poll() == []
    assert not ours.exists()
    assert theirs.exists(), "that is not ours"
