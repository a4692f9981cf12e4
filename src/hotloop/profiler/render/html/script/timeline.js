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
  drawPlace(pen, scale, row, row - gap);
  const from = scale.x(view.from);
  const across = Math.max(3, scale.x(view.to) - from);
  pen.strokeStyle = colors.accent;
  pen.lineWidth = 1.5;
  pen.strokeRect(from, 0.75, Math.min(across, width - from - 1), bottom - 1.5);
}

// The finding whose place is marked, a number in `timeline.places`.
let markedPlace = -1;

/** Dim the stages, and draw the share of the marked place in each period as a bar from below. */
function drawPlace(pen, scale, row, height) {
  if (markedPlace < 0) return;
  processes.forEach((process, index) => {
    const percents = timeline.places[markedPlace].percents[index];
    if (!percents) return;
    let begin = process.from;
    process.ends.forEach((end, at) => {
      const x = Math.round(scale.x(begin));
      const across = Math.max(1, Math.round(scale.x(end)) - x);
      pen.globalAlpha = 0.75;
      pen.fillStyle = colors.card;
      pen.fillRect(x, index * row, across, height);
      pen.globalAlpha = 1;
      pen.fillStyle = colors.alarm;
      const part = (percents[at] / 100) * height;
      if (part > 0) pen.fillRect(x, index * row + height - part, across, part);
      begin = end;
    });
  });
}

function markPlace(index) {
  markedPlace = index;
  const label = document.getElementById("marked-place");
  label.hidden = index < 0;
  if (index >= 0) {
    label.querySelector("span").textContent = `Marked: the share of ${timeline.places[index].name}. `;
  }
  drawOverview();
}

for (const link of document.querySelectorAll("a[data-place]")) {
  link.addEventListener("click", () => markPlace(Number(link.dataset.place)));
}
document.querySelector("#marked-place button").addEventListener("click", () => markPlace(-1));

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
    const marks = markedPlace < 0 ? null : timeline.places[markedPlace].percents[processes.indexOf(process)];
    if (marks) lines.push(`${marks[period]} % marked`);
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
  const { pen, width } = prepare(canvas, visibleLanes.length ? bottom + 24 : 30);
  const left = labelWidth(width);
  const scale = linear(view.from, view.to, left, width);
  eventsLayout = { scale, heights, left };
  if (visibleLanes.length) timeAxis(pen, scale, left, width, 0, bottom);
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
    pen.fillText("no spans were recorded", 8, 15);
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

latest();
drawings.push(drawEvents, drawOverview);
