"""Settings: where they come from, what they may be, and what is said when they are wrong."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dfq
from dfq.config import MAX_CONFIG_BYTES, Backoff, Settings, open_queue, resolve

DAY = 86_400


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where nothing is set: a home, a working folder, no variables."""
    for name in os.environ:
        if name.startswith(("DFQ_", "COCLI_", "XDG_")):
            monkeypatch.delenv(name)
    for folder in ("work", "root"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# -- defaults and precedence -----------------------------------------------------------------------


def test_the_defaults(home: Path) -> None:
    settings, sources = resolve()
    assert settings == Settings()
    assert set(sources.values()) == {"default"}
    assert set(sources) == set(Settings.__dataclass_fields__)
    assert settings.root == home / ".local" / "share" / "dfq"
    assert (settings.queue_type, settings.lease, settings.max_attempts, settings.shards) == ("filesystem", 900, 5, 256)
    assert (settings.durability, settings.on_ack, settings.auto_heartbeat) == ("full", "archive", True)
    assert (settings.retain_completed, settings.retain_failed) == (7 * DAY, 30 * DAY)
    assert settings.max_payload == 256 * 1024
    assert settings.backoff == Backoff(1, 2, 300, 0.5)
    assert (settings.heartbeat_timeout, settings.max_run, settings.bucket) == (None, None, None)
    assert (settings.frontier_mode, settings.offline) == ("owned", "wait")


def test_the_default_root_follows_xdg(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    assert resolve()[0].root == home / "data" / "dfq"


def test_argument_environment_root_file_working_folder_user_default(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = home / "root"
    names = ("max_attempts", "lease", "shards", "max_payload", "retain_failed")
    user = write(home / ".config/dfq/dfq.toml", "".join(f"{name} = 105\n" for name in names))
    here = write(home / "work/dfq.toml", "".join(f"{name} = 104\n" for name in names[:4]))
    there = write(root / "dfq.toml", "".join(f"{name} = 103\n" for name in names[:3]))
    for name in names[:2]:
        monkeypatch.setenv(f"DFQ_{name.upper()}", "102")
    settings, sources = resolve(root=root, max_attempts=101)
    assert [getattr(settings, name) for name in names] == [101, 102, 103, 104, 105]
    assert [sources[name] for name in names] == [
        "argument max_attempts",
        "environment variable DFQ_LEASE",
        str(there),
        str(here),
        str(user),
    ]
    assert sources["durability"] == "default"


def test_the_users_file_follows_xdg(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    write(home / "xdg/dfq/dfq.toml", "lease = 7")
    assert resolve()[0].lease == 7


def test_a_queues_own_table_goes_before_its_file(home: Path) -> None:
    write(home / "work/dfq.toml", 'lease = 5\nmax_attempts = 9\n[queues.tiles]\nlease = "1 h"\n')
    settings, sources = resolve(queue="tiles")
    assert (settings.lease, settings.max_attempts) == (3600, 9)
    assert sources["lease"] == f"{home}/work/dfq.toml [queues.tiles]"
    assert resolve(queue="other")[0].lease == 5
    assert resolve()[0].lease == 5


def test_a_file_may_name_the_root_and_the_root_has_its_own_file(home: Path) -> None:
    write(home / "work/dfq.toml", 'root = "../root"\nlease = 5')
    write(home / "root/dfq.toml", 'lease = 6\nroot = "/moved/from/here"')
    settings, sources = resolve()
    assert settings.root.resolve() == home / "root"
    assert settings.lease == 6
    assert sources["root"] == str(home / "work/dfq.toml")


def test_a_working_folder_that_is_the_root_has_one_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "root/dfq.toml", "lease = 6")
    monkeypatch.chdir(home / "root")
    assert resolve(root=".")[0].lease == 6


def test_paths_are_absolute_and_know_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(root="queues")[0].root == home / "work/queues"
    assert resolve(root="~/queues")[0].root == home / "queues"
    monkeypatch.setenv("DFQ_ROOT", "elsewhere")
    assert resolve()[0].root == home / "work/elsewhere"


def test_none_is_not_given_and_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFQ_LEASE", "")
    monkeypatch.setenv("COCLI_QUEUE_TYPE", "")
    settings, sources = resolve(lease=None, root=None)
    assert settings.lease == 900
    assert sources["lease"] == sources["queue_type"] == "default"


def test_what_an_argument_settles_is_not_looked_at_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "work/dfq.toml", 'durability = "slow"\nlease = "x"\n[queues.q]\nlease = "y"')
    for variable in ("COCLI_QUEUE_TYPE", "DFQ_QUEUE_TYPE", "DFQ_LEASE", "DFQ_SHARDS"):
        monkeypatch.setenv(variable, "rabbit")
    given = {"queue_type": "memory", "lease": 7, "durability": "fast", "shards": 16}
    settings, sources = resolve(queue="q", **given)
    assert {name: getattr(settings, name) for name in given} == given
    assert sources["queue_type"] == "argument queue_type"
    for missing in given:
        with pytest.raises(dfq.ConfigError, match=f"setting {missing} = "):
            resolve(queue="q", **{name: value for name, value in given.items() if name != missing})


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lease", "15m", 900),
        ("lease", "15 min", 900),
        ("lease", " 1.5 h ", 5400),
        ("lease", "500ms", 0.5),
        ("lease", 60, 60),
        ("lease", ".5", 0.5),
        ("retain_completed", "7 d", 7 * DAY),
        ("retain_failed", "2w", 14 * DAY),
        ("retain_failed", 0, 0),
        ("max_payload", "256 KiB", 256 * 1024),
        ("max_payload", "1MB", 1_000_000),
        ("max_payload", "64 MiB", 64 * 1024**2),
        ("max_payload", "1_000", 1000),
        ("max_payload", "0.5 kib", 512),
        ("auto_heartbeat", "true", True),
        ("auto_heartbeat", "OFF", False),
        ("auto_heartbeat", "0", False),
        ("auto_heartbeat", False, False),
        ("shards", "16", 16),
        ("max_attempts", " 3 ", 3),
        ("durability", "fast", "fast"),
        ("backoff", "1,2,300,0.5", Backoff()),
        ("backoff", "5s, 3, 10 m, 0", Backoff(5, 3, 600, 0)),
        ("backoff", "5", Backoff(first=5)),
        ("backoff", {"cap": "1 h"}, Backoff(cap=3600)),
        ("backoff", [1, 2], Backoff(1, 2)),
        ("backoff", Backoff(9), Backoff(9)),
        ("bucket", "s3://name/prefix", "s3://name/prefix"),
        ("redis_url", "redis://localhost:6379/0", "redis://localhost:6379/0"),
    ],
)
def test_values_with_units(name: str, text: Any, value: Any) -> None:
    found = getattr(resolve(**{name: text})[0], name)
    assert found == value
    assert type(found) is type(value) or isinstance(found, float)


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        ("lease", ["0", "0.01", "31 d", "5 parsecs", "", "1e3", "-5", math.nan, math.inf, True, [1]], "0.05 s to 30 d"),
        ("max_attempts", [0, 1001, "x", 2.5, True, "-1"], "1 to 1,000"),
        ("shards", [0, 4097, "ff", 1.0], "1 to 4,096"),
        ("durability", ["Full", "none", 1], "full, fast"),
        ("on_ack", ["keep"], "archive, delete"),
        ("auto_heartbeat", ["maybe", 1, 0.0], "true or false"),
        ("max_payload", ["0", "65 MiB", "1 GiB", "0.3", True, math.nan], "64 MiB"),
        ("backoff", ["", "a,b", "1,2,3,4,5", "1,0.5", "1,2,3,1.5", {"firs": 1}, 5, [], "1,,3"], "first, factor, cap"),
        ("frontier_mode", ["mine"], "owned, index"),
        ("offline", ["no"], "wait, local"),
        ("bucket", ["name/prefix", "gs://x", "s3://", 5], "s3:// or file://"),
        ("redis_url", ["localhost"], "redis://"),
        ("sqs_queue_url", ["arn:aws:sqs"], "https://"),
        ("root", ["", "a\0b", 5, b"x", "~nobody-of-this-name/x"], ""),
        ("max_run", ["0"], "0.05 s"),
        ("queue_type", ["rabbit", "Memory", 5], "filesystem, sqs, redis, memory, mailbox, inbox, storage"),
    ],
)
def test_a_wrong_value_names_the_setting_its_source_and_what_is_allowed(
    name: str, values: list[Any], allowed: str
) -> None:
    for value in values:
        with pytest.raises(dfq.ConfigError) as raised:
            resolve(**{name: value})
        message = str(raised.value)
        assert f"setting {name} = " in message, value
        assert f"(argument {name})" in message
        assert allowed in message


