"""Frames between the processes of a worker: a length, a JSON object, and descriptors that travel along."""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("!Q")
MAX_FRAME = 512 * 1024 * 1024  # a payload of 64 MiB, every byte escaped as \u00xx, still fits
MAX_FDS = 4


class LinkClosed(Exception):
    """The process at the other end is gone, or what it sent makes no sense."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two sockets that talk to each other and wait as long as it takes."""
    one, other = socket.socketpair()
    # A program, or a handler when it is imported, may have called socket.setdefaulttimeout.
    one.settimeout(None)
    other.settimeout(None)
    return one, other


def socket_of(fd: int) -> socket.socket:
    """Return the socket of a descriptor; it waits as long as it takes, and programs do not inherit it."""
    sock = socket.socket(fileno=fd)
    sock.settimeout(None)
    sock.set_inheritable(False)
    return sock


def send_frame(sock: socket.socket, frame: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a frame; raise LinkClosed if nobody is there to take it, TimeoutError if it is not taken in time."""
    # ASCII on the wire: a payload from a foreign file may hold half a surrogate, which UTF-8 cannot carry.
    body = json.dumps(frame).encode("ascii")
    try:
        socket.send_fds(sock, [HEADER.pack(len(body))], fds, socket.MSG_NOSIGNAL)
        sock.sendall(body, socket.MSG_NOSIGNAL)
    except TimeoutError:
        raise
    except OSError as e:
        raise LinkClosed(str(e)) from e


def recv_frame(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Wait for a frame and return it with its descriptors; None at the end of the link."""
    header, fds = b"", []
    try:
        while len(header) < HEADER.size:
            data, more, _, _ = socket.recv_fds(sock, HEADER.size - len(header), MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            fds += more
            if not data:
                break
            header += data
        body = _recv_exactly(sock, _length(header)) if header else b""
        if not header:
            return None
        frame = json.loads(body)
        if not isinstance(frame, dict):
            raise LinkClosed(f"a frame that is a {type(frame).__name__}")
        return frame, fds
    except (LinkClosed, ValueError, RecursionError) as e:
        _close(fds)
        raise LinkClosed(str(e)) from e
    except TimeoutError:
        _close(fds)
        raise
    except OSError as e:  # reset: it went away with our data unread
        _close(fds)
        raise LinkClosed(str(e)) from e


def readable(sock: socket.socket, seconds: float) -> bool:
    """Wait until there is something to read, or the end of the link; False if the time passed first."""
    poller = select.poll()  # not select(): a process with many files open has descriptors over 1,023
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(max(0.0, seconds * 1000)))


def pack(value: Any) -> dict[str, Any]:
    """Return a payload or result as the two fields of a frame that codec.decode_payload takes apart."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"payload": base64.b64encode(bytes(value)).decode(), "encoding": "base64"}
    return {"payload": value, "encoding": "text" if isinstance(value, str) else "json"}


def _length(header: bytes) -> int:
    if len(header) < HEADER.size:
        raise LinkClosed("the link ended within a frame")
    length: int = HEADER.unpack(header)[0]
    if length > MAX_FRAME:
        raise LinkClosed(f"a frame of {length:,} bytes")
    return length


def _recv_exactly(sock: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = sock.recv(min(length - len(data), 1 << 20))
        if not part:
            raise LinkClosed("the link ended within a frame")
        data += part
    return bytes(data)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
