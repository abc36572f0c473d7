"""A checker that never fails proves nothing: each sabotage of the code below must be caught, every run."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import pytest
from adr010 import DeleteAndCreate
from explore import Violation, explore, wander
from test_protocol import DEAD
from workers import Scenario, counted_nonce

from dfq.providers.filesystem.intake import Intake
from dfq.slotlog import SlotLog
from dfq.stores.disk import DiskStore


@dataclass(frozen=True)
class Mutant:
    """One line of the code, changed."""

    name: str
    code: type
    line: str
    instead: str
    scenario: Scenario
    caught_by: str  # what the checker must say
    preemptions: int = 2
    crashes: int = 0

    def scenario_with_it(self) -> Scenario:
        source = textwrap.dedent(inspect.getsource(self.code))
        assert source.count(self.line) == 1, f"the line that this mutant changes is gone: {self.line}"
        names: dict[str, Any] = dict(vars(sys.modules[self.code.__module__])) | {"nonce": counted_nonce}
        flags = __future__.annotations.compiler_flag
        exec(compile(source.replace(self.line, self.instead), self.name, "exec", flags), names)  # noqa: S102
        role = {SlotLog: "log", DiskStore: "store", Intake: "intake"}[self.code]
        return replace(self.scenario, **{role: names[self.code.__name__]})


TWO = Scenario("two", ("claim ack", "claim ack"))
BEATS = Scenario("beats", ("claim beat", "claim ack", "claim"))
BURIED = Scenario("buried", ("claim ack", "claim"), before="push claim", max_attempts=2)
REDRIVEN = Scenario("redriven", ("claim", "redrive claim ack"), before=DEAD, max_attempts=1)
CANCELLED = Scenario("cancelled", ("claim ack", "cancel"))

POWER = Scenario("power", ("push", "claim ack", "claim ack"), before="", durable=True)
POWER_HELPED = Scenario("power helped", ("claim ack", "claim", "claim"), durable=True)
POWER_CANCEL = Scenario("power cancel", ("cancel", "claim ack", "claim"), durable=True)
POWER_DEAD = Scenario("power dead", ("claim nack", "claim", "redrive"), max_attempts=1, durable=True)

COMPLETION = "if not store.name(staged, slot) and not self._is_mine(slot, claim):  # <- the completion"
PUBLICATION = "if not store.name(staged, done) and not self._is_mine(done, claim):"
POST_CHECK = "if store.exists(entry.witness) or (raw := self._read_task(entry)) is None:"
BURY_CHECK = "if store.exists(entry.witness):  # completed and swept since we looked"

RACES = [
    Mutant(
        "a claim does not look again",
        SlotLog,
        POST_CHECK,
        """if (raw := self._read_task(entry) or b'{"id": "t", "payload": {}}') is None:""",
        TWO,
        "which was completed before",
    ),
    Mutant("an ack makes no DONE slot", SlotLog, COMPLETION, "if False:", TWO, "had created the next slot"),
    Mutant(
        "an ack ignores that its slot is taken",
        SlotLog,
        COMPLETION,
        "if not store.name(staged, slot) and False:",
        TWO,
        "had created the next slot",
    ),
    Mutant(
        "an ack ignores that there is a witness",
        SlotLog,
        PUBLICATION,
        "if not store.name(staged, done) and False:",
        TWO,
        "completed twice",
    ),
    Mutant(
        "a thief deletes the lease and creates it anew",
        SlotLog,
        "generation = top.generation + 1 if top else 1",
        "generation = top.generation if top and store.remove(self._tree.slot(name, top.generation)) else 1",
        TWO,
        "and again by",
    ),
    Mutant(
        "a heartbeat goes by the name",
        SlotLog,
        "claim.hold.rewrite(lease_bytes(record))",
        "(self._store.take_up(self._tree.slot(claim.entry.name, claim.generation)) or claim.hold)"
        ".rewrite(lease_bytes(record))",
        BEATS,
        "wrote into",
        preemptions=3,
    ),
    Mutant(
        "the slots are swept before the witness is there",
        SlotLog,
        PUBLICATION,
        "if not (self._remove_slots(name, claim.generation), store.name(staged, done))[1] and True:",
        TWO,
        "and again by",
    ),
    Mutant("a burial does not look again", SlotLog, BURY_CHECK, "if False:", BURIED, "not cleared up"),
    Mutant(
        "a witness is retired at once",
        SlotLog,
        "self._remove_slots(name, claim.generation + 1)",
        "self._remove_slots(name, claim.generation + 1); store.remove(done)",
        TWO,
        "removed the witness",
    ),
    Mutant(
        "a dead letter is shown without a second look",
        SlotLog,
        "if store.exists(self._tree.slot(name, generation + 1)) or store.exists(entry.witness):",
        "if False:",
        REDRIVEN,
        "both completed and failed",
    ),
    Mutant(
        "a sweep takes the first slot only",
        SlotLog,
        "max((slot[1] for slot in listed if slot and slot[0] == name), default=0)",
        "1",
        TWO,
        "not cleared up",
        crashes=1,
    ),
    Mutant(
        "a cancelled task is swept without being retired",
        SlotLog,
        "if is_stub(witness) and self._store.name_again(done, retired):",
        "if False:",
        CANCELLED,
        "not listed as retired",
        crashes=1,
    ),
    Mutant(
        "an old dead letter stays",
        SlotLog,
        'if parse(name, 0, shown).record.get("generation") == generation:',
        "if True:",
        Scenario("dies again", ("redrive claim nack", "claim nack"), before=DEAD, max_attempts=1),
        "old dead letter",
        crashes=1,
    ),
]

RACES += [
    Mutant(
        "an expiry takes over whatever there is now",
        SlotLog,
        "not old(self._tree.slot(entry.name, top.generation)):",
        "not old(self._tree.slot(entry.name, top.generation)) or (top := self.top(entry.name)) is None:",
        Scenario("expired or put back", ("expire", "redrive claim"), before=DEAD, max_attempts=1),
        "which had been put back",
    ),
    Mutant(
        "a stub is not listed as one",
        SlotLog,
        "if retire:  # only now: whatever is listed there loses its witness one day, so it must be this one",
        "if False:",
        Scenario("keeping nothing", ("claim ackd", "claim ackd")),
        "not listed as retired",
    ),
]

CUTS = [
    Mutant(
        "a helper removes the task before the witness is durable",
        SlotLog,
        "self._store.sync(entry.witness)",
        "pass",
        POWER_HELPED,
        "is lost",
    ),
    Mutant(
        "an ack does not sync the witness",
        SlotLog,
        "staged = store.stage(dumps(witness",
        "staged = type(store)(store.disk, durable=False).stage(dumps(witness",
        POWER,
        "",
    ),
    Mutant("an ack does not sync completed/", SlotLog, "store.sync(done)", "pass", POWER, ""),
    Mutant(
        "a push does not sync the task",
        Intake,
        "if together else self._store.stage",
        "if together else DiskStore(self._store.disk, durable=False).stage",
        POWER,
        "buried for no good reason",
    ),
    Mutant("a push does not sync the frontier", Intake, "store.sync(item.path)", "pass", POWER, "is lost"),
    Mutant("a new directory is not synced", DiskStore, 'self.disk.fsync_dir(above or ".")', "pass", POWER, ""),
    Mutant(
        "a witness is retired before it is durable",
        SlotLog,
        "store.sync(done)",
        "store.name(staged, self._tree.retired(name)) if retire else None; store.sync(done)",
        POWER_CANCEL,
        "listed as retired",
    ),
    Mutant(
        "a dead letter is shown before its slot is durable",
        SlotLog,
        "store.sync(slot)  # the letter must not outlive its slot, whoever made that",
        "pass",
        POWER_DEAD,
        "dead letter",
    ),
]


@pytest.mark.parametrize("mutant", RACES, ids=lambda mutant: mutant.name)
def test_a_race_is_caught(mutant: Mutant) -> None:
    with pytest.raises(Violation) as caught:
        explore(mutant.scenario_with_it(), preemptions=mutant.preemptions, crashes=mutant.crashes)
    assert mutant.caught_by in "\n".join(caught.value.texts)


@pytest.mark.parametrize("mutant", CUTS, ids=lambda mutant: mutant.name)
def test_a_missing_sync_is_caught(mutant: Mutant) -> None:
    with pytest.raises(Violation) as caught:
        wander(mutant.scenario_with_it(), range(1_000), cuts=0.3)
    assert mutant.caught_by in "\n".join(caught.value.texts)


@pytest.mark.parametrize("mutant", {m.scenario.name: m for m in RACES}.values(), ids=lambda m: m.scenario.name)
def test_without_a_change_no_race_is_found(mutant: Mutant) -> None:
    same = replace(mutant, instead=mutant.line).scenario_with_it()
    explore(same, preemptions=mutant.preemptions, crashes=mutant.crashes, max_runs=1_000)


@pytest.mark.parametrize("mutant", {m.scenario.name: m for m in CUTS}.values(), ids=lambda m: m.scenario.name)
def test_without_a_change_no_sync_is_missed(mutant: Mutant) -> None:
    wander(replace(mutant, instead=mutant.line).scenario_with_it(), range(100), cuts=0.3)


def test_the_protocol_of_adr_010_completes_a_task_twice() -> None:
    scenario = Scenario("adr 010", ("claim ack", "claim ack"), log=DeleteAndCreate)
    with pytest.raises(Violation, match=r"completed twice|created by|removed the witness") as caught:
        explore(scenario, preemptions=2, crashes=0)
    print(caught.value)


def test_cancelling_a_scheduled_task_in_its_place_is_caught() -> None:
    scenario = Scenario("in place", ("promote claim ack", "withdraw_in_place", "claim ack"), before="schedule")
    with pytest.raises(Violation):
        explore(scenario, preemptions=2, crashes=0)
