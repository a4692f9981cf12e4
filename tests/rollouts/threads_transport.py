"""Environments whose workers are threads of the test's process: a transport in one file."""

import dataclasses
import threading

from hotloop.envs import make_vec
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.failures import Failures, compare_spaces
from hotloop.rollouts.fleet import FleetRollout
from hotloop.rollouts.parts import PartCollector, join_parts
from hotloop.rollouts.schedules import RowLimits


class ThreadWorker(threading.Thread):
    """Collects parts from the row of `start` on, until it is lost."""

    def __init__(self, transport, number, start, parts=()):
        super().__init__(daemon=True)
        self.transport, self.number, self.parts = transport, number, list(parts)
        self.finished_row = self.begun_row = start.row
        self.next_episode = start.first_episode or 0  # if it is lost before its first part
        self.is_lost, self.reports, self.error, self.resumed = False, [], None, None
        envs, self.failures = transport.groups[number]
        network, exploration = transport.policy.network, transport.policy.exploration
        self.policy = ActingPolicy(network, transport.newest, exploration=exploration)
        sizes = {"num_rows": transport.part_rows, "first_env": number * envs.num_envs}
        sizes |= {"seed": transport.options.seed, "start": start}
        self.collector = PartCollector(envs, self.policy, self.failures, **sizes)
        self.start()

    def run(self):
        try:
            self.resumed = self.collector.resume()
            while self.begin():
                self.collector.collect(self.begun_row - self.finished_row)
                self.end(self.collector.finish())
        except Exception as error:  # `poll` raises it, or replaces this worker
            self.error = error

    def begin(self):
        transport, changed = self.transport, self.transport.changed
        with changed:
            changed.wait_for(lambda: self.is_lost or transport.num_allowed(self) > 0)
            if not self.is_lost:
                self.begun_row += min(transport.part_rows, transport.num_allowed(self))
                self.policy.load(transport.granted)
        return not self.is_lost

    def end(self, part):
        with self.transport.changed:
            if not self.is_lost:
                self.reports += map(str, self.failures)
                self.failures.clear()
                self.parts.append(part)
                self.finished_row, self.next_episode = part.stop, part.last_episode + 1
                self.transport.changed.notify_all()


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
        self.changed, self.limits = threading.Condition(), RowLimits([0] * num_workers)
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
            self.lose(worker)
            worker.join()
        if self.fleet is not None:
            self.fleet.store_accounting()

    def start(self, fleet, first_rows):
        starts = [fleet.start_of(number, row) for number, row in enumerate(first_rows)]
        self.workers = [ThreadWorker(self, number, start) for number, start in enumerate(starts)]

    def publish(self, snapshot):
        params = {name: array.copy() for name, array in snapshot.params.items()}
        self.newest = PolicySnapshot(snapshot.version, params, snapshot.obs_scale)

    def grant(self, limits):
        with self.changed:
            self.limits, self.granted = limits, self.newest
            self.changed.notify_all()

    def num_allowed(self, worker):
        limits, total = self.limits
        is_enough = total is not None and total <= sum(self.finished_rows()) and worker.parts
        return 0 if is_enough else limits[worker.number] - worker.finished_row

    def finished_rows(self, *, is_over=False):
        return [worker.finished_row for worker in self.workers]

    def oldest_version(self, worker, row):
        with self.changed:
            state = self.workers[worker]
            versions = [part.version for part in state.parts if row < part.stop]
            versions += [state.policy.version] * (state.begun_row > state.finished_row)
            return versions[0] if versions else None

    collected_rows, version = finished_rows, oldest_version

    def read(self, worker, start, stop):
        state = self.workers[worker]
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
        self.lose(lost)
        number, row = lost.number, lost.finished_row
        rows = row, lost.begun_row - row, lost.next_episode
        start = self.fleet.on_lost(number, *rows, reason, "")
        self.groups[number] = self.make_group(number)
        self.workers[number] = ThreadWorker(self, number, start, lost.parts)

    def lose(self, worker):
        with self.changed:
            worker.is_lost = True
            self.changed.notify_all()

    def wait(self, num_rows):
        with self.changed:
            self.changed.wait_for(lambda: sum(self.finished_rows()) >= num_rows, 0.02)
        self.poll()
