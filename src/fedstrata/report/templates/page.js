"use strict";
const read = id => JSON.parse(document.getElementById(id).textContent);
const figures = read("figures");
const config = { displayModeBar: false, responsive: true };

// Cells are square and at most 40 pixels wide; the colour bar stands beside them.
const fit = (place, figure) => {
  const side = Math.max(180, Math.min(560, place.parentNode.clientWidth - 40, 40 * figure.rows.length + 60));
  return { height: side, width: Math.min(place.parentNode.clientWidth, side + 60) };
};
const squared = (place, figure) => {
  Object.assign(figure.layout, fit(place, figure));
  place.style.minHeight = "0";
  addEventListener("resize", () => Plotly.relayout(place, fit(place, figure)));
};
const pairs = (rows, columns) => rows.map(row => columns.map(column => [row, column]));

for (const [id, figure] of Object.entries(figures)) {
  const place = document.getElementById(id);
  if (figure.rows) figure.data[0].customdata = pairs(figure.rows, figure.columns);
  if (figure.square) squared(place, figure);
  Plotly.newPlot(place, figure.data, figure.layout, config);
}

// The matrices of all rounds: of each the half above the diagonal, in 16 bits between its least and largest value.
const explorer = read("frames");
if (explorer) {
  const place = document.getElementById("examinations");
  const round = document.getElementById("round");
  const view = document.getElementById("view");
  const figure = explorer.figure;
  const [heat] = figure.data;
  const size = figure.rows.length;
  const draw = () => {
    const frame = explorer.frames[Number(round.value)];
    const chosen = explorer.views[Number(view.value)];
    const z = figure.rows.map(() => Array(size).fill(null));
    const parts = frame.parts.filter(part => part.view === Number(view.value));
    let high = 0, low = chosen.similar ? Infinity : 0;
    for (const part of parts) {
      const bytes = Uint8Array.from(atob(part.codes), letter => letter.charCodeAt(0));
      let at = 0;
      part.clients.forEach((row, one) => part.clients.slice(one + 1).forEach(column => {
        const code = bytes[at] + 256 * bytes[at + 1];
        at += 2;
        if (code < 65535) z[row][column] = z[column][row] = part.low + (part.high - part.low) * code / 65534;
      }));
      [low, high] = [Math.min(low, part.low), Math.max(high, part.high)];
    }
    const [least, most] = chosen.range ?? [low, high];
    const pair = `clients %{customdata[0]} and %{customdata[1]}<br>${chosen.hover} %{z:.4~g}<extra></extra>`;
    Object.assign(heat, { z, zmin: least, zmax: most, colorscale: chosen.colorscale, hovertemplate: pair });
    document.querySelector("#explorer output").textContent = frame.round;
    round.setAttribute("aria-valuetext", `round ${frame.round}`);
    const nothing = parts.length ? "" : "Nothing was compared in this way in this round.";
    document.getElementById("examined").textContent = `${chosen.text}. ${frame.texts.map(text => `${text}. `).join("")}${nothing}`;
    Plotly.react(place, figure.data, figure.layout, config);
  };
  heat.customdata = pairs(figure.rows, figure.columns);
  squared(place, figure);
  round.addEventListener("input", draw);
  view.addEventListener("input", draw);
  draw();
}

// What is not known comes last either way.
const value = (cell, way) => {
  const number = parseFloat(cell.textContent.replaceAll(",", ""));
  return Number.isNaN(number) ? way * Infinity : number;
};
for (const head of document.querySelectorAll(".sortable th")) {
  head.querySelector("button").addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const column = head.cellIndex;
    head.parentNode.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    const compare = (one, two) => {
      const [a, b] = [value(one.cells[column], way), value(two.cells[column], way)];
      return a === b ? 0 : way * (a < b ? -1 : 1);
    };
    body.append(...[...body.rows].sort(compare));
  });
}
// A page on paper has no folds and is narrow.
const drawn = () => document.querySelectorAll(".plot");
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(fold => { fold.open = true; });
  drawn().forEach(place => Plotly.relayout(place, { width: Math.min(640, place.layout.width ?? place.clientWidth) }));
});
addEventListener("afterprint", () => {
  drawn().forEach(place => Plotly.relayout(place, { width: null, autosize: true }));
  dispatchEvent(new Event("resize"));
});
