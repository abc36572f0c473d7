"""Holding a folder of scheduled tasks against the format (ADR 012)."""

from __future__ import annotations

from collections.abc import Callable

from dfq.lease import number
from dfq.providers.filesystem.audit import Audit, is_int
from dfq.providers.filesystem.faults import Repair
from dfq.queue import DEFAULT_PRIORITY
from dfq.staleness import moment
from dfq.tree import SCHEDULED, Entry, bucket_start, parent, task_name, window

Elsewhere = Callable[[str], str | None]


class BucketAudit(Audit):
    """One look at the tasks that are due in the same window."""

    def look(self, bucket: str, lanes: list[int], temporary: dict[int, int], elsewhere: Elsewhere) -> None:
        """Look at all that lies in a folder; `elsewhere` tells of another folder that has a task of the same name."""
        folder, start = f"{SCHEDULED}/{bucket}", bucket_start(bucket)
        if not self.folder(folder):
            return
        ours = self.files(folder, task_name)
        if start is None:
            self.note("bad-bucket", folder, f"not the name of a time, with {len(ours)} tasks in it")
            return
        if not ours and not self._disk.scan(folder):
            self.note("empty-bucket", folder, "nothing is in it", lambda: self._disk.rmdir(folder))
        waiting = {path: self._waiting(name, lanes) for path, name in ours}
        self.check_links(temporary, lambda path: len(waiting[path]))
        for path, name in ours:
            entry, proven = self._tree.entry_at(path, name, DEFAULT_PRIORITY), self.proven(name)
            if proven:
                self.note("leftover-task", path, "its witness is there", self._ending(entry))
            elif proven is False:
                self._look_at(entry, start, waiting[path], elsewhere(name))

    def _waiting(self, name: str, lanes: list[int]) -> list[str]:
        """Return where in the frontier a name waits as well."""
        paths = (self._tree.entry(name, lane).path for lane in lanes)
        return [path for path in paths if self._store.exists(path)]

    def _look_at(self, entry: Entry, start: float, waiting: list[str], twin: str | None) -> None:
        lane = (self.record(entry.path) or {}).get("priority")
        task = self.check_task(entry._replace(lane=lane if is_int(lane) else entry.lane))
        self.check_epoch(entry)
        if task is not None:
            said = moment(task.get("due_at"))
            width = window(number(task.get("delay_s")) or 0.0)
            if said is None or not -1 < said - start < width + 1:
                self.note("wrong-bucket", entry.path, f"field 'due_at' is {str(task.get('due_at'))[:40]!r}")
        other = waiting[0] if waiting else twin
        if other is None:
            return
        there = self.record(other)
        if waiting and task is not None and "nonce" in task and task == there:
            self.note("half-moved", entry.path, f"it is in {other} as well", self._moved(entry.path, other))
        else:
            self.check_duplicate(entry.path, task, other, there)

    def _moved(self, path: str, there: str) -> Repair:
        """Return the second half of a move from the schedule to the frontier."""

        def move() -> None:
            self._store.sync(there)
            self._store.remove(path)
            self._disk.rmdir(parent(path))

        return move

    def _ending(self, entry: Entry) -> Repair:
        def end() -> None:
            self._log.mend(entry)
            self._disk.rmdir(parent(entry.path))

        return end
