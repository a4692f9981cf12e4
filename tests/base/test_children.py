"""Processes end with the process that started them."""

import signal
import subprocess
import sys
import time

import pytest

from tests.faults.trials import is_alive

_CHILD = """
import sys, time
from hotloop.base.children import end_with_parent
end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(100)
"""
_PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE, text=True
)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(100)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it needs prctl")
def test_a_child_ends_when_its_parent_is_killed():
    command = [sys.executable, "-c", _PARENT, _CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    for _ in range(600):
        if not is_alive(child):
            break
        time.sleep(0.05)
    assert not is_alive(child)
