"""Facts that are derived from the source of a program."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hotloop.profiler.diagnose import diagnose, episodes, source
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.saving import save
from tests.profiler.sessions import process, sample, session

SCORE = """
    def score(env, policy, episodes=3):
        total = 0.0
        for _ in range(episodes):
            obs, _ = env.reset()
            done = False
            while not done:
                action = policy(obs)
                obs, reward, terminated, truncated, _ = env.step(action)
                total += reward
                done = terminated or truncated
        return total / episodes
"""


def write_source(tmp_path, text):
    file = tmp_path / "train.py"
    file.write_text(dedent(text).lstrip("\n"))
    return str(file)


@pytest.mark.parametrize(
    ("old", "new", "is_scoring"),
    [
        ("", "", True),
        ("total += reward", "total += float(reward); lengths.append(total)", True),
        ("total += reward", "returns[i] += reward", True),
        ("total += reward", "rewards.append(reward)", False),
        ("total += reward", "buffer.add(obs, action)", False),
        ("total += reward", "states[t] = obs", False),
        ("total += reward", "self.obs = obs", False),
        ("total += reward", "q[obs] += 0.1 * (reward - q[obs])", False),
        ("total += reward", "agent.update(obs, action, reward)", False),
        ("total += reward", "yield total", False),
        ("return total / episodes", "return total, obs", False),
        ("obs, _ = env.reset()", "obs = last", False),
        ("while not done:", "if True:", True),  # the outer loop counts too
        ("obs, reward, terminated, truncated, _ = env.step(action)", "env.step(action)", False),
    ],
)
def test_functions_that_only_score_episodes(tmp_path, old, new, is_scoring):
    file = write_source(tmp_path, SCORE.replace(old, new) if old else SCORE)
    assert episodes.only_scores_episodes(file, 1) is is_scoring


def test_missing_functions_score_nothing(tmp_path):
    assert not episodes.only_scores_episodes(write_source(tmp_path, "x = 1\n"), 1)
    assert not episodes.only_scores_episodes(str(tmp_path / "gone.py"), 1)


def test_calls_per_element_of_a_comprehension(tmp_path):
    file = write_source(
        tmp_path,
        """
        a = [q(params, one) for one in obs]
        b = q(params, [one for one in obs])
        c = {key: q(params, one) for key, one in obs}
        """,
    )
    is_per_element = [
        source.calls_per_element(file, source.CodeBlock(line, line), frozenset({"q"}))
        for line in (1, 2, 3)
    ]
    assert is_per_element == [True, False, True]
    assert not source.is_comprehension(file, source.CodeBlock(4, 4))


@pytest.mark.parametrize(
    ("body", "is_slow"),
    [
        ("return rng.choice([i[0] for i in np.argwhere(values == max(values))])", True),
        ("return rng.choice(np.argwhere(np.array(list(values)) == np.max(values)))", True),
        ("return rng.choice(np.flatnonzero(values == values.max()))", False),
        ("return int(values.argmax())", False),
    ],
)
def test_only_slow_argmaxes_are_detected(tmp_path, body, is_slow):
    file = write_source(tmp_path, f"def pick(values, rng):\n    {body}\n")
    function = source.function_at(file, 1)
    assert function is not None
    assert source.is_argmax(function) is is_slow


def test_a_file_that_changed_between_two_profiles_is_read_again(tmp_path):
    script, stored = tmp_path / "train.py", tmp_path / "session.json.gz"
    rules = []
    for line in ("gc.collect()", "text = json.dumps(history)"):
        script.write_text(f"def main():\n    {line}\n    done = 1\n")
        rows = [sample(f"main ({script}:{n})", elapsed_s=5.0, on_core_s=5.0) for n in (2, 3)]
        save(session(process(samples=rows)), stored)
        rules.append(diagnose(read(stored))[0].rule)
    assert rules == ["garbage-collection", "text-and-bytes"]
