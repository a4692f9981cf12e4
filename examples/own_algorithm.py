"""Train with an algorithm of your own: PPO with a penalty on the KL divergence instead of clipping.

An algorithm is a declaration, so you can replace one function of it. For a whole one in a file,
see qrdqn.py.

    python examples/own_algorithm.py
    cd examples && hotloop train own_algorithm:algorithm --env-id CartPole-v1 --kl-coef 0.5
"""

import dataclasses
import sys

from hotloop.algorithms import ppo
from hotloop.learner import adam_step, clip_grad_norm, value_and_grad
from hotloop.training.options import NotNegative


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """PPO's options, and one more."""

    kl_coef: NotNegative = 1.0
    """Weight of the penalty. Raise it if the policy changes too fast, lower it if too slowly."""


def loss(params, batch, hyper, nets, config):
    log_prob, _, value = nets.evaluate(params, batch.obs, batch.action)
    log_ratio = log_prob - batch.log_prob
    kl = (log_ratio.exp() - 1 - log_ratio).mean()
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    policy_loss = -(advantages * log_ratio.exp()).mean() + config.kl_coef * kl
    value_loss = (value - batch.returns).square().mean()
    return policy_loss + 0.5 * value_loss, {"policy_loss": policy_loss, "kl": kl}


def update(state, batch, noise, hyper, *, nets, config):
    total, metrics, grad = value_and_grad(loss, state.params, batch, hyper, nets, config)
    grad, _ = clip_grad_norm(grad, 0.5)
    adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    return {"loss": total, **metrics}


algorithm = dataclasses.replace(ppo.algorithm, name="kl_ppo", config=Config, update=update)


def main(total_timesteps=100_000):
    result = algorithm.train(Config(env_id="CartPole-v1", total_timesteps=total_timesteps))
    print(f"mean return: {result.mean_return:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
