"""Stop signals, delivered to a thread."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator

from dfq.work.link import pair

log = logging.getLogger(__name__)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGTERM, SIGINT and SIGHUP, in a thread; do nothing outside of the main thread.

    A SIGHUP that is ignored, as nohup has it, stays ignored; many a program has a use of its own for it.

    Not in the signal handler itself: it may run while this very thread holds the lock that `stop` wants.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        wanted.append(signal.SIGHUP)
    ours, bell = pair()
    bell.setblocking(False)

    def listen() -> None:
        while numbers := ours.recv(64):
            for number in numbers:
                if number not in wanted:
                    continue
                try:
                    stop()
                except Exception:  # the next signal must find somebody who listens
                    log.exception("%s: stopping failed", signal.Signals(number).name)

    thread = threading.Thread(target=listen, name="dfq-signals", daemon=True)
    thread.start()
    handlers = {number: signal.signal(number, lambda *_: None) for number in wanted}
    previous = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
        bell.close()
        thread.join()
        ours.close()