def test_a_wrong_value_in_the_environment_or_a_file_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home / "work/dfq.toml", 'durability = "slow"')
    with pytest.raises(dfq.ConfigError, match=rf"durability = 'slow' \({path}\): expected one of full, fast"):
        resolve()
    monkeypatch.setenv("DFQ_LEASE", "long")
    with pytest.raises(dfq.ConfigError, match=r"lease = 'long' \(environment variable DFQ_LEASE\)"):
        resolve()


# -- names -----------------------------------------------------------------------------------------


def test_an_unknown_argument_names_the_closest() -> None:
    with pytest.raises(dfq.ConfigError, match=r"'leese' \(argument leese\): did you mean lease\? Known: root, "):
        open_queue("q", leese=5)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("DFQ_LEESE", "did you mean DFQ_LEASE? "),
        ("DFQ_lease", "did you mean DFQ_LEASE? "),
        ("DFQ_QUEUES", "did you mean DFQ_QUEUE? "),
        ("DFQ_MAX_PAYLOD", "did you mean DFQ_MAX_PAYLOAD? "),
        ("DFQ_", ""),
        ("DFQ_FOO", ""),
        ("DFQ_COLOUR", ""),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_only_what_is_similar(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "5")
    with pytest.raises(dfq.ConfigError, match=re.escape(f"(environment variable {variable}): {meant}Known: root")):
        resolve()


