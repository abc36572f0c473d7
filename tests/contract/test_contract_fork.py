"""A queue object that is carried over into a forked process."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable

import pytest
from backends import Queues, claim, needs

import dfq


def in_child(act: Callable[[], None]) -> int:
    """Run something in a forked process and return how that ended; a child that hangs is killed after a while."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(20)
            act()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, it must not get out into the parent's test run
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@needs("cross_process")
def test_a_forked_process_can_use_the_queue(queues: Queues) -> None:
    for _ in range(10):  # the renewing thread may hold any lock at the moment of the fork
        q = queues.open()
        q.push_many([{"n": 1}, {"n": 2}])
        held = claim(q)

        def work(q: dfq.QueueManager = q) -> None:
            q.ack(claim(q), result="child")
            q.push({"n": 3}, id="from a child", if_exists="rerun")

        assert in_child(work) == 0
        q.ack(held)
        q.ack(claim(q))
        q.close()


@needs("cross_process")
def test_a_task_stays_with_the_process_that_claimed_it(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    task = claim(q)

    def settle() -> None:
        assert task.lost
        for attempt in (lambda: q.ack(task, result="child"), lambda: q.nack(task), lambda: q.heartbeat(task)):
            with pytest.raises(dfq.LeaseLost):
                attempt()
        q.close()

    assert in_child(settle) == 0
    assert not task.lost
    q.heartbeat(task)
    q.ack(task, result="parent")
    assert q.get("t").result == "parent"


@needs("cross_process")
def test_a_forked_process_does_not_keep_its_parents_tasks(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    told, tell = os.pipe()

    def parent() -> None:
        task = claim(q)
        if os.fork() == 0:
            os.write(tell, b"x")
            signal.pause()
        os.read(told, 1)
        assert not task.lost
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            parent()
        finally:
            os._exit(1)
    try:
        os.waitpid(pid, 0)
        # Its child lives, with a copy of all it had; it must neither hold nor renew the lease.
        assert claim(q).attempt == 2
    finally:
        _kill_group(pid)
        os.close(told)
        os.close(tell)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@needs("cross_process")
def test_processes_that_were_forked_make_different_ids(queues: Queues) -> None:
    q = queues.open()
    q.push({})
    ids_r, ids_w = os.pipe()

    def push() -> None:
        os.write(ids_w, (" ".join(q.push({}) for _ in range(20)) + " ").encode())

    try:
        for _ in range(3):
            assert in_child(push) == 0
        ids = [*os.read(ids_r, 65536).decode().split(), *(q.push({}) for _ in range(20))]
    finally:
        os.close(ids_r)
        os.close(ids_w)
    assert len(set(ids)) == len(ids) == 80
