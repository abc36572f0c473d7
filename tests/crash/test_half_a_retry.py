"""A process that dies in the middle of a retry: whoever retries next finishes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_kit import files, open_plain

from dfq.deadletters import DeadLetters
from dfq.errors import TaskNotFound


def test_a_second_retry_finishes_what_a_dead_process_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_plain(tmp_path / "q", max_attempts=1) as queue:
        queue.push({}, id="t")
        queue.nack(queue.poll()[0], error="no use")
        assert queue.poll() == []  # it remembers that the task is dead
        with monkeypatch.context() as patch, open_plain(tmp_path / "q", max_attempts=1) as other:
            patch.setattr(DeadLetters, "_put_back", lambda letters, entry: None)
            other.retry("t")
        assert files(tmp_path / "q", "failed") != []
        assert queue.retry("t") == ["t"]
        assert files(tmp_path / "q", "failed") == []
        (task,) = queue.poll()
        queue.ack(task)


def test_a_task_that_was_put_back_is_not_put_back_again(tmp_path: Path) -> None:
    with open_plain(tmp_path / "q", max_attempts=1) as queue:
        queue.push({}, id="t")
        queue.nack(queue.poll()[0], error="no use")
        assert queue.retry("t") == ["t"]
        with pytest.raises(TaskNotFound):
            queue.retry("t")
