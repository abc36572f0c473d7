"""The requirements of the distributed filesystem queue, line by line: `scripts/test -k seed_` lists them."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dfq
from dfq.config import Settings, resolve
from dfq.ports import OsDisk
from dfq.providers.filesystem import FilesystemQueue

ID = "29.5/-98.5/dentist"
NAME = "29.5%2F-98.5%2Fdentist"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("COCLI_QUEUE_TYPE", "DFQ_QUEUE_TYPE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "root" / "q"


def opened(folder: Path, **settings: Any) -> FilesystemQueue:
    queue = dfq.open_queue(folder.name, folder.parent, **{"shards": 1, "durability": "fast"} | settings)
    assert isinstance(queue, FilesystemQueue)
    return queue


def claim(queue: dfq.QueueManager, wait: float = 10) -> dfq.Task:
    (task,) = queue.poll(wait=wait)
    return task


def lease_of(folder: Path, slot: str = "") -> dict[str, Any]:
    lease: dict[str, Any] = json.loads((folder / f"active-leases/0/{NAME}{slot}.lease").read_text())
    return lease


def test_seed_003_1_it_is_a_provider_of_queue_manager(folder: Path) -> None:
    with opened(folder) as q:
        assert isinstance(q, dfq.QueueManager)
        assert q.queue_type == "filesystem"


def test_seed_003_2_the_frontier_is_the_source_of_truth(folder: Path) -> None:
    with opened(folder) as q:
        q.push({"n": 1}, id=ID)
        (task,) = (folder / "frontier").rglob("*.json")
        assert task == folder / f"frontier/5/0/{NAME}.json"
        content = task.read_bytes()
        task.unlink()
        assert (q.poll(), q.counts()) == ([], dfq.Counts())
        task.write_bytes(content)
        assert claim(q).payload == {"n": 1}


def test_seed_003_3_a_lease_is_json_with_worker_expiry_and_heartbeat(folder: Path) -> None:
    with opened(folder, lease=60) as q:
        q.push({}, id=ID)
        task = claim(q)
        lease = lease_of(folder)
        assert {"worker_id", "expiry_timestamp", "heartbeat_timestamp"} <= lease.keys()
        assert lease["task_id"] == task.id
        assert lease["worker_id"].startswith(f"{os.uname().nodename}-{os.getpid()}-")
        assert lease["heartbeat_timestamp"] < lease["expiry_timestamp"]


def test_seed_003_4_the_witness_is_the_proof_of_work(folder: Path) -> None:
    with opened(folder) as q:
        q.push({}, id=ID)
        q.ack(claim(q), result={"items": 20})
        witness = json.loads((folder / f"completed/0/{NAME}.json").read_text())
        assert (witness["task_id"], witness["result"], witness["attempt"]) == (ID, {"items": 20}, 1)


def test_seed_003_5_a_poll_scans_the_frontier_and_skips_what_is_leased(folder: Path) -> None:
    with opened(folder) as one, opened(folder) as other:
        one.push_many([dfq.Push({}, id="a"), dfq.Push({}, id="b")])
        first, second = claim(one), claim(other)
        assert {first.id, second.id} == {"a", "b"}
        assert one.poll() == other.poll() == []


def test_seed_003_6_a_claim_creates_the_lease_exclusively(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, int] = {}
    real = os.open

    def watching(path: Any, mode: int, *args: Any, **options: Any) -> int:
        if mode & os.O_CREAT:
            flags[os.path.basename(str(path))] = mode
        return real(path, mode, *args, **options)

    with opened(folder) as q:
        q.push({}, id=ID)
        monkeypatch.setattr(os, "open", watching)
        task = claim(q)
        assert flags[f"{NAME}.lease"] & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL
        q.ack(task)


def test_seed_003_7_a_long_task_is_kept_by_heartbeats(folder: Path) -> None:
    with opened(folder, lease=1.0) as q, opened(folder) as other:
        q.push({}, id=ID)
        task = claim(q)
        begun = lease_of(folder)["heartbeat_timestamp"]
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert other.poll(wait=0.1) == []
        assert lease_of(folder)["heartbeat_timestamp"] > begun
        q.ack(task)


def stop_heartbeats(folder: Path, **settings: Any) -> None:
    """A lease is not renewed any more, by a process that lives: another takes its task."""
    with opened(folder, auto_heartbeat=False, **settings) as q, opened(folder, **settings) as other:
        q.push({}, id=ID)
        late = claim(q)
        assert other.poll() == []
        assert claim(other).attempt == 2
        with pytest.raises(dfq.LeaseLost):
            q.ack(late)


def test_seed_003_8_an_expired_lease_is_reclaimed(folder: Path) -> None:
    stop_heartbeats(folder, lease=0.3)


def test_seed_003_8_a_lease_whose_heartbeat_stopped_is_reclaimed(folder: Path) -> None:
    stop_heartbeats(folder, lease=600, heartbeat_timeout=0.3)


def test_seed_003_9_exactly_one_wins_a_stale_lease(folder: Path) -> None:
    queues = [opened(folder, max_attempts=100) for _ in range(4)]
    queues[0].push({}, id=ID)
    tokens = []
    for _ in range(20):
        held = claim(queues[0])
        held._held.hold.close()  # type: ignore[attr-defined]  # as the kernel does for a process that dies
        won: list[dfq.Task] = []
        gate = threading.Barrier(len(queues))

        def race(queue: FilesystemQueue, won: list[dfq.Task] = won, gate: threading.Barrier = gate) -> None:
            gate.wait()
            won.extend(queue.poll(wait=0.5))

        threads = [threading.Thread(target=race, args=(queue,)) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        tokens += [held.token, won[0].token]
        won[0]._held.hold.close()  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert tokens == sorted(set(tokens))
    for queue in queues:
        queue.close()


def test_seed_003_10_an_ack_removes_the_lease_and_marks_the_task_in_the_witness_index(folder: Path) -> None:
    with opened(folder) as q:
        q.push({}, id=ID)
        task = claim(q)
        assert (folder / f"active-leases/0/{NAME}.lease").exists()
        q.ack(task)
        assert [p for p in (folder / "active-leases").rglob("*") if p.is_file()] == []
        assert (folder / f"completed/0/{NAME}.json").exists()
        with pytest.raises(dfq.TaskExists):
            q.push({}, id=ID)


def test_seed_003_11_the_environment_or_the_config_chooses_the_provider(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.mkdir()
    (folder.parent / "dfq.toml").write_text('queue_type = "memory"\n')
    assert dfq.open_queue("q", folder.parent).queue_type == "memory"
    monkeypatch.setenv("COCLI_QUEUE_TYPE", "filesystem")
    with dfq.open_queue("q", folder.parent) as q:
        assert q.queue_type == "filesystem"


def test_seed_003_12_sqs_is_the_default_where_an_sqs_queue_is_configured(folder: Path) -> None:
    url = "https://sqs.eu-west-1.amazonaws.com/1/tiles"
    assert resolve(root=folder)[0].queue_type == "filesystem"
    assert resolve(root=folder, sqs_queue_url=url)[0].queue_type == "sqs"
    assert resolve(root=folder, sqs_queue_url=url, queue_type="filesystem")[0].queue_type == "filesystem"
    with pytest.raises(dfq.ConfigError, match="filesystem, sqs, redis, memory"):
        resolve(root=folder, queue_type="kafka")


def test_seed_003_13_it_works_without_a_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the queue opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with opened(folder, durability="full") as q:
        q.push({}, id=ID)
        q.ack(claim(q))
        assert q.counts() == dfq.Counts(completed=1)


def test_seed_003_14_all_can_be_understood_by_looking_at_the_files(folder: Path) -> None:
    with opened(folder, max_attempts=1) as q:
        for task_id in ("waiting", "running", "done", "dead"):
            q.push({"what": task_id}, id=task_id)
        q.push({"what": "later"}, id="later", delay=3600)
        held = {task.id: task for task in q.poll(4)}
        q.nack(held["waiting"], count=False)
        q.ack(held["done"], result="ok")
        q.nack(held["dead"], error="HTTP 500")
        story = {
            str(p.relative_to(folder)): json.loads(p.read_text())
            for p in sorted(folder.rglob("*"))
            if p.is_file() and p.suffix in (".json", ".lease")
        }
        assert story["frontier/5/0/waiting.json"]["payload"] == {"what": "waiting"}
        assert story["active-leases/0/running.lease"]["state"] == "leased"
        assert story["completed/0/done.json"]["result"] == "ok"
        assert story["failed/0/dead.json"]["errors"][0]["error"] == "HTTP 500"
        assert [path for path in story if path.startswith("scheduled/")] != []


@pytest.mark.parametrize("local", [True, False], ids=["local disk", "network filesystem"])
def test_seed_003_15_it_works_on_a_local_disk_and_where_only_time_counts(folder: Path, local: bool) -> None:
    """On a network filesystem locks and boots say nothing of others' machines: a lease is good for its time."""
    folder.mkdir(parents=True)

    def here(**settings: Any) -> FilesystemQueue:
        disk = OsDisk(str(folder), local=local)
        return FilesystemQueue("q", Settings(shards=1, durability="fast", **settings), disk, where=str(folder))

    lease = 600.0 if local else 1.0
    with here(lease=lease) as q, here(lease=lease) as other:
        q.push({}, id=ID)
        task = claim(q)
        locked = _locked(folder / f"active-leases/0/{NAME}.lease")
        assert locked
        task._held.hold.close()  # type: ignore[attr-defined]  # its process dies
        begun = time.monotonic()
        again = claim(other)
        took = time.monotonic() - begun
        assert again.attempt == 2
        assert local or took > 0.5
        other.ack(again)


def _locked(path: Path) -> bool:
    with path.open() as f:
        try:
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
