"""The queue on a disk. `queue` is the provider; the other modules are its parts, one noun each.

intake      what is pushed becomes a file      view          looking at the files
schedule    what is not due yet                idle, wake    sleeping until something happens
frontier    which task to try next             housekeeping  what crashes leave behind
meta        queue.json                         audit, faults  what contradicts the format
fsck        checking all of it, and repairing  check         the same for a queue that cannot be opened
"""

from dfq.providers.filesystem.queue import FilesystemQueue as FilesystemQueue
