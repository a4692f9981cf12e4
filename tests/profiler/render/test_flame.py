"""Folded stacks of all processes: written, imported from other samplers, and drawn."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from hotloop.errors import OutputError, ProfileError
from hotloop.profiler.render import flame
from hotloop.profiler.render.flame_svg import WIDTH, draw, frame_class
from hotloop.profiler.session import Frame, Session, ThreadTotals
from tests.browser import Browser
from tests.profiler.sessions import process, sample, session

GYM = "/env/lib/python3.11/site-packages/gymnasium/core.py"
S = 1_000_000_000


def plain(name: str) -> Frame:
    return Frame(name, "", 0)


MAIN = Frame("main", "/home/u/train.py", 1)
STEP = Frame("Env.step", GYM, 40)
ROLL = Frame("roll", "/home/u/envs.py", 7)


def example() -> Session:
    """Return a session of main and two workers, one of which has another busy thread."""
    step = ("main (/home/u/train.py:1)", f"Env.step ({GYM}:40)")
    roll = (*step, "roll (/home/u/envs.py:7)")
    return session(
        process(
            samples=[
                sample(
                    *step, path="collect > env_step", elapsed_s=2.0, on_core_s=1.5, queued_s=0.25
                ),
                sample(*roll, path="collect > env_step", elapsed_s=1.0, on_core_s=1.0),
                sample(*roll, elapsed_s=4.0, on_core_s=0.0),
            ]
        ),
        process(
            "worker-0",
            role="worker",
            pid=200,
            samples=[sample(*roll, elapsed_s=3.0, on_core_s=2.0)],
        ),
        process(
            "worker-1",
            role="worker",
            pid=201,
            samples=[
                sample(*roll, elapsed_s=3.0, on_core_s=2.0),
                sample("run (/home/u/io.py:3)", elapsed_s=5.0, on_core_s=0.5, thread=299),
                sample("wait (/home/u/io.py:9)", elapsed_s=5.0, on_core_s=0.01, thread=298),
            ],
            threads=[ThreadTotals(299, "loader", 0, 0), ThreadTotals(298, "idle", 0, 0)],
        ),
        metadata={"command": ["python", "train.py"]},
    )


COLLECT = (plain("main"), plain("[collect]"), plain("[env_step]"), MAIN, STEP)


def test_folded_by_elapsed_time():
    loader = (plain("worker-1"), plain("thread loader"), Frame("run", "/home/u/io.py", 3))
    assert flame.folded(example()) == {
        COLLECT: 2 * S,
        (*COLLECT, ROLL): 1 * S,
        (plain("main"), MAIN, STEP, ROLL): 4 * S,
        (plain("worker-0"), MAIN, STEP, ROLL): 3 * S,
        (plain("worker-1"), MAIN, STEP, ROLL): 3 * S,
        loader: 5 * S,
    }


def test_folded_by_time_on_a_core_and_blocked():
    loader = (plain("worker-1"), plain("thread loader"), Frame("run", "/home/u/io.py", 3))
    assert flame.folded(example(), by="on_core") == {
        COLLECT: 1.5 * S,
        (*COLLECT, ROLL): 1 * S,
        (plain("worker-0"), MAIN, STEP, ROLL): 2 * S,
        (plain("worker-1"), MAIN, STEP, ROLL): 2 * S,
        loader: 0.5 * S,
    }
    # Time queued for a core is neither.
    assert flame.folded(example(), by="blocked") == {
        COLLECT: 0.25 * S,
        (plain("main"), MAIN, STEP, ROLL): 4 * S,
        (plain("worker-0"), MAIN, STEP, ROLL): 1 * S,
        (plain("worker-1"), MAIN, STEP, ROLL): 1 * S,
        loader: 4.5 * S,
    }


def test_merged_workers():
    stacks = flame.folded(example(), merge_workers=True)
    assert stacks[plain("workers"), MAIN, STEP, ROLL] == 6 * S
    assert stacks[plain("main"), MAIN, STEP, ROLL] == 4 * S
    assert {stack[0].function for stack in stacks} == {"main", "workers"}


def test_without_samples():
    message = "got none: profile for longer, and without `--interval 0`"
    for samples in ([], [sample("main (a.py:1)", elapsed_s=0.0)]):
        with pytest.raises(ProfileError, match=message):
            flame.folded(session(process(samples=samples), metadata={"command": ["x.py"]}))
    with pytest.raises(
        ProfileError, match="a training records only spans, use `hotloop profile tra"
    ):
        flame.folded(session(process(samples=[])))  # of a run directory
    only_elapsed = session(process(samples=[sample("main (a.py:1)", elapsed_s=1.0)]))
    with pytest.raises(ProfileError, match=r"samples with time on CPU .* `--by elapsed`"):
        flame.folded(only_elapsed, by="on_core")


# --- text -----------------------------------------------------------------------------------------


def test_the_collapsed_format(tmp_path):
    profile = session(
        process(
            samples=[
                sample("main (/t.py:1)", "f;g\nh (/t.py:9)", path="act", elapsed_s=0.000002),
                sample("main (/t.py:1)", elapsed_s=1.5),
            ]
        )
    )
    flame.write_folded(profile, tmp_path / "stacks.txt")
    assert (tmp_path / "stacks.txt").read_text() == (
        "main;[act];main (/t.py:1);f:g h (/t.py:9) 2000\nmain;main (/t.py:1) 1500000000\n"
    )


# --- speedscope -----------------------------------------------------------------------------------


def check_speedscope(content: dict[str, Any]) -> None:
    """Check the requirements of the schema for sampled profiles."""
    assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert 0 <= content["activeProfileIndex"] < len(content["profiles"])
    frames = content["shared"]["frames"]
    for frame in frames:
        assert set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame["name"], str)
    assert len({json.dumps(frame) for frame in frames}) == len(frames)
    for profile in content["profiles"]:
        assert set(profile) == {
            *("type", "name", "unit", "startValue", "endValue", "samples", "weights")
        }
        assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= frame < len(frames) for stack in profile["samples"] for frame in stack)


def test_speedscope(tmp_path):
    flame.write_speedscope(example(), tmp_path / "s.json", by="on_core")
    content = json.loads((tmp_path / "s.json").read_text())
    check_speedscope(content)
    assert content["name"] == "python train.py: time on CPU"
    assert content["shared"]["frames"] == [
        {"name": "[collect]"},
        {"name": "[env_step]"},
        {"name": "main", "file": "/home/u/train.py", "line": 1},
        {"name": "Env.step", "file": GYM, "line": 40},
        {"name": "roll", "file": "/home/u/envs.py", "line": 7},
        {"name": "thread loader"},
        {"name": "run", "file": "/home/u/io.py", "line": 3},
    ]
    profiles = [(p["name"], p["samples"], p["weights"]) for p in content["profiles"]]
    assert profiles == [
        ("main", [[0, 1, 2, 3], [0, 1, 2, 3, 4]], [1.5 * S, 1 * S]),
        ("worker-0", [[2, 3, 4]], [2 * S]),
        ("worker-1", [[2, 3, 4], [5, 6]], [2 * S, 0.5 * S]),
    ]


# --- the flame graph ------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def boxes(path: Path) -> list[dict[str, Any]]:
    """Return all frames of a drawing, in its order."""
    frames = []
    for group in ElementTree.parse(path).getroot().iter(f"{SVG}g"):
        rect, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert rect is not None
        lines = (group.findtext(f"{SVG}title") or "").split("\n")
        frames.append(
            {
                "name": lines[0],
                "lines": lines,
                "text": None if text is None else text.text,
                "depth": int(group.attrib["data-d"]),
                "start": int(group.attrib["data-x"]),
                "weight": int(group.attrib["data-w"]),
                "x": float(rect.attrib["x"]),
                "y": float(rect.attrib["y"]),
                "width": float(rect.attrib["width"]),
                "fill": rect.attrib["fill"],
            }
        )
    return frames


def test_the_drawing_shows_every_frame_in_its_place(tmp_path):
    flame.write_svg(example(), tmp_path / "f.svg")
    frames = boxes(tmp_path / "f.svg")
    # 18 s in total: 8 of worker-1, 7 of main and 3 of worker-0. The longest comes first.
    assert [(b["depth"], b["name"], b["start"] / S, b["weight"] / S) for b in frames] == [
        (0, "all", 0, 18),
        (1, "worker-1", 0, 8),
        (2, "thread loader", 0, 5),
        (3, "run", 0, 5),
        (2, "main", 5, 3),
        (3, "Env.step", 5, 3),
        (4, "roll", 5, 3),
        (1, "main", 8, 7),
        (2, "main", 8, 4),
        (3, "Env.step", 8, 4),
        (4, "roll", 8, 4),
        (2, "[collect]", 12, 3),
        (3, "[env_step]", 12, 3),
        (4, "main", 12, 3),
        (5, "Env.step", 12, 3),
        (6, "roll", 12, 1),
        (1, "worker-0", 15, 3),
        (2, "main", 15, 3),
        (3, "Env.step", 15, 3),
        (4, "roll", 15, 3),
    ]
    scale = (WIDTH - 20) / 18
    for box in frames:
        assert box["x"] == pytest.approx(10 + box["start"] / S * scale, abs=0.01)
        assert box["width"] == pytest.approx(box["weight"] / S * scale - 0.4, abs=0.01)
        assert box["y"] == frames[0]["y"] + 17 * box["depth"]
    assert frames[15]["lines"] == [
        "roll",
        "/home/u/envs.py:7",
        "1.00 s, 5.56% of all, 14.29% of main",
    ]
    title = ElementTree.parse(tmp_path / "f.svg").getroot().findtext(f"{SVG}text[@class='title']")
    assert title == "python train.py: all time"


def test_the_drawing_is_deterministic_and_self_contained(tmp_path):
    flame.write_svg(example(), tmp_path / "a.svg")
    stacks = flame.folded(example())
    text = (tmp_path / "a.svg").read_text()
    assert text == draw(dict(reversed(stacks.items())), "python train.py: all time")
    links = re.findall(r"https?://[^\"' <]+", text)
    assert set(links) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert not re.search(r"\b(href|src|@import|url\()", text)


def test_long_names_are_cut(tmp_path):
    name = "a_function_with_quite_a_long_name_that_needs_its_room"
    profile = session(
        process(
            samples=[
                sample(f"{name} (/t.py:1)", elapsed_s=100.0),
                sample(f"{name}_2 (/t.py:2)", elapsed_s=20.0),
                sample("narrow (/t.py:3)", elapsed_s=1.0),
                sample("dust (/t.py:4)", elapsed_s=0.001),
            ]
        )
    )
    flame.write_svg(profile, tmp_path / "f.svg")
    texts = {box["name"]: box["text"] for box in boxes(tmp_path / "f.svg")}
    # 1,180 pixels for 121 s: 975, 195 and 9.8; a letter takes 7.3, the margin 6.
    assert texts == {
        "all": "all",
        "main": "main",
        name: name,
        f"{name}_2": "a_function_with_quite_a_…",
        "narrow": None,
    }


def test_any_name_is_valid_xml(tmp_path):
    name = "<lambda> & \x00\x1b]]> é \udc80"
    flame.write_svg(session(process(samples=[sample(f"{name} (/t<&>.py:1)")])), tmp_path / "f.svg")
    assert boxes(tmp_path / "f.svg")[2]["lines"][:2] == [
        "<lambda> & ��]]> é �",
        "/t<&>.py:1",
    ]
    flame.write_folded(session(process(samples=[sample(f"{name} (/t.py:1)")])), tmp_path / "f.txt")
    assert (tmp_path / "f.txt").read_text().startswith("main;<lambda> & ")


def test_a_recursion_of_thousands_of_calls(tmp_path):
    deep = (plain("main"), *(Frame("again", "/t.py", number) for number in range(3000)))
    (tmp_path / "f.svg").write_text(draw({deep: 5}, "a recursion"))
    assert len(boxes(tmp_path / "f.svg")) == 3002


@pytest.mark.parametrize(
    ("frame", "depth", "kind"),
    [
        (Frame("f", "train.py", 1), 2, "user"),
        (Frame("step", GYM, 1), 2, "library"),
        (Frame("tell", os.path.join(os.path.dirname(flame.__file__), "text.py"), 1), 2, "library"),
        (Frame("wait", "/usr/lib/python3.11/threading.py", 1), 2, "python"),
        (Frame("_load", "<frozen importlib._bootstrap>", 1), 2, "python"),
        (Frame("[act]", "", 0), 2, "span"),
        (Frame("[act]", "", 0), 1, "process"),
        (Frame("thread loader", "", 0), 2, "process"),
    ],
)
def test_frame_class(frame, depth, kind):
    assert frame_class(frame, depth) == kind


def test_unwritable_paths_raise(tmp_path):
    for write in (flame.write_svg, flame.write_speedscope, flame.write_folded):
        with pytest.raises(OutputError, match="can't be written"):
            write(example(), tmp_path)
    assert not list(tmp_path.iterdir())


# --- in a browser ---------------------------------------------------------------------------------

VISIBLE_FRAMES = """Array.from(document.querySelectorAll("g.f"))
    .filter((g) => g.style.display !== "none")
    .map((g) => [
        g.querySelector("title").textContent.split("\\n")[0],
        Math.round(g.querySelector("rect").getAttribute("width")),
        g.querySelector("text") ? g.querySelector("text").textContent : "",
        g.getAttribute("class"),
    ])"""


@pytest.fixture
def page(chromium, tmp_path):
    flame.write_svg(example(), tmp_path / "f.svg")
    chromium.open(tmp_path / "f.svg")
    assert chromium.problems == []
    return chromium


def click(page: Browser, number: int) -> None:
    page.evaluate(
        f'document.querySelectorAll("g.f")[{number}]'
        '.dispatchEvent(new MouseEvent("click", {bubbles: true}))'
    )


def text(page: Browser, name: str) -> str:
    return page.evaluate(f'document.querySelector("text.{name}").textContent').strip()


def search(page: Browser, pattern: str) -> str:
    page.evaluate(
        f'(() => {{ const input = document.querySelector("input"); input.value = '
        f'{json.dumps(pattern)}; input.dispatchEvent(new Event("input")); }})()'
    )
    return text(page, "matched")


def test_a_click_zooms_in_and_escape_zooms_out(page):
    before = page.evaluate(VISIBLE_FRAMES)
    assert len(before) == 20
    click(page, 7)  # the main process, 7 of 18 s
    assert page.evaluate(VISIBLE_FRAMES) == [
        ["all", 1180, "all", "f around"],
        ["main", 1180, "main", "f"],
        ["main", 674, "main", "f"],
        ["Env.step", 674, "Env.step", "f"],
        ["roll", 674, "roll", "f"],
        ["[collect]", 505, "[collect]", "f"],
        ["[env_step]", 505, "[env_step]", "f"],
        ["main", 505, "main", "f"],
        ["Env.step", 505, "Env.step", "f"],
        ["roll", 168, "roll", "f"],
    ]
    page.press("Escape")
    assert page.evaluate(VISIBLE_FRAMES) == before
    assert page.problems == []


def test_pointing_at_a_frame_shows_its_details(page):
    x, y = page.evaluate(
        '(() => { const box = document.querySelectorAll("g.f")[15].getBoundingClientRect();'
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.move_to(x, y)
    details = "roll   /home/u/envs.py:7   1.00 s, 5.56% of all, 14.29% of main"
    assert text(page, "details") == details
    page.move_to(5, 5)
    assert text(page, "details") == ""


def test_search(page):
    # 3 + 4 + 1 + 3 of 18 s are in `roll`.
    assert search(page, r"envs\.py:\d$") == "61.11% matched"
    names = [
        name for name, _, _, css_class in page.evaluate(VISIBLE_FRAMES) if css_class == "f match"
    ]
    assert names == ["roll"] * 4
    # Frames within a matching frame are not counted twice.
    assert search(page, "main|step") == "72.22% matched"
    assert search(page, "(") == "not a regular expression"
    assert search(page, "") == ""
    assert {css_class for *_, css_class in page.evaluate(VISIBLE_FRAMES)} == {"f"}
    assert page.problems == []
