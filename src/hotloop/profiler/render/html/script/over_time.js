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

drawings.push(() => {
  for (const chart of charts) chart.scale = drawLine(chart.canvas, chart.line, chart.unit, chart.top);
});

// --- memory --------------------------------------------------------------------------------

const memory = document.getElementById("memory-lines");
if (memory) {
  const series = data.memory;
  const height = 230;
  let scale = null;

  /** Return the value of a series at a time, null outside of it. */
  const valueAt = (one, at) => {
    const next = one.at.findIndex((time) => time >= at);
    if (next < 0 || at < one.from) return null;
    return one.values[next];
  };

  drawings.push(() => {
    const { pen, width } = prepare(memory, height);
    const left = labelWidth(width) / 2 + 22;
    const bottom = height - 24;
    scale = linear(0, timeline.length, left, width - 4);
    const most = Math.max(1, ...series.flatMap((one) => one.values)) * 1.08;
    const y = (value) => bottom - (value / most) * (bottom - 10);
    for (const value of ticks(0, most, 4).values) {
      pen.fillStyle = colors.line;
      pen.fillRect(left, Math.round(y(value)), width - left, 1);
      pen.fillStyle = colors.dim;
      pen.textAlign = "right";
      pen.fillText(`${value.toLocaleString("en")} MB`, left - 6, y(value));
    }
    timeAxis(pen, scale, left, width, bottom, bottom);
    pen.lineWidth = 2;
    pen.lineJoin = "round";
    for (const one of series) {
      pen.strokeStyle = colors[one.color];
      pen.beginPath();
      one.at.forEach((at, i) => pen.lineTo(scale.x(at), y(one.values[i])));
      pen.stroke();
    }
  });

  addTooltip(memory, (x) => {
    const at = scale.at(x);
    if (at < 0 || at > timeline.length) return "";
    const values = series
      .map((one) => [valueAt(one, at), one.name])
      .filter(([value]) => value !== null)
      .sort((first, second) => second[0] - first[0])
      .map(([value, name]) => `${value.toLocaleString("en")} MB ${name}`);
    return [clock(at, 1e8), ...values].join("\n");
  });
}
