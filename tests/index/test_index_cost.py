"""What a poll of an index costs: it must not follow the size of the tree."""

from __future__ import annotations

import time
from pathlib import Path

from index_kit import Index


def test_an_empty_poll_of_a_large_tree_does_not_walk_it(index: Index) -> None:
    for n in range(1200):
        (index.tiles / f"{n}").mkdir()
    q = index.queue()
    assert q.poll() == []
    looked = [0]
    look = q._disk.look

    def counting(path: str) -> object:
        looked[0] += path.startswith("@")
        return look(path)

    q._disk.look = counting  # type: ignore[method-assign, assignment]
    begun = time.monotonic()
    polls = 0
    while time.monotonic() - begun < 1:
        assert q.poll() == []
        polls += 1
    assert looked[0] < 1200 * max(20, polls / 3)


TASKS = 900
A_FOLDER = 25  # tiles in each


def listings_a_task(folder: Path, tiles: int) -> tuple[float, int]:
    """Return how many folders are listed for a task, and how often the buffer was filled on the way."""
    folder.mkdir()
    here = Index(folder)
    for n in range(tiles):
        here.add(f"{n // A_FOLDER // 20}/{n // A_FOLDER % 20}/{n}.csv", "x")
    q = here.queue()
    listed, refills = [0], [0]
    scan, refill = q._disk.scan, q._frontier._refill

    def counting(path: str, **options: bool) -> object:
        listed[0] += path.startswith("@")
        return scan(path, **options)

    def refilling(*how: object) -> bool:
        found = refill(*how)  # type: ignore[arg-type]
        refills[0] += found
        return found

    q._disk.scan = counting  # type: ignore[method-assign, assignment]
    q._frontier._refill = refilling  # type: ignore[method-assign, assignment]
    for task in q.poll(10):  # from here on the tree is known
        q.ack(task)
    listed[0] = refills[0] = done = 0
    while done < TASKS:
        for task in q.poll(10):
            q.ack(task)
            done += 1
    here.close()
    return listed[0] / done, refills[0]


def test_many_tiles_poll_like_few(index: Index) -> None:
    """What polls do is counted, not timed. The folders are as full in both trees; one has ten times as many."""
    few, few_refills = listings_a_task(index.folder / "few", 1000)
    many, many_refills = listings_a_task(index.folder / "many", 10_000)
    print(
        f"listings a task: {few:.3f} with 1,000 tiles, {many:.3f} with 10,000; refills: {few_refills}, {many_refills}"
    )
    assert min(few_refills, many_refills) >= 1, "all came from one buffer, and nothing was measured"
    assert min(few, many) > 0
    assert many <= 1.2 * few
