"""The files of an index: a tree that another tool owns, and the witnesses beside it (ADR 019)."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from dfq.codec import iso, loads
from dfq.config import Settings
from dfq.errors import ConfigError, InvalidTask, QueueUnavailable
from dfq.names import encode, is_hashed
from dfq.ports import Clock, Disk, Found
from dfq.providers.filesystem.steady import Steadiness
from dfq.queue import DEFAULT_PRIORITY
from dfq.stores.disk import DiskStore
from dfq.tree import Entry, Tree, epoch_of, id_of, in_epoch, parent

#: How the two trees are called in paths; the disk knows where they lie.
TILES, WITNESSES = "@frontier", "@completed"
MAX_DEPTH = 32
READ_LIMIT = 64 * 1024 * 1024
MAX_LEFTOVERS = 1000
_UNFINISHED = ("~", ".tmp", ".part", ".swp")
_OURS = re.compile(r"\.tmp-[0-9]{1,10}-[0-9a-f]{16}").fullmatch  # our temporary files, in a tree that others use too


def is_tile(path: str) -> bool:
    """Tell whether a path within the tree is a task: nothing hidden, temporary, or too long for a lease's name."""
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or "\0" in path or any(not part or part.startswith(".") for part in parts):
        return False
    if path.endswith(_UNFINISHED):
        return False
    try:
        return not is_hashed(encode(path))
    except InvalidTask:
        return False


class IndexTree(Tree):
    """The paths of an index: leases and dead letters lie as in any queue, tasks and witnesses lie elsewhere."""

    def tile(self, path: str, epoch: int = 0) -> Entry:
        """Return the entry of a file, by its path within the tree."""
        name = in_epoch(encode(path), epoch)
        return Entry(name, f"{TILES}/{path}", DEFAULT_PRIORITY, self.completed(name))

    def entry(self, name: str, lane: int) -> Entry:
        path = id_of(name)
        if path is None or not is_tile(path):
            raise InvalidTask(f"{name!r} is no path of a file in the index")
        return self.tile(path, epoch_of(name))

    def entry_at(self, path: str, name: str, lane: int) -> Entry:
        return self.entry(name, lane)

    def completed(self, name: str) -> str:
        path = id_of(name)
        if epoch_of(name) or path is None or not is_tile(path):
            return super().completed(name)  # of a later epoch: created once, like any other witness
        return f"{WITNESSES}/{path}"


class Folder(NamedTuple):
    """What a folder of the tree holds."""

    folders: list[str]
    due: list[tuple[int, Entry]]  # (time of the file, task)
    done: list[str]  # paths within the tree
    strange: list[str]  # names


