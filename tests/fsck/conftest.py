from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fsck_kit import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    there = Ground(tmp_path)
    yield there
    there.queue.close()
