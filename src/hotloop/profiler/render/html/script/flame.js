// --- flame graph ---------------------------------------------------------------------------

// Frames are drawn from the root down, the most expensive on the left. Without libraries, the time of
// their frames counts for the function of yours that calls them.
const flameCanvas = document.getElementById("flame-graph");
if (flameCanvas) {
  const rowHeight = 19;
  const frames = data.flame.frames;
  const isComparison = Boolean(data.flame.before);
  const details = document.getElementById("flame-details");
  const matched = document.getElementById("flame-matched");
  const search = document.getElementById("flame-search");
  const libraries = document.getElementById("flame-libraries");
  const source = document.getElementById("flame-source");
  const hidden = new Set(["library", "python"]);

  /** Return the tree of all frames, from the list of nodes in depth-first order. */
  function readTree() {
    const root = { frame: -1, ns: 0, before: 0, children: [], parent: null };
    const open = [root];
    data.flame.nodes.frame.forEach((frame, i) => {
      const depth = data.flame.nodes.depth[i];
      open.length = depth;
      const parent = open[depth - 1];
      const node = { frame, ns: data.flame.nodes.ns[i], before: 0, children: [], parent };
      if (isComparison) node.before = data.flame.before[i];
      parent.children.push(node);
      open.push(node);
    });
    for (const child of root.children) {
      root.ns += child.ns;
      root.before += child.before;
    }
    return root;
  }

  /** Return a copy of a tree in which the children of hidden frames belong to their callers. */
  function withoutLibraries(tree) {
    const copy = (node, parent) => {
      const result = { frame: node.frame, ns: node.ns, before: node.before, children: [], parent };
      const byFrame = new Map();
      const add = (child) => {
        if (hidden.has(frames[child.frame].kind)) {
          child.children.forEach(add);
          return;
        }
        if (!byFrame.has(child.frame)) byFrame.set(child.frame, []);
        byFrame.get(child.frame).push(child);
      };
      node.children.forEach(add);
      for (const [frame, nodes] of byFrame) {
        const merged = {
          frame,
          ns: nodes.reduce((sum, one) => sum + one.ns, 0),
          before: nodes.reduce((sum, one) => sum + one.before, 0),
          children: nodes.flatMap((one) => one.children),
        };
        result.children.push(copy(merged, result));
      }
      return result;
    };
    return copy(tree, null);
  }

  const whole = readTree();
  let root = whole;
  let focus = whole;
  let selected = null;
  let boxes = [];
  let isMatch = null;

  // The wider of the two sides of a comparison decides, so that removed frames stay visible.
  const widthOf = (node) => Math.max(node.ns, node.before);

  const nameOf = (node) => (node.frame < 0 ? "all" : frames[node.frame].function);
  const share = (part, all) => `${((100 * part) / Math.max(1, all)).toFixed(1)} %`;

  function describe(node) {
    const lines = [nameOf(node)];
    if (node.frame >= 0 && frames[node.frame].place) lines.push(frames[node.frame].place);
    if (isComparison) {
      const unit = data.flame.unit;
      lines.push(`${duration(node.before)} → ${duration(node.ns)} ${unit}`);
    } else {
      const own = node.ns - node.children.reduce((sum, child) => sum + child.ns, 0);
      lines.push(`${duration(node.ns)}, ${share(node.ns, root.ns)} of all; own time ${share(own, root.ns)}`);
    }
    return lines;
  }

  /** Return the color of a frame: its kind's, or red where B takes longer and green where less. */
  function colorOf(node) {
    if (!isComparison) return node.frame < 0 ? colors.empty : colors[`frame-${frames[node.frame].kind}`];
    const change = (node.ns - node.before) / Math.max(1, root.ns, root.before);
    const strength = Math.min(1, Math.abs(change) * 8);
    return strength < 0.02 ? colors.empty : mixed(colors.empty, change > 0 ? colors.alarm : colors.good, strength);
  }

  function mixed(first, second, part) {
    const channel = (color, at) => parseInt(color.slice(at, at + 2), 16);
    return `#${[1, 3, 5]
      .map((at) => Math.round(channel(first, at) * (1 - part) + channel(second, at) * part))
      .map((value) => value.toString(16).padStart(2, "0"))
      .join("")}`;
  }

  function draw() {
    const path = [];
    for (let node = focus; node; node = node.parent) path.unshift(node);
    // Lay out: the frames around the focus over the whole width, those below by their time.
    const laidOut = path.map((node, depth) => [node, depth, 0, 1, depth < path.length - 1]);
    const layOut = (node, depth, from, across) => {
      const total = Math.max(widthOf(node), node.children.reduce((sum, child) => sum + widthOf(child), 0));
      let at = from;
      for (const child of [...node.children].sort((first, second) => widthOf(second) - widthOf(first))) {
        const part = (across * widthOf(child)) / Math.max(1, total);
        if (part > 2e-4) {
          laidOut.push([child, depth, at, part, false]);
          layOut(child, depth + 1, at, part);
        }
        at += part;
      }
    };
    layOut(focus, path.length, 0, 1);
    const depth = laidOut.reduce((most, item) => Math.max(most, item[1]), 0) + 1;
    const { pen, width } = prepare(flameCanvas, depth * rowHeight + 2);
    pen.textAlign = "left";
    boxes = laidOut.map(([node, row, from, part, isAround]) => {
      const x = from * width;
      const across = part * width;
      const y = row * rowHeight;
      const isFound = isMatch && node.frame >= 0 && isMatch(frames[node.frame]);
      const color = isFound ? colors.accent : colorOf(node);
      pen.globalAlpha = isAround ? 0.6 : isMatch && !isFound ? 0.45 : 1;
      pen.fillStyle = color;
      pen.fillRect(x, y, Math.max(0.4, across - 0.8), rowHeight - 1);
      if (across > 26) {
        pen.fillStyle = inkOn(color);
        pen.globalAlpha = 1;
        pen.fillText(clipped(pen, nameOf(node), across - 8), x + 4, y + rowHeight / 2);
      }
      pen.globalAlpha = 1;
      if (node === selected) {
        pen.strokeStyle = colors.ink;
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, y + 1, Math.max(1, across - 2.8), rowHeight - 3);
      }
      return { node, x, y, across };
    });
  }

  function select(node) {
    selected = node;
    details.textContent = describe(node).join(" · ");
    const anchor = node.frame < 0 ? undefined : frames[node.frame].anchor;
    source.hidden = !anchor;
    if (anchor) source.href = `#${anchor}`;
    draw();
  }

  function zoomTo(node) {
    focus = node;
    select(node);
  }

  function showLibraries(isShown) {
    root = isShown ? whole : withoutLibraries(whole);
    zoomTo(root);
    countMatches();
  }

  /** Show the share of the time in matching frames. A frame inside of another one counts once. */
  function countMatches() {
    if (!isMatch) {
      matched.textContent = "";
      return;
    }
    const count = (node) =>
      node.frame >= 0 && isMatch(frames[node.frame])
        ? node.ns
        : node.children.reduce((sum, child) => sum + count(child), 0);
    matched.textContent = `${share(count(root), root.ns)} matched`;
  }

  function searchFor(text) {
    search.removeAttribute("aria-invalid");
    isMatch = null;
    if (text) {
      try {
        const expression = new RegExp(text, "i");
        isMatch = (frame) => expression.test(`${frame.function} ${frame.place}`);
      } catch {
        search.setAttribute("aria-invalid", "true");
        matched.textContent = "not a regular expression";
        draw();
        return;
      }
    }
    countMatches();
    draw();
  }

  /** Zoom to the largest frame of a function, and mark all of its frames. */
  function showFunction(name, file) {
    const isFrame = (frame) => frame.function === name && frame.file === file;
    let best = null;
    const visit = (node) => {
      if (node.frame >= 0 && isFrame(frames[node.frame]) && (!best || node.ns > best.ns)) best = node;
      node.children.forEach(visit);
    };
    visit(root);
    search.value = "";
    isMatch = isFrame;
    zoomTo(root);
    countMatches();
    if (best) select(best);
  }

  const boxAt = (x, y) =>
    boxes.find((box) => x >= box.x && x < box.x + box.across && y >= box.y && y < box.y + rowHeight);

  addTooltip(flameCanvas, (x, y) => {
    const box = boxAt(x, y);
    return box ? describe(box.node).join("\n") : "";
  });
  flameCanvas.addEventListener("click", (event) => {
    const area = flameCanvas.getBoundingClientRect();
    const box = boxAt(event.clientX - area.left, event.clientY - area.top);
    if (box) zoomTo(box.node);
  });
  const byWidth = (node) => [...node.children].sort((first, second) => widthOf(second) - widthOf(first));
  flameCanvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const node = selected || root;
    const siblings = node.parent ? byWidth(node.parent) : [node];
    const at = siblings.indexOf(node);
    const steps = {
      ArrowUp: () => node.parent && select(node.parent),
      ArrowDown: () => node.children.length && select(byWidth(node)[0]),
      ArrowLeft: () => at > 0 && select(siblings[at - 1]),
      ArrowRight: () => at < siblings.length - 1 && select(siblings[at + 1]),
      Enter: () => zoomTo(node),
      Escape: () => zoomTo(root),
    };
    if (steps[event.key]) {
      event.preventDefault();
      steps[event.key]();
    }
  });
  search.addEventListener("input", () => searchFor(search.value));
  libraries.addEventListener("change", () => showLibraries(libraries.checked));
  document.getElementById("flame-reset").addEventListener("click", () => {
    search.value = "";
    searchFor("");
    zoomTo(root);
  });
  for (const link of document.querySelectorAll("a[data-function]")) {
    link.addEventListener("click", () => showFunction(link.dataset.function, link.dataset.file));
  }
  drawings.push(draw);
  readColors();
  // Your own code comes first, if there is any.
  libraries.checked = !frames.some((frame) => frame.kind === "user");
  showLibraries(libraries.checked);
}
