"""Signals of a cluster's scheduler, which reach all processes of a job."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

_LIMIT_S = 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "file"),
    [
        (signal.SIGTERM, None),
        (signal.SIGUSR1, "run/config.json"),
        (signal.SIGTERM, "run/metrics.jsonl"),
    ],
    ids=["import", "start", "training"],
)
def test_a_job_with_workers_ends_cleanly(tmp_path, number, file):
    command = ["train", "ppo", "--workers", "2", "--total-timesteps", "50000000"]
    command += ["--run-dir", "run"]
    log = tmp_path / "errors.txt"
    with log.open("w") as errors_file:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "hotloop", *command],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=errors_file,
            start_new_session=True,  # a group of its own
        )
    end_s = time.monotonic() + _LIMIT_S
    try:
        # The command imports torch after its handlers are in place.
        while time.monotonic() < end_s:
            if (tmp_path / file).exists() if file else "torch" in log.read_text():
                break
            time.sleep(0.01)
        os.killpg(process.pid, number)
        process.wait(timeout=_LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    errors = log.read_text()
    assert process.returncode == 128 + number
    assert "hotloop: interrupted" in errors
    assert "Traceback" not in errors
    if file == "run/metrics.jsonl":
        assert (tmp_path / "run" / "checkpoints" / "last").exists()
        status = json.loads((tmp_path / "run" / "status.json").read_text())
        assert (status["status"], status["reason"]) == ("stopped", number.name)
