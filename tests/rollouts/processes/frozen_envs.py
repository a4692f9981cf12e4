"""Environments whose workers fail outside of their steps."""

import sys

from hotloop.policies import ActingPolicy
from hotloop.rollouts.collector import Collector
from tests.worker_envs import WORKER, Scripted


class FailsAnywhere(Scripted):
    """Also counts, and fails in, calls of its worker: `setup` after the request to collect, `act`,
    `write` of a row, and `evaluate`. Use it with one environment per worker."""

    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        if WORKER:
            worker = sys.modules["__main__"].Worker
            self._precede(worker, "__init__", "setup")
            self._precede(ActingPolicy, "draw", "act")
            self._precede(worker, "on_step_end", "write")
            self._precede(Collector, "evaluate", "evaluate")

    def _precede(self, owner, name, kind):
        function = getattr(owner, name)

        def call_with_fault(*arguments, **options):
            self._call(kind)
            return function(*arguments, **options)

        setattr(owner, name, call_with_fault)


class ForgetsOnce(Scripted):
    """Its second process plays other episodes than the first one."""

    def reset(self, *, seed=None, options=None):
        is_second = (self.directory / f"{WORKER}.make").stat().st_size > 1
        return super().reset(seed=None if seed is None else seed + is_second, options=options)
