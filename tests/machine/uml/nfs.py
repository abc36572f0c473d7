"""A queue over NFS 4.2: a real server, two hosts with caches of their own, workers that die, a server that restarts.

All of it is in one machine of its own (User-Mode Linux), with a network of its own for each host. verify-fs is run on
the mount. A living worker must keep its tasks for several lease times while another host looks on, and lose them when
it is killed; one that stood still within its ack is refused; what was done though the reply got lost is a success.
Then workers on both hosts are killed while the server loses replies and restarts. Controls with the comparison
of nonces left out must be caught.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path

from nfs_users import SABOTAGES
from stage import Report, arguments, command, conduct, say, scratch
from uml import Crashed, machine, prepare, python

PACKAGES = {
    "rpc.nfsd": "nfs-kernel-server",
    "mount.nfs4": "nfs-common",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
}
DISK_MIB, MEMORY_MIB = 128, 384
BEFORE = 50  # seconds for the boot, verify-fs, the scenes and the controls
NOT_COVERED = [
    "NFS before 4.2, other servers than Linux's, mounts with soft, nolock or nocto",
    "a server that loses its disk's cache with its power: see the power cuts on ext4",
    "more than two hosts, and hosts with kernels of their own",
]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="run this alone, as if it were sound: it must be caught")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    report = Report("NFS 4.2 between hosts", not_covered=NOT_COVERED)

    def run() -> None:
        prepare(PACKAGES)
        folder = scratch("nfs", DISK_MIB + MEMORY_MIB)
        try:
            _stage(report, folder, options.seconds, seed, options.sabotage or "none")
        except Crashed as e:
            report.violations.append(str(e))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    conduct(report, run)


def _stage(report: Report, folder: Path, seconds: float, seed: int, sabotage: str) -> None:
    disk = folder / "disk"
    with disk.open("wb") as f:
        f.truncate(DISK_MIB << 20)
    command("mkfs.ext4", "-q", "-F", str(disk))
    work = max(0, seconds - BEFORE)
    rounds = 10 if seconds < 120 else 100
    words = ["--seconds", f"{work:.0f}", "--rounds", f"{rounds}", "--seed", str(seed), "--sabotage", sabotage]
    if sabotage == "none":
        words.append("--controls")
    say(f"seed {seed}: {work:.0f} s of work")
    with machine(folder / "machine", python("nfs_guest.py", *words), disks=[disk], memory=MEMORY_MIB) as uml:
        said = uml.wait(work + 600)
        for line in said.splitlines()[:-1]:
            say(line)
        found = json.loads(said.splitlines()[-1])
        report.violations += found["wrong"]
        report.figures |= found["figures"]
        for how, wrong in found["controls"].items():
            report.figures[f"control: {how}"] = f"{len(wrong)} violations"
            if not wrong:
                report.violations.append(f"control: {how}: nothing was found: this stage proves nothing")
            else:
                say(f"control: {how}: {wrong[0]}")
        if found["wrong"] and sabotage == "none":
            kept = Path(tempfile.mkdtemp(prefix="dfq-nfs-evidence-"))
            shutil.copytree(uml.share, kept, dirs_exist_ok=True)
            say(f"what was left is in {kept}; run it again with --seed {seed}")


if __name__ == "__main__":
    main()
