"""On-policy algorithms: the declaration, and the stages, which learn from each fragment once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hotloop.base.signals import Interrupts, PendingInterrupt, immediate_interrupt
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.learner import Learner, Normalizer, UpdateRule
from hotloop.ops import explained_variance
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ActingPolicy
from hotloop.policies.device_acting import DevicePolicy
from hotloop.rollouts import (
    CollectionOptions,
    Rollout,
    Schedule,
    environment_weights,
    to_batch,
    to_sequences,
)
from hotloop.timing import span
from hotloop.training.acting_policy import make_acting_policy
from hotloop.training.action_metrics import ActionMetrics
from hotloop.training.algorithm import Algorithm
from hotloop.training.checkpoint_state import CompletedIteration, checkpoint_state
from hotloop.training.fragment_streams import FreshFragments
from hotloop.training.learners import make_learner, make_normalizer, policy_network
from hotloop.training.minibatches import Passes, present_fields
from hotloop.training.options import OnPolicyOptions
from hotloop.training.resume import ResumedRun
from hotloop.training.run_updates import UpdateRequest
from hotloop.training.sources import Sources
from hotloop.types import Fragment

AnyOnPolicyConfig = TypeVar("AnyOnPolicyConfig", bound=OnPolicyOptions)


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Algorithm[AnyOnPolicyConfig]):
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
        active: the name of a field of the state, bool, 0-d, or None. An update sets it to False so
            that later updates of the iteration change nothing.
        can_stop_early: `can_stop_early(config)` returns whether an update may set `active` to
            False. Otherwise `active` is not checked.
    """

    prepare: Callable[..., Any] | None = None
    update: Callable[..., Any] | None = None
    active: str | None = None
    can_stop_early: Callable[[AnyOnPolicyConfig], bool] = lambda config: True
    is_weighted: bool = False
    has_noise: bool = False
    fragments: Callable[[AnyOnPolicyConfig], FreshFragments] = lambda config: FreshFragments()
    learns_on_device: bool = True

    def _required_functions(self) -> tuple[str, ...]:
        return ("prepare", "update")

    def nonblocking_schedule(self, config: AnyOnPolicyConfig) -> Schedule:
        collects_ahead = self.fragments(config).collects_ahead
        may_change = self.is_weighted and not config.is_recurrent and not collects_ahead
        return "variable" if may_change else "barrier"

    def collection_options(self, config: AnyOnPolicyConfig) -> CollectionOptions:
        if config.schedule == "variable" and not self.is_weighted:
            raise ConfigError(
                f"`schedule` 'variable' needs a weight for each row, but the batch of "
                f"'{self.name}' has no field `weight`: add the field, multiply the loss of each "
                "row by it and set `is_weighted`, or choose 'barrier'"
            )
        stage = self.fragments(config)
        return CollectionOptions(
            num_steps=config.num_steps,
            seed=config.seed,
            schedule="barrier" if stage.collects_ahead else config.schedule,
            overlap=config.overlap or stage.collects_ahead,
            in_fragments=True,
            max_policy_age=stage.max_policy_age,
            drops_too_old=stage.drops_too_old,
        )

    def make_stages(self, sources: Sources[AnyOnPolicyConfig]) -> OnPolicyStages:
        config, envs = sources.config, sources.envs
        with span("make_learner"):
            nets = self.networks(config, envs, sources.device)
            normalizer = make_normalizer(
                config,
                nets,
                envs.num_envs,
                gamma=as_schedule(config.gamma)(0.0),
                normalize_reward=config.normalize_reward,
                device=sources.device if sources.is_on_device else None,
            )
            assert self.update is not None
            noise = (config.minibatch_size, math.prod(envs.action_spec.shape))
            rule = UpdateRule(
                function=partial(self.update, nets=nets, config=config),
                noise_shape=noise if self.has_noise else None,
            )
            learner = make_learner(
                self,
                config,
                nets,
                [rule],
                device=sources.device,
                stream=1,
                num_batches=config.num_updates,
                batch_size=config.minibatch_size,
            )
            if sources.initial is not None:
                sources.initial.load(policy_network(nets).network, learner, normalizer)
            params = getattr(learner.state, self.acting)
            policy = make_acting_policy(
                config,
                learner,
                policy_network(nets),
                params,
                obs_scale=normalizer.obs_scale,
                is_on_device=sources.is_on_device,
            )
            acting: ActingPolicy | DevicePolicy = policy
            if sources.is_on_device:
                acting = DevicePolicy(policy_network(nets), params, policy)
            rollout = envs.rollout(acting, self.collection_options(config))
            if sources.is_on_device:
                learner.executions += envs.executions
        return OnPolicyStages(self, config, nets, learner, normalizer, policy, acting, rollout)


