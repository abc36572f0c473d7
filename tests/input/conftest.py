from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from input_kit import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    there = Place(tmp_path)
    yield there
    there.check_outside()
