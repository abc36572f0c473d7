"""Whatever is written in a queue's files, the queue goes on, and says what is wrong with which file."""

from __future__ import annotations

import json
import time

import pytest
from input_kit import BAD_TASKS, HARMLESS, MAX_FILE, Place, look_at_everything, task_bytes, until, work_off_good

import dfq

pytestmark = pytest.mark.timeout(30)

GARBAGE = [
    b"",
    b"\0" * 1024,
    b"{",
    b"[" * 100_000,
    b"\xff\xfe",
    b"[]",
    b"null",
    b"{}",
    b'{"state": "unheard-of"}',
    b'{"state": ["leased"], "attempt": {}}',
    b"x" * (MAX_FILE + 10),
]


@pytest.mark.parametrize("kind", BAD_TASKS)
def test_a_bad_task_file_becomes_a_dead_letter_that_says_why(place: Place, kind: str) -> None:
    content, word = BAD_TASKS[kind]
    queue = place.open()
    queue.push({}, id="before")
    place.task().write_bytes(content)
    queue.push({}, id="after")
    work_off_good(queue, "before", "after")
    until(lambda: queue.poll() == [] and queue.counts().failed == 1)
    look_at_everything(queue, "bad")
    info = queue.get("bad")
    assert info.state == "failed"
    assert "bad.json" in str(info.error), info.error
    assert word in str(info.error), info.error
    assert place.task().read_bytes() == content, "the file was changed"
    letter = json.loads(place.path("failed").read_bytes())
    assert letter["state"] == "dead"
    assert letter["payload"] is None

    # Tried again as it is, it fails again; put right, it runs.
    assert queue.retry("bad") == ["bad"]
    until(lambda: queue.poll() == [] and queue.counts().failed == 1)
    place.task().write_bytes(task_bytes(payload={"n": 2}))
    assert queue.retry("bad") == ["bad"]
    (task,) = queue.poll(wait=5)
    assert (task.id, task.payload) == ("bad", {"n": 2})
    queue.ack(task)
    assert queue.counts() == dfq.Counts(completed=3)
    queue.close()


@pytest.mark.parametrize("kind", BAD_TASKS)
def test_a_bad_task_file_can_be_cancelled_and_purged(place: Place, kind: str) -> None:
    with place.open() as queue:
        place.task().write_bytes(BAD_TASKS[kind][0])
        place.task("bad2").write_bytes(BAD_TASKS[kind][0])
        look_at_everything(queue, "bad", "bad2")
        assert queue.cancel("bad") == ["bad"]
        assert queue.purge() == 1
        assert queue.counts() == dfq.Counts()
        assert queue.poll() == []


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_field_that_is_not_needed_does_no_harm(place: Place, kind: str) -> None:
    with place.open(max_attempts=1) as queue:
        place.task().write_bytes(HARMLESS[kind])
        look_at_everything(queue, "bad")
        (task,) = queue.poll(wait=5)
        queue.nack(task, error="once")
        look_at_everything(queue, "bad")
        queue.retry()
        (task,) = queue.poll(wait=5)
        queue.ack(task)
        look_at_everything(queue, "bad")
        assert queue.counts() == dfq.Counts(completed=1)


@pytest.mark.parametrize("kind", BAD_TASKS)
def test_a_bad_scheduled_file_becomes_a_dead_letter(place: Place, kind: str) -> None:
    content, word = BAD_TASKS[kind]
    with place.open() as queue:
        path = place.folder / "scheduled/20200101T000000Z/bad.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        look_at_everything(queue, "bad")
        queue.push({}, id="good", delay=0.05)
        work_off_good(queue, "good")
        until(lambda: queue.poll() == [] and queue.counts().failed == 1)
        assert word in str(queue.get("bad").error)
        assert place.task().read_bytes() == content


