from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from scan_kit import HELD, Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    opened = Place(tmp_path / "root" / "q")
    yield opened
    for queue in opened.opened:
        queue.close()
    HELD.clear()
