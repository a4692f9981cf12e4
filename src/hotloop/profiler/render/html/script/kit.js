// Text, colors, canvases and tooltips. Content of a session is inserted only as text.

addEventListener("error", (event) => {
  const failure = document.getElementById("failure");
  failure.textContent = `A chart could not be drawn: ${event.message}. The tables are complete.`;
  failure.hidden = false;
});

const data = JSON.parse(document.getElementById("session").textContent);
const timeline = data.timeline;
// Functions that draw a chart again, after a change of the window or its colors.
const drawings = [];

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
  for (const name of [
    ...["ink", "dim", "line", "empty", "accent", "card", "alarm", "good", "span"],
    ...["user", "library", "python", "span", "process"].map((kind) => `frame-${kind}`),
  ]) {
    colors[name] = style.getPropertyValue(`--${name}`).trim();
  }
  for (const [stage] of timeline ? timeline.stages : []) {
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
  // Times near the limit of a number cannot be increased by a small step.
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9 && values.length < 1000; at += step) {
    values.push(at);
  }
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