BAD_TIMES = {
    "texts": {"due_at": "soon", "delay_s": "1", "boot_id": 7, "deadline_boottime": "2"},
    "huge": {"due_at": 10**400, "delay_s": 10**400, "deadline_boottime": 10**400},
    "huge deadline": {"due_at": "2020-01-01T00:00:00Z", "delay_s": 1, "deadline_boottime": 10**400},
    "huge due": {"due_at": 10**400, "delay_s": 1, "boot_id": "x", "deadline_boottime": 1},
    "negative": {"due_at": -1, "delay_s": -1, "deadline_boottime": -1},
    "NaN": {"due_at": float("nan"), "delay_s": float("nan"), "deadline_boottime": float("nan")},
    "NaN deadline": {"due_at": float("nan"), "delay_s": 0.1, "deadline_boottime": float("nan")},
    "year 1": {"due_at": "0001-01-01T00:00:00+23:59", "delay_s": 1, "boot_id": "x"},
    "year 9999": {"due_at": "9999-12-31T23:59:59-23:59", "delay_s": 0.2, "boot_id": "x"},
}


@pytest.mark.parametrize("boot", ["this boot", "another boot"])
@pytest.mark.parametrize("kind", BAD_TIMES)
def test_bad_times_neither_stop_the_schedule_nor_lose_the_task(place: Place, kind: str, boot: str) -> None:
    with place.open(lease=5) as queue, open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        fields = BAD_TIMES[kind] | ({"boot_id": f.read().strip()} if boot == "this boot" else {})
        path = place.folder / "scheduled/20200101T000000Z/bad.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(task_bytes(**fields))
        look_at_everything(queue, "bad")
        queue.push({}, id="good", delay=0.05)
        ended: set[str] = set()
        end = time.monotonic() + 5
        while len(ended) < 2:
            assert time.monotonic() < end, f"only {ended} came: {list(queue.tasks())}"
            for task in queue.poll(10, wait=0.05):
                queue.ack(task)
                ended.add(task.id)
            ended |= {info.id for info in queue.tasks("failed")}  # NaN is no JSON, so that file is a bad one


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_a_lease_that_cannot_be_read_is_taken_over_in_time(place: Place, content: bytes) -> None:
    with place.open() as queue:
        place.lease().write_bytes(content)
        queue.push({}, id="bad")
        queue.push({}, id="good")
        look_at_everything(queue, "bad")
        work_off_good(queue, "good", "bad")
        assert queue.counts() == dfq.Counts(completed=2)
        assert not place.lease().exists()


BAD_LEASES = {
    "texts": {"ttl_s": "x", "deadline_boottime": "x", "attempt": "x", "generation": "x", "boot_id": "x"},
    "lists": {"ttl_s": [], "deadline_boottime": [], "attempt": [], "boot_id": [], "host": [], "liveness": []},
    "huge": {"ttl_s": 10**400, "deadline_boottime": 10**400, "attempt": 10**400, "boot_id": "x"},
    "NaN": {"ttl_s": float("nan"), "deadline_boottime": float("nan"), "attempt": float("nan"), "boot_id": "x"},
    "negative": {"ttl_s": -1, "deadline_boottime": -1, "attempt": -1, "boot_id": "x"},
    "huge times": {"expiry_timestamp": 10**400, "heartbeat_timestamp": 10**400},
    "bad times": {"expiry_timestamp": "never", "heartbeat_timestamp": []},
    "year 1": {"expiry_timestamp": "0001-01-01T00:00:00+23:59"},
    "half a character": {"worker_id": "\ud800", "error": "\ud800", "state": "released", "boot_id": "\ud800"},
    "released, bad delay": {"state": "released", "delay_s": float("nan"), "deadline_boottime": 10**400},
    "released, bad deadline": {"state": "released", "delay_s": 0.1, "deadline_boottime": 10**400, "boot_id": "x"},
    "released, huge due": {"state": "released", "delay_s": 0.1, "due_at": 10**400, "boot_id": "x"},
    "released, error is a list": {"state": "released", "delay_s": 0, "error": ["x"]},
}


