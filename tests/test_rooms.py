"""Imports point one way (ADR 016)."""

from __future__ import annotations

import ast
from pathlib import Path

import dfq

PACKAGE = Path(dfq.__file__).parent

#: What a room must not import, by the beginning of the names.
FORBIDDEN = {
    "dfq.stores": ("dfq.slotlog", "dfq.claim", "dfq.providers", "dfq.queue", "dfq.config", "dfq.worker", "dfq.cli"),
    "dfq.mounts": ("dfq.",),
    "dfq.ports": ("dfq.queue", "dfq.slotlog", "dfq.stores", "dfq.providers", "dfq.config", "dfq.worker", "dfq.cli"),
    "dfq.names": ("dfq.providers", "dfq.slotlog", "dfq.stores", "dfq.cli", "dfq.worker", "dfq.work"),
    "dfq.slots": ("dfq.slotlog", "dfq.deadletters", "dfq.providers", "dfq.config", "dfq.worker", "dfq.work", "dfq.cli"),
    "dfq.deadletters": ("dfq.slotlog", "dfq.providers", "dfq.config", "dfq.worker", "dfq.work", "dfq.cli"),
    "dfq.slotlog": ("dfq.providers", "dfq.config", "dfq.worker", "dfq.work", "dfq.cli"),
    "dfq.queue": ("dfq.providers", "dfq.slotlog", "dfq.stores", "dfq.worker", "dfq.work", "dfq.cli"),
    "dfq.providers": ("dfq.worker", "dfq.work", "dfq.cli"),
    "dfq.worker": ("dfq.providers", "dfq.slotlog", "dfq.stores", "dfq.cli"),
    "dfq.work": ("dfq.providers", "dfq.slotlog", "dfq.stores", "dfq.cli"),
    "dfq.cli": ("dfq.slotlog", "dfq.stores"),
    "dfq.node": ("dfq.slotlog", "dfq.stores", "dfq.worker", "dfq.cli"),
    "dfq.verify_fs": ("dfq.slotlog", "dfq.stores", "dfq.worker", "dfq.cli", "dfq.config"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return {name for name in found if name.startswith("dfq.")}


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room.rstrip(".") + ".")


def test_no_room_imports_what_stands_above_it() -> None:
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in PACKAGE.rglob("*.py")
        for room, above in FORBIDDEN.items()
        if within(module_name(path), room)
        for name in sorted(imports(path))
        if any(within(name, other) for other in above) and not within(name, room)
    ]
    assert wrong == []


def test_every_room_of_the_list_exists() -> None:
    rooms = {module_name(path) for path in PACKAGE.rglob("*.py")}
    assert set(FORBIDDEN) <= rooms
