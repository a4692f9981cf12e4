"""`hotloop accelerate` runs an unchanged script with the accelerated classes in place."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from textwrap import dedent
from typing import Any

import nbformat
import pytest
import stable_baselines3
from nbclient import NotebookClient
from stable_baselines3 import PPO as ORIGINAL

from hotloop import accelerate, cli
from hotloop.accelerate import import_hook, libraries, report
from hotloop.accelerate.import_hook import replace_classes
from hotloop.base.import_hooks import ImportHooks
from tests.accelerate.parity import flat
from tests.accelerate.random_env import RandomEnv
from tests.profiler.programs import environment


def run(tmp_path: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script by the command until it ends."""
    (tmp_path / "script.py").write_text(dedent(text))
    command = [sys.executable, "-m", "hotloop", "accelerate", "--execution", "eager"]
    return subprocess.run(
        [*command, "script.py", *arguments],
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_script_and_its_processes_train_accelerated_models(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        import multiprocessing, subprocess, sys
        from tests.accelerate.random_env import RandomEnv

        def train(name):
            import stable_baselines3 as sb3
            from stable_baselines3 import PPO
            from stable_baselines3.ppo import PPO as same
            assert sb3.PPO is PPO is same is sb3.ppo.ppo.PPO, (sb3.PPO, PPO, same)
            assert PPO.__module__ == "hotloop.accelerate.ppo"
            PPO("MlpPolicy", RandomEnv(), n_steps=16, batch_size=16, n_epochs=1).learn(208)
            print("trained in", name, flush=True)

        if __name__ == "__main__":
            train("main")
            for method in ("fork", "spawn"):
                child = multiprocessing.get_context(method).Process(target=train, args=(method,))
                child.start()
                child.join()
            subprocess.run([sys.executable, "-c", "import script; script.train('program')"])
            print(sys.argv)
            sys.exit(3)
        """,
        "--flag",
        "1",
    )
    assert result.returncode == 3, result.stderr
    places = [f"trained in {name}" for name in ("main", "fork", "spawn", "program")]
    assert result.stdout.splitlines() == [*places, "['script.py', '--flag', '1']"]
    lines = result.stderr.splitlines()
    assert lines[0] == "hotloop accelerate:"
    assert lines[1] == "  PPO (ActorCriticPolicy), 4 models, 52 updates"
    assert lines[2:4] == ["    acting: accelerated", "    updates: accelerated"]
    assert lines[4].startswith("    execution of updates: eager")
    assert "ms before" in lines[5]
    assert "by hotloop's)" in lines[5]


def test_a_script_with_environments_in_processes(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        import sys
        from stable_baselines3 import DQN, PPO
        from stable_baselines3.common.vec_env import SubprocVecEnv
        from gymnasium.spaces import Discrete
        from tests.accelerate.random_env import RandomEnv

        def make():
            return RandomEnv(action_space=Discrete(2))

        if __name__ == "__main__":
            for method in ("fork", "forkserver", "spawn"):
                envs = SubprocVecEnv([make], start_method=method)
                ppo = PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=1).learn(32)
                dqn = DQN("MlpPolicy", envs, learning_starts=8, batch_size=4).learn(32)
                print(method, ppo.num_timesteps, dqn.num_timesteps)
                envs.close()
        """,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["fork 32 32", "forkserver 32 32", "spawn 32 32"]
    lines = result.stderr.splitlines()
    assert "  PPO (ActorCriticPolicy), 3 models, 6 updates" in lines
    assert [line.split(",")[1] for line in lines if line.startswith("  DQN (")] == [" 3 models"]


def test_a_script_with_a_study_of_optuna(tmp_path: Path) -> None:
    """Trials differ in learning rate and batch size, and pruned ones end in a callback."""
    result = run(
        tmp_path,
        """
        import optuna
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.evaluation import evaluate_policy
        from tests.accelerate.random_env import RandomEnv

        class Prune(BaseCallback):
            def __init__(self, trial):
                super().__init__()
                self.trial = trial

            def _on_step(self):
                self.trial.report(self.num_timesteps, self.num_timesteps)
                if self.trial.number == 1 and self.num_timesteps > 40:
                    raise optuna.TrialPruned()
                return True

        def objective(trial):
            env = RandomEnv()
            model = PPO(
                "MlpPolicy", env, n_steps=32, n_epochs=1,
                learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
                batch_size=trial.suggest_categorical("batch_size", [16, 32]),
            )
            model.learn(96, callback=Prune(trial))
            return evaluate_policy(model, model.get_env(), n_eval_episodes=2)[0]

        optuna.logging.disable_default_handler()
        study = optuna.create_study(direction="maximize")
        study.optimize(objective, n_trials=3)
        print([trial.state.name for trial in study.trials], "learning_rate" in study.best_params)
        """,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["['COMPLETE', 'PRUNED', 'COMPLETE'] True"]
    lines = result.stderr.splitlines()
    assert any(line.startswith("  PPO (ActorCriticPolicy), 3 models, 7 updates") for line in lines)


KERNEL = """
from hotloop.accelerate import PPO
from tests.accelerate.random_env import RandomEnv

class InCell(RandomEnv):
    pass

model = PPO("MlpPolicy", InCell(), n_steps=16, batch_size=16, n_epochs=1).learn(64)
print(type(model).__module__, model.num_timesteps, model.predict(model.get_env().reset())[0].shape)
"""


@pytest.mark.outside
def test_a_kernel_trains_accelerated_models(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(KERNEL)])
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    (output,) = [x for x in notebook.cells[0].outputs if x.get("name") == "stdout"]
    assert output["text"] == "hotloop.accelerate.ppo 64 (1, 2)\n"


def test_a_script_without_the_library_and_an_exception(tmp_path: Path) -> None:
    result = run(tmp_path, "raise ValueError('own error')")
    assert result.returncode == 1
    assert "hotloop" not in result.stderr.partition("ValueError: own error")[0]
    assert result.stderr.splitlines()[-1] == (
        "hotloop accelerate: nothing is accelerated, since the script has not imported "
        "stable_baselines3 or sb3_contrib"
    )


def test_an_interrupted_script_ends_by_the_signal(tmp_path: Path) -> None:
    """A shell ends its loop then, as after `python script.py`."""
    text = """
        import atexit, os, signal
        atexit.register(print, "at exit")
        os.kill(os.getpid(), signal.SIGINT)
        """
    result = run(tmp_path, text)
    assert result.returncode == -signal.SIGINT
    assert result.stdout == "at exit\n"
    assert result.stderr.count("KeyboardInterrupt") == 1
    assert result.stderr.splitlines()[-1].startswith("hotloop accelerate: nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope.py"], "got 'nope.py': the file does not exist"),
        (["--fast", "x.py"], "expected an option of `hotloop accelerate` before the script"),
        ([], "expected a Python script or `-m MODULE`, got nothing"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["accelerate", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (None, "needs stable-baselines3, which is not installed: pip install"),
        ("1.8.0", "supports stable-baselines3 from 2.4 to below 3.0, got 1.8.0: pip install"),
    ],
)
def test_the_library_is_missing_or_too_old(
    installed: str | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(libraries, "version", version)
    (tmp_path / "x.py").write_text("")
    assert cli.main(["accelerate", str(tmp_path / "x.py")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.fixture
def classes_in_place(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace PPO in this process, and restore it and the measured method afterwards."""
    ppo = accelerate.PPO
    for owner, name in (
        (stable_baselines3, "PPO"),
        (stable_baselines3.ppo, "PPO"),
        (stable_baselines3.ppo.ppo, "PPO"),
    ):
        monkeypatch.setattr(owner, name, ORIGINAL)
    monkeypatch.setattr(ppo, "train", ppo.train)
    monkeypatch.setattr(report, "_RECORDS", report._Records())
    replace_classes(stable_baselines3)
    return ppo


def learn(cls: Any, **options: Any) -> Any:
    model = cls("MlpPolicy", RandomEnv(), n_steps=16, batch_size=16, n_epochs=1, **options)
    report._RECORDS.add(model)
    return model.learn(16 * 25)


def test_the_report_names_what_was_not_accelerated(classes_in_place: Any, tmp_path: Path) -> None:
    assert stable_baselines3.ppo.ppo.PPO is classes_in_place
    train = classes_in_place.train
    replace_classes(stable_baselines3)  # as after a reload
    assert classes_in_place.train is train

    class Own(stable_baselines3.PPO):
        def train(self) -> None:
            self._n_updates += 1

    learn(Own)
    learn(stable_baselines3.PPO, use_sde=False, policy_kwargs={"optimizer_class": _sgd()})
    lines = report.report_lines(tmp_path)
    assert lines[0] == "Own (ActorCriticPolicy)"
    assert (
        "  updates: Stable-Baselines3's own code, since its class has its own `train`" in lines[2]
    )
    assert "since its optimizer is SGD, not Adam" in "".join(lines[3:])


def test_the_original_runs_for_the_first_updates_of_each_model(classes_in_place: Any) -> None:
    """Two models with one seed learn the same to the last bit."""
    parameters: list[Any] = []
    for _ in range(2):
        options = {"n_steps": 4, "batch_size": 4, "n_epochs": 4, "seed": 1}
        model = classes_in_place("MlpPolicy", RandomEnv(), **options)
        report._RECORDS.add(model)
        model.learn(4 * 10)
        parameters.append(flat(model).tolist())
    assert parameters[0] == parameters[1]
    for record in report._RECORDS.records:
        assert (len(record.before_s), len(record.after_s)) == (3, 7)
        assert record.num_updates == 40


def _sgd() -> Any:
    import torch

    return torch.optim.SGD


def test_a_failing_hook_leaves_the_classes_in_place(tmp_path: Path) -> None:
    hooks = ImportHooks({})
    hooks.problems["stable_baselines3"] = "MissingExtraError: too old"
    assert import_hook.final_report(hooks, tmp_path) == (
        "hotloop accelerate: Stable-Baselines3's classes are not replaced: stable_baselines3: "
        "MissingExtraError: too old"
    )
    hooks = ImportHooks({})
    hooks.called.add("stable_baselines3")
    text = import_hook.final_report(hooks, tmp_path)
    assert text.endswith("since the script has not called `learn` of a model of Stable-Baselines3")
