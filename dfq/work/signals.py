"""Stop signals, delivered to a thread."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGTERM and SIGINT, in a thread; do nothing outside of the main thread.

    Not in the signal handler itself: it may run while this very thread holds the lock that `stop` wants.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, bell = socket.socketpair()
    bell.setblocking(False)

    def listen() -> None:
        while numbers := ours.recv(64):
            for number in numbers:
                if number in (signal.SIGTERM, signal.SIGINT):
                    stop()

    thread = threading.Thread(target=listen, name="dfq-signals", daemon=True)
    thread.start()
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    previous = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        bell.close()
        thread.join()
        ours.close()
