"""Cores as affinity and quota have them."""

from hotloop import kernel


def test_cores_are_counted_by_affinity_and_quota(monkeypatch, tmp_path):
    quota = tmp_path / "cpu.max"
    real = kernel.Path

    def path(name):
        return quota if name == "/sys/fs/cgroup/cpu.max" else real(name)

    monkeypatch.setattr(kernel, "Path", path)
    monkeypatch.setattr(kernel.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert kernel.available_cores() == 6  # no such file
    quota.write_text("max 100000\n")
    assert kernel.available_cores() == 6
    quota.write_text("250000 100000\n")
    assert kernel.available_cores() == 2
    quota.write_text("50000 100000\n")
    assert kernel.available_cores() == 1
