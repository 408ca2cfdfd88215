"use strict";
for (const table of document.querySelectorAll("table.sort")) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const value = (row, i) => {
    const cell = row.cells[i];
    return cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v);
  };
  const before = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a < b ? -1 : a > b ? 1 : 0;
  };
  Array.from(table.tHead.rows[0].cells).forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = rows.map((row, n) => [value(row, i), n, row]);
      const missing = (key) => typeof key === "string" && head.classList.contains("n");
      keyed.sort((a, b) => missing(a[0]) - missing(b[0]) || (down ? -1 : 1) * before(a[0], b[0]) || a[1] - b[1]);
      body.append(...keyed.map((entry) => entry[2]));
    });
  });
  const bar = document.createElement("div");
  const label = document.createElement("label");
  const input = document.createElement("input");
  const shown = document.createElement("output");
  bar.className = "filter";
  input.type = "search";
  input.id = table.id + "-filter";
  label.htmlFor = input.id;
  label.textContent = "Filter rows";
  shown.htmlFor.add(input.id);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word));
      count += row.hidden ? 0 : 1;
    });
    shown.textContent = count + " of " + rows.length + " rows";
  };
  input.addEventListener("input", apply);
  bar.append(label, input, shown);
  table.before(bar);
  apply();
}
