"""The queue on a disk. `queue` is the provider; the other modules are its parts, one noun each.

intake      what is pushed becomes a file      view          looking at the files
schedule    what is not due yet                idle, wake    sleeping until something happens
again       the same id once more              housekeeping  what is left behind, and what is past its time
frontier    which task to try next             claiming      trying it
meta        queue.json                         steady        whether the clock can be trusted
fsck        checking all of it, and repairing  audit, faults  what contradicts the format
check       the same for a queue that cannot be opened
tiles, index: a frontier that another tool owns
foldertime, agenda, complaints: what a scan remembers
"""

from dfq.providers.filesystem.queue import FilesystemQueue as FilesystemQueue
