// --- sorted tables -------------------------------------------------------------------------

// Factors of the units that the tables' cells end with.
const unitFactors = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, "%": 0.01, MB: 1, "×": 1, "": 1 };

/** Return the number in a cell, NaN for other texts. */
function cellNumber(cell) {
  const match = /^([−-]?[\d,.]+)\s*(ns|µs|ms|s|%|MB|×|)(?:\s|$)/.exec(cell.textContent.trim());
  return match ? Number(match[1].replaceAll(",", "").replace("−", "-")) * unitFactors[match[2]] : NaN;
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.textContent = heading.textContent || "·";
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      // Numbers start with the largest, texts with the first of the alphabet.
      const rows = [...table.tBodies[0].rows];
      const keys = new Map(rows.map((row) => [row, cellNumber(row.cells[column])]));
      const isNumeric = rows.some((row) => !Number.isNaN(keys.get(row)));
      const old = heading.getAttribute("aria-sort");
      const isDescending = old ? old === "ascending" : isNumeric;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      const sign = isDescending ? -1 : 1;
      rows.sort((first, second) => {
        if (!isNumeric) {
          return sign * first.cells[column].textContent.localeCompare(second.cells[column].textContent);
        }
        const [a, b] = [keys.get(first), keys.get(second)];
        // Empty cells come last in either order.
        if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
        return sign * (a - b);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
