"""Which goals hindsight may choose: a list of all transitions, searched from end to end."""


class TransitionList:
    """All transitions of all environments, each with its episode and the goal that it achieved.

    Attributes:
        rows: (environment, episode, goal) of each transition, None for a foreign one.
    """

    def __init__(self, num_envs, capacity):
        self.rows = []
        self.episodes = [0] * num_envs
        self.capacity = capacity

    def add(self, env, goal, *, is_end):
        self.rows.append((env, self.episodes[env], goal))
        if is_end:
            self.end(env)

    def add_foreign(self):
        self.rows.append(None)

    def end(self, env):
        self.episodes[env] += 1

    def numbers(self):
        """Return the numbers of the transitions in the buffer."""
        return range(max(0, len(self.rows) - self.capacity), len(self.rows))

    def later_goals(self, number):
        """Return the goals achieved from a transition on to the end of its episode, in order."""
        if self.rows[number] is None:
            return []
        env, episode, _ = self.rows[number]
        later = filter(None, self.rows[number:])
        return [goal for e, k, goal in later if (e, k) == (env, episode)]
