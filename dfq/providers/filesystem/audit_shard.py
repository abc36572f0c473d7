"""Holding a shard against the format: its tasks, slots, witnesses and dead letters (ADR 012)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dfq.lease import Slot, parse
from dfq.providers.filesystem.audit import Audit, speaks_of
from dfq.providers.filesystem.faults import Repair
from dfq.queue import DEFAULT_PRIORITY
from dfq.records import is_stub, token_of
from dfq.tree import COMPLETED, FAILED, FRONTIER, LEASES, RETIRED, Entry, epoch_of, plain, slot_name, task_name

T = TypeVar("T")

YOUNG = 3600.0  # seconds for which no witness is forgotten (ADR 018)


@dataclass(slots=True)
class _Shard:
    """What lies in a shard, by name."""

    tasks: dict[str, list[Entry]] = field(default_factory=dict)
    slots: dict[str, dict[int, str]] = field(default_factory=dict)  # name -> generation -> path
    completed: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    retired: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        return sorted({*self.tasks, *self.slots, *self.completed, *self.failed, *self.retired})


class ShardAudit(Audit):
    """One look at a shard."""

    def look(self, shard: str, lanes: list[int], temporary: dict[int, int], scheduled: Callable[[str], bool]) -> None:
        """Look at all that lies in a shard; `scheduled` tells whether a name waits in scheduled/."""
        here = self._collect(shard, lanes)
        if any(s.finding.code in ("not-a-folder", "unreadable") for s in self.suspects):
            return  # without all of it, what is missing from the rest means nothing
        self.check_links(temporary, lambda path: path.startswith(f"{FRONTIER}/") and scheduled(_name_in(path)))
        for name in here.names():
            self._look_at(name, here, scheduled)

    def _collect(self, shard: str, lanes: list[int]) -> _Shard:
        here = _Shard()
        for lane in lanes:
            for path, name in self._of_shard(f"{FRONTIER}/{lane}/{shard}", shard, task_name, "wrong-shard"):
                here.tasks.setdefault(name, []).append(self._tree.entry_at(path, name, lane))
        for path, slot in self._of_shard(f"{LEASES}/{shard}", shard, slot_name, "wrong-shard-proof"):
            here.slots.setdefault(slot[0], {})[slot[1]] = path
        for top, into, code in (
            (COMPLETED, here.completed, "wrong-shard-proof"),
            (FAILED, here.failed, "wrong-shard"),
            (RETIRED, here.retired, "wrong-shard"),
        ):
            into.update((name, path) for path, name in self._of_shard(f"{top}/{shard}", shard, task_name, code))
        return here

    def _of_shard(self, folder: str, shard: str, key_of: Callable[[str], T | None], code: str) -> list[tuple[str, T]]:
        ours = []
        for path, key in self.files(folder, key_of) if self.folder(folder) else []:
            right = self._tree.shard(key[0] if isinstance(key, tuple) else str(key))
            if right == shard:
                ours.append((path, key))
            else:
                self.note(code, path, f"it belongs into the shard {right}")
        return ours

    def _look_at(self, name: str, here: _Shard, scheduled: Callable[[str], bool]) -> None:
        tasks, slots = here.tasks.get(name, []), here.slots.get(name, {})
        if name in here.completed:
            witness = self.witness(name, here.completed[name])
            if epoch_of(name) and plain(name) not in here.completed:
                self.note("no-anchor", here.completed[name], "the witness of epoch 0 is gone")
            if witness is not None:  # what a damaged one guards is evidence: it stays
                self._look_at_rest(name, here, tasks, slots)
                self._look_at_guard(name, here, witness)
            return
        if name in here.retired:
            self.note("stale-guard", here.retired[name], "there is no such witness", lambda: self._log.unlist(name))
        for entry in tasks:
            self.check_epoch(entry)
        noted = len(self.suspects)
        states = {g: self._slot(name, g, path) for g, path in sorted(slots.items())}
        top = _top(states)
        if any(s.finding.code in ("unreadable", "slot-contradicts") for s in self.suspects[noted:]):
            pass  # nothing follows from a slot that cannot be read, or was another's
        elif slots and not tasks and (top is None or top.state != "done") and not scheduled(name):
            self._orphan(name, here, top)
        else:
            self._look_at_slots(name, here, tasks, states, top)
        if tasks:
            self._look_at_tasks(tasks, buried=top is not None and top.state == "dead")
        elif name in here.failed and not slots:
            self.note("orphan-letter", here.failed[name], "it has neither a task nor a slot")

    def _look_at_rest(self, name: str, here: _Shard, tasks: list[Entry], slots: dict[int, str]) -> None:
        for entry in tasks:
            self.note("leftover-task", entry.path, "its witness is there", self._mending(entry))
        mend = self._mending(tasks[0] if tasks else self._tree.entry(name, DEFAULT_PRIORITY))
        if slots:
            self.note("leftover-slots", slots[max(slots)], f"{len(slots)} of a completed task", mend)
        if name in here.failed:
            self.note("failed-and-completed", here.failed[name], "its witness is there", mend)

    def _look_at_guard(self, name: str, here: _Shard, witness: Slot) -> None:
        listed = name in here.retired
        if listed and not self._log.is_retired(name):
            # Another's link would keep this one's from being made, so both are one repair.
            def relist() -> None:
                self._log.unlist(name)
                self._log.mend(self._tree.entry(name, DEFAULT_PRIORITY))

            self.note(
                "stale-guard",
                here.retired[name],
                "it is of another witness than the one in completed/",
                relist,
            )
        elif listed and not is_stub(witness) and not self._is_going(here.retired[name]):
            self.note("retired-proof", here.retired[name], f"the witness says {witness.record.get('state')!r}")
        elif not listed and is_stub(witness):
            mend = self._mending(self._tree.entry(name, DEFAULT_PRIORITY))
            self.note("unlisted-stub", here.completed[name], "it only guards its name", mend)

    def _is_going(self, path: str) -> bool:
        """Tell whether a proof is listed because somebody was about to forget it, and died: they are old."""
        facts = self._disk.look(path)
        return facts is not None and self._clock.wall() - facts.mtime_ns / 1e9 >= YOUNG

    def _mending(self, entry: Entry) -> Repair:
        return lambda: self._log.mend(entry)

    def _look_at_tasks(self, tasks: list[Entry], *, buried: bool) -> None:
        records = [self.check_task(entry, buried=buried) for entry in tasks]
        for entry, record in list(zip(tasks, records, strict=True))[1:]:
            self.check_duplicate(entry.path, record, tasks[0].path, records[0])

    # -- slots -------------------------------------------------------------------------------------

    def _slot(self, name: str, generation: int, path: str) -> Slot:
        slot = parse(name, generation, self.content(path) or b"")
        record = slot.record
        written = (
            generation - 1 if slot.state == "done" else generation
        )  # a witness is linked to the slot after its own
        expected: dict[str, int] = {} if slot.state == "torn" else {"generation": written}
        if slot.state in ("leased", "released", "done"):
            expected["token"] = token_of(name, written)
        for key, value in expected.items():  # a lease of another tool may lack them
            if key in record and record[key] != value:
                self.note("slot-contradicts", path, f"field {key!r} is {str(record[key])[:20]}, and not {value}")
                break
        else:
            if slot.state != "torn" and "task_id" in record and not speaks_of(record["task_id"], name):
                self.note("slot-contradicts", path, f"field 'task_id' is {str(record['task_id'])[:60]!r}")
        # What it says at length is not needed any more, and a task may have thousands.
        return Slot(name, generation, slot.state, {}, b"")

    def _look_at_slots(
        self, name: str, here: _Shard, tasks: list[Entry], states: dict[int, Slot], top: Slot | None
    ) -> None:
        slots = here.slots.get(name, {})
        entry = tasks[0] if tasks else self._tree.entry(name, DEFAULT_PRIORITY)
        below = top.generation if top else 0
        if len(states) > below:
            above = min(g for g in states if g > below)
            self.note("slot-gap", slots[above], f"slot {below + 1} is missing below it")
        overtaken = [g for g, slot in states.items() if slot.state == "done" and g < below]
        if overtaken:
            self.note("done-overtaken", slots[overtaken[-1]], f"it is completed, and slot {below} is above it")
        if top is not None and top.state == "done":
            self.note("unfinished-completion", slots[below], "there is no witness yet", self._mending(entry))
        elif top is not None and top.state == "torn":
            self.note("torn-lease", slots[below], "it is empty or cannot be read")
        if tasks:
            self._look_at_letter(entry, here.failed.get(name), slots, top)

    def _look_at_letter(self, entry: Entry, shown: str | None, slots: dict[int, str], top: Slot | None) -> None:
        dead = top is not None and top.state == "dead"
        if top is not None and dead and shown is None:
            self.note("unshown-letter", slots[top.generation], "it is not in failed/", self._mending(entry))
        if shown is None:
            return
        letter = parse(entry.name, 0, self.content(shown) or b"")
        if letter.state != "dead":
            self.note("bad-letter", shown, "it is empty or cannot be read")
        elif top is None or top.state in ("leased", "released"):
            self.note("stale-letter", shown, "the top slot is not DEAD", self._mending(entry))
        elif dead and letter.record.get("generation") != top.generation:
            self.note("stale-letter", shown, f"slot {top.generation} is a later death", self._mending(entry))

    def _orphan(self, name: str, here: _Shard, top: Slot | None) -> None:
        # Never removed: there is no witness to forbid that the names are used anew. A holder that sleeps would find a
        # slot free that is another worker's by right, and nobody can prove that there is no such holder.
        slots = here.slots[name]
        if top is not None and top.state == "dead":
            self.note("orphan-letter", slots[top.generation], "it has no task")
        else:
            self.note("orphan-slots", slots[min(slots)], f"{len(slots)} without a task and without a witness")


def _name_in(path: str) -> str:
    return task_name(path.rpartition("/")[2]) or ""


def _top(states: dict[int, Slot]) -> Slot | None:
    generation = 0
    while generation + 1 in states:
        generation += 1
    return states.get(generation)