class Tiles:
    """Reads the tree, and knows which of its files are due."""

    def __init__(
        self,
        disk: Disk,
        store: DiskStore,
        tree: IndexTree,
        clock: Clock,
        steadiness: Steadiness,
        *,
        refresh_after: float | None,
        guard: float,
    ) -> None:
        self._disk = disk
        self._store = store
        self._tree = tree
        self._clock = clock
        self._steadiness = steadiness
        self._refresh_after = refresh_after
        self._guard = guard if refresh_after is None else min(guard, refresh_after)
        self._leftovers: dict[str, list[str]] = {}  # folder of witnesses -> our temporary files in it

    def read(self, folder: str) -> Folder:
        """Return what is in a folder of the tree (by its whole path, as in "@frontier/29.5")."""
        inside = folder[len(TILES) + 1 :]
        found = Folder([], [], [], [])
        witnesses = {f.name: f for f in self._scan_witnesses(inside) if f.regular}
        steady = self._is_steady()
        for file in self._disk.scan(folder, times=True):
            path = f"{inside}/{file.name}" if inside else file.name
            if file.name.startswith("."):
                continue
            if file.directory:
                if path.count("/") < MAX_DEPTH - 1:
                    found.folders.append(f"{TILES}/{path}")
            elif not file.regular or not is_tile(path):
                found.strange.append(file.name)
            else:
                epoch = self._epoch(path, witnesses.get(file.name), steady)
                if epoch is None:
                    found.done.append(path)
                else:
                    found.due.append((file.mtime_ns, self._tree.tile(path, epoch)))
        return found

    def current(self, path: str) -> Entry | None:
        """Return the task that a file of the tree is now; None if it is done."""
        facts = self._store.disk.look(f"{WITNESSES}/{path}")
        known = None if facts is None or not facts.regular else Found("", True, False, facts.mtime_ns)
        epoch = self._epoch(path, known, self._is_steady())
        return None if epoch is None else self._tree.tile(path, epoch)

    def shown_epoch(self, path: str) -> int:
        """Return the epoch of the witness that is shown for a file; -1 if there is none."""
        raw = self._store.read(f"{WITNESSES}/{path}", READ_LIMIT)
        if raw is None:
            return -1
        try:
            epoch = loads(raw, path).get("epoch")
        except InvalidTask:  # another tool's
            return 0
        return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) and 0 <= epoch < 2**30 else 0

    def show(self, entry: Entry) -> None:
        """Let the completed tree show the witness of a later epoch.

        It is a view. Should a slower worker replace it by an older one, the next look at the file comes here again.
        """
        path = entry.path.partition("/")[2]
        epoch = epoch_of(entry.name)
        if not epoch or self.shown_epoch(path) >= epoch:
            return
        witness = self._store.read(entry.witness, READ_LIMIT)
        if witness is None:
            return
        shown = f"{WITNESSES}/{path}"
        temporary = f"{parent(shown)}/.tmp-{os.getpid()}-{os.urandom(8).hex()}"
        fd = self._store.making(temporary, self._disk.create)
        try:
            try:
                self._disk.write(fd, witness)
                if self._store.durable:
                    self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
            self._disk.replace(temporary, shown)
        except BaseException:
            self._disk.unlink(temporary)
            raise
        self._store.sync(shown)

    def _scan_witnesses(self, inside: str) -> list[Found]:
        folder = f"{WITNESSES}/{inside}" if inside else WITNESSES
        found = self._disk.scan(folder, times=self._refresh_after is not None)
        self._leftovers.pop(folder, None)
        ours = [f"{folder}/{f.name}" for f in found if f.regular and _OURS(f.name)]
        if ours and len(self._leftovers) < MAX_LEFTOVERS:
            self._leftovers[folder] = ours[:MAX_LEFTOVERS]
        return found

    def leftovers(self) -> list[str]:
        """Return the temporary files of ours that were seen among the witnesses: a crash may have left them."""
        return [path for ours in self._leftovers.values() for path in ours]

    def _is_steady(self) -> bool:
        """Tell whether the time of a witness tells its age: not after a jump of the clock, for a while (ADR 018)."""
        try:
            return self._refresh_after is not None and self._steadiness.seconds() >= self._guard
        except OSError:  # it cannot be noted now: then nothing is done again for its age
            return False

    def _epoch(self, path: str, witness: Found | None, steady: bool) -> int | None:
        """Return the epoch in which a file is due; None if its witness still holds."""
        if witness is None:
            return 0
        after = self._refresh_after
        if after is None or not steady or self._clock.wall() - witness.mtime_ns / 1e9 < after:
            return None
        epoch, name = self.shown_epoch(path) + 1, encode(path)
        # Epochs that are over and older than what is shown: somebody removed or replaced the witness since.
        while epoch and self._disk.exists(own := self._tree.completed(in_epoch(name, epoch))):
            shown = self._completed_at(f"{WITNESSES}/{path}") or iso(max(0.0, witness.mtime_ns / 1e9))
            if self._completed_at(own) >= shown:
                break  # not shown yet, or set back: whoever claims it shows it
            epoch += 1
        return epoch

    def _completed_at(self, path: str) -> str:
        """Return when a witness says its task was completed; "" if it does not say."""
        try:
            at = loads(self._store.read(path, READ_LIMIT) or b"", path).get("completed_at")
        except InvalidTask:
            return ""
        return at if isinstance(at, str) else ""


def index_folders(settings: Settings, folder: str) -> dict[str, str]:
    """Return where the two trees of an index lie; nothing for a queue that owns its frontier. Raises ConfigError."""
    if settings.frontier_mode != "index":
        return {}
    given = {"frontier": settings.frontier, "completed": settings.completed}
    for name, path in given.items():
        if path is None:
            raise ConfigError(f"setting {name}: an index queue needs it: the folder of its {_WHAT[name]}")
    trees = {name: os.path.realpath(str(path)) for name, path in given.items()}
    for name, tree in trees.items():
        for other in (folder, *(t for n, t in trees.items() if n != name)):
            if f"{tree}/".startswith(f"{other}/"):
                raise ConfigError(f"setting {name} = {tree!r}: it must not lie in {other}")
    if not os.path.isdir(trees["frontier"]):
        raise QueueUnavailable(f"{trees['frontier']} is no folder: it should hold the files to work on (frontier)")
    os.makedirs(trees["completed"], 0o775, exist_ok=True)
    return {TILES: trees["frontier"], WITNESSES: trees["completed"]}


_WHAT = {"frontier": "files to work on", "completed": "witnesses"}
