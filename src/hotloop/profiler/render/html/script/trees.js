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
