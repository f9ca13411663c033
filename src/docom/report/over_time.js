// Draws the section "Over time": what the agents did, and the network at the time that the slider chooses.
(() => {
  const histories = JSON.parse(document.getElementById("data").textContent).overTime;
  if (!histories.length) return;
  const KINDS = ["computing", "waiting", "away"];
  const slider = document.getElementById("moment");
  const board = document.getElementById("lanes");
  const svg = (name, attributes = {}, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text) made.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "title")).textContent = text;
    return made;
  };
  let chosen = 0;

  // ---- lanes: in every bin the shares of its time lie on one another ----

  function shape(rows, kind) {
    const parts = [];
    const bounds = rows[0].map((_, bin) => {
      let low = 0;
      for (const [number, row] of rows.entries()) {
        if (number === kind) return [low, low + row[bin]];
        low += row[bin];
      }
      return [0, 0];
    });
    for (let begin = 0; begin < bounds.length;) {
      let end = begin + 1;
      while (end < bounds.length && bounds[end][0] === bounds[begin][0] && bounds[end][1] === bounds[begin][1]) end++;
      const [low, high] = bounds[begin];
      if (high > low) parts.push(`M${begin} ${100 - low}H${end}V${100 - high}H${begin}Z`);
      begin = end;
    }
    return parts.join("");
  }

  function lane(name, rows, className) {
    const row = document.createElement("div");
    row.className = className;
    row.appendChild(document.createElement("span")).textContent = name;
    const picture = svg("svg", { viewBox: `0 0 ${rows[0].length} 100`, preserveAspectRatio: "none" });
    KINDS.forEach((kind, number) => picture.appendChild(svg("path", { class: kind, d: shape(rows, number) })));
    row.appendChild(picture);
    return row;
  }

  const seconds = (value) => `${Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 })} s`;

  function drawLanes({ lanes, agents }) {
    board.parentElement.hidden = !lanes;
    if (!lanes) return;
    const made = [];
    if (lanes.mean.computing) made.push(lane(`all ${agents ? agents.toLocaleString("en") : ""} agents`, KINDS.map((kind) => lanes.mean[kind]), "lane whole"));
    lanes.agents.forEach((agent, row) => made.push(lane(String(agent), KINDS.map((kind) => lanes[kind][row]), "lane")));
    const mark = document.createElement("div");
    mark.className = "mark";
    board.replaceChildren(...made, mark);
    const end = lanes.bins * lanes.width;
    document.getElementById("lane-times").replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((share) => {
      const label = document.createElement("span");
      label.textContent = seconds(share * end);
      return label;
    }));
    const some = lanes.mean.computing ? `${lanes.agents.length} agents of all: those that the settings name, then the first. ` : "";
    document.getElementById("lanes-hint").textContent = `${some}A column is ${seconds(lanes.width)} of the clock; its colours are shares of that time.`;
  }

  // ---- the network ----

  function stepAt(history, time) {
    const pairs = history.steps;
    let before = pairs[0];
    for (const pair of pairs) {
      if (pair[1] > time) {
        const share = pair[1] > before[1] ? (time - before[1]) / (pair[1] - before[1]) : 0;
        return before[0] + share * (pair[0] - before[0]);
      }
      before = pair;
    }
    return before ? before[0] : 0;
  }

  function momentAt(history, step) {
    const moments = history.links?.moments ?? [];
    let found = moments[0] ?? null;
    for (const moment of moments) if (moment.step <= step) found = moment;
    return found;
  }

  function drawNetwork(history, moment, bin) {
    const { links, lanes } = history;
    const picture = document.getElementById("then");
    picture.parentElement.hidden = !links?.places && !moment;
    picture.toggleAttribute("hidden", !links?.places);
    if (!links?.places) {
      for (const group of picture.children) group.replaceChildren();
      return;
    }
    const down = new Set((moment?.down ?? []).map(String));
    const edges = moment ? moment.edges ?? [] : links.edges;
    picture.querySelector(".edges").replaceChildren(...edges.map(([i, j]) => {
      const [[x1, y1], [x2, y2]] = [links.places[i], links.places[j]];
      return svg("line", { x1, y1, x2, y2, class: down.has(String([i, j])) ? "down" : "" });
    }));
    const rows = new Map((lanes?.agents ?? []).map((agent, row) => [agent, row]));
    const gone = new Set(moment?.away ?? []);
    picture.querySelector(".agents").replaceChildren(...links.places.map(([cx, cy], agent) => {
      const shares = rows.has(agent) ? KINDS.map((kind) => lanes[kind][rows.get(agent)][bin]) : null;
      const most = gone.has(agent) ? "away" : shares && Math.max(...shares) ? KINDS[shares.indexOf(Math.max(...shares))] : "";
      const words = shares ? KINDS.map((kind, number) => `${kind} ${shares[number]}%`).join(", ") : most;
      return svg("circle", { cx, cy, r: links.radius, class: most }, `agent ${agent}${words ? `: ${words}` : ""}`);
    }));
  }

  // ---- the chosen time ----

  function show() {
    const history = histories[chosen];
    const { lanes } = history;
    const at = Number(slider.value);
    const time = lanes ? (at + 0.5) * lanes.width : 0;
    const moment = lanes ? momentAt(history, stepAt(history, time)) : history.links.moments[at];
    const step = lanes ? stepAt(history, time) : moment.step;
    const words = [lanes ? `${seconds(time)}, step ${Math.floor(step)}` : `step ${Math.floor(step)}`];
    if (lanes) {
      const mean = (kind) => (lanes.mean[kind] ? lanes.mean[kind][at] : lanes[kind].reduce((sum, row) => sum + row[at], 0) / lanes[kind].length);
      words.push(KINDS.map((kind) => `${kind} ${Math.round(mean(kind))}%`).join(", "));
      board.style.setProperty("--at", String((at + 0.5) / lanes.bins));
      board.setAttribute("aria-label", `what every agent did over time; at ${words.join(": ")}`);
    }
    document.getElementById("moment-text").textContent = words.join(": ");
    slider.setAttribute("aria-valuetext", words.join(": "));
    drawNetwork(history, moment, at);
    const text = document.getElementById("then-text");
    if (moment) {
      const [count, down] = moment.edges ? [moment.edges.length, moment.down.length] : [moment.links, moment.down];
      const away = typeof moment.away === "number" ? moment.away : (moment.away ?? []).length;
      const number = (value) => value.toLocaleString("en");
      text.textContent = `${number(count)} links${down ? `, ${number(down)} of them down` : ""}${away ? `, ${number(away)} agents away` : ""}.`;
    } else {
      text.textContent = history.links?.edges ? "The same links in every round." : "";
    }
  }

  function choose(number) {
    chosen = number;
    for (const button of document.querySelectorAll("#history button")) button.setAttribute("aria-pressed", String(Number(button.dataset.history) === number));
    for (const totals of document.querySelectorAll(".totals")) totals.hidden = Number(totals.dataset.history) !== number;
    const history = histories[number];
    slider.max = String(Math.max(1, history.lanes ? history.lanes.bins - 1 : (history.links?.moments.length ?? 1) - 1));
    slider.value = "0";
    drawLanes(history);
    show();
  }

  slider.addEventListener("input", show);
  board.addEventListener("click", (event) => {
    const picture = board.querySelector("svg").getBoundingClientRect();
    slider.value = String(Math.floor((event.clientX - picture.left) / picture.width * (Number(slider.max) + 1)));
    show();
  });
  for (const button of document.querySelectorAll("#history button")) button.addEventListener("click", () => choose(Number(button.dataset.history)));
  choose(0);
})();
