"""Holding on to a witness: as long as somebody does, its name stands for this very file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dfq.ports import OsDisk
from dfq.stores.disk import DiskStore


@pytest.fixture
def stores(tmp_path: Path) -> tuple[DiskStore, DiskStore]:
    (tmp_path / "witness").write_text("{}")
    return DiskStore(OsDisk(str(tmp_path)), durable=False), DiskStore(OsDisk(str(tmp_path)), durable=False)


def test_many_may_hold_on_to_a_witness_but_nobody_retires_it_meanwhile(stores: tuple[DiskStore, DiskStore]) -> None:
    ours, theirs = stores
    with ours.standing("witness") as one, theirs.standing("witness") as two:
        assert one
        assert two
        with theirs.standing("witness", alone=True) as three:
            assert not three
    with theirs.standing("witness", alone=True) as alone:
        assert alone


def test_nobody_holds_on_to_a_witness_that_is_being_retired(stores: tuple[DiskStore, DiskStore]) -> None:
    ours, theirs = stores
    with ours.standing("witness", alone=True) as alone:
        assert alone
        with theirs.standing("witness") as stands, theirs.standing("witness", alone=True) as too:
            assert not stands
            assert not too


def test_a_witness_that_is_gone_does_not_stand(stores: tuple[DiskStore, DiskStore]) -> None:
    with stores[0].standing("nothing") as stands:
        assert not stands


def test_another_file_of_the_same_name_is_not_the_one_that_was_opened(tmp_path: Path) -> None:
    class Swapped(OsDisk):
        def try_lock(self, fd: int, *, alone: bool = False) -> bool:
            (tmp_path / "new").write_text("another")
            os.replace(tmp_path / "new", tmp_path / "witness")
            return super().try_lock(fd, alone=alone)

    (tmp_path / "witness").write_text("{}")
    with DiskStore(Swapped(str(tmp_path)), durable=False).standing("witness", alone=True) as stands:
        assert not stands


def test_a_witness_that_we_may_not_read_is_left_to_those_who_may(tmp_path: Path) -> None:
    class Private(OsDisk):
        def open(self, path: str, *, write: bool = False) -> int:
            raise PermissionError(13, "Permission denied", path)

    with DiskStore(Private(str(tmp_path)), durable=False).standing("witness") as stands:
        assert not stands
