import io

import pytest

from hotloop.errors import OutputError
from hotloop.reports.comparison_plot import comparison_plot
from hotloop.reports.run_groups import group_runs
from hotloop.runs import RunDirectory
from hotloop.runs.learning_curve import learning_curve
from tests.runs.run_factory import make_run


@pytest.fixture
def groups(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / f"fast{seed}", seed=seed, lr=0.1, returns=[[seed], [5.0], [9.0]])
    make_run(tmp_path / "slow", lr=0.01, returns=[[0.0], [1.0], [2.0]])
    make_run(tmp_path / "short", env_id="Pendulum-v1", returns=[[-3.0]])
    return group_runs(sorted(tmp_path.iterdir())).groups


def test_contents_of_a_comparison_plot(groups, tmp_path, monkeypatch):
    """Two seeds have a mean, a band and two thin lines; one seed has one line."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: figures.append(self))
    monkeypatch.setattr("os.replace", lambda source, target: None)
    comparison_plot(groups, tmp_path / "curves.png")
    cartpole, pendulum = figures[0].axes
    assert [axes.get_title() for axes in (cartpole, pendulum)] == ["CartPole-v1", "Pendulum-v1"]
    labels = [text.get_text() for text in cartpole.get_legend().get_texts()]
    assert labels == ["ppo, lr=0.01 (1 seed, no band)", "ppo, lr=0.1 (2 seeds, 95 %)"]
    slow, mean, *thin = cartpole.get_lines()
    assert slow.get_ydata().tolist() == [0.0, 1.0, 2.0]
    assert mean.get_xdata().tolist() == [1000, 2000, 3000]
    assert mean.get_ydata().tolist() == [1.5, 5.0, 9.0]
    assert [line.get_ydata().tolist() for line in thin] == [[1.0, 5.0, 9.0], [2.0, 5.0, 9.0]]
    assert len(cartpole.collections) == 1
    assert len(pendulum.get_lines()) == 1
    assert not pendulum.collections
    (band,) = cartpole.collections  # within the range of the seeds
    extent = band.get_paths()[0].get_extents()
    assert (extent.ymin, extent.ymax) == (1.0, 9.0)


@pytest.mark.parametrize("num_groups", [1, 12])
@pytest.mark.parametrize("metric", ["return", "info/" + "the_share_of_visited_rooms_" * 3])
def test_vertical_labels_fit_beside_their_axes(tmp_path, monkeypatch, num_groups, metric):
    """They neither leave the image nor reach into another panel, whatever the legends need."""
    from matplotlib.figure import Figure

    monkeypatch.setattr("os.replace", lambda source, target: None)
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **_: figures.append(self))
    for k in range(num_groups):
        make_run(tmp_path / f"run{k}", lr=0.1 / (k + 1), returns=[[1e6], [2e6]])
    groups = group_runs(sorted(tmp_path.iterdir())).groups
    comparison_plot(groups, tmp_path / "curves.png", metric=metric)
    (figure,) = figures
    save(figure, io.BytesIO())  # computes the layout
    (axes,) = figure.axes
    label = axes.yaxis.label.get_window_extent()
    assert label.height <= axes.bbox.height + 20
    assert 0 <= label.y0 < label.y1 <= figure.bbox.height


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_formats(groups, tmp_path, suffix, magic):
    path = tmp_path / "new folder" / f"curves.{suffix}"
    comparison_plot(groups, path)
    assert path.read_bytes().startswith(magic)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_names_are_no_formulas(tmp_path):
    path = make_run(tmp_path / "run", env_id=r"C$\frac$P", name=r"$\frac$")
    make_run(tmp_path / "other", env_id=r"C$\frac$P", name="b")
    comparison_plot(group_runs([path, tmp_path / "other"]).groups, tmp_path / "curves.png")
    learning_curve(RunDirectory.open(path))
    assert (path / "learning_curve.png").exists()


def test_a_place_that_cannot_be_written(groups, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        comparison_plot(groups, tmp_path / "file" / "curves.png")


def test_training_and_evaluation_are_distinguished(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    real = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), real(self, *a, **k))
    )
    make_run(tmp_path / "run", evaluations=[50.0, 70.0])
    learning_curve(RunDirectory.open(tmp_path / "run"))
    (axes,) = figures[0].axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["training episode", "mean of 100 episodes", "evaluation"]
    assert axes.get_lines()[1].get_xydata().tolist() == [[1000.0, 50.0], [2000.0, 70.0]]
    groups = group_runs([tmp_path / "run"], metric="evaluation", x_axis="time").groups
    comparison_plot(groups, tmp_path / "curves.png", metric="evaluation", x_axis="time")
    (axes,) = figures[1].axes
    assert axes.get_ylabel() == "mean undiscounted return of an evaluation"
    assert axes.get_xlabel() == "time, s"
