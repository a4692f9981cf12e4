"""A cluster, event by event: workers, cores, a network, a learner that takes what there is."""

import heapq
import random


class Simulation:
    """Plays a training of `rollouts.planning.Cluster`; times are in seconds.

    Args:
        cluster: what there is.
        step: draws the wall time of a step.
        busy_share: of it, the part that needs a core.
        handling_s, latency_s: of a fragment.
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
        self.asked = [0] * cluster.workers
        self.is_at_work = [False] * cluster.workers
        self.made = [0] * cluster.workers
        self.on_its_way = [0] * cluster.workers
        self.now = 0.0

    def at(self, time, what, worker, left=0):
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what, worker, left))

    def ask(self, worker, parts):
        self.asked[worker] += parts
        self.begin(worker)

    def begin(self, worker):
        if not self.is_at_work[worker] and self.asked[worker]:
            self.asked[worker] -= 1
            self.is_at_work[worker] = True
            self.at(self.now, "row", worker, self.rows)

    def happen(self):
        """The next event."""
        self.now, _, what, worker, left = heapq.heappop(self.events)
        if what == "row":
            if left == 0:
                self.is_at_work[worker] = False
                self.send(worker)
                self.begin(worker)
                return
            wall = sum(self.step() for _ in range(self.cluster.envs_per_worker))
            # It waits for something else, and then for a core.
            self.at(self.now + wall * (1 - self.busy), "compute", worker, left)
            self.computing[worker] = wall * self.busy
        elif what == "compute":
            needed = self.computing[worker]
            begin = self.now
            if self.cores is not None and needed:
                begin = max(self.now, heapq.heappop(self.cores))
                heapq.heappush(self.cores, begin + needed)
            self.at(begin + needed, "row", worker, left - 1)
        elif what == "arrive":
            self.made[worker] += 1
            self.on_its_way[worker] -= 1

    def send(self, worker):
        cluster = self.cluster
        size = self.rows * cluster.envs_per_worker * cluster.transition_bytes
        size *= 1 - 1 / cluster.nodes
        self.network_free = max(self.now, self.network_free) + size / cluster.network_bytes_per_s
        self.on_its_way[worker] += 1
        self.at(self.network_free + self.latency_s, "arrive", worker)

    def until(self, is_enough):
        while not is_enough():
            self.happen()

    def pass_by(self, seconds):
        """The learner is busy for so long."""
        until = self.now + seconds
        while self.events and self.events[0][0] <= until:
            self.happen()
        self.now = until

    def outstanding(self, worker):
        """Parts that were asked for and have not been taken."""
        going = self.asked[worker] + self.is_at_work[worker]
        return going + self.made[worker] + self.on_its_way[worker]

    def ask_all(self, ahead, queued=None):
        for worker in range(self.cluster.workers):
            missing = ahead - self.outstanding(worker)
            if queued is not None:
                missing = min(missing, queued - self.asked[worker] - self.is_at_work[worker])
            if missing > 0:
                self.ask(worker, missing)

    def collect(self, each, overlaps):
        """Wait for what the schedule waits for, and take it."""
        cluster, made = self.cluster, self.made
        total = each * cluster.workers
        if cluster.schedule == "async":
            self.ask_all(2)
            self.until(lambda: sum(made) >= cluster.workers)
        elif cluster.schedule == "variable":

            def is_enough():
                if sum(made) >= total and min(made) > 0:
                    return True
                self.ask_all(2 * each, queued=2)
                return False

            self.until(is_enough)
        else:
            self.ask_all(1)
            self.until(lambda: min(made) > 0)
        for _ in range(total):
            fullest = max(range(cluster.workers), key=lambda worker: made[worker])
            made[fullest] -= 1
        if overlaps:
            self.ask_all({"async": 2, "variable": 2 * each}.get(cluster.schedule, 1))

    def steps_per_s(self, iterations=20, warmup=5):
        """Transitions learned from, a second."""
        cluster = self.cluster
        each = cluster.num_steps // self.rows
        transitions = cluster.workers * cluster.envs_per_worker * cluster.num_steps
        overlaps = cluster.overlap or cluster.schedule in ("lag:1", "async")
        learning = transitions / cluster.learner_steps_per_s + cluster.workers * self.handling_s
        sending = cluster.weights_bytes * (cluster.nodes - 1) / cluster.network_bytes_per_s
        began = 0.0
        for iteration in range(iterations + warmup):
            if iteration == warmup:
                began = self.now
            self.collect(each, overlaps)
            self.pass_by(max(learning, sending) if overlaps else learning + sending)
        return iterations * transitions / (self.now - began)


def two_speeds(step_s, slow_s, slow_share, seed):
    """A step that is slow now and then."""
    chance = random.Random(seed)
    return lambda: slow_s if chance.random() < slow_share else step_s
