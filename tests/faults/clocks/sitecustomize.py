"""Make the clocks jump in every process that has this directory on PYTHONPATH.

The wall clock jumps back and forth by hours to years, also before 1970. The monotonic clock leaps
ahead, as it does after a machine was paused.
"""

import os
import random
import time

_rng = random.Random(f"{os.environ.get('HOTLOOP_FAULTS_CLOCK', '')} {os.getpid() % 7}")
_CLOCKS = os.environ.get("HOTLOOP_FAULTS_CLOCK_KIND", "wall").split(",")
_wall, _monotonic, _perf_counter = time.time_ns, time.monotonic_ns, time.perf_counter_ns
_strftime, _localtime = time.strftime, time.localtime
_offsets = {"wall": 0, "monotonic": 0}
_S = 1_000_000_000


def _wall_ns():
    if "wall" in _CLOCKS and _rng.random() < 0.2:
        size = 10 ** _rng.uniform(3.6, 9.0)
        _offsets["wall"] = int(_rng.choice([-1, 1]) * min(size, 1.5e9)) * _S
    return _wall() + _offsets["wall"]


def _leap():
    if "monotonic" in _CLOCKS and _rng.random() < 0.01:
        _offsets["monotonic"] += int(10 ** _rng.uniform(1.0, 5.0)) * _S
    return _offsets["monotonic"]


time.time_ns = _wall_ns
time.time = lambda: _wall_ns() / _S
time.strftime = lambda form, seconds=None: _strftime(form, seconds or _localtime(time.time()))
time.monotonic_ns = lambda: _monotonic() + _leap()
time.monotonic = lambda: time.monotonic_ns() / _S
time.perf_counter_ns = lambda: _perf_counter() + _leap()
time.perf_counter = lambda: time.perf_counter_ns() / _S
