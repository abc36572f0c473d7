"""Makes tests/fuzz/corpus anew, with the writers of dfq itself: python tests/fuzz/make_corpus.py"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from fuzz_targets import TARGETS, folder_of  # noqa: E402

import dfq  # noqa: E402
from dfq.work.link import HEADER, pack  # noqa: E402

CORPUS = HERE / "corpus"
BAD = "bad"
SEEDS = 10  # of a target, at most


def main() -> None:
    shutil.rmtree(CORPUS, ignore_errors=True)
    seeds = collected()
    assert set(seeds) == set(TARGETS), set(seeds) ^ set(TARGETS)
    for name, contents in seeds.items():
        folder = CORPUS / folder_of(name)
        folder.mkdir(parents=True)
        for n, data in enumerate(few(list(dict.fromkeys(contents)))):
            (folder / f"{n:02}").write_bytes(data)
    print(f"{sum(1 for f in CORPUS.rglob('*') if f.is_file())} seeds for {len(seeds)} targets in {CORPUS}")


def few(contents: list[bytes]) -> list[bytes]:
    """Return up to SEEDS of them, evenly spread: neighbours are alike."""
    step = max(1.0, len(contents) / SEEDS)
    return [contents[int(n * step)] for n in range(min(SEEDS, len(contents)))]


def collected() -> dict[str, list[bytes]]:
    """Return the seeds of each target: files that a real queue wrote, and lines as the documents show them."""
    with tempfile.TemporaryDirectory() as root:
        queues = lived(Path(root))
    leases, tasks, witnesses, letters = (
        queues["active-leases"],
        queues["frontier"],
        queues["completed"],
        queues["failed"],
    )
    return {
        "lease": leases + letters,
        "lease on disk": leases + letters,
        "lease and receipt": leases,
        "task": tasks,
        "task on disk": tasks + queues["scheduled"],
        "witness": witnesses,
        "dead letter": letters + leases,
        "queue.json": queues["queue.json"],
        "clock.json": [
            b'{"boot_id": "%s", "since_boottime": 21.5, "offset": 1799950000.0, "written_at": "x"}' % (b"b" * 36),
            b'{"boot_id": "%s", "since_boottime": 50000, "offset": 1799950000.1}\n' % (b"b" * 36),
        ],
        "witness of a tile": [*witnesses, b"id,name\n1,two\n"],
        "payload": [b'{"a": [1, 2.5, null, "x"]}\njson', b'"text"\ntext', b'"AAEC"\nbase64', bytes(range(256))],
        **words(),
    }


def lived(root: Path) -> dict[str, list[bytes]]:
    """Return the files of queues in which much has happened, by their folders."""
    found: dict[str, list[bytes]] = {}
    for n, payload in enumerate(({"url": "https://example.com"}, "some text ä €", b"\x00\xff")):
        folder = root / f"q{n}"

        def look(folder: Path = folder) -> None:
            for file in sorted(f for f in folder.rglob("*") if f.is_file()):
                found.setdefault(file.relative_to(folder).parts[0], []).append(file.read_bytes())

        with dfq.open_queue(folder.name, root, shards=1, durability="fast", max_attempts=2, lease=60) as queue:
            live(queue, payload, look)
    return found


def live(queue: dfq.QueueManager, payload: Any, look: Callable[[], None]) -> None:
    """Let a task go through all its states."""
    queue.push(payload, id=BAD)
    queue.push(payload, id=f"{BAD}-later", delay=3600)
    for how in ("given back", "failed", "failed for good"):
        (task,) = queue.poll(lease=60)
        look()
        queue.nack(task, error=how, count=how != "given back")
        look()
    queue.retry(BAD)
    (task,) = queue.poll(lease=60)
    queue.ack(task, result={"items": [1, 2]} if isinstance(payload, dict) else payload)
    queue.push(payload, id=BAD, if_exists="rerun")
    look()
    queue.cancel(BAD)
    look()


def words() -> dict[str, list[bytes]]:
    """Return seeds for what is no file of a queue."""
    long = ("long/" * 60).encode()
    answers = [
        {"outcome": "done", **pack({"items": 20})},
        {"outcome": "done", **pack(b"\x00\xff")},
        {"outcome": "failed", "error": "no", "brief": "no", "leftovers": True},
        {"outcome": "released", "error": "later", "brief": "later", "delay": 5},
        {"pid": 7},
    ]
    bodies = [json.dumps(answer).encode() for answer in answers]
    sent = [HEADER.pack(len(body)) + body for body in bodies]
    hashed = b"x" * 160 + b"%h" + b"0123456789abcdef" * 2
    return {
        "id to name": [b"29.5/-98.5/dentist", b"24/7 plumber", "ä€\u200b😀".encode(), b".hidden", b"-f",
            b"a%2Fb~c", long],
        "file name": [
            b"bad.json", b"29.5%2F-98.5.json", b"bad~e1.json", b"bad~e1~2.lease", b"bad~10.lease",
            hashed + b".json", b"20261118T094100Z", b"5", b"ab", b".tmp-7-00",
        ],
        "path of a tile": [b"29.5/-98.5/dentist.csv", b"a/.hidden/b", b"a/b~", b"../a", b"a//b", b"x" * 250],
        "receipt": [b"1.5d00.5.bad", b"2.5d00.5.bad~e1", b"1.5d00.5." + hashed, b"3.5d00.5.24%2F7"],
        "line of a claim": [b'{"id": "bad", "payload": {}, "receipt": "1.5d00.5.bad"}', b"1.5d00.5.bad", b" {}"],
        "time on the command line": [b"90", b"1.5h", b"15 m", b".5", b"1_0 ms"],
        "dfq.toml": [
            b'lease = "15 m"\nmax_attempts = 3\nbackoff = [1, 2, 300, 0.5]\n[queues.tiles]\nshards = 16\n',
            b'[queues.tiles]\nfrontier_mode = "index"\nfrontier = "tiles"\ncompleted = "c"\nrefresh_after = "30 d"\n',
            b'backoff = {first = 1, cap = "5 m"}\nauto_heartbeat = false\nmax_payload = "1 MiB"\n',
        ],
        "environment": [b"DFQ_LEASE=15 m\nDFQ_BACKOFF=1,2,300,0.5", b"DFQ_SHARDS=16\nDFQ_QUEUE=x",
            b"COCLI_QUEUE_TYPE=memory"],
        "argument": [b"lease=5", b'backoff={"first": 1}', b"priority=9", b'shards="16"', b"root=[1e400]"],
        "time in a file": [b"2026-11-18T09:41:05.120000Z", b"1795000000.5", b"0001-01-01T00:00:00+23:59",
            b"20261118"],
        "frame of a child": [*sent, b"".join(sent), HEADER.pack(2**63) + b"x", sent[0][:-3]],
        "lines to push": [b'{"id": "a", "n": 1}\n"text"\n\n{"id": 7}\n', b'\xef\xbb\xbf{"id": "a"}', b"[1]\nnull\n{"],
        "table of mounts": [
            b"/dev/root / ext4 rw,relatime 0 0\ntmpfs /tmp tmpfs rw,size=1g 0 0\n",
            b"/dev/sda1 /mnt\\040disk vfat rw 0 0\nnas:/x /mnt nfs4 rw,vers=4.2 0 0\n",
        ],
        "what the node says": [
            b"48312\n", b"temp=48.3'C\n", b"throttled=0x50005\n", b"yes\n", b"rpi_volt\n", b"65536\n",
            b"Leap status     : Normal\n", b"/dev/root / ext4 rw 0 0\n", b"7e2c1d3a-0000-4000-8000-0123456789ab\n",
        ],
    }  # fmt: skip


if __name__ == "__main__":
    main()
