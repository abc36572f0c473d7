"""Sabotages of the code, one line each. A checker that never fails proves nothing: every one must be caught."""

from __future__ import annotations

from dataclasses import dataclass, replace

from explore import Weather
from scenarios import DEAD
from workers import FORGETFUL, Scenario

from dfq.staleness import Judge

SLOTLOG = "dfq.slotlog"
LETTERS = "dfq.deadletters"
SLOTS = "dfq.slots"
INTAKE = "dfq.providers.filesystem.intake"
STORE = "dfq.stores.disk"
JUDGE = "dfq.staleness"
RETIREMENT = "dfq.providers.filesystem.retirement"
SCHEDULE = "dfq.providers.filesystem.schedule"
AGAIN = "dfq.providers.filesystem.again"
RECORDS = "dfq.records"


@dataclass(frozen=True)
class Mutant:
    """A line of the code, changed, and the scenario in which that shows."""

    name: str
    module: str
    line: str
    instead: str
    scenario: Scenario
    caught_by: str  # what the checker must say
    preemptions: int = 2
    crashes: int = 0
    weather: Weather | None = None  # at random, in this; else under every schedule
    seeds: int = 1_000


TWO = Scenario("two", ("claim ack", "claim ack"))
BEATS = Scenario("beats", ("claim beat", "claim ack", "claim"))
BURIED = Scenario("buried", ("claim ack", "claim"), before="push claim", max_attempts=2)
REDRIVEN = Scenario("redriven", ("claim", "redrive claim ack"), before=DEAD, max_attempts=1)
CANCELLED = Scenario("cancelled", ("claim ack", "cancel"))

POWER = Scenario("power", ("push", "claim ack", "claim ack"), before="", durable=True)
POWER_HELPED = Scenario("power helped", ("claim ack", "claim", "claim"), durable=True)
POWER_CANCEL = Scenario("power cancel", ("cancel",), durable=True)
POWER_DEAD = Scenario("power dead", ("claim nack", "claim", "redrive"), max_attempts=1, durable=True)

COMPLETION = "if not store.name(staged, slot) and not self._is_mine(slot, claim):  # <- the completion"
PUBLICATION = "if not store.name(staged, done) and not self._is_mine(done, claim):"
POST_CHECK = "if store.exists(entry.witness) or (raw := self._slots.read_task(entry)) is None:"
BURY_CHECK = "if store.exists(entry.witness):  # completed and swept since we looked"

RACES = [
    Mutant(
        "a claim does not look again",
        SLOTLOG,
        POST_CHECK,
        """if (raw := self._slots.read_task(entry) or b'{"id": "t", "payload": {}}') is None:""",
        TWO,
        "which was completed before",
    ),
    Mutant("an ack makes no DONE slot", SLOTLOG, COMPLETION, "if False:", TWO, "had created the next slot"),
    Mutant(
        "an ack ignores that its slot is taken",
        SLOTLOG,
        COMPLETION,
        "if not store.name(staged, slot) and False:",
        TWO,
        "had created the next slot",
    ),
    Mutant(
        "an ack ignores that there is a witness",
        SLOTLOG,
        PUBLICATION,
        "if not store.name(staged, done) and False:",
        TWO,
        "accepted after",
    ),
    Mutant(
        "a thief deletes the lease and creates it anew",
        SLOTLOG,
        "generation = top.generation + 1 if top else 1",
        "generation = top.generation if top and store.remove(self._tree.slot(name, top.generation)) else 1",
        TWO,
        "and again by",
    ),
    Mutant(
        "a heartbeat goes by the name",
        SLOTLOG,
        "claim.hold.rewrite(lease_bytes(record))",
        "(self._store.take_up(self._tree.slot(claim.entry.name, claim.generation)) or claim.hold)"
        ".rewrite(lease_bytes(record))",
        BEATS,
        "wrote into",
        preemptions=3,
    ),
    Mutant(
        "the slots are swept before the witness is there",
        SLOTLOG,
        PUBLICATION,
        "if not (self._remove_slots(name, claim.generation), store.name(staged, done))[1] and True:",
        TWO,
        "and again by",
    ),
    Mutant("a burial does not look again", LETTERS, BURY_CHECK, "if False:", BURIED, "not cleared up"),
    Mutant(
        "a witness is retired at once",
        SLOTLOG,
        "self._remove_slots(name, claim.generation + 1)",
        "self._remove_slots(name, claim.generation + 1); store.remove(done)",
        TWO,
        "removed the witness",
    ),
    Mutant(
        "a dead letter is shown without a second look",
        LETTERS,
        "if store.exists(self._tree.slot(name, generation + 1)) or store.exists(entry.witness):",
        "if False:",
        REDRIVEN,
        "both completed and failed",
    ),
    Mutant(
        "a sweep takes the first slot only",
        SLOTLOG,
        "max((slot[1] for slot in listed if slot and slot[0] == name), default=0)",
        "1",
        TWO,
        "not cleared up",
        crashes=1,
    ),
    Mutant(
        "a cancelled task is swept without being retired",
        SLOTLOG,
        "self._store.name_again(done, retired)",
        "return",
        CANCELLED,
        "not listed as retired",
        crashes=1,
    ),
    Mutant(
        "an old dead letter stays",
        LETTERS,
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
        SLOTLOG,
        "not old(self._tree.slot(entry.name, top.generation)):",
        "not old(self._tree.slot(entry.name, top.generation)) or (top := self.top(entry.name)) is None:",
        Scenario("expired or put back", ("expire", "redrive claim"), before=DEAD, max_attempts=1),
        "put back",
    ),
    Mutant(
        "a stub is not listed as one",
        SLOTLOG,
        "if retire:  # only now: whatever is listed there loses its witness one day, so it must be this one",
        "if False:",
        Scenario("keeping nothing", ("claim ackd", "claim ackd")),
        "not listed as retired",
    ),
]

