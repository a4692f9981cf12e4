"""Environments whose workers are threads of the test's process: a transport in one file."""

import dataclasses
import threading
from queue import SimpleQueue

from hotloop.envs import make_vec
from hotloop.errors import EnvironmentFailure
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.failures import Failures, compare_spaces
from hotloop.rollouts.fleet import FleetRollout
from hotloop.rollouts.parts import PartCollector, PartQueue


class ThreadWorker(threading.Thread):
    """Collects parts from the row of `start` on."""

    def __init__(self, transport, number, start, parts):
        super().__init__(daemon=True)
        self.transport, self.number, self.parts = transport, number, parts
        self.finished_row = self.begun_row = start.row
        self.next_episode = start.first_episode or 0  # if it is lost before its first part
        envs, self.failures = transport.groups[number]
        network, exploration = transport.policy.network, transport.policy.exploration
        self.policy = ActingPolicy(network, transport.newest, exploration=exploration)
        sizes = {"num_rows": transport.part_rows, "first_env": number * envs.num_envs}
        sizes |= {"seed": transport.options.seed, "start": start}
        self.collector = PartCollector(envs, self.policy, self.failures, **sizes)
        self.post = lambda function, *args: transport.calls.put(lambda: function(*args))
        self.start()

    def run(self):
        try:
            if (resumed := self.collector.resume()) is not None:
                self.post(self.transport.fleet.on_resumed, self.number, *resumed)
            while self.begin():
                self.collector.collect(self.begun_row - self.finished_row)
                self.end(self.collector.finish())
        except Exception as error:
            self.post(self.transport.replace, self, error)

    def begin(self):
        transport, changed = self.transport, self.transport.changed
        with changed:
            changed.wait_for(lambda: transport.is_closed or transport.num_allowed(self) > 0)
            if not transport.is_closed:
                self.begun_row += min(transport.part_rows, transport.num_allowed(self))
                self.policy.load(transport.granted)
        return not transport.is_closed

    def end(self, part):
        with self.transport.changed:
            for error in self.failures:
                self.post(self.transport.failures.count_env, self.number, str(error))
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
        self.can_replay, self.workers = first.can_replay, []
        self.fleet, self.is_closed = None, False
        self.changed, self.limits = threading.Condition(), ([0] * num_workers, None)
        self.calls = SimpleQueue()  # functions for `poll`
        for number, (envs, _) in enumerate(self.groups):
            compare_spaces(first, envs, number)

    def make_group(self, worker):
        failures = []
        spec = dataclasses.replace(self.spec, first_env=worker * self.envs_per_worker)
        return make_vec(spec, self.envs_per_worker, on_failure=failures.append), failures

    def rollout(self, policy, options):
        self.policy, self.options = policy, options
        self.part_rows = options.num_steps // (1 if options.schedule == "barrier" else 4)
        self.fleet = FleetRollout(self, policy, options, close=self.close)
        return self.fleet

    def close(self):
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        for worker in self.workers:
            worker.join()
        if self.fleet is not None:
            self.fleet.store_accounting()

    def start(self, fleet, first_rows):
        for number, row in enumerate(first_rows):
            parts = PartQueue(number * self.envs_per_worker)
            self.workers.append(ThreadWorker(self, number, fleet.start_of(number, row), parts))

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
            version = state.parts.version(row)
            is_begun = version is None and state.begun_row > state.finished_row
            return state.policy.version if is_begun else version

    collected_rows, version = finished_rows, oldest_version

    def read(self, worker, start, stop):
        with self.changed:
            return self.workers[worker].parts.read(start, stop)

    def poll(self):
        while not self.calls.empty():
            self.calls.get()()

    def replace(self, lost, error):
        if not isinstance(error, EnvironmentFailure):
            raise error
        number, num_lost = lost.number, lost.begun_row - lost.finished_row
        rows = lost.finished_row, num_lost, lost.next_episode
        start = self.fleet.on_lost(number, *rows, str(error), "")
        self.groups[number] = self.make_group(number)
        self.workers[number] = ThreadWorker(self, number, start, lost.parts)

    def wait(self, num_rows):
        with self.changed:
            self.changed.wait_for(lambda: sum(self.finished_rows()) >= num_rows, 0.02)
        self.poll()
