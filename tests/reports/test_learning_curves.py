import json

import pytest

from hotloop.errors import RunDirectoryError
from hotloop.reports import learning_curves, run_page
from tests.runs.run_factory import make_run

HOSTILE = "<script>alert('x')</script>"


def rewrite(run, change):
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for k, line in enumerate(lines):
        change(k, line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def page(run, tmp_path):
    learned = learning_curves.read(run)
    parts = run_page.sections(learned, run, tmp_path / "page.html")
    return {name: inside for name, _, inside in parts}


def test_read_by_hand(tmp_path):
    run = make_run(tmp_path / "run", evaluations=(15.0, 40.0), gamma=0.9)

    def add_metrics(k, line):
        line["episode_info"] = {"is_success": [1.0] * len(line["episode_returns"])}
        line["evaluation"] |= {"returns": [10.0, 20.0 + 40 * k], "lengths": [4, 6]}
        line["evaluation"]["info"] = {"is_success": [0.0, 1.0]}

    rewrite(run, add_metrics)
    learned = learning_curves.read(run)
    assert learned.returns.steps.tolist() == [500.0, 1000.0, 2000.0]
    assert learned.returns.values.tolist() == [10.0, 20.0, 30.0]
    assert learned.lengths.values.tolist() == [10.0, 10.0, 10.0]
    assert learned.info["is_success"].values.tolist() == [1.0, 1.0, 1.0]
    evaluations = learned.evaluations
    assert evaluations.mean.values.tolist() == [15.0, 40.0]
    assert evaluations.bounds.tolist() == [[10.0, 10.0], [20.0, 60.0]]
    assert evaluations.lengths.values.tolist() == [5.0, 5.0]
    assert evaluations.info["is_success"].values.tolist() == [0.5, 0.5]
    assert evaluations.num_episodes == 2
    assert learned.metrics.keys() == {"policy_loss", "steps_per_s"}
    assert learned.metrics["steps_per_s"].values.tolist() == [2000.0, 2000.0]
    assert learning_curves.summary_text(learned).splitlines() == [
        "ppo on CartPole-v1, seed 1: finished, 2,000 of 2,000 steps in 0:01",
        "  mean return of the last 3 training episodes  20.0",
        "  best mean return of an evaluation  40.0, at 2,000 steps",
        "  is_success, mean of the last 3  1",
        "  return over steps  10 ▁▅█ 30",
    ]


def test_episodes_that_lack_a_number_are_left_out(tmp_path):
    run = make_run(tmp_path / "run", returns=((1.0, 2.0), (3.0, 4.0)))
    rewrite(run, lambda k, line: line.update(episode_info={"x": [None, 5.0]} if k else {}))
    found = learning_curves.read(run).info["x"]
    assert (found.steps.tolist(), found.values.tolist()) == ([2000.0], [5.0])


def test_sections_show_all_that_was_logged(tmp_path):
    run = make_run(tmp_path / "run", evaluations=(15.0,))
    rewrite(run, lambda k, line: line.update(entropy=0.5, my_own=1.0 + k))
    sections = page(run, tmp_path)
    for name in ("policy_loss", "entropy of the policy, nats", "my_own", "steps_per_s"):
        assert name in sections["metrics"]
    assert "training episode" in sections["returns"]
    assert "evaluation, mean" in sections["returns"]
    assert sections["videos"] == ""


@pytest.mark.parametrize("returns", [(), ((),)])
def test_the_page_reports_that_no_episode_has_ended(returns, tmp_path):
    run = make_run(tmp_path / "run", returns=returns, total_timesteps=5000)
    assert "No episode has ended" in page(run, tmp_path)["returns"]
    assert "no finished training episode" in learning_curves.summary_text(learning_curves.read(run))


def test_no_metrics_at_all(tmp_path):
    run = make_run(tmp_path / "run", returns=(), total_timesteps=5000)
    (run / "metrics.jsonl").unlink()
    sections = page(run, tmp_path)
    assert "no iteration is logged yet" in sections["returns"]
    assert sections["metrics"] == sections["episodes"] == ""


def test_the_page_stops_at_damage_and_reports_it(tmp_path):
    run = make_run(tmp_path / "run", returns=((1.0,), (2.0,), (3.0,)))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:40], lines[2], ""]))
    learned = learning_curves.read(run)
    assert learned.returns.values.tolist() == [1.0]
    assert "is damaged in line 2" in learned.problem
    assert "is damaged in line 2" in page(run, tmp_path)["returns"]
    assert "is damaged in line 2" in learning_curves.summary_text(learned)
    # A cut last line means that the run is running or was killed.
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], lines[2][:40]]))
    learned = learning_curves.read(run)
    assert (learned.returns.values.tolist(), learned.problem) == ([1.0, 2.0], "")


