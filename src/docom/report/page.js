// Draws the panels of the report and keeps the table "to reach a loss" up to date. All text goes in as text, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const axisOf = Object.fromEntries(data.axes.map((axis) => [axis.key, axis]));
  const state = {
    axis: data.axes[0].key, // as its button says; `axisKey` is the one drawn
    allLinks: false,
    xLog: Object.fromEntries(data.axes.map((axis) => [axis.key, axis.log])),
    yLog: Object.fromEntries(data.panels.map((panel) => [panel.key, panel.log])),
    hidden: new Set(),
    level: data.level,
  };

  // The axis drawn: the one chosen, or its twin that counts on all links.
  const axisKey = () => (state.allLinks && axisOf[axisOf[state.axis].allLinks] ? axisOf[state.axis].allLinks : state.axis);

  // ---- panels ----

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const faint = (colour) => `rgba(${[1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)).join(",")},0.13)`;

  // The points of a curve that can be drawn: measured, and positive where the scale is logarithmic. The start has no place on a
  // logarithmic axis of costs, nor that of a measure that is round-off there on a logarithmic scale of its own.
  function points(configuration, panel) {
    const axis = axisOf[axisKey()];
    const xs = configuration.x[axisKey()];
    const { mean, low, high } = configuration.y[panel.key];
    const steps = configuration.x.step;
    const found = [];
    for (let i = 0; i < xs.length; i++) {
      if (xs[i] === null || mean[i] === null) continue;
      if (state.xLog[axisKey()] && (xs[i] <= 0 || steps[i] === 0)) continue;
      if (state.yLog[panel.key] && (low[i] <= 0 || (panel.from_zero && steps[i] === 0))) continue;
      found.push({ x: xs[i] / axis.size, mean: mean[i], low: low[i], high: high[i] });
    }
    return found;
  }

  function traces(panel) {
    const number = panel.fraction ? ".1%" : ".4g";
    const bands = [];
    const lines = [];
    data.configurations.forEach((configuration, index) => {
      const at = points(configuration, panel);
      const seeds = configuration.runs.length;
      const visible = !state.hidden.has(index);
      const back = [...at].reverse();
      if (seeds > 1) {
        bands.push({
          x: [...at, ...back].map((p) => p.x),
          y: [...at.map((p) => p.high), ...back.map((p) => p.low)],
          type: "scatter", mode: "lines", fill: "toself", fillcolor: faint(configuration.colour),
          line: { width: 0 }, hoverinfo: "skip", visible, meta: { configuration: index, band: true },
        });
      }
      const range = seeds > 1 ? ` (%{customdata[0]:${number}} – %{customdata[1]:${number}}, ${seeds} seeds)` : "";
      lines.push({
        x: at.map((p) => p.x),
        y: at.map((p) => p.mean),
        customdata: at.map((p) => [p.low, p.high]),
        type: "scatter", mode: at.length <= data.fewPoints ? "lines+markers" : "lines",
        name: escaped(configuration.label), visible, meta: { configuration: index, label: escaped(configuration.label) },
        line: { color: configuration.colour, dash: configuration.dash, width: 2 },
        marker: { color: configuration.colour, size: 5 },
        hovertemplate: `<b>%{meta.label}</b><br>%{y:${number}}${range}<br>%{x:.4g} ${axisOf[axisKey()].unit}<extra></extra>`,
      });
    });
    return [...bands, ...lines];
  }

  // Whole decades as powers; where there are few of them, 2 and 5 as well, all written out.
  function logTicks(values) {
    const decades = Math.log10(values.reduce((a, b) => Math.max(a, b), 0) / values.reduce((a, b) => Math.min(a, b), Infinity));
    return decades < 2.2 ? { dtick: "D2", tickformat: ",~g" } : { dtick: Math.ceil(decades / 8) || 1, tickformat: decades < 5 ? ",~g" : "" };
  }

  function layout(panel, curves) {
    const axis = axisOf[axisKey()];
    const drawn = curves.filter((curve) => curve.visible);
    const scale = (log, values) => ({
      type: log ? "log" : "linear", gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, ticks: "outside",
      tickcolor: css("--line"), ticklen: 4, automargin: true, exponentformat: "power", minexponent: 5, separatethousands: true,
      ...(log ? logTicks(values) : {}),
    });
    const xLog = state.xLog[axisKey()];
    const yLog = state.yLog[panel.key];
    const shown = panel.key === "loss_worst" && state.level !== null && (state.level > 0 || !yLog);
    const level = {
      type: "line", xref: "paper", x0: 0, x1: 1, y0: state.level, y1: state.level, layer: "below",
      line: { color: css("--muted"), width: 1 },
    };
    const levelText = {
      xref: "paper", x: 1, xanchor: "right", yanchor: "bottom", showarrow: false,
      y: yLog ? Math.log10(state.level) : state.level, text: String(state.level), font: { size: 11, color: css("--muted") },
    };
    return {
      xaxis: { ...scale(xLog, drawn.flatMap((curve) => curve.x)), title: { text: escaped(axis.title), standoff: 8 } },
      yaxis: { ...scale(yLog, drawn.flatMap((curve) => curve.y)), ...(panel.fraction ? { tickformat: ".0%" } : {}) },
      shapes: shown ? [level] : [],
      annotations: shown ? [levelText] : [],
      margin: { l: 48, r: 10, t: 10, b: 44 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--text") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest", showlegend: false,
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--text") } },
      uirevision: `${axisKey()} ${xLog} ${yLog}`, // a zoom outlives toggling curves, but not another axis
    };
  }

  function draw(panel) {
    const plot = document.querySelector(`#panel-${panel.key} .plot`);
    const curves = traces(panel);
    return Plotly.react(plot, curves, layout(panel, curves), { responsive: true, displayModeBar: false });
  }

  const press = (button, pressed) => button.setAttribute("aria-pressed", String(pressed));

  function drawAll() {
    for (const button of document.querySelectorAll("#axis button")) press(button, button.dataset.axis === state.axis);
    for (const button of document.querySelectorAll("#count button")) {
      press(button, (button.dataset.count === "all-links") === state.allLinks);
    }
    document.body.dataset.count = state.allLinks ? "all-links" : "per-agent";
    for (const button of document.querySelectorAll("#x-scale button")) {
      press(button, button.dataset.log === String(state.xLog[axisKey()]));
    }
    for (const button of document.querySelectorAll("[data-panel] button")) {
      press(button, button.dataset.log === String(state.yLog[button.parentElement.dataset.panel]));
    }
    for (const button of document.querySelectorAll("[data-configuration]")) {
      press(button, !state.hidden.has(Number(button.dataset.configuration)));
    }
    data.panels.forEach(draw);
  }

  function onClick(selector, change) {
    for (const button of document.querySelectorAll(selector)) {
      button.addEventListener("click", () => { change(button); drawAll(); });
    }
  }
  onClick("#axis button", (button) => { state.axis = button.dataset.axis; });
  onClick("#count button", (button) => { state.allLinks = button.dataset.count === "all-links"; });
  onClick("#x-scale button", (button) => { state.xLog[axisKey()] = button.dataset.log === "true"; });
  onClick("[data-panel] button", (button) => { state.yLog[button.parentElement.dataset.panel] = button.dataset.log === "true"; });
  onClick("#show-all", () => state.hidden.clear());
  onClick("[data-configuration]", (button) => {
    const index = Number(button.dataset.configuration);
    if (!state.hidden.delete(index)) state.hidden.add(index);
  });
  for (const button of document.querySelectorAll("[data-configuration]")) {
    button.addEventListener("dblclick", () => {
      data.configurations.forEach((_, index) => state.hidden.add(index));
      state.hidden.delete(Number(button.dataset.configuration));
      drawAll();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // ---- to reach a loss: the same rules as report/reach.py and report/measures.py, which made the table as it came ----

  function crossing(losses, level) {
    let before = null;
    for (let i = 0; i < losses.length; i++) {
      const loss = losses[i];
      if (loss !== null && loss <= level) return { at: i, share: before === null ? 1 : (before - level) / (before - loss) };
      before = loss;
    }
    return null;
  }

  function cost(column, { at, share }) {
    if (share === 1 || column[at] === null) return column[at];
    return column[at - 1] === null ? null : column[at - 1] + share * (column[at] - column[at - 1]);
  }

  function threeDigits(value) {
    if (value === 0) return "0";
    const [mantissa, exponent] = value.toExponential(2).split("e").map(Number);
    if (exponent < -4 || exponent > 8) return `${mantissa.toFixed(2)}e${exponent}`;
    const digits = Math.max(0, 2 - exponent);
    return Number(value.toPrecision(3)).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  function withUnit(value, kind) {
    if (["samples", "steps"].includes(kind) && value < 1e6 && Number.isInteger(value)) return value.toLocaleString("en");
    const units = data.units[kind];
    const fitting = value === 0 ? units.filter(([size]) => size === 1) : units.filter(([size]) => size <= value * (1 + 1e-9));
    const [size, unit] = fitting.length ? fitting[fitting.length - 1] : units[0];
    return `${threeDigits(value / size)} ${unit}`.trim();
  }

  // Both ends, with the unit once where it is the same.
  function range(low, high) {
    const [unit, other] = [low, high].map((text) => text.replace(/^[\d.,e-]+/, ""));
    return `${unit === other ? low.slice(0, low.length - unit.length) : low} – ${high}`;
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  function reach(configuration, level) {
    const crossings = configuration.runs.map((run) => [run, crossing(run.loss, level)]).filter(([, found]) => found !== null);
    const costs = {};
    for (const axis of data.axes) {
      costs[axis.key] = crossings.map(([run, found]) => cost(run.x[axis.key], found)).filter((value) => value !== null);
    }
    return { costs, reached: crossings.length, seeds: configuration.runs.length };
  }

  function remark({ reached, seeds }, configuration) {
    if (reached === seeds) return "";
    if (reached) return `reached by ${reached} of ${seeds} seeds`;
    const losses = configuration.runs.flatMap((run) => run.loss).filter((loss) => loss !== null);
    return losses.length ? `not reached: lowest is ${threeDigits(Math.min(...losses))}` : "not reached";
  }

  function small(parent, text) {
    parent.querySelector("small")?.remove();
    if (text) parent.appendChild(document.createElement("small")).textContent = text;
  }

  function fillTable() {
    const results = data.configurations.map((configuration) => reach(configuration, state.level));
    const rows = data.configurations.map((_, index) => document.querySelector(`#reach tr[data-row="${index}"]`));
    rows.forEach((row, index) => {
      const text = remark(results[index], data.configurations[index]);
      row.className = text ? "partial" : "";
      small(row.querySelector("th"), text);
    });
    data.axes.forEach((axis, column) => {
      const whole = results.filter(({ costs, reached, seeds }) => reached === seeds && costs[axis.key].length);
      const best = Math.min(...whole.map(({ costs }) => mean(costs[axis.key])));
      results.forEach(({ costs, reached, seeds }, index) => {
        const cell = rows[index].querySelectorAll("td")[column];
        const values = costs[axis.key];
        cell.classList.remove("best");
        delete cell.dataset.value;
        if (!values.length) {
          cell.textContent = "–";
          return;
        }
        const [low, high] = [Math.min(...values), Math.max(...values)].map((value) => withUnit(value, axis.kind));
        cell.textContent = withUnit(mean(values), axis.kind);
        cell.dataset.value = mean(values);
        if (reached === seeds && mean(values) === best) cell.classList.add("best");
        small(cell, low !== high ? range(low, high) : "");
      });
    });
  }

  function setLevel(level) {
    state.level = level;
    fillTable();
    sortRows(document.querySelector("#reach table"));
    const loss = data.panels.find((panel) => panel.key === "loss_worst");
    if (loss) draw(loss);
  }

  function connectLevel() {
    const input = document.getElementById("level");
    const slider = document.getElementById("level-slider");
    const losses = data.configurations.flatMap((c) => c.runs.flatMap((run) => run.loss)).filter((loss) => loss !== null && loss > 0);
    const [low, high] = [Math.log(losses.reduce((a, b) => Math.min(a, b))), Math.log(losses.reduce((a, b) => Math.max(a, b)))];
    const place = () => { slider.value = String(1000 * (Math.log(state.level) - low) / (high - low || 1)); };
    input.addEventListener("input", () => {
      if (!Number.isFinite(input.valueAsNumber)) return;
      setLevel(input.valueAsNumber);
      place();
    });
    slider.addEventListener("input", () => {
      const level = Number(Math.exp(low + (high - low) * Number(slider.value) / 1000).toPrecision(3));
      input.value = String(level);
      setLevel(level);
    });
    document.getElementById("level-reset").addEventListener("click", () => {
      input.value = String(data.level);
      setLevel(data.level);
      place();
    });
    slider.hidden = !losses.length;
    place();
  }

  // ---- tables sorted by a column: up, down, and back to the order of the legend ----

  const order = (heading) => heading.getAttribute("aria-sort");
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

  function compared(one, other, column, direction) {
    if (column === 0) {
      const [a, b] = [one, other].map((row) => data.configurations[row.dataset.row].label);
      return direction * a.localeCompare(b, "en", { numeric: true });
    }
    const [a, b] = [one, other].map((row) => row.children[column].dataset.value);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // without a value: last, both ways
    return direction * (Number(a) - Number(b));
  }

  function sortRows(table) {
    const headings = [...table.querySelectorAll("thead th")];
    const column = headings.findIndex((heading) => order(heading) !== "none");
    const direction = column >= 0 && order(headings[column]) === "descending" ? -1 : 1;
    const body = table.querySelector("tbody");
    const rows = [...body.rows].sort((a, b) => a.dataset.row - b.dataset.row);
    if (column >= 0) rows.sort((a, b) => compared(a, b, column, direction));
    body.append(...rows);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.querySelectorAll("thead th")];
    for (const heading of headings) {
      heading.querySelector("button").addEventListener("click", () => {
        const next = NEXT[order(heading)];
        for (const other of headings) other.setAttribute("aria-sort", "none");
        heading.setAttribute("aria-sort", next);
        sortRows(table);
      });
    }
  }

  if (data.level !== null) connectLevel();
  drawAll();
})();
