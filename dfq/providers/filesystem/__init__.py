"""The queue on a disk. `queue` is the provider; the other modules are its parts, one noun each.

intake      what is pushed becomes a file      view          looking at the files
schedule    what is not due yet                idle, wake    sleeping until something happens
frontier    which task to try next             housekeeping  what crashes leave behind
meta        queue.json
"""

from dfq.providers.filesystem.queue import FilesystemQueue as FilesystemQueue
