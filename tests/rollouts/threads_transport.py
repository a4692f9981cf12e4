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

    def __init__(self, transport, number, envs, failures, start):
        super().__init__(daemon=True)
        self.transport, self.number, self.failures = transport, number, failures
        self.finished_row = self.begun_row = self.read_row = self.limit = start.row
        self.parts, self.reports, self.error, self.resumed = [], [], None, None
        self.next_episode, self.granted, self.version, self.is_lost = 0, None, None, False
        network, exploration = transport.policy.network, transport.policy.exploration
        self.policy = ActingPolicy(network, transport.newest, exploration=exploration)
        sizes = {"num_rows": transport.part_rows, "first_env": number * envs.num_envs}
        sizes |= {"seed": transport.options.seed, "start": start}
        self.collector = PartCollector(envs, self.policy, failures, **sizes)

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
            snapshot, self.version = self.granted, self.granted.version
        self.policy.load(snapshot)
        self.collector.collect(num_rows)
        part = self.collector.finish()
        with changed:
            if self.is_lost:
                return False
            self.reports += map(str, self.failures)
            self.failures.clear()
            self.parts.append(part)
            self.finished_row, self.version = part.stop, None
            self.next_episode = part.last_episode + 1
            changed.notify_all()
            return True


class ThreadEnvironments:
    """Environments in threads: both `Environments` and `Transport`."""

    recordings = staticmethod(tuple)
    node = staticmethod("worker {}".format)

    def __init__(self, spec, *, num_workers, envs_per_worker=1, max_failures=100, **options):
        self.spec = spec
        self.num_workers, self.envs_per_worker = num_workers, envs_per_worker
        self.num_envs, self.failures = num_workers * envs_per_worker, Failures(max_failures)
        self.groups = [self.make_group(worker) for worker in range(num_workers)]
        self.obs_spec, self.action_spec = self.groups[0][0].obs_spec, self.groups[0][0].action_spec
        self.can_replay, self.fleet = self.groups[0][0].can_replay, None
        self.workers, self.total = [], None

    def make_group(self, worker):
        failures, first_env = [], worker * self.envs_per_worker
        spec = dataclasses.replace(self.spec, first_env=first_env)
        return make_vec(spec, self.envs_per_worker, on_failure=failures.append), failures

    def rollout(self, policy, options):
        self.policy, self.options, self.changed = policy, options, threading.Condition()
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

    def start(self, events, first_rows):
        self.events = events
        for number, (row, group) in enumerate(zip(first_rows, self.groups, strict=True)):
            compare_spaces(self.groups[0][0], group[0], number)
            self.workers.append(ThreadWorker(self, number, *group, events.start_of(number, row)))
            self.workers[-1].start()

    def publish(self, snapshot):
        params = {name: array.copy() for name, array in snapshot.params.items()}
        self.newest = PolicySnapshot(snapshot.version, params, snapshot.obs_scale)

    def grant(self, limits):
        with self.changed:
            self.total = limits.total
            for worker, limit in zip(self.workers, limits.rows, strict=True):
                worker.limit, worker.granted = limit, self.newest
            self.changed.notify_all()

    def may_begin(self, worker):
        is_enough = self.total is not None and sum(self.finished_rows()) >= self.total
        has_room = worker.finished_row < worker.limit
        return has_room and (worker.finished_row == worker.read_row or not is_enough)

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
        state = self.workers[worker]
        with self.changed:
            parts = [part for part in state.parts if part.start < stop]
            state.parts, state.read_row = [part for part in state.parts if part.stop > stop], stop
        return join_parts(parts, start, stop, first_env=worker * self.envs_per_worker)

    def poll(self):
        for worker in list(self.workers):
            if worker.resumed is not None:
                self.events.on_resumed(worker.number, *worker.resumed)
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
        self.events.on_lost(number, row, lost.begun_row - row, lost.next_episode)
        start, group = self.events.start_of(number, row), self.make_group(number)
        worker = ThreadWorker(self, number, *group, start)
        worker.parts, worker.read_row, worker.limit = lost.parts, lost.read_row, lost.limit
        worker.granted, self.workers[number] = self.newest, worker
        worker.start()

    def wait(self, num_rows):
        with self.changed:
            self.changed.wait_for(lambda: sum(self.finished_rows()) >= num_rows, 0.02)
        self.poll()
