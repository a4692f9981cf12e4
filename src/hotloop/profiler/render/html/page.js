"use strict";
// Draws the pictures from the JSON that the page carries, and opens and closes the trees' rows.
// What a session holds goes into the page as text alone: `textContent`, `fillText`.
(() => {
  addEventListener("error", (event) => {
    const place = document.getElementById("failure");
    place.textContent = `A picture could not be drawn: ${event.message}. The tables are complete.`;
    place.hidden = false;
  });

  const carried = JSON.parse(document.getElementById("session").textContent);
  const timeline = carried.timeline;

  // --- words and colours ---------------------------------------------------------------------

  /** A duration with a unit that suits it, as the tables have it. */
  function duration(ns) {
    for (const [limit, unit, size] of [[1e3, "ns", 1], [1e6, "µs", 1e3], [1e9, "ms", 1e6]]) {
      if (ns < limit * 0.9995) {
        const value = ns / size;
        const digits = unit === "ns" ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.max(value, 1))));
        return `${value.toFixed(digits)} ${unit}`;
      }
    }
    return `${number(ns / 1e9, 2)} s`;
  }

  function number(value, digits) {
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  let colours = {};

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = {};
    for (const name of ["ink", "dim", "line", "empty", "accent", "card", "alarm", "span"]) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    for (const [stage] of timeline.stages) {
      colours[stage] = style.getPropertyValue(`--stage-${stage}`).trim();
    }
  }

  /** Black or white, whichever can be read on a colour. */
  function inkOn(colour) {
    const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
    return 0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2] > 0.55 ? "#10151c" : "#ffffff";
  }

  // --- canvases ------------------------------------------------------------------------------

  /** As many pixels as the screen has for it; gives what to draw with, and the width. */
  function prepare(canvas, height) {
    const ratio = devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    return { pen, width };
  }

  function clipped(pen, words, room) {
    if (pen.measureText(words).width <= room) return words;
    let length = words.length;
    while (length > 1 && pen.measureText(words.slice(0, length) + "…").width > room) {
      length = Math.min(length - 1, Math.floor(length * 0.9));
    }
    return length > 1 ? words.slice(0, length) + "…" : "";
  }

  /** Round numbers between two, about so many. */
  function ticks(from, to, about) {
    const raw = (to - from) / Math.max(1, about);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw) || raw;
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) found.push(at);
    return { step, found };
  }

  /** A time since the beginning, as exact as the distance between two ticks asks for. */
  function clock(ns, step) {
    const seconds = ns / 1e9;
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step / 1e9) + 1e-9)));
    return `${number(seconds, digits)} s`;
  }

  /** Times along an edge, and lines up to them. */
  function timeAxis(pen, scale, left, right, top, bottom) {
    const { step, found } = ticks(scale.from, scale.to, (right - left) / 110);
    pen.textAlign = "center";
    for (const at of found) {
      const x = Math.round(scale.x(at)) + 0.5;
      pen.strokeStyle = colours.line;
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, bottom + 4);
      pen.stroke();
      pen.fillStyle = colours.dim;
      const words = clock(at, step);
      const half = pen.measureText(words).width / 2;
      pen.fillText(words, Math.min(Math.max(x, left + half), right - half), bottom + 12);
    }
  }

  function linear(from, to, left, right) {
    const factor = (right - left) / Math.max(1, to - from);
    return { from, to, x: (at) => left + (at - from) * factor, at: (x) => from + (x - left) / factor };
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  function showTip(event, words) {
    if (!words) {
      tip.hidden = true;
      return;
    }
    tip.textContent = words;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 6);
    const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, top)}px`;
  }

  /** Words for wherever the pointer is. */
  function tell(canvas, wordsAt) {
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      showTip(event, event.buttons ? "" : wordsAt(event.clientX - box.left, event.clientY - box.top));
    });
    canvas.addEventListener("pointerleave", () => showTip(null, ""));
  }

  const labelWidth = (width) => (width < 560 ? 64 : 120);

  // --- all processes over the whole run ------------------------------------------------------

  const processes = timeline.processes;
  const numStages = timeline.stages.length;
  const overview = document.getElementById("overview");
  const view = { from: 0, to: timeline.length };
  let overviewLayout = null;

  function drawOverview() {
    const row = Math.max(6, Math.min(26, Math.floor(480 / processes.length)));
    const gap = row > 9 ? 3 : 1;
    const bottom = processes.length * row;
    const { pen, width } = prepare(overview, bottom + 24);
    const left = labelWidth(width);
    const scale = linear(0, timeline.length, left, width);
    overviewLayout = { row, scale };
    const each = Math.ceil(13 / row);
    timeAxis(pen, scale, left, width, 0, bottom);
    processes.forEach((process, index) => {
      const top = index * row;
      const height = row - gap;
      if (index % each === 0) {
        pen.textAlign = "left";
        pen.fillStyle = colours.ink;
        pen.fillText(clipped(pen, process.name, left - 8), 0, top + height / 2);
      }
      pen.fillStyle = colours.empty;
      pen.fillRect(scale.x(process.from), top, Math.max(1, scale.x(process.to) - scale.x(process.from)), height);
      let begin = process.from;
      process.ends.forEach((end, at) => {
        // Whole pixels: no seams between neighbours.
        const x = Math.round(scale.x(begin));
        const across = Math.max(1, Math.round(scale.x(end)) - x);
        let y = top + height;
        for (let stage = 0; stage < numStages; stage++) {
          const part = (process.percents[at][stage] / 100) * height;
          if (part > 0) {
            pen.fillStyle = colours[timeline.stages[stage][0]];
            pen.fillRect(x, y - part, across, part);
            y -= part;
          }
        }
        begin = end;
      });
      if (process.killed) {
        const x = scale.x(process.to);
        pen.fillStyle = colours.alarm;
        pen.fillRect(x - 1, top - gap / 2, 2, row);
        if (row > 9) {
          pen.textAlign = x > width - 60 ? "right" : "left";
          pen.fillText("killed", x + (x > width - 60 ? -5 : 5), top + height / 2);
        }
      }
    });
    const from = scale.x(view.from);
    const across = Math.max(3, scale.x(view.to) - from);
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(from, 0.75, Math.min(across, width - from - 1), bottom - 1.5);
  }

  tell(overview, (x, y) => {
    const { row, scale } = overviewLayout;
    const process = processes[Math.floor(y / row)];
    const at = scale.at(x);
    if (!process || at < 0) return "";
    const words = [`${process.name} (${process.pid})`];
    if (at < process.from || at > process.to) {
      return `${words[0]}\n${at < process.from ? "not yet begun" : process.killed ? "killed" : "ended"}`;
    }
    const period = process.ends.findIndex((end) => at <= end);
    words.push(clock(at, 1e8));
    if (period >= 0) {
      timeline.stages
        .map(([, name], stage) => [process.percents[period][stage], name])
        .filter(([part]) => part > 0)
        .sort((one, other) => other[0] - one[0])
        .forEach(([part, name]) => words.push(`${part} % ${name}`));
    } else words.push("not sampled");
    return words.join("\n");
  });

  overview.addEventListener("click", (event) => {
    const at = overviewLayout.scale.at(event.clientX - overview.getBoundingClientRect().left);
    const half = (view.to - view.from) / 2;
    if (at >= 0) look(at - half, at + half);
  });

  // --- the latest spans ----------------------------------------------------------------------

  const canvas = document.getElementById("events");
  const rowHeight = 15;
  const maxLanes = 96;
  const lanes = [];
  for (const process of processes) {
    for (const lane of process.lanes) {
      const size = lane.starts.length;
      const starts = new Float64Array(size);
      let at = 0;
      for (let i = 0; i < size; i++) starts[i] = at += lane.starts[i];
      const name = process.lanes.length > 1 && lane.thread ? `${process.name} · ${lane.thread}` : process.name;
      lanes.push({ process, name, depth: lane.depth, starts, durations: lane.durations, spans: lane.spans });
    }
  }
  const shownLanes = lanes.slice(0, maxLanes);
  let eventsLayout = null;

  function drawEvents() {
    const heights = shownLanes.map((lane) => lane.depth * rowHeight + 6);
    const bottom = heights.reduce((sum, one) => sum + one, 0);
    const { pen, width } = prepare(canvas, Math.max(40, bottom + 24));
    const left = labelWidth(width);
    const scale = linear(view.from, view.to, left, width);
    eventsLayout = { scale, heights, left };
    timeAxis(pen, scale, left, width, 0, bottom);
    let top = 0;
    shownLanes.forEach((lane, index) => {
      pen.fillStyle = colours.line;
      pen.fillRect(0, top + heights[index] - 1, width, 1);
      pen.save();
      pen.beginPath();
      pen.rect(left, top, width - left, heights[index]);
      pen.clip();
      drawLane(pen, lane, scale, top + 2, left, width);
      pen.restore();
      pen.fillStyle = colours.ink;
      pen.textAlign = "left";
      pen.fillText(clipped(pen, lane.name, left - 8), 4, top + heights[index] / 2);
      top += heights[index];
    });
    if (!shownLanes.length) {
      pen.fillStyle = colours.dim;
      pen.textAlign = "left";
      pen.fillText("no spans were recorded", left, 12);
    }
    const all = lanes.length > maxLanes ? `, ${maxLanes} of ${lanes.length} threads` : "";
    document.getElementById("window").textContent =
      `${duration(view.to - view.from)} from ${clock(view.from, (view.to - view.from) / 100)}${all}`;
  }

  function drawLane(pen, lane, scale, top, left, width) {
    const painted = new Float64Array(lane.depth + 1).fill(-1);
    const spans = lane.process.spans;
    pen.textAlign = "left";
    pen.font = "11px system-ui, sans-serif";
    for (let i = 0; i < lane.starts.length; i++) {
      if (lane.starts[i] > scale.to) break;
      if (lane.starts[i] + lane.durations[i] < scale.from) continue;
      const [path, stage] = spans[lane.spans[i]];
      const from = Math.max(left - 2, scale.x(lane.starts[i]));
      const to = Math.min(width + 2, scale.x(lane.starts[i] + lane.durations[i]));
      // What would lie on a pixel that is painted already is left out.
      if (to - from < 1 && Math.floor(to) === painted[path.length]) continue;
      painted[path.length] = Math.floor(to);
      const colour = colours[stage || "span"];
      const across = to - from > 3 ? to - from - 0.75 : Math.max(1, to - from);
      pen.fillStyle = colour;
      pen.fillRect(from, top + (path.length - 1) * rowHeight, across, rowHeight - 1.5);
      if (to - from > 34) {
        pen.fillStyle = inkOn(colour);
        const words = clipped(pen, path[path.length - 1], to - from - 8);
        pen.fillText(words, from + 4, top + (path.length - 0.5) * rowHeight - 0.5);
      }
    }
    pen.font = "12px system-ui, sans-serif";
  }

  /** The span at a point: its lane and number. */
  function spanAt(x, y) {
    let top = 0;
    for (let index = 0; index < shownLanes.length; index++) {
      const lane = shownLanes[index];
      if (y < top + eventsLayout.heights[index]) {
        const depth = 1 + Math.floor((y - top - 2) / rowHeight);
        const at = eventsLayout.scale.at(x);
        const slack = (view.to - view.from) / 800;
        let best = -1;
        for (let i = 0; i < lane.starts.length && lane.starts[i] <= at + slack; i++) {
          const isHit = lane.starts[i] + lane.durations[i] >= at - slack;
          if (isHit && lane.process.spans[lane.spans[i]][0].length === depth) best = i;
        }
        return best < 0 ? null : { lane, at: best };
      }
      top += eventsLayout.heights[index];
    }
    return null;
  }

  tell(canvas, (x, y) => {
    const found = x > eventsLayout.left ? spanAt(x, y) : null;
    if (!found) return "";
    const { lane, at } = found;
    const [path, stage] = lane.process.spans[lane.spans[at]];
    const words = [path.join(" › "), duration(lane.durations[at])];
    if (stage) words.push(timeline.stages.find(([name]) => name === stage)[1]);
    words.push(`${lane.name}, from ${clock(lane.starts[at], 1e3)}`);
    return words.join("\n");
  });

  let pending = false;

  /** Show from … to, as far as there is such a time. */
  function look(from, to) {
    const span = Math.min(timeline.length, Math.max(1000, to - from));
    view.from = Math.min(Math.max(0, from), timeline.length - span);
    view.to = view.from + span;
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      drawEvents();
      drawOverview();
    });
  }

  function zoom(factor, about) {
    look(about - (about - view.from) * factor, about + (view.to - about) * factor);
  }

  /** From the last end back, so much that some 150 spans of the first lane are seen. */
  function latest() {
    let from = timeline.length;
    let to = 0;
    for (const lane of lanes) {
      const size = lane.starts.length;
      for (let i = Math.max(0, size - 150); i < size; i++) {
        if (lane === lanes[0]) from = Math.min(from, lane.starts[i]);
        to = Math.max(to, lane.starts[i] + lane.durations[i]);
      }
    }
    if (to > 0) look(from, Math.max(to, from + 1000));
    else look(0, timeline.length);
  }

  const actions = {
    left: () => look(view.from - (view.to - view.from) / 4, view.to - (view.to - view.from) / 4),
    right: () => look(view.from + (view.to - view.from) / 4, view.to + (view.to - view.from) / 4),
    in: () => zoom(0.5, (view.from + view.to) / 2),
    out: () => zoom(2, (view.from + view.to) / 2),
    all: () => look(0, timeline.length),
    latest,
  };
  for (const button of document.querySelectorAll("button[data-do]")) {
    button.addEventListener("click", actions[button.dataset.do]);
  }
  const keys = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", 0: "all" };
  canvas.addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (action) {
      event.preventDefault();
      actions[action]();
    }
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      const isZoom = event.ctrlKey || event.metaKey;
      // Without a key, up and down scroll the page, as anywhere else.
      if (!isZoom && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      const x = event.clientX - canvas.getBoundingClientRect().left;
      if (isZoom) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), eventsLayout.scale.at(x));
      else {
        const by = (event.deltaX / canvas.clientWidth) * (view.to - view.from);
        look(view.from + by, view.to + by);
      }
    },
    { passive: false },
  );
  // One pointer moves; two zoom.
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    canvas.classList.add("moving");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const before = [...pointers.values()];
    pointers.set(event.pointerId, event.clientX);
    const after = [...pointers.values()];
    const left = canvas.getBoundingClientRect().left;
    const scale = linear(view.from, view.to, eventsLayout.left, canvas.clientWidth);
    if (after.length === 1) {
      const by = scale.at(0) - scale.at(after[0] - before[0]);
      look(view.from + by, view.to + by);
    } else if (after.length === 2) {
      const factor = Math.abs(before[0] - before[1]) / Math.max(1, Math.abs(after[0] - after[1]));
      zoom(factor, scale.at((after[0] + after[1]) / 2 - left));
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => {
      pointers.delete(event.pointerId);
      canvas.classList.toggle("moving", pointers.size > 0);
    });
  }

  // --- lines over time -----------------------------------------------------------------------

  /** The parts of a line between which there is nothing. */
  function unbroken(line) {
    const parts = [];
    let part = null;
    line.at.forEach((at, i) => {
      if (line.values[i] === null) part = null;
      else {
        if (!part) parts.push((part = []));
        part.push([at, line.values[i]]);
      }
    });
    return parts;
  }

  /** Values over time, as a line with what is under it. */
  function drawLine(canvas, line, unit, top) {
    const height = 190;
    const { pen, width } = prepare(canvas, height);
    const left = labelWidth(width) / 2 + 16;
    const bottom = height - 24;
    const scale = linear(0, timeline.length, left, width - 4);
    const most = top || Math.max(1e-9, ...line.values) * 1.08;
    const y = (value) => bottom - (value / most) * (bottom - 10);
    const { found } = ticks(0, most, 4);
    for (const value of found) {
      pen.fillStyle = colours.line;
      pen.fillRect(left, Math.round(y(value)), width - left, 1);
      pen.fillStyle = colours.dim;
      pen.textAlign = "right";
      pen.fillText(`${value.toLocaleString("en")}${unit}`, left - 6, y(value));
    }
    timeAxis(pen, scale, left, width, bottom, bottom);
    pen.lineWidth = 2;
    pen.lineJoin = "round";
    pen.strokeStyle = pen.fillStyle = colours.accent;
    for (const part of unbroken(line)) {
      const [begin, end] = [scale.x(part[0][0]), scale.x(part[part.length - 1][0])];
      pen.beginPath();
      for (const [at, value] of part) pen.lineTo(scale.x(at), y(value));
      // One alone would be no line.
      if (part.length === 1) pen.rect(begin - 1, y(part[0][1]) - 1, 2, 2);
      pen.stroke();
      pen.lineTo(end, bottom);
      pen.lineTo(begin, bottom);
      pen.globalAlpha = 0.14;
      pen.fill();
      pen.globalAlpha = 1;
    }
    return scale;
  }

  const lines = [
    ["throughput-line", carried.throughput, "", 0, "steps/s"],
    ["lockstep-line", carried.lockstep, " %", 100, "% waited"],
  ]
    .map(([id, line, unit, top, words]) => ({ canvas: document.getElementById(id), line, unit, top, words }))
    .filter((one) => one.canvas && one.line);
  for (const one of lines) {
    tell(one.canvas, (x) => {
      if (!one.line.at.length) return "";
      const at = one.scale.at(x);
      let nearest = 0;
      one.line.at.forEach((value, i) => {
        if (Math.abs(value - at) < Math.abs(one.line.at[nearest] - at)) nearest = i;
      });
      if (one.line.values[nearest] === null) return "";
      return `${one.line.values[nearest].toLocaleString("en")} ${one.words}\n${clock(one.line.at[nearest], 1e8)}`;
    });
  }

  // --- trees ---------------------------------------------------------------------------------

  for (const table of document.querySelectorAll("table.tree")) {
    const rows = [...table.tBodies[0].rows];
    const level = (row) => Number(row.getAttribute("aria-level"));

    /** Hide what lies under a closed row. */
    const update = () => {
      let closedAt = Infinity;
      for (const row of rows) {
        if (level(row) <= closedAt) closedAt = Infinity;
        row.hidden = level(row) > closedAt;
        if (!row.hidden && row.getAttribute("aria-expanded") === "false") closedAt = level(row);
      }
    };
    const setOpen = (row, isOpen) => {
      if (!row.hasAttribute("aria-expanded")) return;
      row.setAttribute("aria-expanded", String(isOpen));
      update();
    };
    const focus = (row) => {
      if (!row) return;
      rows.forEach((one) => (one.tabIndex = one === row ? 0 : -1));
      row.focus();
    };
    rows.forEach((row, index) => {
      row.tabIndex = index ? -1 : 0;
      row.querySelector("th").addEventListener("click", () => {
        setOpen(row, row.getAttribute("aria-expanded") !== "true");
        focus(row);
      });
    });
    table.addEventListener("keydown", (event) => {
      const row = event.target.closest("tbody tr");
      if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
      const shown = rows.filter((one) => !one.hidden);
      const at = shown.indexOf(row);
      const isOpen = row.getAttribute("aria-expanded");
      const steps = {
        ArrowDown: () => focus(shown[at + 1]),
        ArrowUp: () => focus(shown[at - 1]),
        Home: () => focus(shown[0]),
        End: () => focus(shown[shown.length - 1]),
        ArrowRight: () => (isOpen === "false" ? setOpen(row, true) : isOpen && focus(shown[at + 1])),
        ArrowLeft: () => {
          if (isOpen === "true") setOpen(row, false);
          else focus(shown.slice(0, at).reverse().find((one) => level(one) < level(row)));
        },
        Enter: () => setOpen(row, isOpen !== "true"),
        " ": () => setOpen(row, isOpen !== "true"),
      };
      if (steps[event.key]) {
        event.preventDefault();
        steps[event.key]();
      }
    });
    // Large trees begin with their upper levels.
    if (rows.length > 40) rows.filter((row) => level(row) > 2).forEach((row) => setOpen(row, false));
  }

  // --- drawing all of it ---------------------------------------------------------------------

  function drawAll() {
    readColours();
    drawEvents();
    drawOverview();
    for (const one of lines) one.scale = drawLine(one.canvas, one.line, one.unit, one.top);
  }

  readColours();
  latest();
  drawAll();
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.dataset.drawn = "true";
})();
