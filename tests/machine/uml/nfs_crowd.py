"""Within the machine: workers on all hosts, killed at random, while the server loses replies and restarts."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from nfs_check import Told, contradictions
from nfs_net import DELAY, EXPORT, Host, Server
from nfs_users import (
    LEASE,
    LOGS,
    SLOW,
    WANTED,
    Diary,
    before_link,
    forked,
    kill,
    note_lost_replies,
    now_and_then,
    open_queue,
    quiet,
    reap,
    until,
    want_loss,
)

import dfq
from dfq.queue import Push

NAME = "crowd"
PER_HOST = 2
BETWEEN = 30  # completions between two restarts of the server, at least
AT_LEAST = 40  # completions, however slow the machine is
KILLS = 2  # likewise
EXTRA = 90.0  # seconds that these may take longer
OVER = Path("/run/over")


def work(host: Host, number: int) -> None:
    diary, chance = Diary(f"{NAME}-{number}"), random.Random(number)
    note_lost_replies(diary)
    queue = open_queue(host, NAME)
    before_link(queue, "active-leases/", now_and_then(chance, 0.1, _maybe_loss))
    while not OVER.exists():
        try:
            for task in queue.poll(chance.randint(1, 2), wait=0.3):
                diary.write("claim", task.id, task.token, host.name)
                if chance.random() < 0.1:
                    queue.nack(task, error="by chance")
                    continue
                diary.write("try", task.id, task.token)
                queue.ack(task, result={"by": number, "token": task.token})
                diary.write("ack", task.id, task.token)
        except dfq.LeaseLost:
            diary.write("lost", task.id, task.token)
        except dfq.QueueUnavailable as e:
            diary.write("trouble", str(e).replace(" ", "_"))
    queue.close()


def _maybe_loss() -> None:
    if not WANTED.exists():
        want_loss(LEASE / 2)


def produce(host: Host) -> None:
    diary, number, queue = Diary(f"{NAME}-producer"), 0, open_queue(host, NAME)
    while not OVER.exists():
        ids = [f"{number + n}" for n in range(5)]
        number += 5
        queue.push_many(Push({"task": task}, id=task) for task in ids)
        for task in ids:
            diary.write("push", task)
        while queue.counts().pending > 20 and not OVER.exists():
            time.sleep(0.1)
    queue.close()


class Crowd:
    """The workers, and what befalls them."""

    def __init__(self, hosts: list[Host], server: Server, chance: random.Random, end: float) -> None:
        self._hosts, self._server, self._chance, self._end = hosts, server, chance, end
        self._live: dict[int, Host] = {}
        self.started = self.killed = 0

    def run(self) -> list[int]:
        """Let them work and harm them until the time is over; return how they ended."""
        producer = forked(self._hosts[0], lambda: produce(self._hosts[0]))
        for host in self._hosts * PER_HOST:
            self._start(host)
        try:
            with quiet():
                self._harm()
            OVER.touch()
            return [reap(pid) for pid in (producer, *self._live)]
        finally:
            for pid in (producer, *self._live):
                kill(pid)

    def _start(self, host: Host) -> None:
        self.started += 1
        number = self.started
        self._live[forked(host, lambda: work(host, number))] = host

    def _harm(self) -> None:
        next_kill, next_restart = time.monotonic() + 2, BETWEEN // 3
        while not self._over():
            time.sleep(0.02)
            if WANTED.exists() and _completed() >= next_restart:
                self._server.delay()
                SLOW.touch()
                time.sleep(1.5 * DELAY * self._chance.random())
                self._server.restart()
                SLOW.unlink()
                WANTED.unlink()
                next_restart = _completed() + BETWEEN
            elif WANTED.exists():
                WANTED.unlink()
            if time.monotonic() > next_kill:
                pid = self._chance.choice(list(self._live))
                kill(pid)
                self.killed += 1
                self._start(self._live.pop(pid))
                next_kill = time.monotonic() + 1 + 2 * self._chance.random()

    def _over(self) -> bool:
        now = time.monotonic()
        return now > self._end + EXTRA or (now > self._end and _completed() >= AT_LEAST and self.killed >= KILLS)


def _completed() -> int:
    return sum(1 for _ in (EXPORT / NAME / "completed").rglob("*.json"))


def finish(host: Host) -> int:
    """Let a last worker do what is left; return how it ended."""

    def act() -> None:
        diary = Diary(f"{NAME}-last")
        with open_queue(host, NAME) as queue:

            def done() -> bool:
                for task in queue.poll(10, wait=0.3):
                    diary.write("claim", task.id, task.token, host.name)
                    queue.ack(task, result={"by": 0, "token": task.token})
                    diary.write("ack", task.id, task.token)
                counts = queue.counts()
                return not counts.pending + counts.leased

            if not until(done):
                raise SystemExit(f"not worked off: {queue.counts()}")

    return reap(forked(host, act))


def crowd(server: Server, hosts: list[Host], seconds: float, seed: int) -> tuple[list[str], dict[str, Any]]:
    restarts = server.restarts
    people = Crowd(hosts, server, random.Random(seed), time.monotonic() + seconds)
    codes = people.run()
    codes.append(finish(hosts[-1]))
    wrong = [f"processes ended with {codes}"] if any(codes) else []
    told = Told.of(LOGS, NAME)
    return wrong + contradictions(told, EXPORT / NAME), {
        "tasks": len(told.pushed),
        "accepted completions": len(told.acks),
        "workers killed": people.killed,
        "takeovers by the other host": told.takeovers,
        "leases lost": told.lost,
        "server restarts": server.restarts - restarts,
        "lost replies told by their nonce": told.mine,
        "errors that workers got over": told.troubles,
    }
