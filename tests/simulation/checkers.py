"""What must hold of a queue, whatever the schedule. Knows the tree and the promises, nothing of the code.

A checker sees every name as the disk gives or takes it, and what calls returned. It notes violations instead of
raising, because it is called in the middle of the code under test.
"""

from __future__ import annotations

import json
from typing import Any

from simdisk import Inode, Platter

from dfq.tree import COMPLETED, FAILED, FRONTIER, LEASES, RETIRED, plain, slot_name, task_name


class Checker:
    """The ghost of one run."""

    def __init__(self, platter: Platter, *, max_attempts: int, patient: bool = False) -> None:
        self.violations: list[str] = []
        self._patient = patient  # no time passes, so nobody may take over from a process that lives
        self._max_attempts = max_attempts
        self._platter = platter
        platter.watchers = [self._saw]
        self._pushed: dict[str, int] = {}  # how many pushes of a name were accepted
        self._accepted: dict[str, tuple[str, str]] = {}  # name -> (process, nonce or "cancelled")
        self._created: dict[tuple[str, int], str] = {}  # slot -> process, for slots of tasks not completed
        self._alive: set[str] = set()  # put back, and not dead again since
        self._void: set[tuple[str, int, str]] = set()  # leases created when the task was completed already

    def moved_to(self, platter: Platter) -> Checker:
        """Return a checker of the same promises on another disk: a copy, or what a power cut left."""
        other = Checker(platter, max_attempts=self._max_attempts, patient=self._patient)
        other._pushed, other._accepted = dict(self._pushed), dict(self._accepted)
        return other  # tokens are promised within one boot: a cut may take slots back

    def key(self) -> int:
        """Return a digest of what the checker remembers."""
        created, void = frozenset(self._created.items()), frozenset(self._void | {(n, 0, "alive") for n in self._alive})
        return hash((frozenset(self._pushed.items()), frozenset(self._accepted.items()), created, void))

    # -- what calls returned -----------------------------------------------------------------------

    def pushed(self, name: str) -> None:
        self._pushed[name] = self._pushed.get(name, 0) + 1

    def claimed(self, process: str, name: str, generation: int) -> None:
        if (name, generation, process) in self._void:
            self._violation(f"{process} was handed {name} generation {generation}, which was completed before")

    def acked(self, process: str, name: str, generation: int, nonce: str) -> None:
        creator = self._created.get((name, generation + 1), process)
        if creator != process:
            self._violation(f"ack of {name} generation {generation} accepted after {creator} had created the next slot")
        self._accept(process, name, nonce)
        if self._witness(name).get("nonce") != nonce:
            self._violation(f"the witness of {name} is not the one of the ack that {process} was accepted")

    def cancelled(self, process: str, name: str) -> None:
        self._accept(process, name, "cancelled")
        if self._witness(name).get("state") != "cancelled":
            self._violation(f"{name} was cancelled, but its witness does not say so")

    def redriven(self, name: str) -> None:
        self._alive.add(name)

    def expired(self, process: str, name: str) -> None:
        self._accept(process, name, "expired")
        if name in self._alive:
            self._violation(f"{process} let {name} expire, which had been put back")

    def failure(self, process: str, error: BaseException) -> None:
        self._violation(f"{process} met an error that no caller expects: {error!r}")

    def _accept(self, process: str, name: str, mark: str) -> None:
        earlier = self._accepted.setdefault(name, (process, mark))
        if earlier != (process, mark):
            self._violation(f"{name} was completed twice: by {earlier[0]}, then by {process}")

    # -- what the disk saw -------------------------------------------------------------------------

    def _saw(self, process: str, what: str, path: str, inode: Inode) -> None:
        folder, _, rest = path.partition("/")
        filename = rest.rpartition("/")[2]
        if what == "write":
            if inode.links and inode.id.partition("#")[0] != process:
                self._violation(f"{process} wrote into {path}, which {inode.id.partition('#')[0]} created")
        elif what == "unlink":
            if folder == COMPLETED:
                self._violation(f"{process} removed the witness {path}")
        elif folder == LEASES and (slot := slot_name(filename)) is not None:
            if _json(inode).get("state") == "dead":
                self._alive.discard(slot[0])
            if self._witness(slot[0]):
                self._void.add((*slot, process))  # to be taken back by whoever made it
            elif slot in self._created:
                self._violation(f"{path} was created by {self._created[slot]} and again by {process}")
            else:
                self._created[slot] = process
                self._check_patience(process, slot, what)

    def _check_patience(self, process: str, slot: tuple[str, int], what: str) -> None:
        below = self._slots().get(slot[0], {}).get(slot[1] - 1)
        # A lock for a moment's look is shared; only the holder's is exclusive.
        held = below is not None and "exclusive" in below.locks.values() and _json(below).get("state") != "released"
        if self._patient and what == "create" and held:
            self._violation(f"{process} took {slot[0]} over from a process that lives")

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Look at the tree after a fresh worker has worked off everything."""
        completed, failed, waiting = self._in(COMPLETED), self._in(FAILED), self._in(FRONTIER)
        retired, slots = self._in(RETIRED), self._slots()
        for name, times in self._pushed.items():
            ended = [key for key in {*completed, *failed} if plain(key) == name]
            if len(ended) < times:
                self._violation(f"{name} was pushed {times} times and is lost: completed or failed are {ended}")
        for name, (_, mark) in self._accepted.items():
            witness = self._witness(name)
            if mark not in (witness.get("nonce"), witness.get("state")):
                self._violation(f"the accepted completion of {name} is gone or was replaced: {witness}")
        for name, witness in completed.items():
            state = _json(witness).get("state")
            stub = state in ("cancelled", "expired") or _json(witness).get("stub") is True
            if state not in ("done", "cancelled", "expired"):
                self._violation(f"the witness of {name} cannot be read: {witness.data[:40]!r}")
            if name in failed:
                self._violation(f"{name} is both completed and failed")
            if name in waiting or name in slots:
                self._violation(f"{name} is completed, but was not cleared up: {sorted(slots.get(name, ()))}")
            if stub != (name in retired):
                self._violation(f"{name} is {state}, but {'' if name in retired else 'not '}listed as retired")
        for name, letter in failed.items():
            top = _top(slots.get(name, {}))
            if top is None or _json(top).get("state") != "dead":
                self._violation(f"{name} is listed as failed, but its top slot is not DEAD")
            elif top is not letter:
                self._violation(f"{name} is listed as failed with an old dead letter")
            elif _json(letter).get("payload") is None or _json(letter).get("attempts", 0) < self._max_attempts:
                self._violation(f"{name} was buried for no good reason: {_json(letter).get('reason')}")
            if name not in waiting:
                self._violation(f"{name} is failed, but its task is gone")
        # A power cut can take a task away whose push had not returned, and leave a slot of it.
        for name in ({key for key in slots if plain(key) in self._pushed} | {*waiting}) - {*completed, *failed}:
            self._violation(f"{name} was left behind: slots {sorted(slots.get(name, ()))}")

    def _in(self, folder: str) -> dict[str, Inode]:
        found = {}
        for path, inode in self._platter.names.items():
            name = task_name(path.rpartition("/")[2])
            if path.startswith(folder + "/") and not inode.directory and name is not None:
                found[name] = inode
        return found

    def _slots(self) -> dict[str, dict[int, Inode]]:
        found: dict[str, dict[int, Inode]] = {}
        for path, inode in self._platter.names.items():
            if path.startswith(LEASES + "/") and (slot := slot_name(path.rpartition("/")[2])) is not None:
                found.setdefault(slot[0], {})[slot[1]] = inode
        return found

    def _witness(self, name: str) -> dict[str, Any]:
        for path, inode in self._platter.names.items():
            if path.startswith(COMPLETED + "/") and path.endswith(f"/{name}.json"):
                return _json(inode) or {"state": "torn"}
        return {}

    def _violation(self, text: str) -> None:
        self.violations.append(text)


def _top(slots: dict[int, Inode]) -> Inode | None:
    # Counted up from 1: a power cut may leave a gap, and what is above it does not count until the gap is filled.
    generation = 0
    while generation + 1 in slots:
        generation += 1
    return slots.get(generation)


def _json(inode: Inode) -> dict[str, Any]:
    try:
        value = json.loads(inode.data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
