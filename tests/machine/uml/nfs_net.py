"""Within the machine: an NFS server and the hosts that mount it, each with a network, a name and a boot of its own."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from uml import load

EXPORT = Path("/run/export")
STATE = Path("/var/lib/nfs")
NFSD = Path("/proc/fs/nfsd")
THREADS = 4
DOWN, GRACE = 0.3, 1.0  # seconds
DELAY = 1.2  # less than clients wait before they ask again
BOOT_ID = "/proc/sys/kernel/random/boot_id"

_CLONE_NEWNS, _CLONE_NEWUTS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000000, 0x1000, 0x4000, 0x40000


def run(*words: str, told: str = "") -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, input=told)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


@dataclass
class Host:
    """A machine as far as NFS and a queue can tell: its own network, name, boot id and time since the boot."""

    number: int
    awake: float  # seconds that it has been running for longer than the others
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def name(self) -> str:
        return f"host{self.number}"

    @property
    def mount(self) -> Path:
        return Path(f"/run/{self.name}")

    @property
    def server_side(self) -> str:
        return f"server{self.number}"

    def connect(self) -> None:
        """Lay a cable to the server."""
        net, address = f"--net=/run/netns/{self.name}", f"10.0.{self.number}"
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self.name, "type", "veth", "peer", "name", self.server_side)
        run("ip", "link", "set", self.name, "netns", self.name)
        run("nsenter", net, "ip", "addr", "add", f"{address}.2/24", "dev", self.name)
        run("nsenter", net, "ip", "link", "set", self.name, "up")
        run("ip", "addr", "add", f"{address}.1/24", "dev", self.server_side)
        run("ip", "link", "set", self.server_side, "up")

    def mount_export(self) -> None:
        """Mount what the server exports, where processes of any host find it; the caches are this host's."""
        self.mount.mkdir()
        mount = f"mount -t nfs4 -o vers=4.2,hard,proto=tcp,timeo=30,retrans=1 10.0.{self.number}.1:/ {self.mount}"
        script = f"hostname {self.name} && {mount}"  # the server knows its clients by their names
        run("nsenter", f"--net=/run/netns/{self.name}", "unshare", "--uts", "sh", "-c", script)

    def become(self) -> None:
        """Make this process one of this host: who asks for the host's name or its boot gets these."""
        libc = ctypes.CDLL(None, use_errno=True)
        boot = f"/run/{self.name}.boot_id"
        Path(boot).write_text(f"{self.boot_id}\n")
        for failed in (
            libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS),
            libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
            libc.mount(boot.encode(), BOOT_ID.encode(), None, _MS_BIND, None),
        ):
            if failed:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        socket.sethostname(self.name)


class Server:
    """The server: the kernel's own, on an ext4 disk."""

    def __init__(self, hosts: list[Host]) -> None:
        self.restarts = 0
        self._slow = False
        self._hosts = hosts
        load("veth", "sch_netem", "nfsd", "nfsv4")
        EXPORT.mkdir()
        run("mount", "-t", "ext4", "/dev/ubda", str(EXPORT))
        run("mount", "-t", "tmpfs", "state", str(STATE))
        for name in ("v4recovery", "nfsdcltrack", "rpc_pipefs"):
            (STATE / name).mkdir()
        for name in ("etab", "rmtab"):
            (STATE / name).touch()
        run("ip", "link", "set", "lo", "up")
        # A reply that was lost stays lost: the kernel does not go on sending it for a server that has stopped.
        Path("/proc/sys/net/ipv4/tcp_max_orphans").write_text("0\n")
        Path("/run/netns").mkdir(exist_ok=True)
        for host in hosts:
            host.connect()
        run("mount", "-t", "nfsd", "nfsd", str(NFSD))
        for name in ("nfsv4leasetime", "nfsv4gracetime"):
            (NFSD / name).write_text("10\n")
        run("exportfs", "-o", "rw,sync,no_root_squash,no_subtree_check,fsid=0", f"*:{EXPORT}")
        run("rpc.mountd", "-N", "3", "-V", "4")
        self._start()
        self._end_grace()
        for host in hosts:
            host.mount_export()

    def _start(self) -> None:
        run("rpc.nfsd", "-N", "3", "-V", "4.2", str(THREADS))

    def _end_grace(self) -> None:
        try:
            (NFSD / "v4_end_grace").write_text("Y\n")
        except OSError as e:
            if e.errno != errno.EBUSY:  # it is over, since all clients have said what they had open
                raise

    def _traffic(self, rule: str) -> None:
        run("tc", "-batch", "-", told="".join(rule.format(host.server_side) + "\n" for host in self._hosts))

    def delay(self) -> None:
        """Let replies take their time from now on, so that they can still get lost."""
        self._traffic(f"qdisc add dev {{}} root netem delay {DELAY * 1000:.0f}ms")
        self._slow = True

    def restart(self) -> None:
        """Lose the replies that are on their way, and stop and start the server.

        It forgets which requests it has answered, so clients whose replies were lost ask again, and are told that what
        they want to make exists already.
        """
        if self._slow:
            self._traffic("qdisc del dev {} root")  # with it goes what was waiting
        self._traffic("qdisc add dev {} root netem loss 100%")
        run("rpc.nfsd", "0")
        time.sleep(DOWN)
        self._traffic("qdisc del dev {} root")
        self._slow = False
        self._start()
        time.sleep(GRACE)  # in which clients claim again what they had open
        self._end_grace()
        self.restarts += 1
