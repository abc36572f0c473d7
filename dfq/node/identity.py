"""Findings about who this node is, and which versions it runs."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata

import dfq
from dfq.node.finding import Finding, ok, unknown, warn
from dfq.node.probe import Probe

BOOT_ID = "/proc/sys/kernel/random/boot_id"
LIBRARIES = ("click", "psutil", "rich")

#: What cards come with: two nodes that were cloned from one are both called so.
_COMMON = re.compile(r"(localhost|raspberrypi|raspberry|pi|dietpi|ubuntu|debian|armbian)?(\.(local|localdomain))?")


def identity(probe: Probe) -> Iterator[Finding]:
    host = probe.host()
    if _COMMON.fullmatch(host.lower()):
        fix = "give each node its own: sudo hostnamectl set-hostname pi-kitchen"
        yield warn("host name", f"{host or '(empty)'}: others may have it as well", fix)
    else:
        yield ok("host name", host)
    boot_id = (probe.read(BOOT_ID) or "").strip()
    if re.fullmatch(r"[0-9a-f-]{36}", boot_id):
        yield ok("boot id", boot_id)
    else:
        yield warn("boot id", f"{BOOT_ID} cannot be read", "leases go by time without it: let /proc be mounted")
    release, machine = probe.kernel()
    yield ok("dfq", dfq.__version__)
    yield ok("python", f"{platform.python_version()} ({platform.python_implementation()})")
    yield ok("kernel", f"{release} on {machine}")
    for library in LIBRARIES:
        try:
            yield ok(library, metadata.version(library))
        except metadata.PackageNotFoundError:
            yield unknown(library, "it is not installed as a package")
