"""Within the machine: processes that use a queue on a disk whose writes are logged, and mark there what was promised.

A mark is `begin|what|id|…` before a call and `end|what|id|…` once it has returned. Nothing else tells the
checker what must be on the disk after a power cut.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import hashlib
import json
import os
import random
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devmapper import LoggedDisk, Marker
from uml import load
from writelog import WriteLog

import dfq
from dfq.ports import OsDisk
from dfq.queue import Push

DISK, NAME = "/run/disk", "logged"
SABOTAGES = ("none", "fast", "no file is flushed", "no folder is flushed")
MAX_ATTEMPTS, SHARDS = 2, 4
WORKERS = 2
LOG_MIB = 512
AT_LEAST, EXTRA = 20, 60.0  # completions, however slow the machine is; seconds that these may take longer
OVER = Path("/run/over")


class User:
    """A process that uses the queue: it knows what it was told, and marks it."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self.number = number
        self.chance = random.Random(f"{options.seed}-{number}")
        self._marker = Marker(NAME)
        durability = "fast" if options.sabotage == "fast" else "full"
        self.queue = dfq.open_queue(
            "q", DISK, durability=durability, lease=30, max_attempts=MAX_ATTEMPTS, shards=SHARDS
        )

    @property
    def going_on(self) -> bool:
        return not OVER.exists()

    def begin(self, what: str, *words: str) -> None:
        self._marker.mark("begin", what, *words)

    def end(self, what: str, *words: str) -> None:
        self._marker.mark("end", what, *words)


def produce(user: User) -> None:
    """Push tasks one by one, many at a time and for later; change one's mind about some of them."""
    number, recent = 0, []
    while user.going_on:
        many = user.chance.choice([1, 1, 1, 5])
        ids = [f"p{user.number}/{number + n}" for n in range(many)]
        number += many
        delay = user.chance.choice([0, 0, 0, 0.2])
        for task in ids:
            user.begin("push", task)
        user.queue.push_many(Push(payload_of(task), id=task, delay=delay) for task in ids)
        for task in ids:
            user.end("push", task)
        recent = (recent + ids)[-20:]
        if user.chance.random() < 0.1:
            task = user.chance.choice(recent)
            user.begin("cancel", task)
            with contextlib.suppress(dfq.TaskNotFound):  # it was completed before
                user.queue.cancel(task)
                user.end("cancel", task)
        while user.queue.counts().pending > 40 and user.going_on:
            time.sleep(0.05)


def work(user: User) -> None:
    """Claim tasks; complete most, give some back, and retry those that died of it."""
    while user.going_on:
        for task in user.queue.poll(user.chance.randint(1, 3), wait=0.2):
            try:
                if user.chance.random() < 0.25:
                    _give_back(user, task)
                else:
                    _complete(user, task)
            except dfq.LeaseLost:
                continue  # it was cancelled


def _complete(user: User, task: dfq.Task) -> None:
    result = {"of": task.id, "token": task.token, "by": user.number}
    user.begin("ack", task.id)
    user.queue.ack(task, result=result)
    user.end("ack", task.id, _digest("completed", task.id), str(task.token))


def _give_back(user: User, task: dfq.Task) -> None:
    last = task.attempt >= MAX_ATTEMPTS
    user.begin("nack", task.id)
    user.queue.nack(task, error=f"no luck in attempt {task.attempt}", delay=user.chance.choice([0, 0, 0.1]))
    if not last:
        return
    letter = _content("failed", task.id)
    if letter is None:
        return  # cancelled in the meantime
    nonce = json.loads(letter)["nonce"]
    user.end("dead", task.id, nonce)
    if user.chance.random() < 0.5:
        user.begin("retry", task.id, nonce)
        if user.queue.retry([task.id]) == [task.id]:
            user.end("retry", task.id, nonce)


def payload_of(task: str) -> dict[str, Any]:
    """Return a payload that tells of itself whether it is whole."""
    return {"task": task, "filler": hashlib.sha256(task.encode()).hexdigest() * 3}


def _content(folder: str, task: str) -> bytes | None:
    for path in glob.glob(f"{DISK}/q/{folder}/*/{task.replace('/', '%2F')}.json"):
        return Path(path).read_bytes()
    return None


def _digest(folder: str, task: str) -> str:
    content = _content(folder, task)
    return "missing" if content is None else hashlib.sha256(content).hexdigest()


def _completed() -> int:
    return len(glob.glob(f"{DISK}/q/completed/*/*.json"))


class Crew:
    """The processes; workers are killed now and then, and replaced."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._live: dict[int, Callable[[User], None]] = {}
        self._started = 0

    def start(self, role: Callable[[User], None]) -> None:
        self._started += 1
        pid = os.fork()
        if pid:
            self._live[pid] = role
            return
        try:
            role(User(self._options, self._started))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must not return from here
            traceback.print_exc()
            os._exit(1)

    def run(self) -> int:
        """Let them work until the time is over; return how many were killed."""
        chance, killed = random.Random(self._options.seed), 0
        end = time.monotonic() + self._options.seconds
        while time.monotonic() < end or (_completed() < AT_LEAST and time.monotonic() < end + EXTRA):
            time.sleep(0.3)
            victim = chance.choice([pid for pid, role in self._live.items() if role is work])
            if chance.random() < 0.3:
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
                self.start(self._live.pop(victim))
                killed += 1
        OVER.touch()
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self._live]
        if any(codes):
            raise SystemExit(f"processes ended with {codes}")
        return killed


def _save_log(device: str, path: str) -> None:
    left = WriteLog(Path(device)).size
    with open(device, "rb") as log, open(path, "wb") as copy:
        while left:
            left -= copy.write(log.read(min(left, 1 << 20)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--sabotage", choices=SABOTAGES, default="none")
    options = parser.parse_args()
    if options.sabotage == "no file is flushed":
        OsDisk.fsync = lambda self, fd: None  # type: ignore[method-assign]
    if options.sabotage == "no folder is flushed":
        OsDisk.fsync_dir = lambda self, path: None  # type: ignore[method-assign]
    load("brd", rd_nr="1", rd_size=str(LOG_MIB << 10))  # the log is in memory: it is written to more than the disk
    disk = LoggedDisk(NAME, "/dev/ubda", "/dev/ram0")
    os.mkdir(DISK)
    subprocess.run(["mount", "-t", "ext4", disk.path, DISK], check=True)
    Marker(NAME).mark("mounted")
    crew = Crew(options)
    for role in (produce, *[work] * WORKERS):
        crew.start(role)
    killed = crew.run()
    # The last seconds were not flushed by anybody: that is when the plug is pulled. What follows is not part of it.
    Marker(NAME).mark("over")
    subprocess.run(["umount", DISK], check=True)
    disk.remove()
    _save_log("/dev/ram0", "/run/share/log")
    print(json.dumps({"killed": killed}))


if __name__ == "__main__":
    main()
