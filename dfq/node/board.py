"""Findings about the board: is it too hot, does it get enough power."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dfq.node.finding import Finding, fail, ok, unknown, warn
from dfq.node.probe import Probe

HOT, TOO_HOT = 75.0, 84.0  # a Pi slows down from 80 °C on, and at 85 °C it must
THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"
THERMAL = "/sys/class/thermal"
HWMON = "/sys/class/hwmon"

#: The bits of get_throttled; 16 further up, the same since the start.
_NOW = {0: "undervoltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
_UNDERVOLTAGE = 1
_POWER = "use the official power supply and a short cable, take USB devices off; a weak supply ruins SD cards"
_COOL = "cool it: a heat sink, a fan, fewer workers"


def board(probe: Probe) -> Iterator[Finding]:
    yield _temperature(probe)
    yield _power(probe)


def _temperature(probe: Probe) -> Finding:
    found = _thermal_zones(probe) or probe.sensors() or _vcgencmd_temperature(probe)
    if not found:
        return unknown("temperature", "there is no sensor, or not for us")
    hottest = max(found, key=lambda sensor: found[sensor])
    shown = f"{found[hottest]:.1f} °C ({hottest})"
    if found[hottest] >= TOO_HOT:
        return fail("temperature", shown, _COOL)
    return warn("temperature", shown, _COOL) if found[hottest] >= HOT else ok("temperature", shown)


def _thermal_zones(probe: Probe) -> dict[str, float]:
    found = {}
    for zone in probe.names(THERMAL):
        text = (probe.read(f"{THERMAL}/{zone}/temp") or "").strip()
        if zone.startswith("thermal_zone") and re.fullmatch(r"-?[0-9]{1,7}", text):
            found[(probe.read(f"{THERMAL}/{zone}/type") or zone).strip()] = int(text) / 1000
    return found


def _vcgencmd_temperature(probe: Probe) -> dict[str, float]:
    match = re.fullmatch(r"temp=([0-9]{1,3}(?:\.[0-9]+)?)'C\s*", probe.run("vcgencmd", "measure_temp") or "")
    return {"vcgencmd": float(match[1])} if match else {}


def _power(probe: Probe) -> Finding:
    name = "power"
    bits = _throttled(probe)
    if bits is None:
        alarm = _undervoltage_alarm(probe)
        if alarm is None:
            return unknown(name, "this machine does not tell")
        bits = _UNDERVOLTAGE if alarm else 0
    now = [text for bit, text in _NOW.items() if bits >> bit & 1]
    before = [text for bit, text in _NOW.items() if bits >> (bit + 16) & 1 and text not in now]
    shown = "; ".join([f"now: {', '.join(now)}"] * bool(now) + [f"since the start: {', '.join(before)}"] * bool(before))
    if not shown:
        return ok(name, "no undervoltage, no throttling since the start")
    if bits & _UNDERVOLTAGE:
        return fail(name, shown, _POWER)
    return warn(name, shown, _POWER if "undervoltage" in before else _COOL)


def _throttled(probe: Probe) -> int | None:
    text = probe.read(THROTTLED)
    if text is None:
        text = (probe.run("vcgencmd", "get_throttled") or "").removeprefix("throttled=")
    match = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{1,8})\s*", text)
    return int(match[1], 16) if match else None


def _undervoltage_alarm(probe: Probe) -> bool | None:
    """Return what the kernel's own watch over a Pi's voltage says; None if there is none."""
    for sensor in probe.names(HWMON):
        if (probe.read(f"{HWMON}/{sensor}/name") or "").strip() == "rpi_volt":
            alarm = (probe.read(f"{HWMON}/{sensor}/in0_lcrit_alarm") or "").strip()
            return {"0": False, "1": True}.get(alarm)
    return None
