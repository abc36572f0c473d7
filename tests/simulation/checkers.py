"""What must hold of a queue, whatever the schedule. Knows the tree and the promises, nothing of the code.

A checker sees every name as the disk gives or takes it, and what calls returned. It notes violations instead of
raising, because it is called in the middle of the code under test.
"""

from __future__ import annotations

import json
from typing import Any

from simdisk import Inode, Platter

from dfq.tree import COMPLETED, FAILED, FRONTIER, LEASES, META, PAUSED, RETIRED, plain, slot_name, task_name

GUARD = 3600.0  # seconds for which a witness stays, at the least


class Checker:
    """The ghost of one run."""

    def __init__(self, platter: Platter, *, max_attempts: int, patience: float | None = None) -> None:
        self.violations: list[str] = []
        self._patience = patience  # seconds for which nobody may take over from a process that lives
        self._max_attempts = max_attempts
        self._platter = platter
        platter.watcher = self._saw
        self._pushed: dict[str, int] = {}  # how many pushes of an id were accepted
        self._retired: dict[str, int] = {}  # and how many of its ends were forgotten in good time
        self._accepted: dict[str, tuple[str, str]] = {}  # name -> (process, nonce or "cancelled")
        self._created: dict[tuple[str, int], str] = {}  # slot -> process, for slots of tasks not completed
        self._order: dict[str, list[tuple[str, int]]] = {}  # id -> its slots in the order of their creation
        self._tokens: dict[tuple[str, int], int] = {}  # slot -> the token that went with it
        self.entries: dict[str, int] = {}  # how many tasks each process has put into the frontier
        self._begun: dict[str, int] = {}  # how many pushes of an id were tried
        self._lively: set[str] = set()  # put back, and not dead again since
        self._alive: set[str] = set()  # the same, and whoever did it was told so
        self._void: set[tuple[str, int, str]] = set()  # leases created when there was no task to lease any more
        self._gone: dict[str, tuple[str, ...]] = {}  # name -> the nonces of its witnesses that were forgotten
        self._lives: dict[tuple[str, str], int] = {}  # how many those were when a process claimed it
        self._paused: bool | None = None
        self._holders: dict[str, tuple[str, int, float]] = {}  # name -> process, generation, since when

    def moved_to(self, platter: Platter) -> Checker:
        """Return a checker of the same promises on another disk: a copy, or what a power cut left."""
        other = Checker(platter, max_attempts=self._max_attempts, patience=self._patience)
        other._pushed, other._accepted = dict(self._pushed), dict(self._accepted)
        other._retired, other._paused = dict(self._retired), self._paused
        other._gone = dict(self._gone)
        other._begun, other._lively, other._alive = dict(self._begun), set(self._lively), set(self._alive)
        return other  # tokens are promised within one boot: a cut may take slots back

    def key(self) -> int:
        """Return a digest of what the checker remembers."""
        return hash(
            (
                frozenset(self._pushed.items()),
                frozenset(self._retired.items()),
                frozenset(self._accepted.items()),
                frozenset(self._created.items()),
                frozenset(self._void),
                frozenset(self._alive),
                frozenset(self._lively),
                frozenset(self._begun.items()),
                frozenset(self._holders.items()),
                frozenset(self._tokens.items()),
                frozenset(self._lives.items()),
                self._paused,
            )
        )

    # -- what calls returned -----------------------------------------------------------------------

    def pushed(self, name: str) -> None:
        self._pushed[name] = self._pushed.get(name, 0) + 1

    def claimed(self, process: str, name: str, generation: int, token: int, began: float) -> None:
        if (name, generation, process) in self._void:
            self._violation(f"{process} was handed {name} generation {generation}, which was completed before")
        self._holders[name] = (process, generation, began)
        self._lives[process, name] = len(self._gone.get(name, ()))
        self._tokens[name, generation] = token
        known = [self._tokens[slot] for slot in self._order.get(plain(name), []) if slot in self._tokens]
        if known != sorted(set(known)):
            self._violation(f"the tokens of {plain(name)} do not grow: {known}")

    def renewed(self, process: str, name: str, began: float) -> None:
        holder = self._holders.get(name)
        if holder is not None and holder[0] == process:
            self._holders[name] = (process, holder[1], began)

    def let_go(self, process: str) -> None:
        """A process holds nothing any more: it gave its task back, settled it, lost it or died."""
        for name in [name for name, holder in self._holders.items() if holder[0] == process]:
            del self._holders[name]

    def acked(self, process: str, name: str, generation: int, nonce: str) -> None:
        creator = self._created.get((name, generation + 1), process)
        if creator != process:
            self._violation(f"ack of {name} generation {generation} accepted after {creator} had created the next slot")
        if self._lives.get((process, name), 0) != len(self._gone.get(name, ())):
            self._violation(f"{process} completed {name} with a lease of an earlier task of that name")
        self._accept(process, name, nonce)
        if self._witness(name).get("nonce") != nonce:
            self._violation(f"the witness of {name} is not the one of the ack that {process} was accepted")

    def cancelled(self, process: str, name: str) -> None:
        self._accept(process, name, "cancelled")
        if self._witness(name).get("state") != "cancelled":
            self._violation(f"{name} was cancelled, but its witness does not say so")

    def paused(self, state: bool | None) -> None:
        """The queue was paused or resumed; None: it may be either, since a call has not returned."""
        self._paused = state

    def booted(self) -> None:
        """Look at what the power cut has left before anybody touches it."""
        for name, forgotten in self._gone.items():
            if forgotten and self._witness(name).get("nonce") == forgotten[-1]:
                self._gone[name] = forgotten[:-1]  # nobody was promised that it stays forgotten
                self._retired[plain(name)] -= 1
        if self._pushed and not self._json_at(META):
            self._violation(f"tasks were pushed, and {META} is lost")
        if self._paused is not None and self._paused != (PAUSED in self._platter.names):
            self._violation(f"the queue was {'paused' if self._paused else 'resumed'}, and that is lost")

    def redriven(self, name: str) -> None:
        if name in self._lively:
            self._alive.add(name)

    def begun(self, name: str) -> None:
        """A push has begun: whether or not it returns, the task may be there."""
        self._begun[name] = self._begun.get(name, 0) + 1

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
                self._forgotten(process, path, inode)
        elif folder == FRONTIER:
            self.entries[process] = self.entries.get(process, 0) + 1
        elif folder == LEASES and (slot := slot_name(filename)) is not None:
            if _json(inode).get("state") == "dead":
                self._alive.discard(slot[0])
                self._lively.discard(slot[0])
            elif _json(inode).get("redriven") is True:
                self._lively.add(slot[0])
            if self._witness(slot[0]) or not self._waits(slot[0]):
                self._void.add((*slot, process))  # to be taken back by whoever made it
            elif slot in self._created:
                self._violation(f"{path} was created by {self._created[slot]} and again by {process}")
            else:
                self._created[slot] = process
                self._order.setdefault(plain(slot[0]), []).append(slot)
                if what == "create":
                    self._check_patience(process, slot)

    def _forgotten(self, process: str, path: str, witness: Inode) -> None:
        age = self._platter.clock.elapsed() - witness.written
        name = task_name(path.rpartition("/")[2]) or path
        if age < GUARD:
            self._violation(f"{process} removed the witness {path} after {age:g} s")
        # From now on the id is a new one.
        self._retired[plain(name)] = self._retired.get(plain(name), 0) + 1
        self._gone[name] = (*self._gone.get(name, ()), str(_json(witness).get("nonce")))
        self._accepted.pop(name, None)
        self._created = {slot: by for slot, by in self._created.items() if slot[0] != name}
        self._tokens = {slot: token for slot, token in self._tokens.items() if slot[0] != name}
        self._order.pop(plain(name), None)
        self._void = {void for void in self._void if void[0] != name}

    def _check_patience(self, process: str, slot: tuple[str, int]) -> None:
        holder = self._holders.get(slot[0])
        if self._patience is None or holder is None or holder[0] == process or holder[1] != slot[1] - 1:
            return
        if self._platter.clock.elapsed() < holder[2] + self._patience:
            self._violation(f"{process} took {slot[0]} over from {holder[0]}, which lives")

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Look at the tree after a fresh worker has worked off everything."""
        completed, failed, waiting = self._in(COMPLETED), self._in(FAILED), self._in(FRONTIER)
        retired, slots = self._in(RETIRED), self._slots()
        for name, times in self._pushed.items():
            ended = [key for key in {*completed, *failed} if plain(key) == name]
            if len(ended) + self._retired.get(name, 0) < times:
                self._violation(f"{name} was pushed {times} times and is lost: completed or failed are {ended}")
        for name, times in self._begun.items():
            ended = [key for key in {*completed, *failed} if plain(key) == name]
            if len(ended) + self._retired.get(name, 0) > times:
                self._violation(f"{name} was pushed {times} times and came back: completed or failed are {ended}")
        for name, (_, mark) in self._accepted.items():
            witness = self._witness(name)
            if mark not in (witness.get("nonce"), witness.get("state")):
                self._violation(f"the accepted completion of {name} is gone or was replaced: {witness}")
        for name, witness in completed.items():
            state = _json(witness).get("state")
            stub = state in ("cancelled", "expired") or _json(witness).get("stub") is True
            if state not in ("done", "cancelled", "expired"):
                self._violation(f"the witness of {name} cannot be read: {witness.data[:40]!r}")
            if state == "expired" and name in self._alive:
                self._violation(f"{name} was put back, and expired all the same")
            if name in failed:
                self._violation(f"{name} is both completed and failed")
            if name in waiting or name in slots:
                self._violation(f"{name} is completed, but was not cleared up: {sorted(slots.get(name, ()))}")
            # One that is old enough to go may have lost its entry there already, or have got one for that.
            old = self._platter.clock.elapsed() - witness.written >= GUARD
            # And one that was forgotten may have left its entry, which is not that of its successor.
            stale = name in retired and retired[name] is not witness and self._retired.get(plain(name), 0) > 0
            if stub != (name in retired) and not old and not stale:
                self._violation(f"{name} is {state}, but {'' if name in retired else 'not '}listed as retired")
        for name in self._alive & {*failed}:
            self._violation(f"{name} was put back, and is dead all the same")
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
        # After a witness went, a claim that was about to find it leaves one too, if its process dies right then.
        ours = {key for key in slots if plain(key) in self._pushed and plain(key) not in self._retired}
        for name in (ours | {*waiting}) - {*completed, *failed}:
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

    def _waits(self, name: str) -> bool:
        end = f"/{name}.json"
        return any(path.endswith(end) and path.startswith(FRONTIER + "/") for path in self._platter.names)

    def _witness(self, name: str) -> dict[str, Any]:
        for path, inode in self._platter.names.items():
            if path.startswith(COMPLETED + "/") and path.endswith(f"/{name}.json"):
                return _json(inode) or {"state": "torn"}
        return {}

    def _json_at(self, path: str) -> dict[str, Any]:
        inode = self._platter.names.get(path)
        return {} if inode is None else _json(inode)

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
