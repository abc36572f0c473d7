"""Findings about the clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from dfq.node.finding import Finding, fail, ok, unknown, warn
from dfq.node.probe import Probe

#: Programs that set clocks, as the kernel shortens their names.
_KEEPERS = {"chronyd", "ntpd", "ntpsec", "openntpd", "systemd-timesyn"}
_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC).timestamp()  # this version is younger
_SET_IT = "sudo timedatectl set-ntp true, or install chrony; a Pi has no clock that survives a power cut"


def clocks(probe: Probe) -> Iterator[Finding]:
    yield _synced(probe)
    yield _plausible(probe)
    elapsed = probe.boottime()
    if elapsed is None:
        yield fail("clock since boot", "CLOCK_BOOTTIME is not available", "leases need it: use another kernel")
    else:
        yield ok("clock since boot", f"CLOCK_BOOTTIME, {elapsed / 3600:.1f} h")


def _synced(probe: Probe) -> Finding:
    name = "clock synced"
    kernel = probe.kernel_clock()
    if kernel is not None and kernel[0]:
        return ok(name, f"yes, to {kernel[1] * 1000:.0f} ms at the worst, says the kernel")
    tracking = probe.run("chronyc", "-n", "tracking")  # chrony tells the kernel only if it is told to
    if tracking and re.search(r"^Leap status\s*:\s*(Normal|Insert second|Delete second)", tracking, re.MULTILINE):
        return ok(name, "yes, says chrony")
    if kernel is None:
        answer = (probe.run("timedatectl", "show", "--property=NTPSynchronized", "--value") or "").strip()
        if answer == "yes":
            return ok(name, "yes, says timedatectl")
        if answer != "no":
            return unknown(name, "neither the kernel nor chrony nor timedatectl says")
    keepers = sorted(probe.programs() & _KEEPERS)
    if keepers:
        return warn(name, f"no, although {', '.join(keepers)} is running", "check its servers and the network")
    return warn(name, "no, and nothing is running that would do it", _SET_IT)


def _plausible(probe: Probe) -> Finding:
    now = probe.wall()
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now < _EARLIEST:
        return fail("time of day", f"{shown}, which is long past", _SET_IT)
    return ok("time of day", shown)
