from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends import BACKENDS, Backend, Queues, meets


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "queues" in metafunc.fixturenames:
        wanted = getattr(metafunc.function, "needs", ())
        fit = [backend for backend in BACKENDS if meets(backend, wanted)]
        metafunc.parametrize("queues", fit, indirect=True, ids=[backend.name for backend in fit])


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable and no config file of whoever runs the tests has a say in them."""
    for name in os.environ:
        if name.startswith(("DFQ_", "COCLI_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queues]:
    backend: Backend = request.param
    opened = Queues(backend, tmp_path / "root")
    yield opened
    opened.close()
