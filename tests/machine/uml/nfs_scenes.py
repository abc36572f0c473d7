"""Within the machine: situations between hosts that chance alone would seldom bring about, one after another."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfs_check import Told, contradictions
from nfs_net import EXPORT, Host, Server
from nfs_users import (
    LEASE,
    LOGS,
    PATIENCE,
    SLOW,
    WANTED,
    Diary,
    before_link,
    forked,
    kill,
    note_lost_replies,
    open_queue,
    quiet,
    reap,
    sabotage,
    until,
    want_loss,
)

import dfq

Outcome = tuple[list[str], dict[str, Any]]
HELD_FOR = 3 * LEASE
TAKES = 4
NO_PROOF = "lost replies: none was lost: this scene proves nothing"
LONG = 15 * LEASE  # a lease that its holder asked for, and that is renewed only after a third of it


def held_and_killed(hosts: list[Host]) -> Outcome:
    """A living worker keeps its tasks while another host looks on; when it is killed, the other host gets them."""
    name, diary = "held", Diary("held-all")

    def hold() -> None:
        queue = open_queue(hosts[0], name)
        for task_id, lease in (("usual", None), ("long", LONG)):
            queue.push({"task": task_id}, id=task_id)
            (task,) = queue.poll(wait=10, lease=lease)
            diary.write("claim", task.id, task.token, hosts[0].name)
            held.append(task)
        signal.pause()

    def watch() -> None:
        with open_queue(hosts[1], name) as queue:
            while True:
                for task in queue.poll(wait=0.5):
                    diary.write("claim", task.id, task.token, hosts[1].name)
                    queue.ack(task)

    held: list[dfq.Task] = []
    holder, watcher = forked(hosts[0], hold), 0
    try:
        if not until(lambda: len(Told.of(LOGS, name).claims) == 2):
            return ["a worker could not claim two tasks"], {}
        watcher = forked(hosts[1], watch)
        time.sleep(HELD_FOR)
        early = Told.of(LOGS, name).claims[2:]
        killed = time.monotonic()
        kill(holder)
        until(lambda: _usual(Told.of(LOGS, name)))
    finally:
        kill(holder)
        if watcher:
            kill(watcher)
    wrong = [
        f"a living worker's {c.task} lease was taken over by another host after {c.at - killed + HELD_FOR:.1f} s"
        for c in early
    ]
    again = _usual(Told.of(LOGS, name))
    took = again[0].at - killed if again else 0.0
    if not again:
        wrong.append(f"a dead worker's task was not taken over by another host within {PATIENCE:.0f} s")
    elif not early and took < LEASE / 2:
        wrong.append(f"a dead worker's task was taken over after {took:.1f} s: a lock was believed across hosts")
    return wrong, {f"takeover by another host after a kill, s (lease {LEASE:g} s)": round(took, 1)}


def _usual(told: Told) -> list[Any]:
    return [claim for claim in told.claims[2:] if claim.task == "usual"]


def stopped_within_ack(hosts: list[Host], how: str) -> Outcome:
    """A worker stands still within its ack until another host has taken its task over; then it must be refused."""
    name = _name("stopped", how)
    taken, over = Path(f"/run/{name}.taken"), Path(f"/run/{name}.over")

    def slow() -> None:
        diary = Diary(f"{name}-slow")
        sabotage(how)
        queue = open_queue(hosts[0], name)
        queue.push({"task": "t"}, id="t")
        diary.write("push", "t")
        before_link(queue, "active-leases/", lambda: until(taken.exists) and None)
        _complete(queue, diary, hosts[0])

    def thief() -> None:
        diary = Diary(f"{name}-thief")
        sabotage(how)
        with open_queue(hosts[1], name) as queue:
            _complete(queue, diary, hosts[1], lambda: (taken.touch(), until(over.exists)))

    return _played(name, hosts, slow, thief, over)


def _complete(queue: dfq.QueueManager, diary: Diary, host: Host, before: Callable[[], object] = lambda: None) -> None:
    """Claim a task and complete it, and write down what came of it."""
    tasks: list[dfq.Task] = []
    until(lambda: tasks.extend(queue.poll(wait=0.5)) or tasks)
    (task,) = tasks
    diary.write("claim", task.id, task.token, host.name)
    before()
    diary.write("try", task.id, task.token)
    try:
        queue.ack(task, result={"token": task.token})
    except dfq.LeaseLost:
        diary.write("lost", task.id, task.token)
    else:
        diary.write("ack", task.id, task.token)


def _played(name: str, hosts: list[Host], slow: Callable[[], None], thief: Callable[[], None], over: Path) -> Outcome:
    first, second = forked(hosts[0], slow), 0
    try:
        if not until(lambda: Told.of(LOGS, name).claims):
            return ["a worker could not claim a task"], {}
        second = forked(hosts[1], thief)
        codes = [reap(first)]
        over.touch()
        codes.append(reap(second))
    finally:
        kill(first)
        if second:
            kill(second)
    told = Told.of(LOGS, name)
    wrong = [f"stopped within an ack: processes ended with {codes}"] if any(codes) else []
    return wrong + contradictions(told, EXPORT / name), {"acks refused after a takeover": told.lost}


def lost_reply(server: Server, hosts: list[Host], how: str, *folders: str) -> Outcome:
    """A name is made on the server, and the reply gets lost with a restart of it: that is a success all the same."""
    for take in range(TAKES):
        wrong, noticed = _lose(server, hosts, how, f"{_name('reply', how)}{take}", folders)
        if wrong or noticed:
            return wrong, {"replies lost on purpose": len(folders)}
    return ([NO_PROOF] if how == "none" else []), {}


def _lose(server: Server, hosts: list[Host], how: str, name: str, folders: tuple[str, ...]) -> tuple[list[str], bool]:
    """Return what is wrong, and whether a reply did get lost: on a busy machine it may slip through."""

    def act() -> None:
        diary = Diary(f"{name}-user")
        sabotage(how)
        note_lost_replies(diary)
        queue = open_queue(hosts[0], name)
        for folder in folders:
            before_link(queue, f"{folder}/", want_loss)
        queue.push({"task": "t"}, id="t")
        diary.write("push", "t")
        _complete(queue, diary, hosts[0])
        queue.poll()  # finishes what was left half done

    user = forked(hosts[0], act)
    wrong = []
    try:
        with quiet():
            for folder in folders:
                pattern = f"{folder}/**/t~2.lease" if folder == "active-leases" else f"{folder}/**/t.json"
                if not until(WANTED.exists):
                    return [f"lost replies: nobody got as far as {folder}/"], False
                server.delay()
                SLOW.touch()
                if not until(lambda p=pattern: any((EXPORT / name).glob(p))):  # type: ignore[misc]
                    wrong.append(f"lost replies: the request did not reach the server: {pattern}")
                WANTED.unlink()
                SLOW.unlink()
                server.restart()
            code = reap(user)
    finally:
        kill(user)
    told = Told.of(LOGS, name)
    if code:
        wrong.append(f"lost replies: the process ended with {code}")
    return wrong + contradictions(told, EXPORT / name), told.mine > 0


def _name(scene: str, how: str) -> str:
    return scene if how == "none" else f"{scene}_{how.split()[0]}"
