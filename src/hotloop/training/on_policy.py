"""On-policy algorithms: collect → prepare → update → publish → report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotloop.base.transfer import to_host
from hotloop.errors import ConfigError, EnvironmentFailure, NonFiniteUpdate
from hotloop.learner import Learner, Normalizer, UpdateRule
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
from hotloop.runs import RunResult
from hotloop.timing import span
from hotloop.training.acting_policy import make_acting_policy
from hotloop.training.action_metrics import ActionMetrics
from hotloop.training.algorithm import (
    Algorithm,
    joined_arrays,
    make_normalizer,
    policy_network,
)
from hotloop.training.checkpoint_state import CheckpointState
from hotloop.training.lagged_fragments import FreshFragments
from hotloop.training.minibatches import minibatches, num_units, select_rows
from hotloop.training.run import Training
from hotloop.training.update_requests import Run, UpdateRequest
from hotloop.types import Array, Fragment


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm):
    """An algorithm that learns from fragments of its current policy.

    Attributes:
        prepare: `prepare(fragment, hyper, config)` returns a NamedTuple of arrays, (T, N, …), to
            learn from. `hyper` holds floats. With environments on the device, the fragment and the
            NamedTuple hold tensors. Rewards are normalized if the configuration requests it. The
            `obs` field is scaled afterwards, as the policy saw it.
        update: `update(state, batch, noise, hyper, *, nets, config)` updates the state in place
            from a minibatch of tensors, (B, …), and returns metrics, 0-d tensors by name.
        is_weighted: whether the batch has a field `weight`, float32, (B,), the factor of each row's
            loss. It is set if environments took different numbers of steps.
        has_noise: whether updates receive standard normal noise, (B, A), instead of None.
        fragments: `fragments(config)` returns the stage before `prepare`. With `LaggedFragments`,
            the algorithm learns from fragments of older policies, and `prepare` receives the newest
            policy's `PolicyReevaluation` as last argument.
        active: the name of a state's field, bool, 0-d, or None. An update sets it to False if later
            updates of the iteration must change nothing.
        can_stop_early: `can_stop_early(config)` returns whether an update may do so. `active` is
            checked only then.
    """

    prepare: Callable[..., Any] | None = None
    update: Callable[..., Any] | None = None
    active: str | None = None
    can_stop_early: Callable[[Any], bool] = lambda config: True
    is_weighted: bool = False
    has_noise: bool = False
    fragments: Callable[[Any], FreshFragments] = lambda config: FreshFragments()
    learns_on_device: bool = True

    def _required_functions(self) -> tuple[str, ...]:
        return ("prepare", "update")

    def nonblocking_schedule(self, config: Any) -> Schedule:
        """See `Algorithm`."""
        has_memory = getattr(config, "memory", None) is not None  # sequences of one length
        may_change = self.is_weighted and not has_memory and config.schedule != "lag:1"
        return "variable" if may_change else "barrier"

    def collection_options(self, config: Any) -> CollectionOptions:
        """See `Algorithm`."""
        if config.schedule == "variable" and not self.is_weighted:
            raise ConfigError(
                f"`schedule` 'variable' needs a weight for each row, but the batch of "
                f"'{self.name}' has no field `weight`: add the field, multiply the loss of each "
                "row by it and set `is_weighted`, or choose 'barrier'"
            )
        has_lag, stage = config.schedule == "lag:1", self.fragments(config)
        return CollectionOptions(
            num_steps=config.num_steps,
            seed=config.seed,
            schedule="barrier" if has_lag else config.schedule,
            overlap=config.overlap or has_lag,
            in_fragments=True,
            max_policy_age=stage.max_policy_age,
            drops_too_old=stage.drops_too_old,
        )

    def run(self, training: Training) -> Run[RunResult]:
        """See `Algorithm`."""
        config, envs, resumed = training.config, training.envs, training.resumed
        # Make the normalizer, the learner and the rollout.
        gamma = as_schedule(config.gamma)
        with span("make_learner"):
            nets = self.networks(config, envs, training.device)
            network = policy_network(nets).network
            device = training.device if training.is_on_device else None
            normalizer = make_normalizer(
                config, nets, envs.num_envs, gamma=gamma(0.0), device=device
            )
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
                policy_network(nets),
                params,
                obs_scale=normalizer.obs_scale,
                is_on_device=training.is_on_device,
            )
            device_policy: DevicePolicy | None = None
            if training.is_on_device:
                device_policy = DevicePolicy(policy_network(nets), params, policy)
            rollout = training.make_rollout(policy if device_policy is None else device_policy)
            if device_policy is not None:
                learner.executions += training.envs.executions
        action_metrics = ActionMetrics(network)
        stage = self.fragments(config)
        # Restore the checkpoint of a resumed run.
        iteration, restarted_envs = 0, []
        if resumed is not None:
            iteration = resumed.position.iteration
            old = resumed.position
            learner.load(resumed.arrays, old.random, old.num_updates, old.executed)
            normalizer.load(resumed.arrays)
            rollout.publish(learner.publish(iteration, resumed.checkpoint.snapshot.obs_scale))
            restarted_envs = rollout.restore(resumed.arrays, resumed.position.rollout)
            normalizer.restart(restarted_envs)

        # Collect, prepare, update, publish and report.
        should_stop = training.begin(learner, restarted_envs)
        while not should_stop and rollout.num_transitions < config.total_timesteps:
            iteration += 1
            progress = rollout.num_transitions / config.total_timesteps
            learner.hyper.set(progress)
            normalizer.gamma = gamma(progress)
            with span("collect"):
                fragments = stage.collect(rollout.collect)
            if rollout.last_failure and not any(fragment.valid.any() for fragment in fragments):
                raise EnvironmentFailure(
                    f"no step of the last fragments succeeded: {rollout.last_failure}"
                )
            with span("prepare"):
                for fragment in fragments:
                    normalizer.update(fragment)
                fields, batch = self._prepare_batch(
                    fragments,
                    stage,
                    normalizer,
                    policy if device_policy is None else device_policy,
                    learner,
                    nets,
                    config,
                    iteration - 1,
                )
            steps = self._update_batches(batch, learner, config)
            metrics = yield UpdateRequest(learner, steps, spans=("update", "minibatch"))
            metrics |= stage.metrics(fragments, iteration - 1)
            if "value" in fields and "returns" in fields:
                is_valid = fields["weight"] > 0 if policy.memory_size else ...
                variance = explained_variance(
                    fields["value"][is_valid], fields["returns"][is_valid]
                )
                metrics["explained_variance"] = variance
            with span("publish"):
                snapshot = learner.publish(iteration, normalizer.obs_scale)
                rollout.publish(snapshot)
                metrics |= action_metrics(fragments, snapshot.params)
                state = rollout.state()
                parts = (learner.state_snapshot(), normalizer.array_snapshot(), state.to_arrays)
                position = CheckpointState(
                    timesteps=state.num_transitions,
                    iteration=iteration,
                    num_updates=learner.num_updates,
                    device=str(learner.device),
                    random=learner.random_state(),
                    executed=learner.modes_used(),
                    rollout=state.position(),
                )
            should_stop = training.end_iteration(
                position,
                network=network,
                snapshot=learner.copy_snapshot(snapshot),
                arrays=partial(joined_arrays, parts),
                metrics=metrics,
                rollout=rollout,
            )
        return training.result(policy, learner, is_stopped=should_stop)

    def _prepare_batch(
        self,
        fragments: Sequence[Fragment],
        stage: FreshFragments,
        normalizer: Normalizer,
        policy: ActingPolicy | DevicePolicy,
        learner: Learner,
        nets: Any,
        config: Any,
        version: int,
    ) -> tuple[dict[str, Any], Any]:
        """Return the prepared fragments, (Σ T·N, …), by name and as a batch on the device."""
        assert self.prepare is not None
        # Reevaluate the fragments, then prepare each.
        params = getattr(learner.state, self.acting)
        reevaluations = stage.reevaluate(
            fragments, policy_network(nets), params, policy, version, learner.upload
        )
        prepared = []
        for k, fragment in enumerate(fragments):
            # A copy, since the next fragment is written to this one's rewards.
            scaled = dataclasses.replace(fragment, reward=normalizer.reward(fragment.reward))
            prepared.append(
                self.prepare(scaled, learner.hyper.floats, config, *reevaluations[k : k + 1])
            )
        kind = type(prepared[0])
        parts = [_present_fields(part) for part in prepared]
        for part, weight in zip(parts, stage.weights(fragments), strict=False):
            part["weight"] = weight
        # Join them to rows or sequences, then scale and weight them.
        network = policy_network(nets).network
        if network.action_spec.is_masked:
            self._check_fields(kind, ("mask",), "a policy with action masks learns from them")
            for part, fragment in zip(parts, fragments, strict=True):
                part["mask"] = fragment.mask
        if network.memory_size:
            names = ("memory", "begins", "weight")
            self._check_fields(kind, names, "a recurrent network learns from sequences")
            length = getattr(config, "sequence_length", None) or config.num_steps
            fields = to_sequences(fragments, parts, length)
        else:
            fields = to_batch(fragments, parts, learner.rng)
        if "obs" in fields:
            fields["obs"] = policy.scaled(fields["obs"])
        if config.schedule == "variable":
            fields["weight"] = environment_weights(fragments)
        stage.normalize(fields)
        if isinstance(policy, DevicePolicy):
            return fields, kind(**fields)
        return fields, kind(**learner.upload(fields))

    def _check_fields(self, kind: Any, names: Sequence[str], reason: str) -> None:
        missing = [name for name in names if name not in kind._fields]
        if missing:
            raise ConfigError(
                f"{reason}, and the batch of '{self.name}' has no "
                f"{', '.join(f'`{name}`' for name in missing)}: add the fields, as in ppo's Batch"
            )

    def _update_batches(
        self, batch: Any, learner: Learner, config: Any
    ) -> Generator[Any, Any, dict[str, float]]:
        """Yield the minibatches of all passes over a batch, or raise NonFiniteUpdate."""
        # Returns the metrics, averaged over the minibatches that changed the state; their number,
        # `num_updates`; and the scheduled hyper-parameters.
        active = None
        if self.active is not None and self.can_stop_early(config):
            active = getattr(learner.state, self.active)
        if active is not None:
            active.fill_(True)
        learner.metrics.clear()
        active_flags: list[Tensor] = []
        orders: list[Tensor] = []
        for _ in range(config.update_epochs):
            order = learner.rng.permutation(num_units(batch))
            orders.append(learner.upload({"order": order})["order"])
            for minibatch in minibatches(batch, orders[-1], config.num_minibatches):
                yield minibatch
                if active is not None:
                    active_flags.append(active.clone())
            # The only synchronization of a pass, needed only if updates may stop early.
            if active is not None and not active.item():
                break
        # Check and average the metrics of all minibatches.
        names, rows = learner.metrics.pop()
        was_active = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if active_flags:
            was_active = torch.stack(active_flags)
        # An inactive minibatch may have an infinite loss, since it changed nothing.
        is_bad = was_active[:, None] & ~rows.isfinite()
        bad_parts = learner.non_finite()
        if is_bad.any() or bad_parts:
            size = num_units(batch) // config.num_minibatches
            raise _first_non_finite(is_bad, names, bad_parts, batch, torch.cat(orders), size)
        rows = rows[was_active]
        metrics = dict(zip(names, rows.mean(0).tolist(), strict=True))
        metrics |= {"num_updates": float(len(rows)), **learner.hyper.reported_values()}
        return metrics


def _first_non_finite(
    is_bad: Tensor,
    names: Sequence[str],
    bad_parts: Sequence[str],
    batch: Any,
    order: Tensor,
    size: int,
) -> NonFiniteUpdate:
    """Return the first non-finite update, or the last: `is_bad` is bool, (updates, M)."""
    # `order` are the rows or sequences of the minibatches, one pass after the other.
    update = int(is_bad.any(1).int().argmax()) if is_bad.any() else len(is_bad) - 1
    bad_names = [name for name, bad in zip(names, is_bad[update].tolist(), strict=True) if bad]
    index = order[update * size : (update + 1) * size]
    rows: dict[str, Array] = {
        name: to_host(x) for name, x in _present_fields(select_rows(batch, index)).items()
    }
    return NonFiniteUpdate(bad_names or list(bad_parts), update + 1, rows)


def _present_fields(batch: Any) -> dict[str, Any]:
    return {name: x for name, x in batch._asdict().items() if x is not None}
