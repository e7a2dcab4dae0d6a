"use strict";
const read = id => JSON.parse(document.getElementById(id).textContent);
const figures = read("figures");
const config = { displayModeBar: false, responsive: true };

// Cells are square and at most 40 pixels wide; the colour bar stands beside them.
const squareSize = (place, figure) => {
  const width = Math.max(180, place.parentNode.clientWidth);
  const side = Math.max(180, Math.min(560, width - 40, 40 * figure.rows.length + 60));
  return { height: side, width: Math.min(width, side + 60) };
};
// Of the names along an axis only as many as do not lie on each other; on a phone, long ones would leave no plot.
const thinned = ({ tickvals, ticktext }, side) => {
  const longest = Math.max(0, ...ticktext.map(text => text.length));
  if (side < 420 && longest > 6) return { tickvals: [], ticktext: [] };
  const step = Math.max(1, Math.ceil(13 * ticktext.length / Math.max(side - 60 - 6 * longest, 40)));
  const kept = texts => texts.filter((_, place) => place % step === 0);
  return { tickvals: kept(tickvals), ticktext: kept(ticktext) };
};
const keepSquare = (place, figure) => {
  const { xaxis, yaxis } = figure.layout;
  const whole = { tickvals: xaxis.tickvals, ticktext: xaxis.ticktext };
  const fit = () => {
    const size = squareSize(place, figure);
    [xaxis, yaxis].forEach(axis => Object.assign(axis, thinned(whole, size.height)));
    Object.assign(figure.layout, size);
  };
  fit();
  place.dataset.square = "";
  place.style.minHeight = "0";
  addEventListener("resize", () => {
    fit();
    Plotly.react(place, figure.data, figure.layout, config);
  });
};
const pairs = (rows, columns) => rows.map(row => columns.map(column => [row, column]));

for (const [id, figure] of Object.entries(figures)) {
  const place = document.getElementById(id);
  if (figure.rows) figure.data[0].customdata = pairs(figure.rows, figure.columns);
  if (figure.square) keepSquare(place, figure);
  Plotly.newPlot(place, figure.data, figure.layout, config);
}

// The matrices of all rounds: of each the half above the diagonal, in 16 bits between its smallest and largest value.
const NO_VALUE = 65535;
const slider = read("matrices");
if (slider) {
  const place = document.getElementById("matrix");
  const round = document.getElementById("round");
  const view = document.getElementById("view");
  const figure = slider.figure;
  const [heat] = figure.data;
  const size = figure.rows.length;
  const fill = (z, part) => {
    const bytes = Uint8Array.from(atob(part.codes), letter => letter.charCodeAt(0));
    const codes = new DataView(bytes.buffer);
    let at = 0;
    part.clients.forEach((row, index) => part.clients.slice(index + 1).forEach(column => {
      const code = codes.getUint16(at, true);
      at += 2;
      if (code !== NO_VALUE) z[row][column] = z[column][row] = part.low + (part.high - part.low) * code / 65534;
    }));
  };
  const draw = () => {
    const frame = slider.frames[Number(round.value)];
    const chosen = slider.views[Number(view.value)];
    const parts = frame.parts.filter(part => part.view === Number(view.value));
    const z = figure.rows.map(() => Array(size).fill(null));
    parts.forEach(part => fill(z, part));
    const low = Math.min(chosen.similar ? Infinity : 0, ...parts.map(part => part.low));
    const high = Math.max(0, ...parts.map(part => part.high));
    const [zmin, zmax] = chosen.range ?? [low, high];
    const pair = `clients %{customdata[0]} and %{customdata[1]}<br>${chosen.hover} %{z:.4~g}<extra></extra>`;
    Object.assign(heat, { z, zmin, zmax, colorscale: chosen.colorscale, hovertemplate: pair });
    document.querySelector("#slider output").textContent = frame.round;
    round.setAttribute("aria-valuetext", `round ${frame.round}`);
    const nothing = parts.length ? [] : ["This round has no such matrix"];
    document.getElementById("outcome").textContent = [chosen.text, ...frame.texts, ...nothing].map(text => `${text}.`).join(" ");
    Plotly.react(place, figure.data, figure.layout, config);
  };
  heat.customdata = pairs(figure.rows, figure.columns);
  keepSquare(place, figure);
  round.addEventListener("input", draw);
  view.addEventListener("input", draw);
  draw();
}

// What is known of the client whose name was clicked. It is read at the first click: there may be hundreds of clients.
const box = document.getElementById("client");
if (box) {
  let details = null;
  const show = id => {
    details ??= read("client-details");
    const { figure, clients } = details;
    const { name, facts, curve } = clients[id];
    box.hidden = false;
    document.getElementById("client-name").textContent = `Client ${name}`;
    document.getElementById("client-facts").replaceChildren(...facts.map(([title, text]) => {
      const row = document.createElement("div");
      row.append(Object.assign(document.createElement("dt"), { textContent: title }));
      row.append(Object.assign(document.createElement("dd"), { textContent: text }));
      return row;
    }));
    Object.assign(figure.data[1], { y: curve });
    const place = document.getElementById("client-curve");
    Plotly.react(place, figure.data, figure.layout, config).then(() => Plotly.Plots.resize(place));
    document.querySelectorAll("button.client").forEach(button => button.setAttribute("aria-pressed", button.value === id));
  };
  const back = document.getElementById("client-back");
  let from = null;
  document.querySelectorAll("button.client").forEach(button => button.addEventListener("click", () => {
    from = button;
    show(button.value);
    back.hidden = false;
    box.scrollIntoView({ block: "nearest" });
  }));
  back.addEventListener("click", () => {
    from.scrollIntoView({ block: "center" });
    from.focus({ preventScroll: true });
  });
}

// An unknown value comes last in both orders.
const value = (cell, direction) => {
  const number = parseFloat(cell.textContent.replaceAll(",", ""));
  return Number.isNaN(number) ? direction * Infinity : number;
};
for (const head of document.querySelectorAll(".sortable th")) {
  head.querySelector("button").addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const column = head.cellIndex;
    head.parentNode.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    const compare = (one, two) => {
      if (one.cells[column].classList.contains("text")) {
        const [first, second] = [one, two].map(row => row.cells[column].textContent);
        return direction * first.localeCompare(second, undefined, { numeric: true });
      }
      const [a, b] = [value(one.cells[column], direction), value(two.cells[column], direction)];
      return a === b ? 0 : direction * (a < b ? -1 : 1);
    };
    body.append(...[...body.rows].sort(compare));
  });
}
// A printed page has nothing to unfold and is narrow.
const plots = () => document.querySelectorAll(".js-plotly-plot");
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  plots().forEach(place => Plotly.relayout(place, { width: Math.min(640, place.layout.width ?? place.clientWidth) }));
});
addEventListener("afterprint", () => {
  // The square ones have a size of their own, which they get anew on the event below.
  const fluid = [...plots()].filter(place => !("square" in place.dataset));
  fluid.forEach(place => Plotly.relayout(place, { width: null, autosize: true }));
  dispatchEvent(new Event("resize"));
});