@pytest.mark.parametrize(
    "variable", ["DFQ_QUEUE", "DFQ_TASK_ID", "DFQ_TASK_TOKEN", "DFQ_TASK_ATTEMPT", "DFQ_LOG_LEVEL", "XDFQ_Y"]
)
def test_a_variable_that_is_no_setting_is_left_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "5")
    assert resolve()[0] == Settings()


@pytest.mark.parametrize("text", ["leese = 5", "[queues.q]\nleese = 5", "[lease]\nx = 1", "queues = 5", "queues.q = 5"])
def test_an_unknown_name_or_shape_in_a_file_is_an_error(home: Path, text: str) -> None:
    path = write(home / "work/dfq.toml", text)
    with pytest.raises(dfq.ConfigError, match=str(path)):
        resolve()


@pytest.mark.parametrize("raw", [b"lease = ", b"\xff", b"#" * (MAX_CONFIG_BYTES + 1), b"a = " + b"[" * 20_000])
def test_a_file_that_is_no_config_file_is_named(home: Path, raw: bytes) -> None:
    path = home / "work/dfq.toml"
    path.write_bytes(raw)
    with pytest.raises(dfq.ConfigError, match=f"config file {path}"):
        resolve()


def test_a_config_file_that_is_a_folder_is_named(home: Path) -> None:
    (home / "work/dfq.toml").mkdir()
    with pytest.raises(dfq.ConfigError, match=r"dfq\.toml cannot be read"):
        resolve()


# -- which provider --------------------------------------------------------------------------------


def test_cocli_names_the_provider_before_dfq_does(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "work/dfq.toml", 'queue_type = "redis"')
    assert resolve()[0].queue_type == "redis"
    monkeypatch.setenv("DFQ_QUEUE_TYPE", "storage")
    assert resolve()[0].queue_type == "storage"
    monkeypatch.setenv("COCLI_QUEUE_TYPE", "memory")
    settings, sources = resolve()
    assert (settings.queue_type, sources["queue_type"]) == ("memory", "environment variable COCLI_QUEUE_TYPE")
    assert resolve(queue_type="filesystem")[0].queue_type == "filesystem"


def test_an_sqs_queue_that_is_configured_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFQ_SQS_QUEUE_URL", "https://sqs.eu-central-1.amazonaws.com/1/q")
    settings, sources = resolve()
    assert settings.queue_type == "sqs"
    assert "DFQ_SQS_QUEUE_URL" in sources["queue_type"]
    assert resolve(queue_type="memory")[0].queue_type == "memory"