@pytest.mark.parametrize("kind", BAD_LEASES)
def test_wrong_types_in_a_lease_do_no_harm(place: Place, kind: str) -> None:
    with place.open(max_attempts=2, heartbeat_timeout=0.3) as queue:
        place.lease().write_text(json.dumps(BAD_LEASES[kind]))
        queue.push({}, id="bad")
        look_at_everything(queue, "bad")
        end = time.monotonic() + 5
        while queue.get("bad").state != "failed":  # used up and buried, with what the leases said
            assert time.monotonic() < end, f"it hangs: {queue.get('bad')}"
            for task in queue.poll(wait=0.05):
                queue.nack(task, error="again")
        look_at_everything(queue, "bad")
        queue.retry("bad")
        work_off_good(queue, "bad")


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_for_a_witness_or_a_dead_letter_stops_nobody(place: Place, content: bytes) -> None:
    with place.open(max_attempts=1) as queue:
        place.path("completed", "old").write_bytes(content)
        place.path("failed", "bad").write_bytes(content)
        place.path("failed", "stray").write_bytes(content)
        place.path("retired", "gone").write_bytes(content)
        queue.push({}, id="good")
        queue.push({}, id="bad")
        look_at_everything(queue, "old", "bad", "stray", "gone", "good")
        assert queue.get("old").state == "completed"
        with pytest.raises(dfq.TaskExists):
            queue.push({}, id="old")
        for task in queue.poll(2, wait=1):
            if task.id == "good":
                queue.ack(task)
            else:
                queue.nack(task, error="no use")
        look_at_everything(queue, "old", "bad", "stray", "gone", "good")
        assert queue.get("bad").state == "failed"
        assert queue.retry() == ["bad"]
        work_off_good(queue, "bad")
        assert queue.counts().failed == 0
        queue.purge()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "UTF-8"),
        (b"[]", "list"),
        (b"{}", "'format'"),
        (b'{"format": "1", "shards": 16}', "'format'"),
        (b'{"format": true, "shards": 16}', "'format'"),
        (b'{"format": NaN, "shards": 16}', "queue.json"),
        (b'{"format": 0, "shards": 16}', "'format'"),
        (b'{"format": 2, "shards": 16}', "upgrade"),
        (b'{"format": 1}', "'shards'"),
        (b'{"format": 1, "shards": 0}', "'shards'"),
        (b'{"format": 1, "shards": 4097}', "'shards'"),
        (b'{"format": 1, "shards": 1e3}', "'shards'"),
        (b'{"format": 1, "shards": "16"}', "'shards'"),
        (b'{"format": 1, "shards": 16, "x": "' + b"x" * 70_000 + b'"}', "queue.json"),
    ],
)
def test_a_queue_json_that_is_wrong_is_refused_by_name(place: Place, content: bytes, word: str) -> None:
    place.open().close()
    meta = place.folder / "queue.json"
    meta.write_bytes(content)
    with pytest.raises(dfq.QueueUnavailable, match=r"queue\.json") as refused:
        place.open()
    assert word in str(refused.value)
    assert meta.read_bytes() == content


@pytest.mark.parametrize("task_id", ["../../x", "/etc/passwd", "..", ".", ".hidden", "-rf", "a\0b", "~", "%2F", "ä\n"])
def test_any_id_stays_in_the_tree(place: Place, task_id: str) -> None:
    with place.open() as queue:
        assert queue.push({}, id=task_id) == task_id
        assert sorted(p.name for p in place.root.iterdir()) == ["q"]
        look_at_everything(queue, task_id)
        assert queue.get(task_id).id == task_id
        work_off_good(queue, task_id)
        assert queue.get(task_id).state == "completed"
    assert sorted(p.name for p in place.root.parent.iterdir()) == ["outside", "root"]


@pytest.mark.parametrize("task_id", ["x" * 4000, "/" * 4000, "ü" * 2000, "../" * 1300])
def test_a_long_id_is_kept_whole(place: Place, task_id: str) -> None:
    with place.open() as queue:
        queue.push({}, id=task_id)
        assert [info.id for info in queue.tasks()] == [task_id]
        work_off_good(queue, task_id)
        assert queue.get(task_id).id == task_id
        with pytest.raises(dfq.TaskExists):
            queue.push({}, id=task_id)


@pytest.mark.parametrize("task_id", ["", "x" * 4097, "ü" * 2049, "\ud800", 7, None, b"x"])
def test_an_id_that_is_none_is_refused(place: Place, task_id: object) -> None:
    with place.open() as queue:
        for verb in (queue.get, queue.cancel, queue.retry):
            if task_id is None or (verb is not queue.get and task_id == 7):
                continue
            with pytest.raises(dfq.InvalidTask):
                verb(task_id)  # type: ignore[operator]
        if task_id is not None:
            with pytest.raises(dfq.InvalidTask):
                queue.push({}, id=task_id)  # type: ignore[arg-type]
        assert queue.counts() == dfq.Counts()
