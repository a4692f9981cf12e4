"""Grid files hold results of one kernel version, so changed numbers need a new version."""

import hashlib

import numpy as np
import pytest

from hotloop.bandits import (
    AGENTS,
    AbruptChange,
    Adversarial,
    Bernoulli,
    GaussianRewards,
    LinearContextual,
    RandomWalk,
    chunk_sums,
)
from hotloop.bandits.running import KERNEL_VERSION

MATRIX = np.random.default_rng(0).random((60, 3))
CASES = [
    *(
        (name, GaussianRewards(num_arms=7))
        for name in ("epsilon-greedy", "optimistic", "ucb", "ucb1")
    ),
    *((name, GaussianRewards()) for name in ("gradient", "moss", "gaussian-thompson")),
    *((name, Bernoulli(means=(0.2, 0.8, 0.5))) for name in ("beta-thompson", "kl-ucb", "exp3")),
    *((name, LinearContextual(num_arms=3)) for name in ("lin-ucb", "lin-ts")),
    ("epsilon-greedy", RandomWalk(num_arms=3)),
    ("epsilon-greedy", AbruptChange(num_arms=3, every=7)),
    ("epsilon-greedy", Adversarial(rewards=MATRIX)),
]
DIGESTS = {
    1: {
        "epsilon-greedy in gaussian": "7e87d46090b1",
        "optimistic in gaussian": "ca463a550b41",
        "ucb in gaussian": "df0d5db66852",
        "ucb1 in gaussian": "bfbe8a1a4e36",
        "gradient in gaussian": "63a540dbefa9",
        "moss in gaussian": "4f61cd3e7520",
        "gaussian-thompson in gaussian": "f0176565c09c",
        "beta-thompson in bernoulli": "d45c37174dbe",
        "kl-ucb in bernoulli": "4d2946aa98d1",
        "exp3 in bernoulli": "16d7e6838c7d",
        "lin-ucb in linear-contextual": "e9bb52e2b15f",
        "lin-ts in linear-contextual": "8f346889f3df",
        "epsilon-greedy in random-walk": "56e68b43179f",
        "epsilon-greedy in abrupt-change": "dbd905c016b4",
        "epsilon-greedy in adversarial": "ab1b2b3c8692",
    },
}


def digest(name, environment):
    """Return a digest of the pulls of optimal arms and of rewards to three digits."""
    settings = {"seed": 5, "num_steps": 60, "first_run": 0, "num_runs": 300}
    (sums,) = chunk_sums([AGENTS[name]()], environment, **settings)
    numbers = np.concatenate([sums.curve[2], np.round(sums.curve[0], 3) + 0.0])
    return hashlib.sha256(numbers.astype("<f8").tobytes()).hexdigest()[:12]


@pytest.mark.parametrize(("name", "environment"), CASES)
def test_results_match_the_kernel_version(name, environment):
    case = f"{name} in {environment.name}"
    assert digest(name, environment) == DIGESTS[KERNEL_VERSION][case], (
        f"{case}: numbers have changed; raise KERNEL_VERSION, and note its digests here"
    )
