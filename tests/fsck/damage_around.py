"""Damages to a queue as a whole, and what may lie around in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from damage_case import Plant, other_shard, written
from fsck_kit import Ground, age

from dfq.ports import Machine

# -- the queue as a whole ------------------------------------------------------------------------


def no_queue_json(ground: Ground) -> Path:
    path = ground.path("queue.json")
    path.unlink()
    return path


def clock_of_long_ago(ground: Ground) -> None:
    """Let this machine's clock count as steady for hours."""
    elapsed = time.clock_gettime(time.CLOCK_BOOTTIME)
    record = {"boot_id": Machine.this().boot_id, "since_boottime": 0.0, "offset": time.time() - elapsed}
    written(ground.path("clock.json"), json.dumps(record))


def old_temporary(ground: Ground) -> Path:
    clock_of_long_ago(ground)
    path = written(ground.path(".tmp-7-ab"), b"half")
    age(path)
    return path


def paused_by_a_folder(ground: Ground) -> Path:
    path = ground.path("paused")
    path.mkdir()
    return path


# -- what lies around ----------------------------------------------------------------------------


def link_for_a_folder(ground: Ground) -> Path:
    ground.done()
    shard = ground.completed().parent
    shard.rename(ground.root / "moved")
    shard.symlink_to(ground.root / "moved")
    return shard


def top_folder_is_a_file(ground: Ground) -> Path:
    return written(ground.path("failed"), b"x")


def made(make: Callable[[Path], Any]) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.push("good")
        make(path := ground.task())
        return path

    return plant


def old_hidden(ground: Ground) -> Path:
    ground.push()
    path = written(ground.task().parent / ".t.json.swp", b"x")
    age(path)
    return path


def bad_name(ground: Ground) -> Path:
    ground.push()
    return written(ground.task().parent / "a%zz.json", b"{}")


def in_another_shard(ground: Ground) -> Path:
    ground.push()
    return other_shard(ground, ground.task())


def witness_in_another_shard(ground: Ground) -> Path:
    ground.done()
    return other_shard(ground, ground.completed())


def lease_in_another_shard(ground: Ground) -> Path:
    ground.push()
    ground.queue.poll_detached()
    return other_shard(ground, ground.slot())


def world_writable(ground: Ground) -> Path:
    ground.push()
    ground.task().chmod(0o666)
    return ground.task()


def world_writable_folder(ground: Ground) -> Path:
    ground.push()
    ground.task().parent.chmod(0o777)
    return ground.task().parent


def world_writable_root(ground: Ground) -> str:
    ground.root.chmod(0o777)
    return str(ground.root)


def linked_outside(ground: Ground) -> Path:
    ground.push()
    os.link(ground.task(), ground.root / "backup.json")
    return ground.task()


def scheduled_and_linked_outside(ground: Ground) -> Path:
    ground.push(delay=1000)
    os.link(ground.scheduled(), ground.root / "backup.json")
    return ground.scheduled()
