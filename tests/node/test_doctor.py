"""What the doctor says of nodes that are well, and of those that are not."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dfq.node import Finding, Probe, examine
from dfq.node.board import THROTTLED
from dfq.node.probe import MAX_OUTPUT, Memory, Space
from dfq.node.settings import masked
from dfq.providers.filesystem.wake import MAX_WATCHES

GIB = 1024**3
MIB = 1024**2

CARD = "/dev/mmcblk0p2 / ext4 rw,noatime 0 0\n"
FILES = {
    "/proc/sys/kernel/random/boot_id": "54773b67-df83-4578-8f5a-c7387abe7b1e\n",
    "/proc/self/mounts": CARD,
    "/proc/sys/kernel/threads-max": "28000\n",
    "/proc/sys/fs/inotify/max_user_watches": "8192\n",
    "/proc/sys/fs/inotify/max_user_instances": "128\n",
    "/sys/class/thermal/thermal_zone0/temp": "48312\n",
    "/sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    THROTTLED: "0\n",
}
TRACKING = "Reference ID    : A9FEA97B (169.254.169.123)\nStratum         : 4\nLeap status     : Normal\n"


class Pi(Probe):
    """A Raspberry Pi that is well, but for what a test says."""

    def __init__(
        self, files: Mapping[str, str | None] | None = None, commands: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        self.files = {**FILES, **(files or {})}
        self.commands = commands or {}
        self.facts = facts

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, folder: str) -> list[str]:
        there = (p.removeprefix(folder + "/") for p, text in self.files.items() if text and p.startswith(folder + "/"))
        return sorted({name.partition("/")[0] for name in there})

    def run(self, *argv: str) -> str | None:
        return self.commands.get(" ".join(argv))

    def kernel_clock(self) -> tuple[bool, float] | None:
        return self.facts.get("kernel_clock", (True, 0.016))

    def wall(self) -> float:
        return self.facts.get("wall", 1_795_000_000.0)

    def boottime(self) -> float | None:
        return self.facts.get("boottime", 3600.0)

    def programs(self) -> set[str]:
        return self.facts.get("programs", {"systemd", "bash"})

    def space(self, path: str) -> Space:
        return self.facts.get("space", Space(30 * GIB, 20 * GIB, 2_000_000, 1_900_000))

    def memory(self) -> Memory:
        return self.facts.get("memory", Memory(GIB, 600 * MIB, 100 * MIB, 0))

    def sensors(self) -> dict[str, float]:
        return self.facts.get("sensors", {})

    def limit(self, kind: int) -> tuple[int | None, int | None]:
        return self.facts.get("limits", {}).get(kind, (None, None))

    def host(self) -> str:
        return self.facts.get("host", "pi-kitchen")


@pytest.fixture(autouse=True)
def nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("DFQ_", "COCLI_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def found(probe: Probe, root: str | None = None) -> dict[str, Finding]:
    findings = examine(root=root, probe=probe)
    assert len({f.name for f in findings}) == len(findings)
    assert all(f.fix for f in findings if f.level in ("warn", "fail")), "bad news without a way out"
    return {f.name: f for f in findings}


def test_a_pi_that_is_well() -> None:
    findings = found(Pi())
    assert {name: f for name, f in findings.items() if f.level != "ok"} == {}
    assert findings["temperature"].found == "48.3 °C (cpu-thermal)"
    assert findings["mount options"].found.startswith("on an SD card")
    assert {"dfq", "python", "kernel", "click", "psutil", "rich", "boot id", "config lease"} <= set(findings)


def test_a_hot_undervolted_pi_with_an_unsynced_clock() -> None:
    findings = found(
        Pi(
            {"/sys/class/thermal/thermal_zone0/temp": "85241", THROTTLED: "50005"},
            kernel_clock=(False, 16.0),
            host="raspberrypi",
        )
    )
    bad = {name: (f.level, f.found) for name, f in findings.items() if f.level != "ok"}
    assert bad == {
        "host name": ("warn", "raspberrypi: others may have it as well"),
        "clock synced": ("warn", "no, and nothing is running that would do it"),
        "temperature": ("fail", "85.2 °C (cpu-thermal)"),
        "power": ("fail", "now: undervoltage, throttled"),
    }


def test_the_same_pi_asked_with_vcgencmd() -> None:
    findings = found(
        Pi(
            {"/sys/class/thermal/thermal_zone0/temp": None, THROTTLED: None},
            {"vcgencmd get_throttled": "throttled=0x50005\n", "vcgencmd measure_temp": "temp=85.2'C\n"},
        )
    )
    assert (findings["temperature"].level, findings["temperature"].found) == ("fail", "85.2 °C (vcgencmd)")
    assert (findings["power"].level, findings["power"].found) == ("fail", "now: undervoltage, throttled")


@pytest.mark.parametrize(
    ("bits", "level", "said"),
    [
        ("0", "ok", "no undervoltage, no throttling since the start"),
        ("1", "fail", "now: undervoltage"),
        ("10000", "warn", "since the start: undervoltage"),
        ("80008", "warn", "now: soft temperature limit"),
        ("e0002", "warn", "now: frequency capped; since the start: throttled, soft temperature limit"),
        ("nonsense", "unknown", "not known: this machine does not tell"),
    ],
)
def test_what_the_firmware_says_of_power(bits: str, level: str, said: str) -> None:
    finding = found(Pi({THROTTLED: bits}))["power"]
    assert (finding.level, finding.found) == (level, said)


@pytest.mark.parametrize(("alarm", "level"), [("0", "ok"), ("1", "fail"), ("?", "unknown")])
def test_the_kernels_own_watch_over_the_voltage(alarm: str, level: str) -> None:
    files = {
        THROTTLED: None,
        "/sys/class/hwmon/hwmon0/name": "cpu_thermal\n",
        "/sys/class/hwmon/hwmon1/name": "rpi_volt\n",
        "/sys/class/hwmon/hwmon1/in0_lcrit_alarm": alarm,
    }
    assert found(Pi(files))["power"].level == level


@pytest.mark.parametrize(
    ("facts", "commands", "level", "said"),
    [
        ({}, {}, "ok", "yes, to 16 ms at the worst, says the kernel"),
        ({"kernel_clock": (False, 16.0)}, {"chronyc -n tracking": TRACKING}, "ok", "yes, says chrony"),
        (
            {"kernel_clock": (False, 16.0), "programs": {"chronyd"}},
            {"chronyc -n tracking": TRACKING.replace("Normal", "Not synchronised")},
            "warn",
            "no, although chronyd is running",
        ),
        ({"kernel_clock": None}, {}, "unknown", "not known: neither the kernel nor chrony nor timedatectl says"),
        (
            {"kernel_clock": None},
            {"timedatectl show --property=NTPSynchronized --value": "yes\n"},
            "ok",
            "yes, says timedatectl",
        ),
        (
            {"kernel_clock": None},
            {"timedatectl show --property=NTPSynchronized --value": "no\n"},
            "warn",
            "no, and nothing is running that would do it",
        ),
    ],
)
def test_whether_the_clock_is_synced(facts: dict[str, Any], commands: dict[str, str], level: str, said: str) -> None:
    finding = found(Pi(None, commands, **facts))["clock synced"]
    assert (finding.level, finding.found) == (level, said)


@pytest.mark.parametrize(
    ("mounts", "name", "level", "said"),
    [
        (CARD, "filesystem", "ok", "ext4, /dev/mmcblk0p2 on /: local"),
        ("/dev/sda1 / vfat rw 0 0\n", "filesystem", "fail", "no hard links"),
        ("srv:/q / nfs4 rw 0 0\n", "filesystem", "warn", "leases go by time"),
        ("tmpfs / tmpfs rw 0 0\n", "filesystem", "warn", "in memory"),
        ("overlay / overlay rw 0 0\n", "filesystem", "warn", "may be gone"),
        (None, "filesystem", "unknown", "not known"),
        ("garbage\n", "filesystem", "unknown", "not known"),
        ("/dev/mmcblk0p2 / ext4 ro,noatime 0 0\n", "mount options", "fail", "read-only"),
        ("/dev/mmcblk0p2 / ext4 rw,strictatime 0 0\n", "mount options", "warn", "no noatime, on an SD card"),
        ("/dev/mmcblk0p2 / ext4 rw,relatime,sync 0 0\n", "mount options", "warn", "sync, on an SD card"),
        ("/dev/sda2 / ext4 rw,nobarrier 0 0\n", "mount options", "warn", "nobarrier"),
        ("/dev/sda2 / ext4 rw 0 0\n", "mount options", "ok", "rw"),
    ],
)
def test_what_the_root_is_on(mounts: str | None, name: str, level: str, said: str) -> None:
    finding = found(Pi({"/proc/self/mounts": mounts}))[name]
    assert finding.level == level
    assert said in finding.found


@pytest.mark.parametrize(
    ("facts", "name", "level"),
    [
        ({"space": Space(30 * GIB, 2 * MIB, 2_000_000, 9)}, "free space", "fail"),
        ({"space": Space(30 * GIB, 200 * MIB, 2_000_000, 9)}, "free space", "warn"),
        ({"space": Space(30 * GIB, 20 * GIB, 2_000_000, 9)}, "free inodes", "fail"),
        ({"space": Space(30 * GIB, 20 * GIB, 2_000_000, 900)}, "free inodes", "warn"),
        ({"space": Space(30 * GIB, 20 * GIB, 0, 0)}, "free inodes", "ok"),
        ({"memory": Memory(GIB, 100 * MIB, 0, 0)}, "memory", "warn"),
        ({"memory": Memory(GIB, 10 * MIB, 0, 0)}, "memory", "fail"),
        ({"memory": Memory(GIB, GIB, 100 * MIB, 90 * MIB)}, "swap", "warn"),
        ({"limits": {resource.RLIMIT_NOFILE: (256, 4096)}}, "open files", "warn"),
        ({"limits": {resource.RLIMIT_NPROC: (50, 50)}}, "processes", "warn"),
        ({"boottime": None}, "clock since boot", "fail"),
        ({"wall": 86_400.0}, "time of day", "fail"),
        ({"host": "localhost"}, "host name", "warn"),
        ({"host": "RaspberryPi.local"}, "host name", "warn"),
        ({"host": ""}, "host name", "warn"),
        ({"sensors": {"soc": 80.0}}, "temperature", "ok"),  # the zones of sysfs go first
    ],
)
def test_too_little_of_something(facts: dict[str, Any], name: str, level: str) -> None:
    assert found(Pi(**facts))[name].level == level


@pytest.mark.parametrize(
    ("path", "text", "name", "level"),
    [
        ("/proc/sys/fs/inotify/max_user_watches", "100", "inotify watches", "warn"),
        ("/proc/sys/fs/inotify/max_user_watches", None, "inotify watches", "unknown"),
        ("/proc/sys/fs/inotify/max_user_instances", "2", "inotify instances", "warn"),
        ("/proc/sys/kernel/threads-max", "99", "threads", "warn"),
        ("/proc/sys/kernel/random/boot_id", None, "boot id", "warn"),
        ("/sys/class/thermal/thermal_zone0/temp", None, "temperature", "unknown"),
        ("/sys/class/thermal/thermal_zone0/temp", "76000", "temperature", "warn"),
        ("/sys/class/thermal/thermal_zone0/temp", "x\n" * 9, "temperature", "unknown"),
    ],
)
def test_what_the_kernel_grants(path: str, text: str | None, name: str, level: str) -> None:
    assert found(Pi({path: text}))[name].level == level


def test_the_watches_that_are_wanted_follow_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Pi({"/proc/sys/fs/inotify/max_user_watches": str(MAX_WATCHES - 1)})
    assert found(probe)["inotify watches"].level == "ok"
    monkeypatch.setenv("DFQ_SHARDS", "4096")
    assert found(probe)["inotify watches"].level == "warn"


def test_a_machine_that_refuses_an_answer_is_heard_on_the_rest() -> None:
    class Sandbox(Pi):
        def memory(self) -> Memory:
            raise PermissionError(13, "Permission denied", "/proc/meminfo")

    findings = found(Sandbox())
    assert findings["limits"].level == "unknown"
    assert "/proc/meminfo" in findings["limits"].found
    assert findings["temperature"].level == "ok"


def test_settings_are_told_with_where_they_came_from_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DFQ_REDIS_URL", "redis://user:hunter2@pi.local:6379/0?password=hunter2")
    root = tmp_path / "root"
    root.mkdir()
    (root / "dfq.toml").write_text('lease = "5 m"\n')
    findings = found(Pi(), str(root))
    assert findings["config lease"].found == f"300 ({root}/dfq.toml)"
    assert findings["config max_attempts"].found == "5 (default)"
    assert findings["config root"].found == f"{root} (argument root)"
    shown = findings["config redis_url"].found
    assert shown == "redis://***@pi.local:6379/0?*** (environment variable DFQ_REDIS_URL)"
    assert "hunter2" not in str(findings)


@pytest.mark.parametrize(
    "text",
    [
        "redis://user:hunter2@host/0",
        "redis://:hunter2@host",
        "redis://user:hun/hunter2@host",
        "unix:///run/redis?password=hunter2",
        "setting redis_url = 'user:hunter2@host' (dfq.toml)",
        "setting redis_url = 'htp://user:hunter2@host/?a=hunter2'",
        'https://a:"hunter2@host and redis://b:hunter2@host',
    ],
)
def test_secrets_in_addresses_are_masked(text: str) -> None:
    assert "hunter2" not in masked(text)
    assert masked("file:///mnt/queue and s3://bucket/prefix") == "file:///mnt/queue and s3://bucket/prefix"


# -- the probe itself ------------------------------------------------------------------------------


def command(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "vcgencmd"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert shutil.which("vcgencmd") == str(path)


def test_a_command_is_run_with_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path, 'echo "<$1> <$2>"', monkeypatch)
    assert Probe().run("vcgencmd", "a b", "$(id)") == "<a b> <$(id)>\n"


@pytest.mark.parametrize("body", ["exit 1", "yes", f"head -c {MAX_OUTPUT + 1} /dev/zero", "sleep 30", "exec sleep 30"])
def test_a_command_that_fails_hangs_or_floods_says_nothing(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path, body, monkeypatch)
    monkeypatch.setattr("dfq.node.probe.TIME_OUT", 0.5)
    started = time.monotonic()
    assert Probe().run("vcgencmd") is None
    assert time.monotonic() - started < 20


def test_a_command_or_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert Probe().run("no-such-command-at-all") is None
    assert Probe().read(str(tmp_path / "missing")) is None
    assert Probe().read(str(tmp_path)) is None
    assert Probe().names(str(tmp_path / "missing")) == []


def test_this_machine_answers() -> None:
    probe = Probe()
    clock = probe.kernel_clock()
    assert clock is None or (isinstance(clock[0], bool) and clock[1] >= 0)
    assert (probe.boottime() or 0) > 0
    assert probe.space("/").total > 0
    assert 0 < probe.memory().available <= probe.memory().total
    assert any("python" in name or "pytest" in name for name in probe.programs())
    soft, _ = probe.limit(resource.RLIMIT_NOFILE)
    assert soft is None or soft > 0
