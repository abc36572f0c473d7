"""The checks of test_worker_kills can fail: each of these defects turns one of them red."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import worker_checks as checks
from worker_kit import SOURCE, Lab

MUTANTS: list[tuple[str, str, str, str, Callable[[Lab], None]]] = [
    (
        "no PDEATHSIG",
        "work/guard.py",
        "    def arrange() -> None:\n",
        "    def arrange() -> None:\n        return\n",
        checks.check_killed_supervisor_and_template,
    ),
    (
        "the guardian does not kill",
        "work/host.py",
        "            self._end_all()\n",
        "            pass\n",
        checks.check_killed_supervisor,
    ),
    (
        "the lease does not go along",
        "work/slot.py",
        "[] if lease is None else [lease]",
        "[]",
        checks.check_no_takeover_while_the_child_runs,
    ),
    (
        "only the process group is killed",
        "work/guard.py",
        "    for _ in range(20):  # a process",
        "    for _ in range(0):  # a process",
        checks.check_time_out,
    ),
    (
        "what a dead child left is not killed",
        "work/host.py",
        "            self._kill_what_is_left_of(child)\n",
        "",
        checks.check_killed_child,
    ),
    (
        "what hides its mark is not killed",
        "work/host.py",
        "            return self._is_orphan(process) and not process.carries(self._mark, *others)\n",
        "            return False\n",
        checks.check_time_out,
    ),
    (
        "the template does not adopt orphans",
        "work/host.py",
        "        adopt_orphans()\n",
        "",
        checks.check_killed_child,
    ),
    (
        "a copy of a child carries no mark",
        "work/guard.py",
        "                os.pwrite(memory, now.encode(), start + at)\n",
        "                pass\n",
        checks.check_killed_child,
    ),
    (
        "what a dead template left is not killed",
        "work/crew.py",
        "                    kill_marked(child.mark)\n",
        "",
        checks.check_killed_template,
    ),
]


@pytest.mark.parametrize(("defect", "file", "was", "becomes", "check"), MUTANTS, ids=[m[0] for m in MUTANTS])
def test_a_defect_is_noticed(
    defect: str, file: str, was: str, becomes: str, check: Callable[[Lab], None], lab: Lab
) -> None:
    lab.source = lab.root / "mutant"
    shutil.copytree(SOURCE / "dfq", lab.source / "dfq", ignore=shutil.ignore_patterns("__pycache__"))
    path = lab.source / "dfq" / file
    text = path.read_text()
    assert text.count(was) == 1, f"{defect}: the line to break has changed"
    path.write_text(text.replace(was, becomes))
    with pytest.raises(AssertionError, match=r"process \d+ ends|taken over|beside the retry"):
        check(lab)


def test_the_copy_without_a_defect_passes(lab: Lab) -> None:
    lab.source = lab.root / "mutant"
    shutil.copytree(SOURCE / "dfq", lab.source / "dfq", ignore=shutil.ignore_patterns("__pycache__"))
    checks.check_killed_supervisor(lab)
    assert str(lab.source) in lab.notes.joinpath("source").read_text()