class OnPolicyStages:
    """The stages of a run that learns from each batch of fragments once, in several passes.

    Args:
        acting: the policy of the rollout: `policy`, or on a device the same as a `DevicePolicy`.
    """

    store_span = "prepare"

    def __init__(
        self,
        algorithm: OnPolicy,
        config: OnPolicyOptions,
        nets: Any,
        learner: Learner,
        normalizer: Normalizer,
        policy: ActingPolicy,
        acting: ActingPolicy | DevicePolicy,
        rollout: Rollout,
    ) -> None:
        self.learner, self.policy, self.rollout = learner, policy, rollout
        self.interrupts: Interrupts = immediate_interrupt  # an unfinished iteration is lost
        self._algorithm, self._config, self._nets = algorithm, config, policy_network(nets)
        self._normalizer, self._acting = normalizer, acting
        self._gamma = as_schedule(config.gamma)
        self._stage = algorithm.fragments(config)
        active = None
        if algorithm.active is not None and algorithm.can_stop_early(config):
            active = getattr(learner.state, algorithm.active)
        self._passes = Passes(learner, config, active)
        self._action_metrics = ActionMetrics(policy.network)
        self._iteration = 0
        self._fragments: Sequence[Fragment] = ()
        self._fields: dict[str, Any] = {}
        self._batch: Any = None
        self._snapshot = policy.snapshot

    def restore(self, resumed: ResumedRun) -> tuple[list[int], list[str]]:
        """See `Stages`."""
        position, arrays = resumed.position, resumed.arrays
        self._iteration = position.iteration
        self.learner.load(arrays, position.random, position.num_updates, position.executed)
        self._normalizer.load(arrays)
        obs_scale = resumed.checkpoint.snapshot.obs_scale
        self.rollout.publish(self.learner.publish(self._iteration, obs_scale))
        restarted_envs = self.rollout.restore(arrays, position.rollout)
        self._normalizer.restart(restarted_envs)
        return restarted_envs, []

    def rounds(self, interrupt: PendingInterrupt) -> Iterator[None]:
        """See `Stages`. An iteration is one round."""
        self._iteration += 1
        progress = self.rollout.num_transitions / self._config.total_timesteps
        self.learner.hyper.set(progress)
        self._normalizer.gamma = self._gamma(progress)
        yield

    def collect(self) -> Sequence[Fragment]:
        """See `Stages`."""
        fragments = self._stage.collect(self.rollout.collect)
        failure = self.rollout.last_failure
        if failure and not any(fragment.valid.any() for fragment in fragments):
            raise EnvironmentFailure(f"no step of the last fragments succeeded: {failure}")
        return fragments

    def store(self, fragments: Sequence[Fragment]) -> None:
        """See `Stages`. Prepare the fragments as one batch on the device."""
        for fragment in fragments:
            self._normalizer.update(fragment)
        prepared = self._prepare(fragments)
        self._fragments, self._fields = fragments, self._join(fragments, prepared)
        is_on_device = isinstance(self._acting, DevicePolicy)
        tensors = self._fields if is_on_device else self.learner.upload(self._fields)
        self._batch = type(prepared[0])(**tensors)

    def update_requests(self) -> Iterator[UpdateRequest]:
        """See `Stages`. Pass over the batch several times."""
        steps = self._passes.minibatches(self._batch)
        yield UpdateRequest(self.learner, steps, spans=("update", "minibatch"))
        fields, metrics = self._fields, self._passes.metrics
        metrics |= self._stage.metrics(self._fragments, self._iteration - 1)
        if "value" in fields and "returns" in fields:
            is_valid = fields["weight"] > 0 if self.policy.memory_size else ...
            metrics["explained_variance"] = explained_variance(
                fields["value"][is_valid], fields["returns"][is_valid]
            )

    def publish(self) -> None:
        """See `Stages`."""
        self._snapshot = self.learner.publish(self._iteration, self._normalizer.obs_scale)
        self.rollout.publish(self._snapshot)

    def complete(self) -> CompletedIteration:
        """See `Stages`."""
        learner, state = self.learner, self.rollout.state()
        action_metrics = self._action_metrics(self._fragments, self._snapshot.params)
        return CompletedIteration(
            position=checkpoint_state(learner, state, self._iteration),
            snapshot=learner.copy_snapshot(self._snapshot),
            parts=(
                learner.state_snapshot(),
                self._normalizer.array_snapshot(),
                state.to_arrays,
            ),
            metrics=self._passes.metrics | action_metrics,
        )

    def _prepare(self, fragments: Sequence[Fragment]) -> list[Any]:
        """Return a NamedTuple of the algorithm for each fragment, (T, N, …)."""
        algorithm, learner = self._algorithm, self.learner
        assert algorithm.prepare is not None
        params = getattr(learner.state, algorithm.acting)
        reevaluations = self._stage.reevaluate(
            fragments, self._nets, params, self._acting, self._iteration - 1, learner.upload
        )
        prepared = []
        for k, fragment in enumerate(fragments):
            # Copy, since the next fragment overwrites this one's rewards.
            reward = self._normalizer.reward(fragment.reward)
            scaled = dataclasses.replace(fragment, reward=reward)
            arguments = (learner.hyper.floats, self._config, *reevaluations[k : k + 1])
            prepared.append(algorithm.prepare(scaled, *arguments))
        return prepared

    def _join(self, fragments: Sequence[Fragment], prepared: Sequence[Any]) -> dict[str, Any]:
        """Return prepared fragments as rows or sequences, scaled and weighted, by field."""
        kind, network, config = type(prepared[0]), self._nets.network, self._config
        parts = [present_fields(part) for part in prepared]
        for part, weight in zip(parts, self._stage.weights(fragments), strict=False):
            part["weight"] = weight
        if network.action_spec.is_masked:
            self._check_fields(kind, ("mask",), "a policy with action masks learns from them")
            for part, fragment in zip(parts, fragments, strict=True):
                part["mask"] = fragment.mask
        if network.memory_size:
            names = ("memory", "begins", "weight")
            self._check_fields(kind, names, "a recurrent network learns from sequences")
            fields = to_sequences(fragments, parts, config.sequence_steps)
        else:
            fields = to_batch(fragments, parts, self.learner.rng)
        if "obs" in fields:
            fields["obs"] = self._acting.scaled(fields["obs"])
        if config.schedule == "variable":
            fields["weight"] = environment_weights(fragments)
        self._stage.normalize(fields)
        return fields

    def _check_fields(self, kind: Any, names: Sequence[str], reason: str) -> None:
        missing = [name for name in names if name not in kind._fields]
        if missing:
            raise ConfigError(
                f"{reason}, and the batch of '{self._algorithm.name}' has no "
                f"{', '.join(f'`{name}`' for name in missing)}: add the fields, as in ppo's Batch"
            )
