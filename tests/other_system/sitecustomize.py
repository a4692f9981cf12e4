"""Make this Python look like macOS to hotloop: no /proc and no functions of Linux alone.

Tests put this folder on the PYTHONPATH of a program. Its child processes import it too.
"""

import builtins
import os
import sys
import time

LINUX_ONLY = (
    *("memfd_create", "eventfd", "eventfd_read", "eventfd_write", "pidfd_open", "posix_fadvise"),
    *("posix_fallocate", "sched_getaffinity", "sched_setaffinity", "MFD_CLOEXEC", "EFD_CLOEXEC"),
    *("EFD_NONBLOCK", "POSIX_FADV_DONTNEED", "sendfile", "process_cpu_count"),
)
for name in LINUX_ONLY:
    if hasattr(os, name):
        delattr(os, name)
if hasattr(time, "CLOCK_BOOTTIME"):
    del time.CLOCK_BOOTTIME

# These extensions read /proc. Their import fails as if they were not built.
for name in ("hotloop.profiler.collect._ticker", "hotloop.base._files"):
    sys.modules[name] = None


def _refuse(event, args):
    """Hide /proc from hotloop, but not from other libraries."""
    if event not in ("open", "os.listdir", "os.scandir") or not isinstance(args[0], str):
        return
    if args[0] != "/proc" and not args[0].startswith(("/proc/", "/dev/shm")):
        return
    frame = sys._getframe(1)
    for _ in range(4):  # through pathlib
        if frame is None:
            return
        if frame.f_globals.get("__name__", "").startswith("hotloop."):
            raise FileNotFoundError(2, "No such file or directory", args[0])
        frame = frame.f_back


sys.addaudithook(_refuse)
builtins.OTHER_SYSTEM = True
