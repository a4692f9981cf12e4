(function () {
  "use strict";
  const script = document.currentScript;
  const svg = (script && script.closest("svg")) || document.documentElement;
  const width = WIDTH, pad = PAD, character = CHARACTER;
  const details = svg.querySelector("text.details");
  const matched = svg.querySelector("text.matched");
  const input = svg.querySelector("input");
  const frames = Array.from(svg.querySelectorAll("g.f"), (g) => {
    const lines = g.querySelector("title").textContent.split("\n");
    return {
      g: g, lines: lines, name: lines[0], location: lines.slice(0, -1).join(" "),
      rect: g.querySelector("rect"), text: g.querySelector("text"),
      depth: Number(g.dataset.d), start: Number(g.dataset.x), weight: Number(g.dataset.w),
    };
  });
  const root = frames[0];

  function show(frame, x, frameWidth, isOuter) {
    frame.g.style.display = frameWidth < 0.1 ? "none" : "";
    frame.g.classList.toggle("around", isOuter);
    if (frameWidth < 0.1) return;
    frame.rect.setAttribute("x", x);
    frame.rect.setAttribute("width", Math.max(frameWidth - 0.4, 0.1));
    const room = Math.floor((frameWidth - 6) / character);
    if (!frame.text) {
      if (room < 3) return;
      frame.text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      frame.text.setAttribute("y", Number(frame.rect.getAttribute("y")) + 12);
      frame.g.appendChild(frame.text);
    }
    frame.text.setAttribute("x", x + 3);
    const letters = Array.from(frame.name);
    frame.text.textContent = room < 3 ? ""
      : letters.length <= room ? frame.name : letters.slice(0, room - 1).join("") + "…";
  }

  function zoom(target) {
    const scale = (width - 2 * pad) / target.weight, end = target.start + target.weight;
    for (const frame of frames) {
      const last = frame.start + frame.weight;
      if (frame.depth >= target.depth && frame.start >= target.start && last <= end) {
        show(frame, pad + (frame.start - target.start) * scale, frame.weight * scale, false);
      } else if (frame.depth < target.depth && frame.start <= target.start && last >= end) {
        show(frame, pad, width - 2 * pad, true);
      } else {
        frame.g.style.display = "none";
      }
    }
  }

  function search(pattern) {
    let expression = null;
    try {
      expression = pattern ? new RegExp(pattern) : null;
      input.classList.remove("wrong");
    } catch (error) {
      input.classList.add("wrong");
      matched.textContent = "not a regular expression";
      return;
    }
    // Frames come before their inner ones, so inner frames of a match are not counted again.
    let sum = 0, covered = -1;
    for (const frame of frames) {
      const isMatch = expression !== null && frame !== root && expression.test(frame.location);
      frame.g.classList.toggle("match", isMatch);
      if (isMatch && frame.start >= covered) {
        sum += frame.weight;
        covered = frame.start + frame.weight;
      }
    }
    matched.textContent = expression ? (100 * sum / root.weight).toFixed(2) + "% matched" : "";
  }

  for (const frame of frames) {
    frame.g.addEventListener("click", () => zoom(frame));
    frame.g.addEventListener("mouseenter", () => {
      details.textContent = frame.lines.join("   ");
    });
    frame.g.addEventListener("mouseleave", () => { details.textContent = " "; });
  }
  if (input) input.addEventListener("input", () => search(input.value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoom(root);
  });
})();
