"""Within the machine: all that is tried over NFS.

The last line of the output is one JSON object: the figures, and what was wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from nfs_check import verdicts
from nfs_crowd import crowd
from nfs_net import EXPORT, Host, Server
from nfs_scenes import Outcome, held_and_killed, lost_reply, stopped_within_ack
from nfs_users import LOGS, NOTHING, WHATEVER


def verify_fs(host: Host, rounds: int) -> Outcome:
    words = [sys.executable, "-m", "dfq", "verify-fs", "--rounds", str(rounds), "--json", str(host.mount)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600)
    return verdicts(ran.stdout, ran.stderr, ran.returncode)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True, help="for the crowd, at least")
    parser.add_argument("--rounds", type=int, required=True, help="of each race of verify-fs; 0 leaves it out")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--sabotage", default="none")
    options = parser.parse_args()
    hosts = [Host(1, awake=0), Host(2, awake=86_400)]
    server = Server(hosts)
    how = options.sabotage
    parts: dict[str, Callable[[], Outcome]] = {
        "held and killed": lambda: held_and_killed(hosts),
        "stopped within an ack": lambda: stopped_within_ack(hosts, how),
        "lost replies": lambda: lost_reply(server, hosts, how, "frontier", "active-leases"),
    }
    if options.rounds:
        parts["verify-fs"] = lambda: verify_fs(hosts[0], options.rounds)
    parts["crowd"] = lambda: crowd(server, hosts, options.seconds, options.seed)
    wrong: list[str] = []
    figures: dict[str, Any] = {}
    controls: dict[str, list[str]] = {}
    for name, part in parts.items():
        found, measured = _timed(name, part)
        wrong += found
        figures |= measured
    if options.controls:
        controls[WHATEVER] = _timed("control", lambda: stopped_within_ack(hosts, WHATEVER))[0]
        controls[NOTHING] = _timed("control", lambda: lost_reply(server, hosts, NOTHING, "active-leases"))[0]
    if wrong:
        shutil.copytree(LOGS, "/run/share/logs")
        shutil.copytree(EXPORT, "/run/share/export", ignore=shutil.ignore_patterns("lost+found"))
    print(json.dumps({"wrong": wrong, "figures": figures, "controls": controls}))


def _timed(name: str, part: Callable[[], Outcome]) -> Outcome:
    began = time.monotonic()
    found, measured = part()
    print(f"{name}: {len(found)} wrong, {measured}, {time.monotonic() - began:.1f} s", flush=True)
    return found, measured


if __name__ == "__main__":
    main()