#: To be found by power cuts.
CUTS = [
    Mutant(
        "a helper removes the task before the witness is durable",
        SLOTLOG,
        "self._store.sync(entry.witness)",
        "pass",
        POWER_HELPED,
        "is lost",
    ),
    Mutant(
        "an ack does not sync the witness",
        SLOTLOG,
        "staged = store.stage(dumps(witness",
        "staged = type(store)(store.disk, durable=False).stage(dumps(witness",
        POWER,
        "",
    ),
    Mutant(
        "an ack does not sync the witness, and fsck has to say so",
        SLOTLOG,
        "staged = store.stage(dumps(witness",
        "staged = type(store)(store.disk, durable=False).stage(dumps(witness",
        replace(POWER, fsck=True),
        "fsck says must: bad-witness",
    ),
    Mutant("an ack does not sync completed/", SLOTLOG, "store.sync(done)", "pass", POWER, ""),
    Mutant(
        "a push does not sync the task",
        INTAKE,
        "if together else self._store.stage",
        "if together else DiskStore(self._store.disk, durable=False).stage",
        POWER,
        "buried for no good reason",
    ),
    Mutant("a push does not sync the frontier", INTAKE, "store.sync(item.path)", "pass", POWER, "is lost"),
    Mutant("a new directory is not synced", STORE, 'self.disk.fsync_dir(above or ".")', "pass", POWER, ""),
    Mutant(
        "a witness is retired before it is durable",
        SLOTLOG,
        "store.sync(done)",
        "store.name(staged, self._tree.retired(name)) if retire else None; store.sync(done)",
        POWER_CANCEL,
        "listed as retired",
    ),
    Mutant(
        "a dead letter is shown before its slot is durable",
        LETTERS,
        "store.sync(slot)  # the letter must not outlive its slot, whoever made that",
        "pass",
        POWER_DEAD,
        "dead letter",
    ),
]


#: What the time for which a witness stays, locks, and clocks are there for.
TIMES = [
    Mutant(
        "a late worker does not look at its own time",
        SLOTLOG,
        "if over or claim.ran_out:",
        "if over:",
        Scenario("a zombie", ("claim rest ack", "claim ack age tidy push"), "push tidy", settings=FORGETFUL),
        "with a lease of an earlier task",
    ),
    Mutant(
        "a witness is removed by its name alone",
        RETIREMENT,
        "self._known[name] = self._stack.enter_context(held)",
        "self._known[name] = True",
        Scenario("forgotten by two", ("tidy", "tidy push claim ack"), "push claim ack tidy age", settings=FORGETFUL),
        "",
    ),
    Mutant(
        "ages are believed although the clock was set",
        RETIREMENT,
        "steady = self._steadiness.seconds() >= self._guard",
        "steady = self._steadiness.seconds() >= 0",
        Scenario("jumps", ("tidy claim ack tidy", "tidy"), "push tidy age", settings=FORGETFUL),
        "removed the witness",
        weather=Weather(jumps=0.3),
    ),
    Mutant(
        "a new epoch does not hold on to the first",
        AGAIN,
        "if stands:",
        "if stands or True:",
        Scenario(
            "put back",
            ("tidy", "rerun claim ack"),
            "push claim ack tidy age",
            settings=FORGETFUL,
            epochs=True,
            fsck_at_end=True,
        ),
        "no-anchor",
    ),
    Mutant(
        "a lease is taken at once from whoever holds it",
        JUDGE,
        "return deadline if now < deadline else None",
        "return None",
        Scenario("patience", ("claim beat ack", "claim ack"), judge=Judge),
        "which lives",
    ),
    Mutant(
        "a lock ends before its process does",
        SLOTLOG,
        "return Claim(entry, record, task, hold, clock, started)",
        "(hold.close(), setattr(hold, '_fd', store.disk.open(slot, write=True)));"
        "return Claim(entry, record, task, hold, clock, started)",
        Scenario("patience", ("claim beat ack", "claim ack"), judge=Judge),
        "which lives",
    ),
    Mutant(
        "the wall clock tells when a lease is over",
        JUDGE,
        "same_boot, deadline = same_boot and known, slot.deadline",
        "return self._by_timestamps(slot, now)",
        Scenario("patience", ("claim beat ack", "claim ack"), judge=Judge),
        "which lives",
        weather=Weather(jumps=0.4),
    ),
    Mutant(
        "a lock is believed that another machine cannot see",
        JUDGE,
        "local = self._store.disk.local",
        "local = True",
        Scenario("elsewhere", ("claim beat ack", "claim ack"), judge=Judge, local=False),
        "which lives",
    ),
    Mutant(
        "a worker that lost its lease says that it is done",
        SLOTLOG,
        'raise LeaseLost(f"task {name!r} cannot be acked: generation {claim.generation} was taken over")',
        "return",
        Scenario("lost", ("take done", "take done")),
        "had created the next slot",
    ),
    Mutant(
        "a lost reply is taken for another's success",
        SLOTS,
        "return found.nonce == secret and state in (None, found.state)",
        "return state in (None, found.state)",
        TWO,
        "",
        weather=Weather(crashes=0),
    ),
    Mutant(
        "a token starts anew with each epoch",
        RECORDS,
        "return (epoch_of(name) << 32) + generation",
        "return generation",
        Scenario("epochs", ("rerun claim ack", "claim ack"), epochs=True),
        "do not grow",
    ),
]

ALL = [*RACES, *(replace(mutant, weather=Weather(crashes=1, cuts=0.6)) for mutant in CUTS), *TIMES]
