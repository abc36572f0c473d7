"""Two hosts on one queue over a real NFS server, in short, with controls. The long form is uml/nfs.py."""

from __future__ import annotations

import pytest
from rig_kit import stage

pytestmark = pytest.mark.slow


def test_two_hosts_share_a_queue_over_nfs() -> None:
    code, report = stage("uml/nfs.py", "--seconds", "30", "--seed", "7")
    assert (code, report["violations"]) == (0, 0), report
    figures = report["figures"]
    assert figures["tasks"] > 0
    assert figures["workers killed"] > 0
    assert figures["replies lost on purpose"] == 2
    # The stage fails itself if a control is not caught; here is that both were run.
    assert sum(name.startswith("control: ") for name in figures) == 2
