// --- draw everything -----------------------------------------------------------------------

function drawAll() {
  readColors();
  drawings.forEach((draw) => draw());
}

drawAll();
addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
document.documentElement.dataset.drawn = "true";
