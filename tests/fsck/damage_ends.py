"""Damages to slots, dead letters and witnesses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from damage_case import Plant, written
from fsck_kit import Ground

# -- slots ---------------------------------------------------------------------------------------


def leftover_slot(ground: Ground) -> Path:
    ground.done()
    return written(ground.slot(3), b"{}")


def orphans(ground: Ground) -> Path:
    ground.push()
    ground.queue.poll_detached()
    ground.task().unlink()
    return ground.slot()


def gap(ground: Ground) -> Path:
    ground.push()
    return written(ground.slot(2), b"")


def torn(ground: Ground) -> Path:
    ground.push()
    return written(ground.slot(), b'{"task_id": "t", "sta')


def slot_with(**fields: Any) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.push()
        ground.queue.poll_detached()
        ground.change(ground.slot(), **fields)
        return ground.slot()

    return plant


def half_done(ground: Ground) -> None:
    """Leave what a worker leaves that dies right after its completion has happened."""
    ground.push()
    kept = ground.kept(ground.task())
    task = ground.claim()
    lease = ground.kept(ground.slot())
    ground.queue.ack(task, result="first")
    written(ground.task(), kept)
    written(ground.slot(), lease)
    ground.completed().rename(ground.slot(2))


def unfinished(ground: Ground) -> Path:
    half_done(ground)
    return ground.slot(2)


def unfinished_without_its_task(ground: Ground) -> Path:
    half_done(ground)
    ground.task().unlink()
    return ground.slot(2)


def done_slot_of_another(ground: Ground) -> Path:
    half_done(ground)
    ground.change(ground.slot(2), task_id="u")
    return ground.slot(2)


def overtaken(ground: Ground) -> Path:
    half_done(ground)
    written(ground.slot(3), ground.kept(ground.slot()))
    ground.change(ground.slot(3), generation=3, token=3, state="released")
    return ground.slot(2)


# -- dead letters --------------------------------------------------------------------------------


def unshown(ground: Ground) -> Path:
    ground.dead()
    ground.failed().unlink()
    return ground.slot(2)


def redriven_but_shown(ground: Ground) -> Path:
    ground.dead()
    kept = ground.kept(ground.failed())
    ground.queue.retry("t")
    return written(ground.failed(), kept)


def died_again(ground: Ground) -> Path:
    ground.dead()
    kept = ground.kept(ground.failed())
    ground.queue.retry("t")
    ground.queue.nack(ground.claim(), error="again")
    ground.failed().unlink()
    return written(ground.failed(), kept)


def letter_without_slots(ground: Ground) -> Path:
    ground.dead()
    for n in (1, 2):
        ground.slot(n).unlink()
    return ground.failed()


def letter_without_task(ground: Ground) -> Path:
    ground.dead()
    ground.task().unlink()
    return ground.slot(2)


def letter_without_anything(ground: Ground) -> Path:
    letter_without_slots(ground)
    ground.task().unlink()
    return ground.failed()


def bad_letter(ground: Ground) -> Path:
    ground.dead()
    ground.failed().unlink()
    return written(ground.failed(), b"")


def both(ground: Ground) -> Path:
    ground.dead("x")
    ground.done()
    return written(ground.failed(), ground.kept(ground.failed("x")))


# -- witnesses -----------------------------------------------------------------------------------


def witness_with(data: bytes | None = None, **fields: Any) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.done()
        if data is None:
            ground.change(ground.completed(), **fields)
        else:
            written(ground.completed(), data)
        return ground.completed()

    return plant


def put_back(ground: Ground, *, done: bool) -> None:
    ground.done()
    ground.push(if_exists="rerun")
    if done:
        ground.queue.ack(ground.claim())


def no_anchor(ground: Ground) -> Path:
    put_back(ground, done=True)
    ground.completed().unlink()
    return ground.completed("t~e1")


def no_anchor_of_a_waiting_task(ground: Ground) -> Path:
    put_back(ground, done=False)
    ground.completed().unlink()
    return ground.task("t~e1")


def gap_in_epochs(ground: Ground) -> Path:
    put_back(ground, done=True)
    ground.push(if_exists="rerun")
    ground.completed("t~e1").unlink()
    return ground.task("t~e2")


def proof_listed_as_guard(ground: Ground) -> Path:
    ground.done()
    os.link(ground.completed(), ground.retired())
    return ground.retired()


def cancelled(ground: Ground) -> None:
    ground.push()
    ground.queue.cancel("t")


def guard_without_witness(ground: Ground) -> Path:
    cancelled(ground)
    ground.completed().unlink()
    return ground.retired()


def guard_of_another_witness(ground: Ground) -> Path:
    ground.done()
    return written(ground.retired(), b'{"state": "cancelled"}')


def guard_of_another_stub(ground: Ground) -> Path:
    cancelled(ground)
    ground.retired().unlink()
    return written(ground.retired(), b'{"state": "cancelled"}')


def unlisted(ground: Ground) -> Path:
    cancelled(ground)
    ground.retired().unlink()
    return ground.completed()
