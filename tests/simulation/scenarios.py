"""What is simulated: a few processes at one task, each scenario a way in which they can be in each other's way."""

from __future__ import annotations

from workers import FORGETFUL, Scenario

from dfq.staleness import Judge

FORGOTTEN = "push claim ack tidy age"  # a witness that is old enough to go
DEAD = "push claim nack"  # with one attempt, this leaves a dead letter

TWO = [
    Scenario("two workers", ("claim beat ack", "claim ack")),
    Scenario("one gives up", ("claim nack", "claim ack"), max_attempts=1),
    Scenario("one gives back", ("claim give", "claim ack"), max_attempts=1),
    Scenario("both give up", ("claim nack", "claim nack"), max_attempts=2),
    Scenario("cancelled at work", ("claim ack", "cancel")),
    Scenario("cancelled twice", ("cancel", "cancel")),
    Scenario("pushed again", ("push", "claim ack")),
    Scenario("redriven twice", ("redrive", "redrive claim ack"), before=DEAD, max_attempts=1),
    Scenario("dead and cancelled", ("redrive claim ack", "cancel"), before=DEAD, max_attempts=1),
    Scenario("dead again", ("redrive claim nack", "claim"), before=DEAD, max_attempts=1),
    Scenario("keeping nothing", ("claim ackd", "claim ackd")),
    Scenario("expired or put back", ("expire", "redrive claim ack"), before=DEAD, max_attempts=1),
    Scenario("expired or cancelled", ("expire", "cancel"), before=DEAD, max_attempts=1),
    Scenario("put back", ("claim ack", "rerun claim ack"), epochs=True),
    Scenario("put back by two", ("rerun claim ack", "rerun claim ack"), before="push claim ack", epochs=True),
    Scenario("cancelled and pushed", ("claim ack", "cancel push claim ack"), epochs=True),
    Scenario("due and cancelled", ("promote claim ack", "withdraw"), before="schedule"),
]
#: Over the whole provider: polls, settles, housekeeping, as a worker makes them.
WHOLE = [
    Scenario("workers of a queue", ("take renew done", "take done")),
    Scenario("a worker fails", ("take fail", "take done"), max_attempts=1),
    Scenario("purged at work", ("take done", "purge")),
    Scenario("dropped and pushed", ("take done", "drop push take done"), epochs=True),
    Scenario("retried", ("retry take done", "retry take fail"), before=DEAD, max_attempts=1),
    Scenario("paused", ("pause take resume take done", "take done"), before="push"),
]
#: Witnesses that are forgotten after their time, and ids that come back after that.
RETIRED = [
    Scenario("forgotten", ("age tidy", "claim ack"), before="push claim ack tidy", settings=FORGETFUL),
    Scenario("forgotten and pushed", ("age tidy", "push claim ack"), before="push claim ack tidy", settings=FORGETFUL),
    Scenario("a stub forgotten", ("age tidy", "push claim ack"), before="push claim ackd tidy", settings=FORGETFUL),
    Scenario("forgotten by two", ("tidy", "tidy push claim ack"), before="push claim ack tidy age", settings=FORGETFUL),
    Scenario(
        "forgotten and put back",
        ("age tidy", "rerun claim ack"),
        "push claim ack tidy",
        settings=FORGETFUL,
        epochs=True,
    ),
    Scenario(
        "a late epoch forgotten",
        ("tidy", "rerun claim ack"),
        before="push claim ack rerun claim ack tidy age",
        settings=FORGETFUL,
        epochs=True,
    ),
    Scenario(
        "a death forgotten", ("age tidy", "redrive claim ack"), f"{DEAD} tidy", max_attempts=1, settings=FORGETFUL
    ),
    Scenario("a zombie", ("claim age tidy ack", "claim rest ack age tidy"), before="push tidy", settings=FORGETFUL),
    Scenario(
        "a zombie and a push", ("claim rest ack", "claim ack age tidy push claim ack"), "push tidy", settings=FORGETFUL
    ),
]
THREE = [
    Scenario("three workers", ("claim ack", "claim ack", "claim ack")),
    Scenario("two workers, one cancels", ("claim ack", "claim nack", "cancel"), max_attempts=1),
    Scenario(
        "dead, helped, redriven, cancelled", ("claim", "redrive claim ack", "cancel"), before=DEAD, max_attempts=1
    ),
]
#: Short ones, for volume.
MANY = [
    Scenario("three at once", ("claim beat ack", "claim nack claim ack", "claim ack"), max_attempts=2),
    Scenario("give and take", ("claim give claim ack", "claim beat ack", "claim"), max_attempts=1),
    Scenario("ack and cancel", ("claim ack", "claim beat nack", "cancel"), max_attempts=2),
    Scenario("dead and back", ("redrive claim nack", "claim nack", "redrive claim ack"), DEAD, max_attempts=1),
    Scenario("first pushes", ("push claim ack", "push", "claim ack"), before="", epochs=True),
    Scenario("epochs", ("rerun claim ack", "claim ack", "rerun cancel"), epochs=True),
    Scenario("delayed", ("promote claim ack", "withdraw", "promote claim"), before="schedule"),
]
LONG = [
    Scenario(
        "anything", ("claim nack claim beat ack", "claim give claim ack", "claim beat nack", "cancel"), max_attempts=2
    ),
    Scenario("dies often", ("redrive claim nack redrive", "claim nack", "redrive claim ack"), DEAD, max_attempts=1),
    Scenario("pushes", ("push claim ack", "push", "claim ack claim ack", "cancel"), before="", epochs=True),
    Scenario(
        "many epochs",
        ("rerun claim ack rerun claim ack", "claim ack claim nack claim ack", "rerun cancel rerun"),
        epochs=True,
    ),
]
#: With the judge that production has: nobody takes over from a process that lives, whatever the wall clock says.
PATIENT = [
    Scenario("patience", ("claim beat ack", "claim nack", "claim ack"), judge=Judge),
    Scenario("patient queue", ("take renew done", "take fail take done", "take done"), judge=Judge),
    Scenario("patience by time", ("claim beat ack", "claim ack"), judge=Judge, local=False),
]
POWER = [
    Scenario("scheduled", ("promote claim ack", "withdraw", "promote claim ack"), before="schedule", durable=True),
    Scenario("push to ack", ("push claim ack", "claim ack", "claim beat nack"), before="", durable=True),
    Scenario("a helper", ("claim ack", "claim ack", "claim"), durable=True),
    Scenario("cancel", ("push", "claim ack", "cancel"), before="", durable=True),
    Scenario("epochs", ("rerun claim ack", "claim ack", "cancel push claim"), durable=True, epochs=True),
    Scenario("dead", ("claim nack redrive claim ack", "redrive claim nack", "claim"), max_attempts=1, durable=True),
    Scenario("a queue", ("take done", "take fail take done", "push"), max_attempts=2, durable=True),
    Scenario("a queue that keeps nothing", ("take done", "take done"), durable=True, settings=(("on_ack", "delete"),)),
]
#: A cut may leave a lease above a gap here, which only the next retry fills: not clean, and no harm.
POWER_AND_GAPS = [
    *POWER,
    Scenario("expiry", ("expire", "redrive claim ackd", "claim"), before=DEAD, max_attempts=1, durable=True),
    Scenario("retention", ("tidy", "push claim ack"), "push claim ack tidy age", durable=True, settings=FORGETFUL),
]
#: Between them these need every sync that there is.
SYNCED = [
    *POWER_AND_GAPS,
    Scenario("put back after a cut", ("expire",), before=DEAD, max_attempts=1, durable=True, after="redrive"),
    Scenario("a hasty worker", ("claim half_ack", "claim", "claim ack"), durable=True),
    Scenario("many at once", ("push_many rest rest rest",), before="", durable=True),
    Scenario("stopped", ("pause rest rest resume rest rest rest",), durable=True),
    Scenario("half moved", ("half_promote", "fsck"), before="schedule", durable=True),
    Scenario("moved and withdrawn", ("withdraw", "claim rest"), before="schedule", durable=True),
    Scenario("delayed push", ("schedule rest rest",), before="", durable=True),
    Scenario("a stub", ("claim ackd", "claim", "tidy"), durable=True),
    Scenario("a stub helped", ("claim rest rest", "claim rest"), before="push half_cancel", durable=True),
    Scenario("put back by the second", ("half_redrive redrive rest rest",), DEAD, max_attempts=1, durable=True),
    Scenario("put back, then a cut", ("redrive rest rest",), before=DEAD, max_attempts=1, durable=True),
    Scenario(
        "a late epoch forgotten",
        ("tidy rest",),
        before="push claim ack rerun claim ack tidy age",
        durable=True,
        settings=FORGETFUL,
        epochs=True,
        fsck=True,
    ),
    Scenario("an old stub", ("tidy", "push claim ack"), "push claim ackd tidy age", durable=True, settings=FORGETFUL),
    Scenario("leftovers forgotten", ("tidy rest rest",), "push half_cancel tidy age", durable=True, settings=FORGETFUL),
    Scenario("hardly forgotten", ("half_retire", "push rest rest rest"), FORGOTTEN, durable=True, settings=FORGETFUL),
    Scenario("unlisted", ("half_retire", "tidy push rest rest"), FORGOTTEN, durable=True, settings=FORGETFUL),
    Scenario("orphans", ("claim ack", "claim", "tidy"), durable=True),
]
