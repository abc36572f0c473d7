from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from index_kit import Index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path)
    yield index
    index.close()
