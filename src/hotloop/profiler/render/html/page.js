"use strict";
// Draws the charts from the page's JSON, and expands and collapses the rows of trees.
// The session's content is inserted only as text: `textContent`, `fillText`.
(() => {
  addEventListener("error", (event) => {
    const failure = document.getElementById("failure");
    failure.textContent = `A chart could not be drawn: ${event.message}. The tables are complete.`;
    failure.hidden = false;
  });

  const data = JSON.parse(document.getElementById("session").textContent);
  const timeline = data.timeline;

  // --- text and colors -----------------------------------------------------------------------

  /** Format a duration as in the tables. */
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

  let colors = {};

  function readColors() {
    const style = getComputedStyle(document.documentElement);
    colors = {};
    for (const name of ["ink", "dim", "line", "empty", "accent", "card", "alarm", "span"]) {
      colors[name] = style.getPropertyValue(`--${name}`).trim();
    }
    for (const [stage] of timeline.stages) {
      colors[stage] = style.getPropertyValue(`--stage-${stage}`).trim();
    }
  }

  /** Return black or white, whichever is readable on a color. */
  function inkOn(color) {
    const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255);
    return 0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2] > 0.55 ? "#10151c" : "#ffffff";
  }

  // --- canvases ------------------------------------------------------------------------------

  /** Match a canvas to the screen's resolution, and return its context and width. */
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

  function clipped(pen, text, room) {
    if (pen.measureText(text).width <= room) return text;
    let length = text.length;
    while (length > 1 && pen.measureText(text.slice(0, length) + "…").width > room) {
      length = Math.min(length - 1, Math.floor(length * 0.9));
    }
    return length > 1 ? text.slice(0, length) + "…" : "";
  }

  /** Return about `count` round numbers between two numbers, and their distance. */
  function ticks(from, to, count) {
    const raw = (to - from) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw) || raw;
    const values = [];
    for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) values.push(at);
    return { step, values };
  }

  /** Format a time since the start with the precision of a tick distance. */
  function clock(ns, step) {
    const seconds = ns / 1e9;
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step / 1e9) + 1e-9)));
    return `${number(seconds, digits)} s`;
  }

  /** Draw a time axis with grid lines. */
  function timeAxis(pen, scale, left, right, top, bottom) {
    const { step, values } = ticks(scale.from, scale.to, (right - left) / 110);
    pen.textAlign = "center";
    for (const at of values) {
      const x = Math.round(scale.x(at)) + 0.5;
      pen.strokeStyle = colors.line;
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, bottom + 4);
      pen.stroke();
      pen.fillStyle = colors.dim;
      const label = clock(at, step);
      const half = pen.measureText(label).width / 2;
      pen.fillText(label, Math.min(Math.max(x, left + half), right - half), bottom + 12);
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

  function showTip(event, text) {
    if (!text) {
      tip.hidden = true;
      return;
    }
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 6);
    const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, top)}px`;
  }

  /** Show a tooltip at the pointer. */
  function addTooltip(canvas, textAt) {
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      showTip(event, event.buttons ? "" : textAt(event.clientX - box.left, event.clientY - box.top));
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
    const labelInterval = Math.ceil(13 / row);
    timeAxis(pen, scale, left, width, 0, bottom);
    processes.forEach((process, index) => {
      const top = index * row;
      const height = row - gap;
      if (index % labelInterval === 0) {
        pen.textAlign = "left";
        pen.fillStyle = colors.ink;
        pen.fillText(clipped(pen, process.name, left - 8), 0, top + height / 2);
      }
      pen.fillStyle = colors.empty;
      pen.fillRect(scale.x(process.from), top, Math.max(1, scale.x(process.to) - scale.x(process.from)), height);
      let begin = process.from;
      process.ends.forEach((end, at) => {
        // Whole pixels avoid seams between neighbors.
        const x = Math.round(scale.x(begin));
        const across = Math.max(1, Math.round(scale.x(end)) - x);
        let y = top + height;
        for (let stage = 0; stage < numStages; stage++) {
          const part = (process.percents[at][stage] / 100) * height;
          if (part > 0) {
            pen.fillStyle = colors[timeline.stages[stage][0]];
            pen.fillRect(x, y - part, across, part);
            y -= part;
          }
        }
        begin = end;
      });
      if (process.killed) {
        const x = scale.x(process.to);
        pen.fillStyle = colors.alarm;
        pen.fillRect(x - 1, top - gap / 2, 2, row);
        if (row > 9) {
          pen.textAlign = x > width - 60 ? "right" : "left";
          pen.fillText("killed", x + (x > width - 60 ? -5 : 5), top + height / 2);
        }
      }
    });
    const from = scale.x(view.from);
    const across = Math.max(3, scale.x(view.to) - from);
    pen.strokeStyle = colors.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(from, 0.75, Math.min(across, width - from - 1), bottom - 1.5);
  }

  addTooltip(overview, (x, y) => {
    const { row, scale } = overviewLayout;
    const process = processes[Math.floor(y / row)];
    const at = scale.at(x);
    if (!process || at < 0) return "";
    const lines = [`${process.name} (${process.pid})`];
    if (at < process.from || at > process.to) {
      return `${lines[0]}\n${at < process.from ? "not started" : process.killed ? "killed" : "ended"}`;
    }
    const period = process.ends.findIndex((end) => at <= end);
    lines.push(clock(at, 1e8));
    if (period >= 0) {
      timeline.stages
        .map(([, name], stage) => [process.percents[period][stage], name])
        .filter(([part]) => part > 0)
        .sort((first, second) => second[0] - first[0])
        .forEach(([part, name]) => lines.push(`${part} % ${name}`));
    } else lines.push("not sampled");
    return lines.join("\n");
  });

  overview.addEventListener("click", (event) => {
    const at = overviewLayout.scale.at(event.clientX - overview.getBoundingClientRect().left);
    const half = (view.to - view.from) / 2;
    if (at >= 0) setView(at - half, at + half);
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
  const visibleLanes = lanes.slice(0, maxLanes);
  let eventsLayout = null;

  function drawEvents() {
    const heights = visibleLanes.map((lane) => lane.depth * rowHeight + 6);
    const bottom = heights.reduce((sum, height) => sum + height, 0);
    const { pen, width } = prepare(canvas, Math.max(40, bottom + 24));
    const left = labelWidth(width);
    const scale = linear(view.from, view.to, left, width);
    eventsLayout = { scale, heights, left };
    timeAxis(pen, scale, left, width, 0, bottom);
    let top = 0;
    visibleLanes.forEach((lane, index) => {
      pen.fillStyle = colors.line;
      pen.fillRect(0, top + heights[index] - 1, width, 1);
      pen.save();
      pen.beginPath();
      pen.rect(left, top, width - left, heights[index]);
      pen.clip();
      drawLane(pen, lane, scale, top + 2, left, width);
      pen.restore();
      pen.fillStyle = colors.ink;
      pen.textAlign = "left";
      pen.fillText(clipped(pen, lane.name, left - 8), 4, top + heights[index] / 2);
      top += heights[index];
    });
    if (!visibleLanes.length) {
      pen.fillStyle = colors.dim;
      pen.textAlign = "left";
      pen.fillText("no spans were recorded", left, 12);
    }
    const limit = lanes.length > maxLanes ? `, ${maxLanes} of ${lanes.length} threads` : "";
    document.getElementById("window").textContent =
      `${duration(view.to - view.from)} from ${clock(view.from, (view.to - view.from) / 100)}${limit}`;
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
      // Skip spans within a pixel that is already painted.
      if (to - from < 1 && Math.floor(to) === painted[path.length]) continue;
      painted[path.length] = Math.floor(to);
      const color = colors[stage || "span"];
      const across = to - from > 3 ? to - from - 0.75 : Math.max(1, to - from);
      pen.fillStyle = color;
      pen.fillRect(from, top + (path.length - 1) * rowHeight, across, rowHeight - 1.5);
      if (to - from > 34) {
        pen.fillStyle = inkOn(color);
        const label = clipped(pen, path[path.length - 1], to - from - 8);
        pen.fillText(label, from + 4, top + (path.length - 0.5) * rowHeight - 0.5);
      }
    }
    pen.font = "12px system-ui, sans-serif";
  }

  /** Return the lane and index of the span at a point. */
  function spanAt(x, y) {
    let top = 0;
    for (let index = 0; index < visibleLanes.length; index++) {
      const lane = visibleLanes[index];
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

  addTooltip(canvas, (x, y) => {
    const hit = x > eventsLayout.left ? spanAt(x, y) : null;
    if (!hit) return "";
    const { lane, at } = hit;
    const [path, stage] = lane.process.spans[lane.spans[at]];
    const lines = [path.join(" › "), duration(lane.durations[at])];
    if (stage) lines.push(timeline.stages.find(([name]) => name === stage)[1]);
    lines.push(`${lane.name}, from ${clock(lane.starts[at], 1e3)}`);
    return lines.join("\n");
  });

  let pending = false;

  /** Set the visible time range, limited to the recorded time. */
  function setView(from, to) {
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

  function zoom(factor, center) {
    setView(center - (center - view.from) * factor, center + (view.to - center) * factor);
  }

  /** Show the last 150 spans of the first lane. */
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
    if (to > 0) setView(from, Math.max(to, from + 1000));
    else setView(0, timeline.length);
  }

  const actions = {
    left: () => setView(view.from - (view.to - view.from) / 4, view.to - (view.to - view.from) / 4),
    right: () => setView(view.from + (view.to - view.from) / 4, view.to + (view.to - view.from) / 4),
    in: () => zoom(0.5, (view.from + view.to) / 2),
    out: () => zoom(2, (view.from + view.to) / 2),
    all: () => setView(0, timeline.length),
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
      // Without a key, vertical scrolling moves the page.
      if (!isZoom && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      const x = event.clientX - canvas.getBoundingClientRect().left;
      if (isZoom) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), eventsLayout.scale.at(x));
      else {
        const by = (event.deltaX / canvas.clientWidth) * (view.to - view.from);
        setView(view.from + by, view.to + by);
      }
    },
    { passive: false },
  );
  // One pointer moves the view, two zoom.
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
      setView(view.from + by, view.to + by);
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

  /** Split a line at its missing values. */
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

  /** Draw values over time as a line with a filled area. */
  function drawLine(canvas, line, unit, top) {
    const height = 190;
    const { pen, width } = prepare(canvas, height);
    const left = labelWidth(width) / 2 + 16;
    const bottom = height - 24;
    const scale = linear(0, timeline.length, left, width - 4);
    const most = top || Math.max(1e-9, ...line.values) * 1.08;
    const y = (value) => bottom - (value / most) * (bottom - 10);
    const { values } = ticks(0, most, 4);
    for (const value of values) {
      pen.fillStyle = colors.line;
      pen.fillRect(left, Math.round(y(value)), width - left, 1);
      pen.fillStyle = colors.dim;
      pen.textAlign = "right";
      pen.fillText(`${value.toLocaleString("en")}${unit}`, left - 6, y(value));
    }
    timeAxis(pen, scale, left, width, bottom, bottom);
    pen.lineWidth = 2;
    pen.lineJoin = "round";
    pen.strokeStyle = pen.fillStyle = colors.accent;
    for (const part of unbroken(line)) {
      const [begin, end] = [scale.x(part[0][0]), scale.x(part[part.length - 1][0])];
      pen.beginPath();
      for (const [at, value] of part) pen.lineTo(scale.x(at), y(value));
      // Draw a single point as a square.
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

  const charts = [
    ["throughput-line", data.throughput, "", 0, "steps/s"],
    ["lockstep-line", data.lockstep, " %", 100, "% of time waiting"],
  ]
    .map(([id, line, unit, top, label]) => ({ canvas: document.getElementById(id), line, unit, top, label }))
    .filter((chart) => chart.canvas && chart.line);
  for (const chart of charts) {
    addTooltip(chart.canvas, (x) => {
      if (!chart.line.at.length) return "";
      const at = chart.scale.at(x);
      let nearest = 0;
      chart.line.at.forEach((value, i) => {
        if (Math.abs(value - at) < Math.abs(chart.line.at[nearest] - at)) nearest = i;
      });
      if (chart.line.values[nearest] === null) return "";
      return `${chart.line.values[nearest].toLocaleString("en")} ${chart.label}\n${clock(chart.line.at[nearest], 1e8)}`;
    });
  }

  // --- trees ---------------------------------------------------------------------------------

  for (const table of document.querySelectorAll("table.tree")) {
    const rows = [...table.tBodies[0].rows];
    const level = (row) => Number(row.getAttribute("aria-level"));

    /** Hide the rows below collapsed rows. */
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
      rows.forEach((other) => (other.tabIndex = other === row ? 0 : -1));
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
      const visible = rows.filter((other) => !other.hidden);
      const at = visible.indexOf(row);
      const isOpen = row.getAttribute("aria-expanded");
      const steps = {
        ArrowDown: () => focus(visible[at + 1]),
        ArrowUp: () => focus(visible[at - 1]),
        Home: () => focus(visible[0]),
        End: () => focus(visible[visible.length - 1]),
        ArrowRight: () => (isOpen === "false" ? setOpen(row, true) : isOpen && focus(visible[at + 1])),
        ArrowLeft: () => {
          if (isOpen === "true") setOpen(row, false);
          else focus(visible.slice(0, at).reverse().find((other) => level(other) < level(row)));
        },
        Enter: () => setOpen(row, isOpen !== "true"),
        " ": () => setOpen(row, isOpen !== "true"),
      };
      if (steps[event.key]) {
        event.preventDefault();
        steps[event.key]();
      }
    });
    // Large trees start with only their upper levels expanded.
    if (rows.length > 40) rows.filter((row) => level(row) > 2).forEach((row) => setOpen(row, false));
  }

  // --- draw everything -----------------------------------------------------------------------

  function drawAll() {
    readColors();
    drawEvents();
    drawOverview();
    for (const chart of charts) chart.scale = drawLine(chart.canvas, chart.line, chart.unit, chart.top);
  }

  readColors();
  latest();
  drawAll();
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.dataset.drawn = "true";
})();
