"""A lab for each test, swept afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_kit import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.clean_up()
