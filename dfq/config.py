"""Settings, where they come from, and open_queue."""

from __future__ import annotations

import os
import random
import re
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfq import values
from dfq.checks import MAX_LEASE, MIN_LEASE
from dfq.errors import ConfigError, Unsupported
from dfq.names import check_queue_name
from dfq.values import DAY, KIB, MIB

if TYPE_CHECKING:
    from dfq.queue import QueueManager

FOREVER = 100 * 365 * DAY  # what "as long as you like" means in a limit
MAX_CONFIG_BYTES = 64 * KIB
MAX_DOTS = 500  # in a line of a config file
CONFIG_NAME = "dfq.toml"
QUEUE_TYPES = ("filesystem", "sqs", "redis", "memory", "mailbox", "inbox", "storage")
BUILT = ("filesystem", "memory")

#: DFQ_ names that carry something else than a setting: what the command line and an exec worker use.
_NOT_SETTINGS = re.compile(r"DFQ_(QUEUE|TASK_.*|LOG_.*)").fullmatch


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed task waits before its next attempt, when nobody says so: longer each time."""

    first: float = 1.0  # seconds after the first failure
    factor: float = 2.0  # each further wait is this many times as long
    cap: float = 300.0  # and never longer than this
    jitter: float = 0.5  # the share of the wait that is left to chance, so that failures do not return in step

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after the attempt of this number (1 is the first) has failed.

        The full wait is first * factor ** (attempt - 1), at most cap; what comes back lies evenly
        between (1 - jitter) of it and all of it. 0 for an attempt that was never made.
        """
        if attempt < 1:
            return 0.0
        try:
            full = min(self.cap, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            full = self.cap
        return full * (1 - self.jitter * random.random())


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set, with its default. resolve() fills one from all sources."""

    root: Path = field(default_factory=lambda: default_root())
    queue_type: str = "filesystem"
    lease: float = 900.0  # seconds that a claimed task is ours without a renewal
    max_attempts: int = 5  # then it is a dead letter
    durability: str = "full"  # "fast" leaves out the fsyncs: a power cut may then lose pushes and acks
    on_ack: str = "archive"  # "delete" keeps no witness longer than safety wants
    auto_heartbeat: bool = True
    shards: int = 256  # fixed when the queue is created
    heartbeat_timeout: float | None = None  # for leases in the form of ADR 010, which carry no duration
    max_run: float | None = None  # seconds after which a lease is not renewed any more
    backoff: Backoff = field(default_factory=Backoff)
    retain_completed: float = 7 * DAY
    retain_failed: float = 30 * DAY
    max_payload: int = 256 * KIB
    frontier: Path | None = None
    completed: Path | None = None
    frontier_mode: str = "owned"
    refresh_after: float | None = None  # of an index: how old a witness may get before its tile is due again
    bucket: str | None = None
    offline: str = "wait"
    throttle: float | None = None
    sqs_queue_url: str | None = None
    redis_url: str | None = None


def default_root() -> Path:
    """Return where queues lie when nobody says so: $XDG_DATA_HOME/dfq or ~/.local/share/dfq."""
    base = os.environ.get("XDG_DATA_HOME")
    if base:
        return Path(base) / "dfq"
    try:
        return Path.home() / ".local" / "share" / "dfq"
    except RuntimeError:
        raise ConfigError("setting root: there is no home folder to keep queues in; set DFQ_ROOT") from None


def open_queue(
    name: str, root: str | os.PathLike[str] | None = None, *, create: bool = True, **settings: Any
) -> QueueManager:
    """Open a queue, creating it if need be, with the provider that the settings name.

    Any setting may be a keyword. `shards` is for a queue that is new: as a keyword it must be what the queue has,
    from elsewhere it is ignored for one that is there. Raises ConfigError, Unsupported, QueueUnavailable.
    """
    check_queue_name(name)
    if root is not None:
        settings["root"] = root
    resolved, sources = resolve(queue=name, **settings)
    _refuse_what_is_not_built(resolved, sources)
    _refuse_what_has_no_effect(resolved, sources)
    if resolved.queue_type == "memory":
        from dfq.providers.memory import MemoryQueue

        return MemoryQueue.open(name, resolved)
    from dfq.providers.filesystem import FilesystemQueue

    queue = FilesystemQueue.open(name, resolved, create=create)
    if queue.shards != resolved.shards and sources["shards"] == _argument("shards"):
        queue.close()
        raise ConfigError(
            f"queue {name!r} has {queue.shards} shards, not {resolved.shards}: that was fixed when it was made in "
            f"{queue.where}; leave shards out"
        )
    return queue


def resolve(*, queue: str | None = None, **kwargs: Any) -> tuple[Settings, dict[str, str]]:
    """Return the settings for a queue, and for each of them where it came from.

    An argument wins over the environment, that over the config files (the queue root's, the working
    folder's, the user's), those over the default. A keyword that is None counts as not given. What an argument
    settles is not even looked at elsewhere: a wrong value there is no reason to refuse it.
    """
    arguments = _arguments(kwargs)
    layers = [arguments, _environment(arguments)]
    root = next((layer["root"] for layer in layers if "root" in layer), None)
    # The file in the root cannot say where the root is, so the root is known before that file is read.
    layers += _files(root.value if root else None, queue, arguments)

    found: dict[str, _Given] = {}
    for layer in layers:
        for name, given in layer.items():
            found.setdefault(name, given)
    if "queue_type" not in found and "sqs_queue_url" in found:
        found["queue_type"] = _Given("sqs", f"sqs_queue_url ({found['sqs_queue_url'].source})")
    settings = Settings(**{name: given.value for name, given in found.items()})
    return settings, {name: found[name].source if name in found else "default" for name in _PARSERS}


@dataclass(frozen=True, slots=True)
class _Given:
    value: Any
    source: str


def _arguments(kwargs: Mapping[str, Any]) -> dict[str, _Given]:
    given = {name: _parse(name, value, _argument(name)) for name, value in kwargs.items() if value is not None}
    return _anchored(given, Path())


def _argument(name: str) -> str:
    return f"argument {name}"


def _environment(settled: Container[str]) -> dict[str, _Given]:
    layer: dict[str, _Given] = {}
    # COCLI_QUEUE_TYPE is older than DFQ_QUEUE_TYPE and goes first: cocli's own scripts set it.
    # An empty variable is one that is not set: `DFQ_X= command` is how a shell takes one away.
    if (cocli := os.environ.get("COCLI_QUEUE_TYPE")) and "queue_type" not in settled:
        layer["queue_type"] = _parse("queue_type", cocli, "environment variable COCLI_QUEUE_TYPE")
    for variable, text in sorted(os.environ.items()):
        if not variable.startswith("DFQ_") or _NOT_SETTINGS(variable) or not text:
            continue
        name = variable.removeprefix("DFQ_").lower()
        if name not in _PARSERS or variable != variable.upper():
            similar = _similar(name, [*_PARSERS, "queue"])
            raise ConfigError(_unknown(f"environment variable {variable}", name, similar and f"DFQ_{similar.upper()}"))
        if name not in settled:
            layer.setdefault(name, _parse(name, text, f"environment variable {variable}"))
    return _anchored(layer, Path())


def _anchored(layer: dict[str, _Given], folder: Path) -> dict[str, _Given]:
    """Make the paths in a layer absolute now: the program may change its folder later."""
    return {
        name: _Given((folder / given.value).absolute(), given.source) if isinstance(given.value, Path) else given
        for name, given in layer.items()
    }


def _files(root: Path | None, queue: str | None, settled: Container[str]) -> Iterator[dict[str, _Given]]:
    """Yield a layer for each config file, and before it one for its table of this queue."""
    elsewhere = {path: _read_file(path, settled) for path in (_in_working_folder(), _of_user()) if path}
    if root is None:
        named = (layer["root"] for t in elsewhere.values() for layer in _layers(t, queue) if "root" in layer)
        root = next((given.value for given in named), None) or default_root()
    in_root = root / CONFIG_NAME
    if in_root not in elsewhere:
        for layer in _layers(_read_file(in_root, settled), queue):
            layer.pop("root", None)  # a queue root that says it is somewhere else was moved or copied
            yield layer
    # The root's own file goes first, also when it is the working folder's or the user's as well.
    for path in sorted(elsewhere, key=lambda path: path != in_root):
        yield from _layers(elsewhere[path], queue)


def _in_working_folder() -> Path | None:
    try:
        return Path.cwd() / CONFIG_NAME
    except OSError:
        return None  # the folder was removed under us


def _of_user() -> Path | None:
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base else Path.home() / ".config") / "dfq" / CONFIG_NAME
    except RuntimeError:
        return None  # nobody's home: a bare container


@dataclass(frozen=True, slots=True)
class _Tables:
    """A config file: its own settings, and those of each queue."""

    settings: dict[str, _Given]
    queues: dict[str, dict[str, _Given]]


def _layers(tables: _Tables, queue: str | None) -> list[dict[str, _Given]]:
    return [dict(tables.queues.get(queue or "", {})), dict(tables.settings)]


def _read_file(path: Path, settled: Container[str]) -> _Tables:
    try:
        # Opening a pipe would wait for somebody to write to it.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as f:
            if stat.S_ISFIFO(os.fstat(f.fileno()).st_mode):
                raise ConfigError(f"config file {path} is a pipe: put a file there, or remove it")
            raw = f.read(MAX_CONFIG_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return _Tables({}, {})
    except OSError as e:
        raise ConfigError(f"config file {path} cannot be read: {e.strerror}") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError(f"config file {path} has over {MAX_CONFIG_BYTES // KIB} KiB: that is no config file")
    if any(line.count(b".") > MAX_DOTS for line in raw.splitlines()):
        # The time that tomllib takes for a name grows with the square of its dots: to minutes, within our limit.
        raise ConfigError(f"config file {path} has a line with over {MAX_DOTS} dots: that is no setting")
    import tomllib

    try:
        table = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as e:  # also of a number that is too long, which tomllib lets through
        raise ConfigError(f"config file {path} is not TOML: {e}") from None
    queues = table.pop("queues", {})
    if not isinstance(queues, dict) or not all(isinstance(t, dict) for t in queues.values()):
        raise ConfigError(f"config file {path}: 'queues' holds one table for each queue, as in [queues.tiles]")
    return _Tables(
        _table(table, str(path), path.parent, settled),
        {name: _table(t, f"{path} [queues.{name}]", path.parent, settled) for name, t in queues.items()},
    )


def _table(table: Mapping[str, Any], where: str, folder: Path, settled: Container[str]) -> dict[str, _Given]:
    # A relative path in a file is relative to that file, wherever the program is started.
    return _anchored({name: _parse(name, value, where) for name, value in table.items() if name not in settled}, folder)


def _refuse_what_is_not_built(settings: Settings, sources: Mapping[str, str]) -> None:
    def refuse(name: str, instead: str) -> None:
        value = str(getattr(settings, name))
        raise Unsupported(f"{name} = {value!r} ({sources[name]}) is not available in this version: {instead}")

    if settings.queue_type not in BUILT:
        refuse("queue_type", f"use {' or '.join(BUILT)}")
    if settings.frontier_mode != "owned" and settings.queue_type != "filesystem":
        refuse("frontier_mode", "use queue_type = 'filesystem'")
    if settings.bucket is not None:
        refuse("bucket", "leave it out")


def _refuse_what_has_no_effect(settings: Settings, sources: Mapping[str, str]) -> None:
    if settings.frontier_mode == "index" and settings.on_ack == "delete":
        raise ConfigError(f"setting on_ack = 'delete' ({sources['on_ack']}): the witnesses of an index are kept")
    for name in ("frontier", "completed", "refresh_after"):
        if getattr(settings, name) is not None and settings.frontier_mode != "index":
            raise ConfigError(
                f"setting {name} ({sources[name]}) is for an index queue: set frontier_mode = 'index' as well, or "
                "leave it out"
            )


def _parse(name: str, value: Any, source: str) -> _Given:
    parser = _PARSERS.get(name)
    if parser is None:
        raise ConfigError(_unknown(source, name, _similar(name, _PARSERS)))
    try:
        return _Given(parser(value), source)
    except (ValueError, TypeError, OverflowError, RuntimeError) as e:
        raise ConfigError(f"setting {name} = {values.shown(value)} ({source}): {e}") from None


def _unknown(source: str, name: str, similar: str | None) -> str:
    hint = f"did you mean {similar}? " if similar else ""
    return f"unknown setting {name!r} ({source}): {hint}Known: {', '.join(_PARSERS)}"


def _similar(name: str, known: Iterable[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)), None)


def _backoff(value: Any) -> Backoff:
    expected = (
        "expected first, factor, cap, jitter as in '1,2,300,0.5': first and cap are times from 0 to 30 d, "
        "factor is 1 to 100, jitter is 0 to 1"
    )
    names = [f.name for f in fields(Backoff)]
    if isinstance(value, Backoff):
        parts: dict[str, Any] = {name: getattr(value, name) for name in names}
    elif isinstance(value, Mapping):
        parts = dict(value)
    elif isinstance(value, str):
        parts = dict(zip(names, value.split(","), strict=False))
        if len(value.split(",")) > len(names):
            raise ValueError(expected)
    elif isinstance(value, list | tuple) and len(value) <= len(names):
        parts = dict(zip(names, value, strict=False))
    else:
        raise ValueError(expected)
    if not parts or not set(parts) <= set(names):
        raise ValueError(expected)
    try:
        spans = {name: values.seconds(0, MAX_LEASE)(parts[name]) for name in ("first", "cap") if name in parts}
        plain = {name: values.amount(parts[name], {"": 1}, expected) for name in ("factor", "jitter") if name in parts}
    except ValueError:
        raise ValueError(expected) from None
    backoff = Backoff(**spans, **plain)
    if not (1 <= backoff.factor <= 100 and 0 <= backoff.jitter <= 1):
        raise ValueError(expected)
    return backoff


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "root": values.path,
    "queue_type": values.choice(*QUEUE_TYPES),
    "lease": values.seconds(MIN_LEASE, MAX_LEASE),
    "max_attempts": values.whole(1, 1000),
    "durability": values.choice("full", "fast"),
    "on_ack": values.choice("archive", "delete"),
    "auto_heartbeat": values.yes_or_no,
    "shards": values.whole(1, 4096),
    "heartbeat_timeout": values.seconds(MIN_LEASE, MAX_LEASE),
    "max_run": values.seconds(MIN_LEASE, FOREVER),
    "backoff": _backoff,
    "retain_completed": values.seconds(0, FOREVER),
    "retain_failed": values.seconds(0, FOREVER),
    "max_payload": values.size(1, 64 * MIB),
    "frontier": values.path,
    "completed": values.path,
    "frontier_mode": values.choice("owned", "index"),
    "refresh_after": values.seconds(1, FOREVER),
    "bucket": values.url("s3", "file"),
    "offline": values.choice("wait", "local"),
    "throttle": values.seconds(0, DAY),
    "sqs_queue_url": values.url("https", "http"),
    "redis_url": values.url("redis", "rediss", "unix"),
}