@pytest.mark.parametrize("variable", ["COCLI_QUEUE_TYPE", "DFQ_QUEUE_TYPE"])
def test_an_unknown_provider_lists_the_known(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "kafka")
    with pytest.raises(dfq.ConfigError, match=rf"{variable}\): expected one of filesystem, sqs, redis, memory"):
        open_queue("q")


@pytest.mark.parametrize(
    "settings",
    [
        *({"queue_type": kind} for kind in ("sqs", "redis", "mailbox", "inbox", "storage")),
        {"frontier_mode": "index", "queue_type": "memory"},
        {"bucket": "s3://b/p"},
        {"sqs_queue_url": "https://sqs/q"},
    ],
    ids=str,
)
def test_what_is_not_built_is_unsupported(settings: dict[str, Any]) -> None:
    with pytest.raises(dfq.Unsupported, match=r"is not available in this version: (use|leave)"):
        open_queue("q", **settings)


def test_open_queue_opens_what_is_asked_for(home: Path) -> None:
    with open_queue("q", home / "root", queue_type="memory") as q:
        assert (q.queue_type, q.name) == ("memory", "q")
        q.push({})
        with open_queue("q", home / "root", queue_type="memory") as same:
            assert same.counts().pending == 1
        with open_queue("q", home / "other", queue_type="memory") as other:
            assert other.counts().pending == 0
    with open_queue("q", root=home / "root") as q:
        assert q.queue_type == "filesystem"
    assert (home / "root/q/queue.json").is_file()


def test_the_number_of_shards_is_the_queues_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_queue("q", home / "root", shards=16).close()
    open_queue("q", home / "root", shards=16).close()
    with pytest.raises(dfq.ConfigError, match=r"queue 'q' has 16 shards, not 32: .*/root/q"):
        open_queue("q", home / "root", shards=32)
    monkeypatch.setenv("DFQ_SHARDS", "32")
    open_queue("q", home / "root").close()
    write(home / "root/dfq.toml", "shards = 64")
    open_queue("q", home / "root").close()
    assert json.loads((home / "root/q/queue.json").read_text())["shards"] == 16


@pytest.mark.parametrize("name", ["frontier", "completed"])
def test_paths_of_an_index_queue_are_not_ignored_silently(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(dfq.ConfigError, match=rf"setting {name} \(argument {name}\) is for an index queue"):
        open_queue("q", home / "root", **{name: "tiles"})
    monkeypatch.setenv(f"DFQ_{name.upper()}", "tiles")
    with pytest.raises(dfq.ConfigError, match="set frontier_mode = 'index' as well"):
        open_queue("q", home / "root")
    assert list((home / "root").iterdir()) == []


def test_open_queue_takes_the_queues_own_settings(home: Path) -> None:
    write(home / "work/dfq.toml", '[queues.q]\nqueue_type = "memory"\n')
    with open_queue("q", home / "root") as q:
        assert q.queue_type == "memory"


def test_open_queue_without_create_makes_nothing(home: Path) -> None:
    with pytest.raises(dfq.QueueUnavailable):
        open_queue("absent", home / "nowhere", create=False)
    assert not (home / "nowhere").exists()


def test_reading_the_config_imports_nothing_heavy() -> None:
    code = "import sys, dfq.config; dfq.config.resolve(); print([m for m in sys.modules if m.startswith('dfq.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "providers" not in out
    assert "slotlog" not in out


# -- backoff ---------------------------------------------------------------------------------------


def test_a_backoff_grows_up_to_its_cap() -> None:
    backoff = Backoff(first=1, factor=2, cap=300, jitter=0)
    assert [backoff.delay(n) for n in (0, 1, 2, 3, 9, 10, 1000, 10**6)] == [0, 1, 2, 4, 256, 300, 300, 300]


def test_jitter_takes_away_at_most_its_share() -> None:
    delays = [Backoff(jitter=0.5).delay(3) for _ in range(200)]
    assert all(2 <= delay <= 4 for delay in delays)
    assert len(set(delays)) > 100
