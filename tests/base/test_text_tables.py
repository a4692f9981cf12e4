"""Tables that wrap by column in a terminal."""

from hotloop.base import text_tables as tables
from hotloop.base.streams import make_console

COLUMNS = [
    ("agent", ["greedy", "UCB"]),
    ("reward", ["1.03 ± 0.01", "1.49 ± 0.01"]),
    ("regret", ["52", "9.5"]),
    ("optimal", ["36 %", "86 %"]),
]


def lines(capsys, monkeypatch, width):
    console = make_console(width=width)
    monkeypatch.setattr(tables, "wide_console", lambda: console)
    tables.print_columns(COLUMNS)
    return capsys.readouterr().out.splitlines()


def test_columns_that_do_not_fit_go_below(capsys, monkeypatch):
    assert lines(capsys, monkeypatch, 36) == [
        "agent        reward  regret  optimal",
        "greedy  1.03 ± 0.01      52     36 %",
        "UCB     1.49 ± 0.01     9.5     86 %",
    ]
    assert lines(capsys, monkeypatch, 35) == [
        "agent        reward  regret",
        "greedy  1.03 ± 0.01      52",
        "UCB     1.49 ± 0.01     9.5",
        "",
        "agent   optimal",
        "greedy     36 %",
        "UCB        86 %",
    ]


def test_a_label_folds_if_its_column_alone_does_not_fit(capsys, monkeypatch):
    assert lines(capsys, monkeypatch, 17)[:5] == [
        "agen",
        "t          reward",
        "gree  1.03 ± 0.01",
        "dy",
        "UCB   1.49 ± 0.01",
    ]


def test_text_columns_fold_and_are_aligned_at_the_left(capsys, monkeypatch):
    console = make_console(width=20)
    monkeypatch.setattr(tables, "wide_console", lambda: console)
    columns = [("", ["A", "B"]), ("n", ["1", "20"]), ("", ["", "a long verdict here"])]
    tables.print_columns(columns, num_texts=1)
    assert capsys.readouterr().out.splitlines() == [
        "    n",
        "A   1",
        "B  20",
        "",
        "A",
        "B  a long verdict",
        "   here",
    ]


def test_aligned_columns_that_do_not_fit_go_below():
    rows = [
        ("span", "calls", "empty", "total", ""),
        ("  learner", "12", "", "3.1 s", "a long text"),
    ]
    assert tables.aligned(rows, num_texts=1).splitlines() == [
        "span       calls  empty  total",
        "  learner     12         3.1 s  a long text",
    ]
    assert tables.aligned(rows, num_texts=1, max_width=23).splitlines() == [
        "span       calls  total",
        "  learner     12  3.1 s",
        "",
        "span",
        "  learner  a long text",
    ]
    assert tables.aligned(rows, num_texts=1, max_width=19).splitlines()[-3:] == [
        "span",
        "  learner  a long",
        "           text",
    ]
    assert tables.aligned(rows, max_width=15).splitlines()[:3] == [
        "span      calls",
        "  learne     12",
        "  r",
    ]
