"""An event-by-event simulation of a cluster: workers, cores, a network and a learner."""

import heapq
import random


class Simulation:
    """A simulated training on a `rollouts.planning.cluster.Cluster`. Times are in seconds.

    Args:
        cluster: the cluster.
        step: function that draws the wall time of a step.
        busy_share: share of the wall time that needs a core.
        handling_s, latency_s: per fragment.
    """

    PARTS = 8

    def __init__(self, cluster, step, *, busy_share=0.0, handling_s=0.0, latency_s=0.0):
        self.cluster, self.step, self.busy = cluster, step, busy_share
        self.handling_s, self.latency_s = handling_s, latency_s
        cores = cluster.cores_per_node and cluster.nodes * cluster.cores_per_node
        is_beside = cluster.overlap or cluster.schedule in ("lag:1", "async")
        self.cores = [0.0] * max(1, cores - is_beside) if cores else None
        self.rows = cluster.num_steps
        if cluster.schedule == "variable":
            self.rows = max(1, cluster.num_steps // self.PARTS)
        self.events, self.count = [], 0
        self.computing, self.network_free = [0.0] * cluster.workers, 0.0
        self.pending = [0] * cluster.workers
        self.is_working = [False] * cluster.workers
        self.ready = [0] * cluster.workers
        self.in_transit = [0] * cluster.workers
        self.now = 0.0

    def schedule_event(self, time, event, worker, rows_left=0):
        self.count += 1
        heapq.heappush(self.events, (time, self.count, event, worker, rows_left))

    def request(self, worker, parts):
        self.pending[worker] += parts
        self.start_next(worker)

    def start_next(self, worker):
        if not self.is_working[worker] and self.pending[worker]:
            self.pending[worker] -= 1
            self.is_working[worker] = True
            self.schedule_event(self.now, "row", worker, self.rows)

    def process_event(self):
        """Process the next event."""
        self.now, _, event, worker, rows_left = heapq.heappop(self.events)
        if event == "row":
            if rows_left == 0:
                self.is_working[worker] = False
                self.send(worker)
                self.start_next(worker)
                return
            wall = sum(self.step() for _ in range(self.cluster.envs_per_worker))
            # The worker waits for something else, and then for a core.
            self.schedule_event(self.now + wall * (1 - self.busy), "compute", worker, rows_left)
            self.computing[worker] = wall * self.busy
        elif event == "compute":
            compute_s = self.computing[worker]
            start = self.now
            if self.cores is not None and compute_s:
                start = max(self.now, heapq.heappop(self.cores))
                heapq.heappush(self.cores, start + compute_s)
            self.schedule_event(start + compute_s, "row", worker, rows_left - 1)
        elif event == "arrive":
            self.ready[worker] += 1
            self.in_transit[worker] -= 1

    def send(self, worker):
        cluster = self.cluster
        size = self.rows * cluster.envs_per_worker * cluster.transition_bytes
        size *= 1 - 1 / cluster.nodes
        self.network_free = max(self.now, self.network_free) + size / cluster.network_bytes_per_s
        self.in_transit[worker] += 1
        self.schedule_event(self.network_free + self.latency_s, "arrive", worker)

    def run_until(self, is_enough):
        while not is_enough():
            self.process_event()

    def advance(self, seconds):
        """Process events while the learner is busy."""
        end = self.now + seconds
        while self.events and self.events[0][0] <= end:
            self.process_event()
        self.now = end

    def outstanding(self, worker):
        """Return the number of requested parts that the learner has not taken."""
        unfinished = self.pending[worker] + self.is_working[worker]
        return unfinished + self.ready[worker] + self.in_transit[worker]

    def request_all(self, ahead, queued=None):
        for worker in range(self.cluster.workers):
            missing = ahead - self.outstanding(worker)
            if queued is not None:
                missing = min(missing, queued - self.pending[worker] - self.is_working[worker])
            if missing > 0:
                self.request(worker, missing)

    def collect(self, parts_per_worker, overlaps):
        """Wait for the parts that the schedule needs, and take them."""
        cluster, ready = self.cluster, self.ready
        total = parts_per_worker * cluster.workers
        if cluster.schedule == "async":
            self.request_all(2)
            self.run_until(lambda: sum(ready) >= cluster.workers)
        elif cluster.schedule == "variable":

            def is_enough():
                if sum(ready) >= total and min(ready) > 0:
                    return True
                self.request_all(2 * parts_per_worker, queued=2)
                return False

            self.run_until(is_enough)
        else:
            self.request_all(1)
            self.run_until(lambda: min(ready) > 0)
        for _ in range(total):
            fullest = max(range(cluster.workers), key=lambda worker: ready[worker])
            ready[fullest] -= 1
        if overlaps:
            self.request_all(
                {"async": 2, "variable": 2 * parts_per_worker}.get(cluster.schedule, 1)
            )

    def steps_per_s(self, iterations=20, warmup=5):
        """Return the number of learned transitions per second."""
        cluster = self.cluster
        parts_per_worker = cluster.num_steps // self.rows
        transitions = cluster.workers * cluster.envs_per_worker * cluster.num_steps
        overlaps = cluster.overlap or cluster.schedule in ("lag:1", "async")
        learning = transitions / cluster.learner_steps_per_s + cluster.workers * self.handling_s
        sending = cluster.weights_bytes * (cluster.nodes - 1) / cluster.network_bytes_per_s
        start_s = 0.0
        for iteration in range(iterations + warmup):
            if iteration == warmup:
                start_s = self.now
            self.collect(parts_per_worker, overlaps)
            self.advance(max(learning, sending) if overlaps else learning + sending)
        return iterations * transitions / (self.now - start_s)


def two_speeds(step_s, slow_s, slow_share, seed):
    """Return a function that draws step times, slow ones with probability `slow_share`."""
    chance = random.Random(seed)
    return lambda: slow_s if chance.random() < slow_share else step_s
