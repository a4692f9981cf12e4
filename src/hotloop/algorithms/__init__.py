"""Algorithms, one file each: configuration, loss, update, `train`."""

from __future__ import annotations

# Name → what `hotloop train --help` says; listed here so that help costs no import of torch.
ALGORITHMS = {
    "ppo": "Proximal policy optimization: on-policy, discrete and continuous actions.",
    "sac": "Soft actor-critic: off-policy, continuous actions.",
    "td3": "Twin delayed deep deterministic policy gradient: off-policy, continuous actions.",
    "dqn": "Deep Q-learning: off-policy, discrete actions.",
}
