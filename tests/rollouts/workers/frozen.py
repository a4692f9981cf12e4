"""Environments whose workers go wrong outside of their steps."""

import sys

from hotloop.policies import ActingPolicy
from hotloop.rollouts.collector import Collector
from tests.worker_envs import WORKER, Scripted


class Anywhere(Scripted):
    """Counts calls of its worker's own code, too, where faults may be: `setup` after it was told
    what to collect, `act`, `write` of a row, and `evaluate`. For workers of one environment."""

    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        if WORKER:
            worker = sys.modules["__main__"].Worker
            self._precede(worker, "__init__", "setup")
            self._precede(ActingPolicy, "draw", "act")
            self._precede(worker, "ended", "write")
            self._precede(Collector, "evaluate", "evaluate")

    def _precede(self, owner, name, kind):
        function = getattr(owner, name)

        def called(*arguments, **options):
            self._call(kind)
            return function(*arguments, **options)

        setattr(owner, name, called)


class ForgetsOnce(Scripted):
    """Its second process plays other episodes than the first one."""

    def reset(self, *, seed=None, options=None):
        is_second = (self.directory / f"{WORKER}.make").stat().st_size > 1
        return super().reset(seed=None if seed is None else seed + is_second, options=options)
