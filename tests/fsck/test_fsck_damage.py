"""Whatever was done to the files, fsck comes to an end, and a task whose file is intact is not lost by a repair."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from fsck_kit import Ground
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dfq.config import Settings
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.check import check_queue

IDS = [f"t{n}" for n in range(8)]
DAMAGE = ("delete", "truncate", "garbage", "rename", "copy", "swap", "symlink", "folder")


def settings_in(root: Path) -> Settings:
    return Settings(root=root, shards=2, durability="fast", max_attempts=1, lease=60.0)


def populate(queue: FilesystemQueue) -> None:
    """Have a task in every state."""
    for name in IDS[:4]:
        queue.push({"n": name}, id=name)
    done, dead, cancelled, _leased = (queue.poll_detached()[0] for _ in range(4))
    queue.ack(done)
    queue.nack(dead, error="no")
    queue.nack(cancelled, count=False)
    queue.cancel(cancelled.id)
    for name in IDS[4:6]:
        queue.push({"n": name}, id=name)
    queue.push({"n": IDS[6]}, id=IDS[6], delay=1000)
    queue.push({"n": IDS[7]}, id=IDS[7], priority=9)
    queue.push({"n": "again"}, id=done.id, if_exists="rerun")


def files(folder: Path) -> list[Path]:
    tops = ("frontier", "scheduled", "active-leases", "completed", "failed", "retired")
    return sorted(p for top in tops for p in (folder / top).rglob("*") if p.is_symlink() or not p.is_dir())


def hurt(folder: Path, kind: str, which: int, other: int, junk: bytes) -> None:
    here = files(folder)
    if not here:
        return
    path, second = here[which % len(here)], here[other % len(here)]
    if kind == "delete":
        path.unlink()
    elif kind == "truncate" and path.is_file():
        os.truncate(path, min(path.stat().st_size, len(junk)))
    elif kind == "garbage" and path.is_file():
        path.write_bytes(junk)
    elif kind == "rename":
        path.rename(path.with_name(second.name))
    elif kind == "copy" and path.is_file():
        (second.parent / path.name).write_bytes(path.read_bytes()) if second.parent != path.parent else None
    elif kind == "swap" and path.is_file() and second.is_file():
        one, two = path.read_bytes(), second.read_bytes()
        path.write_bytes(two)
        second.write_bytes(one)
    elif kind == "symlink":
        path.unlink()
        path.symlink_to(second)
    elif kind == "folder":
        path.unlink()
        path.mkdir()


damages = st.lists(
    st.tuples(
        st.sampled_from(DAMAGE), st.integers(0, 200), st.integers(0, 200), st.binary(max_size=40) | st.just(b"{}")
    ),
    min_size=1,
    max_size=6,
)


def tasks_in(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each task that waits somewhere, by its file."""
    tops = ("frontier", "scheduled")
    return {
        f"{p.name} {p.parent.name}": p.read_bytes()
        for top in tops
        for p in (folder / top).rglob("*.json")
        if p.is_file() and not p.is_symlink()
    }


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a case has six steps at most: short enough to read
)
@example([("truncate", 0, 1, b"{}"), ("swap", 1, 129, b"{}")])  # the DONE slot of another task proves nothing
@example([("delete", 5, 0, b"{}"), ("delete", 89, 71, b"{}"), ("rename", 155, 160, b"{}")])
@example([("copy", 6, 13, b"{}")])
@given(damages)
def test_random_damage_is_survived(done: list[tuple[str, int, int, bytes]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        given = settings_in(root)
        with FilesystemQueue.open("q", given) as queue:
            populate(queue)
        for kind, which, other, junk in done:
            with contextlib.suppress(OSError):
                hurt(root / "q", kind, which, other, junk)
        before = tasks_in(root / "q")
        looked = list(check_queue("q", given, settle=0))
        assert tasks_in(root / "q") == before
        repaired = list(check_queue("q", given, repair=True, settle=0))
        assert {f.key for f in repaired} >= {f.key for f in looked if f.level == "must"}
        assert [f.key for f in repaired if f.level == "must" and f.repaired] == []
        again = list(check_queue("q", given, repair=True, settle=0))
        assert [f.key for f in again if f.repaired] == [], "a second repair found something to do"
        _nothing_is_lost(root / "q", before)


def _nothing_is_lost(folder: Path, before: dict[str, bytes]) -> None:
    """A task that is gone has a witness: it was completed, and nothing but its leftovers was removed."""
    after = tasks_in(folder)
    witnesses = {p.name for p in (folder / "completed").rglob("*.json")}
    for file in before.keys() - after.keys():
        kept = before[file] in after.values()  # of two copies one may go
        assert kept or file.partition(" ")[0] in witnesses, f"{file} is lost"
    for file in before.keys() & after.keys():
        assert after[file] == before[file], f"{file} was changed"


def test_the_check_for_lost_tasks_can_fail(ground: Ground) -> None:
    ground.push()
    before = tasks_in(ground.folder)
    ground.task().unlink()
    with pytest.raises(AssertionError, match="is lost"):
        _nothing_is_lost(ground.folder, before)
