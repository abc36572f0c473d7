"""dfq push."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import Run, environment


def payloads(dfq: Run) -> dict[str, object]:
    return {o["id"]: o["payload"] for o in dfq("ls", "--json").objects}


def test_a_pushed_payload_is_an_object_if_it_is_one_and_text_otherwise(dfq: Run) -> None:
    for task_id, text in (("a", '{"url": "x"}'), ("b", "hello"), ("c", "[1]"), ("d", '{"broken')):
        ran = dfq("push", text, "--id", task_id)
        assert (ran.status, ran.out) == (0, f"{task_id}\n")
    assert payloads(dfq) == {"a": {"url": "x"}, "b": "hello", "c": "[1]", "d": '{"broken'}


def test_push_prints_a_new_id_that_show_knows(dfq: Run) -> None:
    task_id = dfq("push", "hello").out.strip()
    assert dfq("show", task_id, "--json").object["payload"] == "hello"
    assert dfq("push", "x", "--json", "--id", "y").object == {"id": "y"}
    assert dfq("push", "x", "--quiet").out == ""


def test_priority_and_delay_are_kept(dfq: Run) -> None:
    dfq("push", "x", "--id", "low", "--priority", "1")
    dfq("push", "x", "--id", "high", "--priority", "9")
    dfq("push", "x", "--id", "later", "--delay", "600")
    assert dfq("show", "later", "--json").object["state"] == "scheduled"
    assert dfq("claim").object["id"] == "high"
    assert dfq("claim").object["id"] == "low"
    assert dfq("claim").status == 3


def test_an_id_that_is_taken_is_refused_unless_skipping_was_asked_for(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    ran = dfq("push", "y", "--id", "a")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == "dfq: task 'a' is already pending: --if-exists skip leaves it\n"
    skipped = dfq("push", "y", "--id", "a", "--if-exists", "skip")
    assert (skipped.out, skipped.err) == ("a\n", "dfq: task 'a' was there already\n")
    assert payloads(dfq) == {"a": "x"}


def test_what_to_do_about_a_taken_id_is_said_in_words_of_the_command_line(dfq: Run) -> None:
    for task_id, verb in (("it's done", "ack"), ("it's dead", "nack")):
        dfq("push", "x", "--id", task_id)
        dfq(verb, dfq("claim").object["receipt"], DFQ_MAX_ATTEMPTS="1")
    done = dfq("push", "x", "--id", "it's done").err
    assert "is already completed: --if-exists skip leaves it, --if-exists rerun runs it again" in done
    dead = dfq("push", "x", "--id", "it's dead").err
    assert "is already failed: `dfq retry 'it'\"'\"'s dead'` puts it back" in dead
    line = dfq("push", "--from", "-", "--id-field", "id", input='{"id": "it\'s done"}\n').err
    assert "stdin:1: task" in line
    assert "--if-exists rerun" in line
    for said in (done, dead, line):
        assert "if_exists" not in said


def test_a_load_counts_what_was_there_already(dfq: Run) -> None:
    dfq("push", "x", "--id", "2")
    lines = "".join(f'{{"n": {n}}}\n' for n in range(4))
    ran = dfq("push", "--from", "-", "--id-field", "n", "--if-exists", "skip", input=lines)
    assert (ran.status, ran.lines) == (0, ["0", "1", "2", "3"])
    assert ran.err == "dfq: 3 pushed to queue default, 1 was there already\n"
    again = dfq("push", "--from", "-", "--id-field", "n", "--if-exists", "skip", input=lines)
    assert (again.status, again.err) == (0, "dfq: 0 pushed to queue default, 4 were there already\n")


def test_a_load_of_nothing_has_nothing_to_do(dfq: Run) -> None:
    for lines in ("", "\n\n"):
        ran = dfq("push", "--from", "-", input=lines)
        assert (ran.status, ran.out) == (3, "")
        assert ran.err == "dfq: nothing to push: there is no line in the input\n"
    assert dfq("push", "--from", "-", input="{bad\n").status == 1


def test_what_looks_like_json_and_is_not_is_said_to_be_taken_as_text(dfq: Run) -> None:
    ran = dfq("push", '{"a":1', "--id", "a")
    assert (ran.status, ran.out, ran.err.count("\n")) == (0, "a\n", 1)
    assert "looks like JSON but is not" in ran.err
    assert "taken as text" in ran.err
    for fine in ('{"a": 1}', "hello", "[1]"):
        assert dfq("push", fine).err == ""


def test_an_interrupted_load_says_how_many_lines_were_pushed(dfq: Run, root: Path, tmp_path: Path) -> None:
    load = subprocess.Popen(
        [sys.executable, "-m", "dfq", "push", "--from", "-"],
        env=environment(root),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write('{"n": 1}\n' * 1000)  # which are pushed together, once they are all there
    load.stdin.write('{"n": 2}\n')
    load.stdin.flush()
    for _ in range(1000):
        assert load.stdout.readline()
    load.send_signal(signal.SIGINT)
    _, said = load.communicate(timeout=60)
    assert load.returncode == 1
    assert said == "dfq: interrupted: 1,000 pushed to queue default\n"
    assert dfq("status", "--json").object["pending"] == 1000


def test_bad_lines_are_reported_with_file_and_line_and_the_rest_is_pushed(dfq: Run, tmp_path: Path) -> None:
    file = tmp_path / "tasks.ndjson"
    file.write_bytes(b'{"n": 1}\n{bad\n\n"text"\n[1]\n\xff\n{"n": 2}')
    ran = dfq("push", "--from", str(file))
    assert ran.status == 1
    assert len(ran.lines) == 3
    for number in (2, 5, 6):
        assert f"{file}:{number}: " in ran.err
    assert "3 pushed" in ran.err
    assert "3 lines were not" in ran.err
    assert sorted(map(str, payloads(dfq).values())) == ["text", "{'n': 1}", "{'n': 2}"]


def test_lines_from_stdin_may_carry_their_ids(dfq: Run) -> None:
    lines = '{"tile": "29.5/-98.5"}\n{"tile": 7}\n{"other": 1}\n{"tile": "29.5/-98.5"}\n{"tile": ""}\n'
    ran = dfq("push", "--from", "-", "--id-field", "tile", "--json", input=lines)
    assert ran.status == 1
    assert ran.objects == [{"id": "29.5/-98.5"}, {"id": "7"}]
    assert "stdin:3: field 'tile'" in ran.err
    assert "stdin:4: task '29.5/-98.5' is already pending" in ran.err
    assert "stdin:5: " in ran.err
    again = dfq("push", "--from", "-", "--id-field", "tile", "--if-exists", "skip", "-q", input='{"tile": 7}\n')
    assert (again.status, again.out, again.err) == (0, "", "")


def test_a_line_that_is_too_long_is_skipped_without_being_read_whole(dfq: Run) -> None:
    lines = '{"n": 1}\n' + '{"n": "' + "x" * 5000 + '"}\n' + '{"n": "' + "y" * 150 + '"}\n{"n": 2}\n'
    ran = dfq("push", "--from", "-", input=lines, DFQ_MAX_PAYLOAD="100")
    assert ran.status == 1
    assert len(ran.lines) == 2
    assert "stdin:2: the line is longer than 200 bytes" in ran.err
    assert "stdin:3: payload has" in ran.err


def test_a_long_load_comes_out_in_order_and_complete(dfq: Run) -> None:
    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(2500))
    ran = dfq("push", "--from", "-", input=lines)
    assert ran.status == 0
    assert len(set(ran.lines)) == 2500
    assert dfq("status", "--json").object["pending"] == 2500


def test_on_a_terminal_a_load_shows_how_far_it_is_and_no_ids(dfq_tty: Run, tmp_path: Path) -> None:
    (tmp_path / "t.ndjson").write_text('{"id": "visible-id"}\n' * 3)
    ran = dfq_tty("push", "--from", "t.ndjson")
    assert ran.status == 0
    assert "3 pushed" in ran.out
    assert "visible-id" not in ran.out


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("x", "--from", "-"),
        ("-",),
        ("--from", "-", "--id", "x"),
        ("x", "--id-field", "x"),
        ("x", "--priority", "10"),
        ("x", "--delay", "-1"),
        ("x", "--if-exists", "perhaps"),
        ("--from", "/nowhere/at/all"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(dfq: Run, root: Path, args: tuple[str, ...]) -> None:
    ran = dfq("push", *args)
    assert (ran.status, ran.out) == (2, "")
    assert ("not both" in ran.err) == (args == ("x", "--from", "-"))
    assert list(root.iterdir()) == []
