"""DFQ: a distributed, lease-based task queue that is just files.

>>> import dfq
>>> with dfq.open_queue("tiles", root="/srv/queues") as q:
...     q.push({"url": "https://example.com"})
...     for task in q.poll(batch_size=10, wait=20):
...         q.ack(task, result={"items": 20})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "open_queue": "dfq.config",
    "Settings": "dfq.config",
    "QueueManager": "dfq.queue",
    "Task": "dfq.queue",
    "TaskInfo": "dfq.queue",
    "Counts": "dfq.queue",
    "Push": "dfq.queue",
    "QueueError": "dfq.errors",
    "QueueUnavailable": "dfq.errors",
    "TaskExists": "dfq.errors",
    "TaskNotFound": "dfq.errors",
    "InvalidTask": "dfq.errors",
    "NoTasks": "dfq.errors",
    "LeaseLost": "dfq.errors",
    "PayloadTooLarge": "dfq.errors",
    "Unsupported": "dfq.errors",
    "ConfigError": "dfq.errors",
    "RetryLater": "dfq.errors",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from dfq.config import Settings as Settings
    from dfq.config import open_queue as open_queue
    from dfq.errors import ConfigError as ConfigError
    from dfq.errors import InvalidTask as InvalidTask
    from dfq.errors import LeaseLost as LeaseLost
    from dfq.errors import NoTasks as NoTasks
    from dfq.errors import PayloadTooLarge as PayloadTooLarge
    from dfq.errors import QueueError as QueueError
    from dfq.errors import QueueUnavailable as QueueUnavailable
    from dfq.errors import RetryLater as RetryLater
    from dfq.errors import TaskExists as TaskExists
    from dfq.errors import TaskNotFound as TaskNotFound
    from dfq.errors import Unsupported as Unsupported
    from dfq.queue import Counts as Counts
    from dfq.queue import Push as Push
    from dfq.queue import QueueManager as QueueManager
    from dfq.queue import Task as Task
    from dfq.queue import TaskInfo as TaskInfo


def __getattr__(name: str) -> object:
    # Names are looked up when first used, so that `import dfq` and `dfq --help` stay quick on a Pi.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dfq' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
