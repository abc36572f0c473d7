"""Who checks the checks: each sabotage of the memory queue must make the contract check it aims at fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_contract_failures as failures
import test_contract_leases as leases
import test_contract_looking as looking
import test_contract_poll as poll
import test_contract_push as push
from backends import MEMORY, Queues

from dfq.providers.memory import MemoryQueue
from dfq.providers.memory_tasks import Lease, Record, Tasks

Sabotage = Callable[[pytest.MonkeyPatch], None]


def any_lease_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tasks, "held", lambda self, lease: lease.record)


def tokens_stand_still(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Record, "token", property(lambda self: 1))


def every_give_back_counts(patch: pytest.MonkeyPatch) -> None:
    release = Tasks.release
    patch.setattr(Tasks, "release", lambda self, *args, count: release(self, *args, count=True))


def attempts_are_endless(patch: pytest.MonkeyPatch) -> None:
    end_run: Any = Tasks._end_run

    def end(self: Tasks, lease: Lease, error: Any, delay: float, *, count: bool = True) -> None:
        lease.record.attempt = 0
        end_run(self, lease, error, delay, count=count)

    patch.setattr(Tasks, "_end_run", end)


def nobody_renews(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dfq.providers.memory._Renewer._beat", lambda self: None)


def priorities_are_upside_down(patch: pytest.MonkeyPatch) -> None:
    add = Tasks.add
    patch.setattr(Tasks, "add", lambda self, i, b, priority, d, e=0: add(self, i, b, 9 - priority, d, e))


def completed_ids_are_free(patch: pytest.MonkeyPatch) -> None:
    get = Tasks.get

    def forgetful(self: Tasks, task_id: str) -> Record | None:
        record = get(self, task_id)
        return None if record is None or record.state == "completed" else record

    patch.setattr(Tasks, "get", forgetful)


def cancelling_spares_the_leased(patch: pytest.MonkeyPatch) -> None:
    cancel = Tasks.cancel
    patch.setattr(Tasks, "cancel", lambda self, record, guard: record.state != "leased" and cancel(self, record, guard))


def pausing_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryQueue, "_set_paused", lambda self, paused: None)


def nobody_notices_a_forgotten_task(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dfq.providers.memory._dropped", lambda *_: None)


def payloads_are_shared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dfq.providers.memory.pack", lambda value, encoding: value)
    patch.setattr("dfq.providers.memory.unpack", lambda body, task_id: body)


def close_keeps_what_it_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dfq.providers.memory._Renewer.held", lambda self: [])


def nothing_is_ever_stalled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tasks, "_silent_for", lambda self, record: None)


def everything_leased_is_stalled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dfq.providers.memory_tasks.SILENT", 0.0)


def states_ignore_the_prefix(patch: pytest.MonkeyPatch) -> None:
    states = Tasks.states
    patch.setattr(Tasks, "states", lambda self, prefix: states(self, ""))


MUTANTS: list[tuple[Sabotage, Callable[[Queues], None]]] = [
    (any_lease_counts, leases.test_a_stolen_lease_cannot_be_acked),
    (any_lease_counts, leases.test_a_task_is_acked_once),
    (tokens_stand_still, leases.test_the_token_grows_with_every_claim),
    (every_give_back_counts, failures.test_a_give_back_is_not_counted),
    (every_give_back_counts, leases.test_close_gives_back_what_is_held_without_counting_it),
    (attempts_are_endless, failures.test_one_attempt_means_one),
    (nobody_renews, leases.test_a_lease_renews_itself_far_longer_than_it_lasts),
    (nobody_notices_a_forgotten_task, leases.test_a_forgotten_task_comes_back_long_before_its_lease_ends),
    (payloads_are_shared, push.test_a_pushed_payload_is_not_changed_by_its_owner_later),
    (priorities_are_upside_down, poll.test_a_higher_priority_goes_first),
    (completed_ids_are_free, push.test_the_same_id_is_refused_in_every_state),
    (cancelling_spares_the_leased, looking.test_a_task_cancelled_under_its_worker_is_lost),
    (pausing_is_ignored, poll.test_a_paused_queue_hands_out_nothing_until_it_is_resumed),
    (nothing_is_ever_stalled, looking.test_a_lease_that_nobody_renews_is_stalled_before_it_is_over),
    (everything_leased_is_stalled, looking.test_a_lease_that_is_alive_is_not_stalled),
    (states_ignore_the_prefix, looking.test_states_tell_every_id_once),
    (close_keeps_what_it_has, leases.test_close_gives_back_what_is_held_without_counting_it),
]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Queues]:
    opened = Queues(MEMORY, tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize(("sabotage", "check"), MUTANTS, ids=lambda f: f.__name__.removeprefix("test_"))
def test_a_sabotage_is_caught(
    sabotage: Sabotage, check: Callable[[Queues], None], memory: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(memory)  # sound without it
    sabotaged = Queues(MEMORY, memory.root / "sabotaged")
    with monkeypatch.context() as patch:
        sabotage(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(sabotaged)
    sabotaged.close()
