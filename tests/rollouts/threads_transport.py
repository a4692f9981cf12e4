"""Environments whose workers are threads of the test's process: a transport in one file."""

import dataclasses
import threading

from hotloop.envs import make_vec
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.failures import Failures, compare_spaces
from hotloop.rollouts.fleet import FleetRollout
from hotloop.rollouts.parts import PartCollector, join_parts


class ThreadWorker(threading.Thread):
    """Collects parts from the row of `start` on, until it is lost."""

    def __init__(self, transport, number, start, envs, failures, parts=()):
        super().__init__(daemon=True)
        self.transport, self.number, self.failures = transport, number, failures
        self.finished_row = self.begun_row = start.row
        self.parts, self.reports, self.error, self.resumed = list(parts), [], None, None
        self.next_episode = start.first_episode or 0  # if it is lost before its first part
        self.version, self.is_lost = None, False
        network, exploration = transport.policy.network, transport.policy.exploration
        self.policy = ActingPolicy(network, transport.newest, exploration=exploration)
        sizes = {"num_rows": transport.part_rows, "first_env": number * envs.num_envs}
        sizes |= {"seed": transport.options.seed, "start": start}
        self.collector = PartCollector(envs, self.policy, failures, **sizes)
        self.start()

    def run(self):
        try:
            self.resumed = self.collector.resume()
            while self.collect():
                pass
        except Exception as error:  # `poll` raises it, or replaces this worker
            self.error = error

    def collect(self):
        changed = self.transport.changed
        with changed:
            changed.wait_for(lambda: self.is_lost or self.transport.may_begin(self))
            if self.is_lost:
                return False
            num_rows = min(self.transport.part_rows, self.limit - self.finished_row)
            self.begun_row = self.finished_row + num_rows
            snapshot, self.version = self.transport.granted, self.transport.granted.version
        self.policy.load(snapshot)
        self.collector.collect(num_rows)
        part = self.collector.finish()
        with changed:
            if not self.is_lost:
                self.reports += map(str, self.failures)
                self.failures.clear()
                self.parts.append(part)
                self.finished_row, self.version = part.stop, None
                self.next_episode = part.last_episode + 1
                changed.notify_all()
        return not self.is_lost

    @property
    def limit(self):
        return self.transport.limits.rows[self.number]


class ThreadEnvironments:
    """Environments in threads: both `Environments` and `Transport`."""

    recordings, node = staticmethod(tuple), staticmethod("thread {}".format)

    def __init__(self, spec, *, num_workers, envs_per_worker=1, max_failures=100, **options):
        self.spec, self.num_workers, self.envs_per_worker = spec, num_workers, envs_per_worker
        self.num_envs, self.failures = num_workers * envs_per_worker, Failures(max_failures)
        self.groups = [self.make_group(worker) for worker in range(num_workers)]
        first = self.groups[0][0]
        self.obs_spec, self.action_spec = first.obs_spec, first.action_spec
        self.can_replay, self.workers, self.fleet = first.can_replay, [], None
        self.changed, self.limits = threading.Condition(), None
        for number, (envs, _) in enumerate(self.groups):
            compare_spaces(first, envs, number)

    def make_group(self, worker):
        failures = []
        spec = dataclasses.replace(self.spec, first_env=worker * self.envs_per_worker)
        return make_vec(spec, self.envs_per_worker, on_failure=failures.append), failures

    def rollout(self, policy, options):
        self.policy, self.options = policy, options
        is_barrier = options.schedule == "barrier"
        self.part_rows = options.num_steps if is_barrier else max(1, options.num_steps // 4)
        self.fleet = FleetRollout(self, policy, options, close=self.close)
        return self.fleet

    def close(self):
        for worker in self.workers:
            with self.changed:
                worker.is_lost = True
                self.changed.notify_all()
            worker.join()
        if self.fleet is not None:
            self.fleet.store_accounting()

    def start(self, fleet, first_rows):
        self.read_rows = list(first_rows)
        self.workers = [
            ThreadWorker(self, number, fleet.start_of(number, row), *self.groups[number])
            for number, row in enumerate(first_rows)
        ]

    def publish(self, snapshot):
        params = {name: array.copy() for name, array in snapshot.params.items()}
        self.newest = PolicySnapshot(snapshot.version, params, snapshot.obs_scale)

    def grant(self, limits):
        with self.changed:
            self.limits, self.granted = limits, self.newest
            self.changed.notify_all()

    def may_begin(self, worker):
        if self.limits is None or worker.finished_row >= worker.limit:
            return False
        is_enough = self.limits.total is not None and self.limits.total <= sum(self.finished_rows())
        return not is_enough or worker.finished_row == self.read_rows[worker.number]

    def finished_rows(self):
        return [worker.finished_row for worker in self.workers]

    def collected_rows(self, *, is_over):
        return self.finished_rows()

    def version(self, worker, row):
        return next(part.version for part in self.workers[worker].parts if row < part.stop)

    def oldest_version(self, worker, row):
        with self.changed:
            versions = [part.version for part in self.workers[worker].parts if row < part.stop]
            return versions[0] if versions else self.workers[worker].version

    def read(self, worker, start, stop):
        state, self.read_rows[worker] = self.workers[worker], stop
        with self.changed:
            parts = [part for part in state.parts if part.start < stop]
            state.parts = [part for part in state.parts if part.stop > stop]
        return join_parts(parts, start, stop, first_env=worker * self.envs_per_worker)

    def poll(self):
        for worker in list(self.workers):
            if worker.resumed is not None:
                self.fleet.on_resumed(worker.number, *worker.resumed)
                worker.resumed = None
            while worker.reports:
                self.failures.env_failures[worker.number] += 1
                self.failures.count(f"worker {worker.number}", worker.reports.pop(0))
            if isinstance(worker.error, EnvironmentFailure):
                self.replace(worker, str(worker.error))
            elif worker.error is not None:
                raise worker.error

    def replace(self, lost, reason):
        number = lost.number
        self.failures.restarts[number] += 1
        self.failures.count(f"worker {number}", reason)
        with self.changed:
            lost.is_lost, row = True, lost.finished_row
            self.changed.notify_all()
        start = self.fleet.on_lost(number, row, lost.begun_row - row, lost.next_episode)
        group = self.make_group(number)
        self.workers[number] = ThreadWorker(self, number, start, *group, lost.parts)

    def wait(self, num_rows):
        with self.changed:
            self.changed.wait_for(lambda: sum(self.finished_rows()) >= num_rows, 0.02)
        self.poll()
