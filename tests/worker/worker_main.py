"""A worker as a process of its own: python worker_main.py SPEC, the report as JSON on stdout."""

from __future__ import annotations

import dataclasses
import json
import sys

import dfq
from dfq.config import Backoff
from dfq.worker import Worker, WorkOptions

spec = json.loads(sys.argv[1])
with dfq.open_queue("t", root=spec["root"], durability="fast", **spec["settings"]) as queue:
    worker = Worker(
        queue,
        handler=spec["handler"],
        command=spec["command"],
        options=WorkOptions(**spec["options"]),
        backoff=Backoff(first=0.05, factor=1, cap=0.05, jitter=0),
    )
    print(json.dumps(dataclasses.asdict(worker.run())))
