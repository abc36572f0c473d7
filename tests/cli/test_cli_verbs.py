"""dfq claim, ack, nack, heartbeat: one lease, handed from process to process by its receipt."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from cli_kit import Run


def test_a_claim_is_acked_by_another_process(dfq: Run) -> None:
    dfq("push", '{"n": 1}', "--id", "a")
    ran = dfq("claim")
    assert ran.status == 0
    task = ran.object
    assert (task["id"], task["payload"], task["attempt"], task["token"]) == ("a", {"n": 1}, 1, 1)
    assert dfq("claim").status == 3
    assert dfq("ack", task["receipt"], "--result", '{"ok": true}', "--json").object == {
        "id": "a",
        "state": "completed",
    }
    assert dfq("show", "a", "--json").object["result"] == {"ok": True}


def test_the_whole_line_of_a_claim_will_do_as_a_receipt(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    line = dfq("claim").out
    assert dfq("heartbeat", line).status == 0
    assert dfq("ack", line).status == 0
    for wrong in ("{}", "{", '{"receipt": 1}'):
        assert dfq("ack", wrong).status == 2


def test_results_are_json_or_text_from_the_command_line_or_stdin(dfq: Run) -> None:
    cases: list[tuple[tuple[str, ...], bytes, object]] = [
        (("--result", "[1, 2]"), b"", [1, 2]),
        (("--result", "plain text"), b"", "plain text"),
        (("--result-from", "-"), b'{"a": 1}\n', {"a": 1}),
        (("--result-from", "-"), b"not json", "not json"),
        ((), b"", None),
    ]
    for n, (args, data, expected) in enumerate(cases):
        dfq("push", "x", "--id", f"t{n}")
        assert dfq("ack", dfq("claim").object["receipt"], *args, input=data).status == 0
        assert dfq("show", f"t{n}", "--json").object["result"] == expected
    dfq("push", "x", "--id", "raw")
    receipt = dfq("claim").object["receipt"]
    assert dfq("ack", receipt, "--result", "1", "--result-from", "-").status == 2
    big = dfq("ack", receipt, "--result-from", "-", input="x" * 200, DFQ_MAX_PAYLOAD="100")
    assert (big.status, big.err.count("\n")) == (1, 1)
    assert dfq("ack", receipt, "--result-from", "-", input=b"\xff\x00").status == 0
    assert dfq("show", "raw", "--json").object["result_encoding"] == "base64"


def test_a_stolen_lease_cannot_be_acked_nacked_or_renewed(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    first = dfq("claim", "--lease", "1").object
    stolen = dfq("claim", "--wait", "20").object  # waits until the second is over
    assert (stolen["id"], stolen["attempt"]) == ("a", 2)
    assert stolen["token"] > first["token"]
    for verb in ("heartbeat", "nack", "ack"):
        ran = dfq(verb, first["receipt"])
        assert (ran.status, ran.out) == (1, "")
        assert ran.err.startswith("dfq: ")
        assert ran.err.count("\n") == 1
    assert dfq("show", "a", "--json").object["state"] == "leased"
    assert dfq("ack", stolen["receipt"]).status == 0
    assert dfq("ack", stolen["receipt"]).status == 1


def test_a_claim_outlives_the_process_that_made_it(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    dfq("claim", "--lease", "60")
    assert dfq("claim").status == 3


def test_a_heartbeat_keeps_a_lease_beyond_its_time(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    receipt = dfq("claim", "--lease", "3").object["receipt"]
    told = dfq("heartbeat", receipt, "--extend", "300", "--json").object
    assert told["id"] == "a"
    assert 200 < told["expires_in"] <= 300
    time.sleep(3.2)
    assert dfq("claim").status == 3
    assert dfq("ack", receipt).status == 0


def test_nack_gives_back_with_an_error_a_delay_or_without_counting(dfq: Run) -> None:
    dfq("push", "x", "--id", "a")
    assert dfq("nack", dfq("claim").object["receipt"], "--error", "HTTP 500", "--json").object["id"] == "a"
    told = dfq("show", "a", "--json").object
    assert (told["state"], told["error"]) == ("pending", "HTTP 500")
    second = dfq("claim").object
    assert second["attempt"] == 2
    dfq("nack", second["receipt"], "--no-count")
    third = dfq("claim").object
    assert (third["attempt"], third["token"]) == (2, 3)
    assert dfq("nack", third["receipt"], "--delay", "600", "--json").object["state"] == "scheduled"
    assert dfq("claim").status == 3


def test_claim_takes_several_at_once(dfq: Run) -> None:
    dfq("push", "--from", "-", input='{"n": 1}\n' * 5)
    assert len(dfq("claim", "-n", "3").objects) == 3
    assert len(dfq("claim", "-n", "3", "--json").objects) == 2


def test_claim_waits_no_longer_than_it_was_told_to(dfq: Run) -> None:
    dfq("init")
    begin = time.monotonic()
    ran = dfq("claim", "--wait", "500ms")
    assert ran.status == 3
    assert ran.out == ""
    assert 0.5 <= time.monotonic() - begin < 10


def test_a_receipt_that_is_none_is_one_clear_line(dfq: Run) -> None:
    dfq("init")
    for verb in ("ack", "nack", "heartbeat"):
        for receipt in ("nonsense", "1.2.3", "", "../../etc/passwd", "1.aa.5.nope", "999999999999999999999.a.5.b"):
            ran = dfq(verb, receipt)
            assert ran.status == (1 if receipt.count(".") == 3 and receipt[0] != "." else 2), (receipt, ran)
            assert ran.err.startswith("dfq: "), (receipt, ran.err)
            assert ran.err.count("\n") == 1


def test_a_receipt_of_another_queue_says_where_it_looked(dfq: Run, root: Path) -> None:
    dfq("push", "x", "--id", "a/b")
    receipt = dfq("claim").object["receipt"]
    dfq("init", "--queue", "other")
    for verb in ("ack", "nack", "heartbeat"):
        ran = dfq(verb, receipt, "--queue", "other")
        assert (ran.status, ran.err) == (1, f"dfq: there is no task 'a/b' in queue 'other' at {root}/other\n")
    assert dfq("ack", receipt).status == 0


def test_claiming_makes_no_queue_and_names_a_root_that_is_mistyped(dfq: Run, root: Path, tmp_path: Path) -> None:
    ran = dfq("claim", "--wait", "0")
    assert (ran.status, ran.out) == (1, "")
    assert f"there is no queue 'default' in {root}" in ran.err
    typo = dfq("claim", "--root", str(tmp_path / "typo"))
    assert typo.status == 1
    assert f"its root {tmp_path}/typo does not exist" in typo.err
    assert list(root.iterdir()) == []
    assert not (tmp_path / "typo").exists()


def test_claiming_from_a_paused_queue_says_that_it_is_paused(dfq: Run) -> None:
    dfq("push", "x")
    dfq("pause")
    ran = dfq("claim")
    assert (ran.status, ran.out) == (3, "")
    assert "the queue is paused" in ran.err
    dfq("resume")
    dfq("claim")
    assert "no task to claim" in dfq("claim").err


def test_times_are_written_as_in_settings(dfq: Run) -> None:
    dfq("push", "x", "--id", "later", "--delay", "2h")
    assert dfq("show", "later", "--json").object["state"] == "scheduled"
    dfq("push", "x", "--id", "a")
    receipt = dfq("claim", "--lease", "5 m", "--wait", "1s").object["receipt"]
    assert 200 < dfq("leases", "--json").object["expires_in"] <= 300
    dfq("heartbeat", receipt, "--extend", "2h")
    assert 7000 < dfq("leases", "--json").object["expires_in"] <= 7200
    assert dfq("nack", receipt, "--delay", "1d", "--json").object["state"] == "scheduled"


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1", "5 parsecs", "", "1e3", "99999999d"])
def test_a_time_that_is_none_is_a_usage_error(dfq: Run, wrong: str) -> None:
    dfq("init")
    for args in (
        ("push", "x", "--delay"),
        ("claim", "--wait"),
        ("claim", "--lease"),
        ("nack", "1.aa.5.a", "--delay"),
        ("heartbeat", "1.aa.5.a", "--extend"),
        ("work", "--exec", "true", "--once", "--lease"),
        ("work", "--exec", "true", "--once", "--timeout"),
    ):
        ran = dfq(*args, wrong)
        assert (ran.status, ran.out) == (2, ""), args
        assert "expected a time from" in ran.err, args


def test_a_claim_is_one_line_whatever_the_payload_holds(dfq: Run) -> None:
    dfq("push", json.dumps({"text": "a\nb\u2028c\x1b"}), "--id", "a\nb")
    ran = dfq("claim")
    assert len(ran.out.splitlines()) == 1
    assert ran.object["payload"] == {"text": "a\nb\u2028c\x1b"}
