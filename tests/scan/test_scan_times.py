"""The small parts: an agenda with its soonest at hand, and what a folder's time tells."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfq.ports import Facts, OsDisk
from dfq.providers.filesystem.agenda import NEVER, Agenda
from dfq.providers.filesystem.foldertime import COARSE_TICK, TICK, FolderTime

NOW = 1_790_000_000.123
LOCAL, SHARED = OsDisk("/", local=True), OsDisk("/", local=False)


def folder(mtime: float) -> Facts:
    return Facts(False, True, 2, 0, int(mtime * 1e9))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 5))))
def test_an_agenda_knows_its_soonest(steps: list[tuple[str, int | None]]) -> None:
    agenda, plain = Agenda(), dict[str, float]()
    for name, at in steps:
        if at is None:
            assert agenda.drop(name) == (plain.pop(name, None) is not None)
        else:
            agenda.put(name, at)
            plain[name] = at
        assert agenda.soonest() == min(plain.values(), default=NEVER)
        assert sorted(agenda.due(2)) == sorted(n for n, t in plain.items() if t <= 2)
        assert len(agenda) == len(plain)
    agenda.keep("abc")
    assert set(agenda) == set(plain) & set("abc")
    assert agenda.soonest() == min((t for n, t in plain.items() if n in "abc"), default=NEVER)


def test_the_soonest_of_many_costs_nothing() -> None:
    agenda = Agenda()
    for n in range(100_000):
        agenda.put(str(n), 800.0 + n)
    began = time.process_time()
    for n in range(1000):
        agenda.soonest()
        agenda.put(f"mine {n}", 900.0)
        agenda.drop(f"mine {n}")
    assert time.process_time() - began < 0.5, "a thousand times through all of them takes seconds"


def test_a_folder_that_changed_long_ago_tells_at_once() -> None:
    seen = FolderTime()
    assert not seen.tells(folder(NOW))
    seen.was_read(folder(NOW), 10.0, NOW + 1, LOCAL)
    assert seen.tells(folder(NOW))
    assert not seen.tells(folder(NOW + 1))
    seen.doubt()
    assert not seen.tells(folder(NOW))


@pytest.mark.parametrize(("mtime", "tick"), [(NOW, TICK), (1_790_000_000.0, COARSE_TICK)])
def test_a_folder_that_changed_just_now_does_not(mtime: float, tick: float) -> None:
    seen = FolderTime()
    seen.was_read(folder(mtime), 10.0, mtime + tick * 0.9, LOCAL)
    assert not seen.tells(folder(mtime))
    assert seen.settles() == pytest.approx(10.0 + tick, abs=0.01)
    seen.was_read(folder(mtime), seen.settles(), mtime + tick * 0.9, LOCAL)
    assert seen.tells(folder(mtime)), "by our own clock it is old now, whatever the wall clock says"
    assert seen.settles() == NEVER


def test_a_time_in_the_future_tells_once_it_stayed_for_a_tick() -> None:
    seen = FolderTime()
    seen.was_read(folder(NOW + 3600), 10.0, NOW, LOCAL)
    assert not seen.tells(folder(NOW + 3600))
    seen.was_read(folder(NOW + 3600), 10.0 + 2 * TICK, NOW, LOCAL)
    assert seen.tells(folder(NOW + 3600))


def test_the_clock_of_another_machine_is_not_compared_with_ours() -> None:
    seen = FolderTime()
    seen.was_read(folder(NOW - 3600), 10.0, NOW, SHARED)
    assert not seen.tells(folder(NOW - 3600)), "its clock may be an hour behind"
    seen.was_read(folder(NOW - 3600), 10.0 + 2 * TICK, NOW, SHARED)
    assert seen.tells(folder(NOW - 3600))
