"""Options too large for any machine's memory or time are refused at once, in one sentence."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from hotloop.algorithms import ALGORITHMS, find, td3_bc
from hotloop.base import memory
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.training.options.constraints import _nested_types, type_hints

GIB = 2**30
HUGE = [10**9, 10**12, 10**18, 10**30]
# These counts use no memory. Huge values only take long, or are never reached.
UNBOUNDED = {
    *("total_timesteps", "checkpoint_interval", "eval_interval", "report_interval"),
    *("eval_max_steps", "keep_checkpoints", "stop_without_improvement"),
    *("max_failures", "target_interval", "policy_frequency", "max_policy_age"),
    *("policy_updates", "batch_norm_updates"),
}
# These are checked later, with the environment's spaces: see the tests of replay and policies.
CHECKED_LATER = {"buffer_size", "n_step"}
VALID_OPTIONS = {
    "ppo": {},
    "appo": {},
    "sac": {"env_id": "Pendulum-v1"},
    "sac_discrete": {},
    "td3": {"env_id": "Pendulum-v1"},
    "tqc": {"env_id": "Pendulum-v1"},
    "crossq": {"env_id": "Pendulum-v1"},
    "td3_bc": {"env_id": "Pendulum-v1"},
    "dqn": {},
}


@pytest.fixture(autouse=True)
def eighteen_gib(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 18 * GIB)


def counts(name):
    """Return the options of an algorithm that are integers."""
    hints = type_hints(find(name).config).items()
    return [
        option
        for option, hint in hints
        if option != "seed"
        and any(kind in (int, tuple[int, ...]) for kind in _nested_types(hint))
        and not (name == "td3_bc" and option in td3_bc.UNUSED)  # refused, whatever the value
    ]


def with_option(name, option, value):
    options = {"hidden_sizes": {"hidden_sizes": (value, value)}}.get(option, {option: value})
    if option.startswith("eval_") or option == "stop_without_improvement":
        options.setdefault("eval_interval", 1)
    if option in ("envs_per_worker", "max_failures", "step_timeout_s"):
        options |= {"workers": 2, "num_envs": 2}
    if option == "workers":
        options["envs_per_worker"] = 1
    if option in ("fragment_steps", "max_policy_age"):
        options |= {"workers": 2, "num_envs": 2, "schedule": "async"}
        options.setdefault("max_policy_age", 2**62)
    return find(name).config(**{**VALID_OPTIONS[name], **options})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_count_is_refused_or_harmless(name):
    for option, value in itertools.product(counts(name), HUGE):
        try:
            config = with_option(name, option, value)
        except ConfigError as error:
            message = str(error)
            assert f"`{option}`" in message
            assert "\n" not in message
            assert option not in UNBOUNDED or value > 2**63, option
        else:
            assert option in UNBOUNDED | CHECKED_LATER, (option, value)
            assert getattr(config, option) == value


FREE = ", and 18 GiB are free: "
INLINE = {"envs_per_worker": 1, "backend": "inline"}


@pytest.mark.parametrize(
    ("options", "size", "advice"),
    [
        ({"num_envs": 10**9}, "1,000,000,000 environments × 128 steps take at least 3.3 TiB",
         "lower `num_envs` or `num_steps`"),
        ({"num_envs": 1, "num_steps": 10**9},
         "1 environment × 1,000,000,000 steps take at least 980 GiB", "lower `num_steps`"),
        ({"workers": 10**6, "envs_per_worker": 1}, "1,000,000 workers take at least 15 TiB",
         "lower `workers`"),
        ({"workers": 2, "envs_per_worker": 10**9},
         "2,000,000,000 environments × 128 steps take at least 13 TiB",
         "lower `envs_per_worker` or `num_steps`"),
        ({"workers": 10**6, **INLINE}, "1,000,000 environments × 128 steps take at least 125 GiB",
         "lower `envs_per_worker` or `num_steps`"),
        ({"hidden_sizes": (10**6, 10**6)},
         "1,000,002,000,000 parameters and more take at least 14 TiB", "lower `hidden_sizes`"),
        ({"num_steps": 10**6, "num_minibatches": 1, "hidden_sizes": (1000, 1000)},
         "the hidden layers of 8,000,000 transitions take at least 59 GiB",
         "raise `num_minibatches`, or lower `hidden_sizes`"),
        ({"update_epochs": 10**7}, "10,000,000 passes over 1,024 transitions take at least 76 GiB",
         "lower `update_epochs`"),
        ({"eval_interval": 1, "eval_episodes": 10**9},
         "1,000,000,000 episodes take at least 119 GiB", "lower `eval_episodes`"),
        ({"torch_threads": 100_000}, "`torch_threads` must be at most 512, got 100,000: more "
         "threads than cores only wait for each other", ""),
        ({"num_envs": 2**63}, "`num_envs` must be less than 2⁶³, got 9223372036854775808", ""),
    ],
)  # fmt: skip
def test_messages_of_ppo(options, size, advice):
    with pytest.raises(ConfigError) as raised:
        find("ppo").config(**options)
    assert str(raised.value) == size + (FREE + advice if advice else "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"train_frequency": 10**9, "num_envs": 4}, "4 environments × 1,000,000,000 steps take at "
         f"least 1.0 TiB{FREE}lower `num_envs` or `train_frequency`"),
        ({"batch_size": 10**8, "buffer_size": 10**9, "total_timesteps": 10**9},
         "the hidden layers of 100,000,000 transitions take at least 190 GiB"
         f"{FREE}lower `batch_size`, or lower `hidden_sizes`"),
        ({"batch_size": 2_001, "total_timesteps": 2_000, "learning_starts": 10},
         "`batch_size` must be no more than `total_timesteps`, or nothing is learned, got 2,001 "
         "of 2,000: lower `batch_size` or raise `total_timesteps`"),
    ],
)  # fmt: skip
def test_messages_of_sac(options, sentence):
    with pytest.raises(ConfigError) as raised:
        find("sac").config(**options)
    assert str(raised.value) == sentence


def test_options_that_fit_are_accepted():
    config = find("ppo").config(
        num_envs=2_000, num_steps=1_000, torch_threads=512, hidden_sizes=(4_096, 4_096)
    )
    assert config.batch_size == 2_000_000


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_gpu_memory_is_not_counted(device):
    options = {"hidden_sizes": (40_000, 40_000)}
    find("ppo").config(device=device, **options)
    with pytest.raises(ConfigError, match="parameters and more"):
        find("ppo").config(**options)
    find("ppo").config(device=device, num_steps=2**20, num_minibatches=1)
    with pytest.raises(ConfigError, match="hidden layers"):
        find("ppo").config(num_steps=2**20, num_minibatches=1, hidden_sizes=(1_000,))


@pytest.mark.parametrize(
    ("num_steps", "requested", "nearest"),
    [(10**7, 7, 8), (10**7, 3, 2), (10**7 + 19, 5, 1), (6, 10**12, 48), (6, 5, 4)],
)
def test_the_nearest_number_of_minibatches_is_found(num_steps, requested, nearest):
    num_envs = 1 if num_steps == 10**7 + 19 else 8  # a prime
    with pytest.raises(ConfigError, match=f"got {requested}: {nearest} does"):
        find("ppo").config(num_steps=num_steps, num_minibatches=requested, num_envs=num_envs)


def test_integers_that_no_float_can_hold():
    for option in ("clip_obs", "target_kl", "step_timeout_s", "gamma"):
        with pytest.raises(ConfigError, match=f"`{option}` must "):
            find("ppo").config(**{option: 10**400})


def test_a_stored_configuration_is_checked_too():
    config = find("ppo").config()
    with pytest.raises(ConfigError, match="episodes take at least"):
        dataclasses.replace(config, eval_interval=1, eval_episodes=10**9)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ppo", "--num-envs", "1000000000"], "1,000,000,000 environments × 128 steps take"),
        (["sac", "--n-step", "1" + "0" * 30], "`n_step` must be less than 2⁶³"),
    ],
)
def test_command_prints_the_message(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hotloop: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_rare_updates_limit_no_fragments():
    config = find("dqn").config(workers=2, num_envs=2, schedule="async", update_to_data=5e-324)
    assert config.max_steps_ahead == 2**63
