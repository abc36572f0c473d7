"""Damages to tasks, and to the schedule."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from damage_case import Plant, written
from fsck_kit import Ground

# -- tasks ---------------------------------------------------------------------------------------


def task_with(data: bytes) -> Plant:
    return lambda ground: written(ground.task(), data)


def bad_scheduled(ground: Ground) -> Path:
    ground.push(delay=1000)
    return written(ground.scheduled(), b"{")


def in_another_lane(ground: Ground) -> Path:
    ground.push()
    ground.task().rename(ground.task(lane=7))
    return ground.task(lane=7)


def of_another_epoch(ground: Ground) -> Path:
    ground.push()
    ground.change(ground.task(), epoch=3)
    return ground.task()


def twice(**fields: Any) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.push(priority=7)
        shutil.copy(ground.task(lane=7), ground.task())
        ground.change(ground.task(), priority=5, nonce="other", **fields)
        return ground.task()

    return plant


def waiting_and_scheduled(ground: Ground) -> Path:
    ground.push(delay=1000)
    written(ground.task(), ground.kept(ground.scheduled()))
    ground.change(ground.task(), nonce="other", payload={"n": 2})
    return ground.scheduled()


def scheduled_twice(ground: Ground) -> Path:
    ground.push(delay=1000)
    first = ground.scheduled()
    ground.change(first, due_at="2033-01-01T00:00:00Z")
    second = ground.path("scheduled/20330101T000000Z/t.json")
    first.rename(second)
    first.parent.rmdir()
    third = ground.path("scheduled/20330101T000005Z/t.json")
    shutil.copy(second, third)
    ground.change(third, due_at="2033-01-01T00:00:05Z")
    return third


def half_moved(ground: Ground) -> Path:
    ground.push(delay=0.001)
    os.link(ground.scheduled(), ground.task())
    return ground.scheduled()


def leftover(ground: Ground) -> Path:
    ground.push()
    kept = ground.kept(ground.task())
    ground.queue.ack(ground.claim())
    return written(ground.task(), kept)


def leftover_scheduled(ground: Ground) -> Path:
    ground.push("other", delay=1000)
    kept = ground.kept(ground.scheduled())
    ground.queue.cancel("other")
    return written(ground.path("scheduled/20330101T000000Z/other.json"), kept)


# -- the schedule --------------------------------------------------------------------------------


def bucket_without_a_time(ground: Ground) -> Path:
    ground.push(delay=1000)
    bucket = ground.scheduled().parent
    bucket.rename(bucket.parent / "tomorrow")
    return bucket.parent / "tomorrow"


def in_another_bucket(ground: Ground) -> Path:
    ground.push(delay=1000)
    path = ground.path("scheduled/20330101T000000Z/t.json")
    bucket = ground.scheduled().parent
    ground.scheduled().rename(path)
    bucket.rmdir()
    return path


def empty_bucket(ground: Ground) -> Path:
    return ground.path("scheduled/20330101T000000Z/x").parent
