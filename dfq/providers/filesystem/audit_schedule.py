"""Holding the folders of scheduled tasks against the format (ADR 012)."""

from __future__ import annotations

from collections.abc import Callable

from dfq.codec import parse_iso
from dfq.providers.filesystem.audit import Audit, is_int
from dfq.providers.filesystem.faults import Repair
from dfq.queue import DEFAULT_PRIORITY
from dfq.tree import SCHEDULED, Entry, bucket_due, task_name


class BucketAudit(Audit):
    def look(self, bucket: str, lanes: list[int], elsewhere: Callable[[str], str | None], promote: Repair) -> None:
        """Look at the tasks that are due at some time; `elsewhere` tells of another folder with the same name."""
        folder, due = f"{SCHEDULED}/{bucket}", bucket_due(bucket)
        if not self.folder(folder):
            return
        ours = self.files(folder, task_name)
        if due is None:
            self.note("bad-bucket", folder, f"not the name of a time, with {len(ours)} tasks in it")
            return
        if not ours and not self._disk.scan(folder):
            self.note("empty-bucket", folder, "nothing is in it", lambda: self._disk.rmdir(folder))
        for path, name in ours:
            proven = self.proven(name)
            if proven:
                entry = self._tree.entry_at(path, name, DEFAULT_PRIORITY)
                self.note("leftover-task", path, "its witness is there", self._ending(entry, folder))
            elif proven is False:
                self._look_at_scheduled(path, name, due, lanes, elsewhere, promote)

    def _ending(self, entry: Entry, folder: str) -> Repair:
        def end() -> None:
            self._log.mend(entry)
            self._disk.rmdir(folder)

        return end

    def _look_at_scheduled(
        self,
        path: str,
        name: str,
        due: float,
        lanes: list[int],
        elsewhere: Callable[[str], str | None],
        promote: Repair,
    ) -> None:
        lane = (self.record(path) or {}).get("priority")
        task = self.check_task(self._tree.entry_at(path, name, lane if is_int(lane) else DEFAULT_PRIORITY))
        self.check_epoch(self._tree.entry_at(path, name, DEFAULT_PRIORITY))
        if task is not None:
            said = parse_iso(task.get("due_at"))
            if said is None or not -1 < said - due < 2:
                self.note("wrong-bucket", path, f"field 'due_at' is {str(task.get('due_at'))[:40]!r}")
        waiting = [entry.path for entry in (self._tree.entry(name, n) for n in lanes) if self._store.exists(entry.path)]
        if waiting:
            other = self.record(waiting[0])
            if task is not None and other is not None and task.get("nonce") == other.get("nonce"):
                self.note("half-moved", path, f"it is in {waiting[0]} as well", promote)
            else:
                self.check_duplicate(path, task, waiting[0], other)
        elif (twin := elsewhere(name)) is not None:
            self.check_duplicate(path, task, twin, self.record(twin))
