"""Rounds over whole queues: each makes one, puts bad files into it, and holds it to the promises."""

from __future__ import annotations

import _strptime  # noqa: F401 - it is imported when first needed, and then nobody may not
import contextlib
import logging
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fuzz_oracle import Hang, Violation, innermost, need, time_limit
from fuzz_round import OwnedRound, Rounds
from fuzz_strangers import NAMES, Bad, looks, remove

ROUND = 60.0  # seconds for all of a round
NOBODY = 65534


class Failed(Violation):
    """A round that failed; the folder is kept."""

    def __init__(self, number: int, folder: Path, what: str) -> None:
        super().__init__(f"round {number}: {what} (kept in {folder})")
        self.number = number
        self.folder = folder


def run_round(number: int, told: Rounds) -> None:
    """Make a queue, put bad files into it, and hold it to the promises. Raises Failed."""
    folder = Path(tempfile.mkdtemp(prefix=f"dfq-fuzz-{number}-"))
    chance = random.Random(number)
    kind = IndexRound if number % 4 == 3 else OwnedRound
    one = kind(folder, chance, told)
    try:
        with time_limit(ROUND), mock.patch.dict(os.environ, _no_home(folder)):
            one.prepare()
            before = one.untouchable()
            with as_nobody(folder) if _warm(chance) else contextlib.nullcontext():
                one.run()
            need(one.untouchable() == before, "something was changed that is not the queue's")
            one.check_kept()
    except (Exception, Hang) as e:
        (folder / "plan.txt").write_text("\n".join(bad.told(folder) for bad in one.bad), errors="surrogateescape")
        what = str(e) if isinstance(e, Violation) else f"{type(e).__name__} in {innermost(e)}: {e}"
        raise Failed(number, folder, f"{what} [{'; '.join(bad.told(folder) for bad in one.bad)}]") from e
    except BaseException:  # somebody has had enough
        remove(folder)
        raise
    finally:
        one.close()
    remove(folder)
    told.queues += 1
    told.bad_files += len(one.bad)
    told.good_tasks += len(one.good)
    told.kinds |= {bad.kind for bad in one.bad}


_imported = False


def _warm(chance: random.Random) -> bool:
    """Tell whether a round is to be run as nobody: half of them, but not the first.

    The interpreter may lie where nobody else may read it, so all that is imported on the way must be there.
    """
    global _imported
    first, _imported = not _imported, True
    return chance.random() < 0.5 and not first


@contextlib.contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Be a user who may not read everything: root may, and would never see a file that is closed."""
    if os.geteuid() != 0:
        yield
        return
    for top, folders, names in os.walk(folder):
        for name in [".", *folders, *names]:
            os.chown(os.path.join(top, name), NOBODY, NOBODY, follow_symlinks=False)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


class IndexRound(OwnedRound):
    """A queue over a tree that another tool owns: nothing in that tree may change at all."""

    index = True

    def __init__(self, folder: Path, chance: random.Random, told: Rounds) -> None:
        super().__init__(folder, chance, told)
        self.tiles = folder / "tiles"
        self.shown = folder / "shown"
        self.shown.mkdir()
        self.refresh = chance.choice([None, 3600.0])  # what is old is due again, what was done just now is not

    def settings(self) -> dict[str, Any]:
        index = {
            "frontier_mode": "index",
            "frontier": self.tiles,
            "completed": self.shown,
            "refresh_after": self.refresh,
        }
        return super().settings() | index

    def more_env(self) -> dict[str, str]:
        given = {"DFQ_FRONTIER_MODE": "index", "DFQ_FRONTIER": str(self.tiles), "DFQ_COMPLETED": str(self.shown)}
        return given | ({} if self.refresh is None else {"DFQ_REFRESH_AFTER": str(self.refresh)})

    def prepare(self) -> None:
        for n in range(3):
            path = self.tiles / f"a{n}" / "good.csv"
            path.parent.mkdir(parents=True)
            path.write_text(f"{n}")
            self.good.add(f"a{n}/good.csv")
        self.open().close()
        for _ in range(self.chance.randint(1, 4)):
            name = self.chance.choice([*NAMES, "bad.csv", "bad.csv", "bad"]) if self.chance.random() < 0.8 else "bad"
            top = self.chance.choice([self.tiles, self.tiles, self.shown, self.shown, self.top / "active-leases" / "0"])
            self._put(top / self.chance.choice(["", "a0", "b", "bad", "bad/c"]) / name, "witness of a tile")

    def untouchable(self) -> dict[Path, str]:
        return super().untouchable() | {path: looks(path) for path in self.tiles.rglob("*")}

    def _check_kept(self, bad: Bad) -> None:
        if bad.path.is_relative_to(self.shown):
            # A folder may have got witnesses; an old witness may be replaced by one of a later epoch.
            need(bad.looks.startswith("folder") or self.refresh is not None, f"lost: {bad.told(self.shown)}")
        elif bad.path.is_relative_to(self.top):
            super()._check_kept(bad)


def _no_home(folder: Path) -> dict[str, str]:
    """Return an environment in which no settings of the user's are read."""
    return {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "none"), "XDG_DATA_HOME": str(folder / "none")}


def quiet() -> None:
    """Let the queue complain of bad files to nobody: that it does is tested elsewhere."""
    logging.getLogger("dfq").addHandler(logging.NullHandler())
    logging.getLogger("dfq").propagate = False
