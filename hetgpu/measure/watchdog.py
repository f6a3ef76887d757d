"""Ends a process group when its owner dies, however it dies.

Run as ``python watchdog.py OWNER_PID GROUP``; it imports nothing of ours, so that it starts at once.
A finally-block does not run after SIGKILL; this process outlives its owner and does the rest.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

POLL_S = 0.5
#: After SIGTERM the engine has this long before SIGKILL.
GRACE_S = 3.0


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie: one that its parent never reaps is dead all the same."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # The state stands after the name, which is in brackets and may hold anything.
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def group_alive(group: int) -> bool:
    """Whether any process of a group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end_group(group: int, grace_s: float = GRACE_S, reap: Callable[[], object] = lambda: None) -> None:
    """SIGTERM to a whole process group, then SIGKILL to what is left of it after the grace.

    ``reap`` is called between looks: a parent's ``poll``, or its dead child counts as alive.
    """
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            reap()
            if not group_alive(group):
                return
            time.sleep(0.1)


def _is(process: object, name: str) -> bool:
    """Whether a psutil process was started as a program of this name (``dvc``, ``python -m dvc``)."""
    try:
        parts = process.cmdline()[:4]  # type: ignore[attr-defined]
    except Exception:  # gone, or another user's
        return False
    return any(part.rpartition("/")[2] == name for part in parts)


def end_with(name: str) -> None:
    """End this process when an ancestor of that name dies, however it dies; nothing where there is none.

    Killed, ``dvc`` leaves its stage alive, and the stage its notebook's engine.
    """
    import psutil  # not at the top: the watchdog itself starts without it

    owner = next((parent.pid for parent in psutil.Process().parents() if _is(parent, name)), None)

    def watch(pid: int) -> None:
        while alive(pid):
            time.sleep(POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)

    if owner is not None:
        threading.Thread(target=watch, args=(owner,), daemon=True).start()


def main() -> None:
    """Wait for the owner's end (or the group's own), then end the group."""
    owner, group = int(sys.argv[1]), int(sys.argv[2])
    while alive(owner) and group_alive(group):
        time.sleep(POLL_S)
    if group_alive(group):
        end_group(group)


if __name__ == "__main__":
    main()
