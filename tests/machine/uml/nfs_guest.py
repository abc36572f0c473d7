"""Within the machine: all that is tried over NFS.

The last line of the output is one JSON object: the figures, and what was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfs_check import verdicts
from nfs_crowd import crowd
from nfs_net import EXPORT, Host, Server
from nfs_scenes import Outcome, held_and_killed, lost_reply, stopped_within_ack
from nfs_users import LOGS, NOTHING, WHATEVER, reap


def verify_fs(host: Host, rounds: int) -> Outcome:
    words = [sys.executable, "-m", "dfq", "verify-fs", "--rounds", str(rounds), "--json", str(host.mount)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600)
    return verdicts(ran.stdout, ran.stderr, ran.returncode)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True, help="for the crowd, at least")
    parser.add_argument("--rounds", type=int, required=True, help="of each race of verify-fs")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--sabotage", default="none")
    options = parser.parse_args()
    hosts = [Host(1, awake=0), Host(2, awake=86_400)]
    server = Server(hosts)
    how = options.sabotage
    # These wait most of the time, and the server is left alone meanwhile.
    outcomes = _together(
        {
            "held and killed": lambda: held_and_killed(hosts),
            "stopped within an ack": lambda: stopped_within_ack(hosts, how),
            "verify-fs": lambda: verify_fs(hosts[0], options.rounds),
            "control, stopped": lambda: stopped_within_ack(hosts, WHATEVER) if options.controls else ([], {}),
        }
    )
    controls = {WHATEVER: outcomes.pop("control, stopped")[0]}
    outcomes["lost replies"] = lost_reply(server, hosts, how, "frontier", "active-leases")
    outcomes["crowd"] = crowd(server, hosts, options.seconds, options.seed)
    if options.controls:
        controls[NOTHING] = lost_reply(server, hosts, NOTHING, "active-leases")[0]
    else:
        controls.clear()
    wrong = [what for found, _ in outcomes.values() for what in found]
    figures: dict[str, Any] = {}
    for _, measured in outcomes.values():
        figures |= measured
    if wrong:
        shutil.copytree(LOGS, "/run/share/logs")
        shutil.copytree(EXPORT, "/run/share/export", ignore=shutil.ignore_patterns("lost+found"))
    print(json.dumps({"wrong": wrong, "figures": figures, "controls": controls}))


def _together(parts: dict[str, Callable[[], Outcome]]) -> dict[str, Outcome]:
    """Do several things at the same time, each in a process of its own."""
    running: dict[str, tuple[int, Path]] = {}
    for number, (name, part) in enumerate(parts.items()):
        result = Path(f"/run/part-{number}")
        pid = os.fork()
        if not pid:
            code = 1
            try:
                result.write_text(json.dumps(part()))
                code = 0
            except BaseException:  # noqa: BLE001 - a child must not return from here
                traceback.print_exc()
            finally:
                os._exit(code)
        running[name] = (pid, result)
    outcomes: dict[str, Outcome] = {}
    for name, (pid, result) in running.items():
        if reap(pid):
            outcomes[name] = ([f"{name}: it could not be carried out"], {})
        else:
            found, measured = json.loads(result.read_text())
            outcomes[name] = (found, measured)
    return outcomes


if __name__ == "__main__":
    main()
