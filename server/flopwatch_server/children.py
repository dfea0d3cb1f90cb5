"""Child processes that never outlive the server, not even when it is killed with -9."""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_owner(death_signal: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` that lets the kernel send `death_signal` to the child when this process dies.

    The kernel ties it to the thread that forks, so start such children from the main thread.
    """
    owner = os.getpid()

    def ask_kernel() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != owner:  # it died before the call above
            os._exit(1)

    return ask_kernel