def test_without_a_configuration_there_is_nothing_to_show(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "config.json").write_text("{")
    assert learning_curves.is_run(run)
    assert not learning_curves.is_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="is damaged"):
        learning_curves.read(run)


def test_options_that_differ_come_first(tmp_path):
    run = make_run(tmp_path / "run", gamma=0.9, lam=HOSTILE)
    assert "are unknown" in page(run, tmp_path)["configuration"]
    content = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**content, "defaults": {"gamma": 0.99}}))
    section = page(run, tmp_path)["configuration"]
    rows = section.split("<tr")[2:]
    assert rows[0].startswith(" class=changed>")
    assert "gamma" in rows[0]
    assert "<code>0.99</code>" in rows[0]
    assert section.count("class=changed") == 1
    assert HOSTILE not in section


def test_text_of_a_run_is_escaped(tmp_path):
    run = make_run(tmp_path / "run", returns=((1.0,),))
    rewrite(run, lambda k, line: line.update({HOSTILE: 1.0, "episode_info": {HOSTILE: [1.0]}}))
    assert HOSTILE not in "".join(page(run, tmp_path).values())


def test_small_videos_are_in_the_page_and_large_ones_linked(tmp_path):
    run = make_run(tmp_path / "my run")
    (run / "videos").mkdir()
    (run / "videos" / "step-000000001000.mp4").write_bytes(b"small")
    (run / "videos" / "step-000000002000.mp4").write_bytes(bytes(900_001))
    (run / "videos" / "old.gif").write_bytes(b"gif")
    (run / "videos" / "notes.txt").write_text("no video")
    section = page(run, tmp_path)["videos"]
    assert "at 1,000 steps" in section
    assert 'src="data:video/mp4;base64,c21hbGw="' in section
    assert 'src="data:image/gif;base64,Z2lm"' in section
    assert '<a href="my%20run/videos/step-000000002000.mp4">' in section
    assert "notes" not in section


@pytest.mark.parametrize("value", [None, 1e308, -1e308, 5e-324, 10**400, "x", [], {"x": 1}])
@pytest.mark.parametrize("name", ["entropy", "elapsed_s", "lengths", "returns", "info"])
def test_odd_values_are_shown_or_refused(name, value, tmp_path):
    run = make_run(tmp_path / "run", evaluations=(15.0, 40.0))

    def change(k, line):
        of = line["evaluation"] if name in ("lengths", "returns", "info") else line
        of[name] = value

    rewrite(run, change)
    learned = learning_curves.read(run)
    assert ("is damaged in line 1" in learned.problem) == (
        name == "elapsed_s" and value in (-1e308, "x", [], {"x": 1}, 10**400)
    )
    assert "Options of the run" in page(run, tmp_path)["configuration"]


def test_names_with_terminal_escapes_are_rejected(tmp_path):
    run = make_run(tmp_path / "run", returns=((1.0,),))
    rewrite(run, lambda k, line: line.update(episode_info={"\x1b[2J": [1.0]}))
    assert "must have printable names only" in learning_curves.read(run).problem
