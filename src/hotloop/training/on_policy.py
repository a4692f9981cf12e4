"""On-policy algorithms: collect → prepare → update → publish → report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.errors import ConfigError, NonFiniteUpdate
from hotloop.learner import Learner, Normalizer, UpdateRule
from hotloop.learner.device_normalizer import DeviceNormalizer
from hotloop.ops import explained_variance
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ActingPolicy
from hotloop.policies.device_acting import DevicePolicy
from hotloop.rollouts import (
    CollectionOptions,
    Schedule,
    environment_weights,
    to_batch,
    to_sequences,
)
from hotloop.runs import Result
from hotloop.timing import span
from hotloop.training.acting_policy import make_acting_policy
from hotloop.training.algorithm import (
    Algorithm,
    acting,
    joined_arrays,
    make_device_normalizer,
    make_normalizer,
)
from hotloop.training.learning import Learning, Run
from hotloop.training.minibatches import minibatches, num_units, taken
from hotloop.training.newest import newest
from hotloop.training.position import Position
from hotloop.training.running import Training
from hotloop.training.streams import HeldBack, Stream, ages
from hotloop.types import Array, Fragment


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm):
    """An algorithm that learns from what its policy has just done.

    Attributes:
        prepare: `prepare(fragment, hyper, config)` gives a NamedTuple of arrays, (T, N, …), with
            `hyper` as floats: what is learned from a fragment. Of environments on the device the
            fragment and the NamedTuple hold tensors. Rewards are normalized already where
            that is asked for. `obs` is scaled as the policy saw it.
        update: `update(state, batch, noise, hyper, *, nets, config)` makes a step in place, with
            the rows of a minibatch as tensors, (B, …), and gives metrics, 0-d tensors by name.
        is_weighted: whether the batch has a field `weight`, float32, (B,), which is filled in where
            environments took different numbers of steps: the losses of rows are multiplied by it.
        has_noise: whether an update is given standard normal numbers, (B, A); else None.
        corrects: whether it learns from what older policies did: `prepare` is then given, last,
            what the newest one says of a fragment, a `Newest`.
        active: the state's field, bool, 0-d, that an update turns False where those that follow in
            this iteration are to change nothing; None: there is none.
        may_end: `may_end(config)` says whether an update ever does so: only then is it looked at.
    """

    prepare: Callable[..., Any] | None = None
    update: Callable[..., Any] | None = None
    active: str | None = None
    may_end: Callable[[Any], bool] = lambda config: True
    is_weighted: bool = False
    has_noise: bool = False
    corrects: bool = False

    def _functions(self) -> tuple[str, ...]:
        return ("prepare", "update")

    @property
    def learns_on_device(self) -> bool:
        """See `Algorithm`: `prepare` is given tensors then, and no estimates of the newest."""
        return not self.corrects

    def uneven(self, config: Any) -> Schedule:
        """See `Algorithm`."""
        has_memory = getattr(config, "memory", None) is not None  # sequences of one length
        may_change = self.is_weighted and not has_memory and config.schedule != "lag:1"
        return "variable" if may_change else "barrier"

    def collection_options(self, config: Any) -> CollectionOptions:
        """See `Algorithm`."""
        if config.schedule == "variable" and not self.is_weighted:
            raise ConfigError(
                f"`schedule` 'variable' weighs rows, and the batch of '{self.name}' has no "
                "`weight`: add the field, multiply the loss of each row by it and declare "
                "`is_weighted`, or choose 'barrier'"
            )
        has_lag = config.schedule == "lag:1"
        return CollectionOptions(
            num_steps=config.num_steps,
            seed=config.seed,
            schedule="barrier" if has_lag else config.schedule,
            overlap=config.overlap or has_lag,
            in_fragments=True,
            max_policy_age=getattr(config, "max_policy_age", 1),
            drops_too_old=getattr(config, "too_old", "wait") == "drop",
        )

    def run(self, training: Training) -> Run[Result]:
        """See `Algorithm`."""
        config, envs, resumed = training.config, training.envs, training.resumed
        gamma = as_schedule(config.gamma)
        normalizer: Any
        if training.is_on_device:
            normalizer = make_device_normalizer(
                config, envs, envs.num_envs, gamma=gamma(0.0), device=training.device
            )
        else:
            normalizer = make_normalizer(config, envs, envs.num_envs, gamma=gamma(0.0))
        with span("make_learner"):
            nets = self.networks(config, envs, training.device)
            network = acting(nets).network
            assert self.update is not None
            update = partial(self.update, nets=nets, config=config)
            noise = (config.minibatch_size, math.prod(envs.action_spec.shape))
            learner = self.make_learner(
                config,
                nets,
                [UpdateRule(function=update, noise_shape=noise if self.has_noise else None)],
                device=training.device,
                stream=1,
                num_batches=config.num_updates,
                batch_size=config.minibatch_size,
            )
            params = getattr(learner.state, self.acting)
            policy = make_acting_policy(
                config,
                learner,
                acting(nets),
                params,
                obs_scale=normalizer.obs_scale,
                is_on_device=training.is_on_device,
            )
            acts: DevicePolicy | None = None
            if training.is_on_device:
                acts = DevicePolicy(acting(nets), params, policy)
            rollout = training.rollout(policy if acts is None else acts)
            if acts is not None:
                learner.executions += training.envs.executions
        held = HeldBack(getattr(config, "hold_back", 0))
        stream = Stream() if config.schedule == "async" else None
        iteration, restarted_envs = 0, []
        if resumed is not None:
            iteration = resumed.position.iteration
            was = resumed.position
            learner.load(resumed.arrays, was.random, was.num_updates, was.executed)
            normalizer.load(resumed.arrays)
            rollout.publish(learner.publish(iteration, resumed.checkpoint.snapshot.obs_scale))
            restarted_envs = rollout.restore(resumed.arrays, resumed.position.rollout)
            normalizer.restart(restarted_envs)

        wants_to_stop = training.begin(learner, restarted_envs)
        while not wants_to_stop and rollout.num_transitions < config.total_timesteps:
            iteration += 1
            progress = rollout.num_transitions / config.total_timesteps
            learner.hyper.set(progress)
            normalizer.gamma = gamma(progress)
            with span("collect"):
                fragments = held.exchanged(rollout.collect)
            with span("prepare"):
                for fragment in fragments:
                    normalizer.update(fragment)
                if acts is not None:
                    fields, batch = self._device_batch(fragments, normalizer, acts, learner, config)
                else:
                    fields, batch = self._batch(
                        fragments, stream, normalizer, policy, learner, nets, config, iteration - 1
                    )
            steps = self._learn(batch, learner, config)
            metrics = yield Learning(learner, steps, spans=("update", "minibatch"))
            if self.corrects:
                age = ages(fragments, iteration - 1)
                metrics |= {"age_mean": float(age.mean()), "age_max": float(age.max())}
            if "value" in fields and "returns" in fields:
                counted = fields["weight"] > 0 if policy.memory_size else ...
                told = explained_variance(fields["value"][counted], fields["returns"][counted])
                metrics["explained_variance"] = told
            with span("publish"):
                snapshot = learner.publish(iteration, normalizer.obs_scale)
                rollout.publish(snapshot)
                state = rollout.state()
                parts = (learner.kept_state(), normalizer.kept(), state.to_arrays)
                position = Position(
                    timesteps=state.num_transitions,
                    iteration=iteration,
                    num_updates=learner.num_updates,
                    device=str(learner.device),
                    random=learner.random_state(),
                    executed=learner.executed(),
                    rollout=state.position(),
                )
            wants_to_stop = training.end_iteration(
                position,
                network=network,
                snapshot=learner.kept(snapshot),
                arrays=partial(joined_arrays, parts),
                metrics=metrics,
                rollout=rollout,
            )
        return training.result(policy, learner, is_stopped=wants_to_stop)

    def _device_batch(
        self,
        fragments: Sequence[Any],
        normalizer: DeviceNormalizer,
        policy: DevicePolicy,
        learner: Learner,
        config: Any,
    ) -> tuple[dict[str, Any], Any]:
        """Return what is learned from a fragment of tensors, (T·N, …): by name, and as a batch."""
        assert self.prepare is not None
        (fragment,) = fragments
        scaled = dataclasses.replace(fragment, reward=normalizer.reward(fragment.reward))
        prepared = self.prepare(scaled, learner.hyper.floats, config)
        fields = {name: x.flatten(0, 1) for name, x in _present(prepared).items()}
        if "obs" in fields:
            fields["obs"] = policy.scaled(fields["obs"])
        return fields, type(prepared)(**fields)

    def _batch(
        self,
        fragments: Sequence[Fragment],
        stream: Stream | None,
        normalizer: Normalizer,
        policy: ActingPolicy,
        learner: Learner,
        nets: Any,
        config: Any,
        version: int,
    ) -> tuple[dict[str, Array], Any]:
        """Return what is learned from fragments, (Σ T·N, …): arrays, and tensors on the device."""
        assert self.prepare is not None
        seen: list[Any] = []
        if self.corrects:
            with span("look_again"):
                params = getattr(learner.state, self.acting)
                seen = newest(fragments, acting(nets), params, policy, version, learner.sent)
        prepared = []
        for k, fragment in enumerate(fragments):
            # Not in place: the next fragment is written to where this one's rewards are.
            scaled = dataclasses.replace(fragment, reward=normalizer.reward(fragment.reward))
            prepared.append(self.prepare(scaled, learner.hyper.floats, config, *seen[k : k + 1]))
        kind = type(prepared[0])
        given = [_present(one) for one in prepared]
        weights = [] if stream is None else stream.weights(fragments)
        for k, weight in enumerate(weights):
            given[k]["weight"] = np.full(fragments[k].reward.shape, weight, np.float32)
        if policy.memory_size:
            missing = [x for x in ("memory", "begins", "weight") if x not in kind._fields]
            if missing:
                raise ConfigError(
                    f"a network with memory learns from sequences, and the batch of '{self.name}' "
                    f"has no {', '.join(f'`{name}`' for name in missing)}: add the fields, as "
                    "ppo's Batch has them"
                )
            length = getattr(config, "sequence_length", None) or config.num_steps
            fields = to_sequences(fragments, given, length)
        else:
            fields = to_batch(fragments, given, learner.rng)
        if "obs" in fields:
            fields["obs"] = policy.scaled(fields["obs"])
        if config.schedule == "variable":
            fields["weight"] = environment_weights(fragments)
        if stream is not None and getattr(config, "normalize_advantages", False):
            fields["advantages"] = stream.normalized(fields["advantages"], fields["weight"])
        return fields, kind(**learner.sent(fields))

    def _learn(
        self, batch: Any, learner: Learner, config: Any
    ) -> Generator[Any, Any, dict[str, float]]:
        """Make all passes over a batch: yield each minibatch that is to be learned from.

        Returns:
            The update's metrics, each the mean over the minibatches whose step counted;
            `num_updates`, how many did; what of `Hyper` has a schedule.

        Raises:
            NonFiniteUpdate: a metric or the state was NaN or infinite.
        """
        active = None
        if self.active is not None and self.may_end(config):
            active = getattr(learner.state, self.active)
        if active is not None:
            active.fill_(True)
        learner.metrics.clear()
        counted: list[Tensor] = []
        orders: list[Tensor] = []
        for _ in range(config.update_epochs):
            order = learner.rng.permutation(num_units(batch))
            orders.append(learner.sent({"order": order})["order"])
            for minibatch in minibatches(batch, orders[-1], config.num_minibatches):
                yield minibatch
                if active is not None:
                    counted.append(active.clone())
            # The one synchronisation of a pass, and only where updates may end.
            if active is not None and not active.item():
                break
        names, rows = learner.metrics.pop()
        has_counted = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if counted:
            has_counted = torch.stack(counted)
        # A minibatch that does not count may have an infinite loss: it changed nothing.
        bad = has_counted[:, None] & ~rows.isfinite()
        broken = learner.non_finite()
        if bad.any() or broken:
            size = num_units(batch) // config.num_minibatches
            raise _non_finite(bad, names, broken, batch, torch.cat(orders), size)
        rows = rows[has_counted]
        metrics = dict(zip(names, rows.mean(0).tolist(), strict=True))
        metrics |= {"num_updates": float(len(rows)), **learner.hyper.reported()}
        return metrics


def _non_finite(
    bad: Tensor,
    names: Sequence[str],
    broken: Sequence[str],
    batch: Any,
    order: Tensor,
    size: int,
) -> NonFiniteUpdate:
    """Find the first update that was not finite: the last one, if no metric has seen it yet.

    Args:
        bad: bool, (updates, M).
        names: of the metrics, M.
        broken: parts of the state that are not finite.
        batch: all rows, or sequences.
        order: of these in the minibatches, one pass after the other.
        size: of a minibatch.
    """
    update = int(bad.any(1).int().argmax()) if bad.any() else len(bad) - 1
    found = [name for name, is_bad in zip(names, bad[update].tolist(), strict=True) if is_bad]
    index = order[update * size : (update + 1) * size]
    rows: dict[str, Array] = {
        name: x.cpu().numpy() for name, x in _present(taken(batch, index)).items()
    }
    return NonFiniteUpdate(found or list(broken), update + 1, rows)


def _present(batch: Any) -> dict[str, Any]:
    """The fields of a NamedTuple that are there, by name."""
    return {name: x for name, x in batch._asdict().items() if x is not None}
