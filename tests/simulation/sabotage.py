"""Run the simulator over a copy of the code in which something was changed.

    python sabotage.py mutant 7        is the seventh mutant caught?
    python sabotage.py sync 3          is it noticed that the third sync of the code is left out?

The last line of what it prints is JSON. Each runs in a process of its own: the change is made where a module is
loaded, so whatever uses the module uses the changed one.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SYNCS = frozenset(("sync", "sync_content", "sync_folder", "fsync", "fsync_dir", "sync_all"))
#: Modules whose syncs are promises to users. Those of `verify_fs` are what is verified, `ports` is the disk itself.
DURABLE = (
    "dfq.slotlog",
    "dfq.deadletters",
    "dfq.stores.disk",
    "dfq.providers.filesystem.again",
    "dfq.providers.filesystem.audit_schedule",
    "dfq.providers.filesystem.housekeeping",
    "dfq.providers.filesystem.intake",
    "dfq.providers.filesystem.meta",
    "dfq.providers.filesystem.queue",
    "dfq.providers.filesystem.retirement",
    "dfq.providers.filesystem.schedule",
    "dfq.providers.filesystem.tiles",
)
#: Syncs that the simulator cannot miss, and why.
BEYOND = {
    "FilesystemQueue.open: OsDisk(root).fsync_dir('.')": "the root of all queues is not on the simulated disk",
    "write_lease: disk.fsync(fd)": "what a process writes is seen by the others at once, also on other machines",
    "DiskStore._name_elsewhere: self.disk.fsync(fd)": "the simulated disk is one filesystem",
    "Housekeeping._orphans: self._store.sync(witness)": "of an ack that has not returned nothing is promised",
    "Tiles.show: self._disk.fsync(fd)": "index queues are not simulated",
    "Tiles.show: self._store.sync(shown)": "index queues are not simulated",
}


class Change(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Loads one module with a change in its source."""

    def __init__(self, module: str, change: Any) -> None:
        self._module = module
        self._change = change
        self._path = source_of(module)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self._module:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: str) -> bytes:
        return bytes(self._change(Path(path).read_text()).encode())

    def path_stats(self, path: str) -> Any:
        raise OSError("a changed module is not to be cached")


def source_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def replaced(line: str, instead: str) -> Any:
    def change(source: str) -> str:
        if source.count(line) != 1:
            raise SystemExit(f"the line that this mutant changes is gone, or there are two: {line}")
        return source.replace(line, instead)

    return change


@dataclass(frozen=True)
class Site:
    """A place where something is made durable."""

    module: str
    lines: tuple[int, int]
    columns: tuple[int, int]
    text: str  # Class.function: call

    def left_out(self, source: str) -> str:
        rows = source.splitlines(keepends=True)
        (first, last), (start, end) = self.lines, self.columns
        rows[first - 1 : last] = [rows[first - 1][:start] + "None" + rows[last - 1][end:]]
        return "".join(rows)


def sync_sites() -> list[Site]:
    """Return every call that makes something durable, in the order of the files."""
    sites: list[Site] = []
    for module in DURABLE:
        _collect(ast.parse(source_of(module).read_text()), module, "", sites)
    return sites


def _collect(node: ast.AST, module: str, within: str, sites: list[Site]) -> None:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        within = f"{within}.{node.name}".lstrip(".")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SYNCS:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        lines, columns = (node.lineno, node.end_lineno), (node.col_offset, node.end_col_offset)
        sites.append(Site(module, lines, columns, f"{within}: {ast.unparse(node)}"))
    for child in ast.iter_child_nodes(node):
        _collect(child, module, within, sites)


def catch_mutant(number: int) -> dict[str, Any]:
    import mutants

    mutant = mutants.ALL[number]
    for name in [name for name in sys.modules if name == "dfq" or name.startswith("dfq.")]:
        del sys.modules[name]  # imported for the list of mutants: now again, with the change
    for name in ("mutants", "scenarios", "explore", "shrink", "world", "workers", "checkers", "simdisk"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Change(mutant.module, replaced(mutant.line, mutant.instead)))
    import explore
    import mutants as again

    mutant, began, texts, seed = again.ALL[number], time.monotonic(), [], ""
    try:
        if mutant.weather is None:
            explore.explore(mutant.scenario, preemptions=mutant.preemptions, crashes=mutant.crashes)
        else:
            explore.wander(mutant.scenario, range(mutant.seeds), mutant.weather)
    except explore.Violation as violation:
        texts, seed = violation.texts, " ".join(violation.__notes__)
    caught = any(mutant.caught_by in text for text in texts)
    return {"name": mutant.name, "caught": caught, "texts": texts, "how": seed, "seconds": time.monotonic() - began}


def catch_sync(number: int) -> dict[str, Any]:
    site = sync_sites()[number]
    sys.meta_path.insert(0, Change(site.module, site.left_out))
    import explore
    from scenarios import SYNCED

    began, texts, seed = time.monotonic(), [], ""
    for first, last in ((0, 15), (15, 60), (60, 250), (250, 1000)):  # a little of each scenario, then more of each
        for scenario in SYNCED:
            try:
                explore.wander(scenario, range(first, last), explore.Weather(crashes=1, cuts=0.6))
            except explore.Violation as violation:
                texts, seed = violation.texts, " ".join(violation.__notes__)
                break
        if texts:
            break
    name = f"{site.module}:{site.lines[0]} {site.text}"
    return {"name": name, "caught": bool(texts), "texts": texts, "how": seed, "seconds": time.monotonic() - began}


def sabotaged(kind: str, number: int) -> dict[str, Any]:
    """Return what came of a sabotage, in a process of its own."""
    ended = subprocess.run([sys.executable, __file__, kind, str(number)], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        return {"name": f"{kind} {number}", "caught": False, "texts": [ended.stderr], "how": "", "seconds": 0.0}
    return dict(json.loads(ended.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    kind, number = sys.argv[1:]
    print(json.dumps(catch_mutant(int(number)) if kind == "mutant" else catch_sync(int(number))))
