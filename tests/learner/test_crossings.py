"""Updates stay on their device: nothing crosses to the host or comes from there.

On torch's device `meta` tensors have no values: what an update looks at, or makes of Python's
numbers, is seen there without a GPU.
"""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.algorithms import find
from hotloop.learner import UpdateRule
from hotloop.learner.state import mapped, tensors
from hotloop.learner.updates import BoundUpdate
from tests.learner.test_updates import BOX, DISCRETE, OPTIONS, make_batch, make_learner
from tests.policies.nets import Spaces
from tests.policies.test_policies import obs_spec

META = torch.device("meta")


class Crossings(TorchDispatchMode):
    """Notes operations that have a tensor of the host among what they take or give."""

    def __init__(self):
        super().__init__()
        self.found = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(x.device.type == "cpu" for x in leaves((args, kwargs, result))):
            self.found.append(str(func))
        return result


def leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)


def updates_on_meta(name):
    """The updates of an algorithm, packed as they are captured, and their arguments."""
    algorithm = find(name)
    learner = make_learner(name, "eager")
    config = algorithm.config(**OPTIONS[name], execution="eager")
    spaces = Spaces(obs_spec(3), DISCRETE if name in ("ppo", "dqn") else BOX)
    nets = algorithm.networks(config, spaces, META)
    if name == "ppo":
        rules = [UpdateRule(function=partial(algorithm.update, nets=nets, config=config))]
    else:
        rules = [update.rule(nets, config) for update in algorithm.updates]
    learner.update(make_batch(name, 0))  # metrics have their names
    learner.update(make_batch(name, 1))
    for rule, (_, there) in zip(rules, learner.rules, strict=True):
        bound = mapped((learner.state, learner.hyper.tensors), lambda x: x.to(META))
        update = BoundUpdate(rule.function, *bound, there.execution.choice, rule.name)
        update.names = there.names
        noise = None if rule.noise_shape is None else torch.zeros(rule.noise_shape, device=META)
        yield update, bound, mapped(make_batch(name, 0), lambda x: x.to(META)), noise


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_updates_stay_on_their_device(name):
    for update, bound, batch, noise in updates_on_meta(name):
        before = tensors(bound)
        with Crossings() as crossings:
            given = update.packed(bound, batch, noise)
        assert crossings.found == []
        given = given if isinstance(given, tuple) else (given,)
        assert {x.device.type for x in given} == {"meta"}
        assert all(tensors(bound)[part] is x for part, x in before.items())


def test_what_crosses_is_seen():
    x = torch.ones(3, device=META)
    for crosses in (
        lambda: x + torch.tensor(1.0),
        lambda: torch.tensor([1.0, 2.0]).to(META),
    ):
        with Crossings() as crossings:
            crosses()
        assert crossings.found
    for looks in (lambda: x.sum().item(), lambda: bool(x.sum() > 0), x.tolist, x.cpu):
        with pytest.raises((RuntimeError, NotImplementedError)):
            looks()
