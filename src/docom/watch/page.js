"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const KINDS = { computing: "computing", waiting: "waiting", away: "away", here: "connected, seen from another site", "left out": "left out" };
  const find = (id) => document.getElementById(id);
  let state = JSON.parse(find("state").textContent);
  let axis = "time";

  // Everything from files becomes text or a number in an attribute, never markup.
  function make(name, attributes = {}, ...children) {
    const svg = ["svg", "g", "path", "line", "rect", "circle", "text", "title"].includes(name);
    const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(key, value);
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  const number = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
  function scaled(value, units, step) {
    let size = 0;
    while (value >= step * 0.9995 && size < units.length - 1) { value /= step; size += 1; }
    return `${number(value)} ${units[size]}`;
  }
  const bytes = (value) => (value === null || value === undefined ? "–" : scaled(value, ["B", "kB", "MB", "GB", "TB"], 1000));
  const rate = (value) => (value === null || value === undefined ? "–" : scaled(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000));
  function seconds(value) {
    if (value > 0 && value < 1) return `${number(1000 * value)} ms`;
    if (value < 120) return `${number(value)} s`;
    if (value < 7200) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
    return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  }
  const clock = (time) => new Date(1000 * time).toLocaleTimeString("en-GB");
  const listed = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);

  // The header

  function showHeader() {
    find("run").textContent = state.run;
    document.title = `${state.run}: docom`;
    const rounds = Math.max(0, ...state.sites.map((site) => site.round ?? 0));
    const words = [state.live ? "running" : "not running now", `round ${rounds.toLocaleString("en")}`, `${seconds(state.end - state.begin)} since the start`];
    const speeds = state.sites.map((site) => site.speed).filter((speed) => speed !== null);
    if (state.live && speeds.length) words.push(`${number(Math.max(...speeds))} rounds/s`);
    if (!state.live && state.sites.every((site) => site.status === "has finished")) words[0] = "finished";
    const dot = make("span", { class: state.live ? "dot live" : "dot", "aria-hidden": "true" });
    const text = words.join(" · ");
    const place = find("status");
    if (place.textContent !== text) place.replaceChildren(dot, text);
    find("seen").textContent = listed(state.seen);
    const whose = state.mode === "skip" ? "of each site's own model" : "of the worst site, on all data";
    find("loss").querySelector(".hint").textContent = whose;
  }

  // Curves

  function ticks(low, high, log) {
    if (log) {
      const found = [];
      const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
      const every = Math.max(1, Math.ceil((last - first) / 5));
      for (let power = first; power <= last; power += every) found.push(10 ** power);
      return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    }
    const raw = (high - low || 1) / 4, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw) ?? 10);
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
    return found;
  }

  function points(curve) {
    return curve[axis].map((x, place) => [x, curve.y[place]]).filter(([, y]) => y !== null);
  }

  const NOTHING = "nothing measured yet";
  const HINTS = { neighbour_gap: "mean distance of a site's model from its neighbours'" };

  class Chart {
    constructor(id) {
      this.figure = find(id);
      this.id = id;
      this.box = this.figure.querySelector(".chart");
      this.reading = this.figure.querySelector(".reading");
      this.at = null;
      this.box.tabIndex = 0;
      this.box.setAttribute("role", "img");
      this.box.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
        if (move === undefined || !this.longest) return;
        event.preventDefault();
        const last = this.longest.length - 1;
        this.choose(Math.min(last, Math.max(0, (this.at ?? last) + move)));
      });
      this.box.addEventListener("pointermove", (event) => {
        if (!this.longest) return;
        const x = this.left(event.clientX - this.box.getBoundingClientRect().left);
        let best = 0;
        this.longest.forEach(([value], place) => { if (Math.abs(value - x) < Math.abs(this.longest[best][0] - x)) best = place; });
        this.choose(best);
      });
      for (const name of ["pointerleave", "blur"]) this.box.addEventListener(name, () => this.choose(null));
      new ResizeObserver(() => this.draw()).observe(this.box);
    }

    choose(place) {
      this.at = place;
      this.draw();
    }

    draw() {
      const curves = (state.curves[this.id] ?? []).map((curve) => ({ ...curve, points: points(curve) })).filter((curve) => curve.points.length);
      const hint = HINTS[curves[0]?.key];
      if (hint) this.figure.querySelector(".hint").textContent = hint;
      const width = this.box.clientWidth || 300, height = 220, pad = { left: 52, right: 12, top: 8, bottom: 24 };
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
      this.box.replaceChildren(svg);
      if (!curves.length) {
        svg.append(make("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "empty" }, NOTHING));
        this.longest = null;
        this.told = "";
        this.reading.textContent = "";
        this.box.setAttribute("aria-label", `${this.id}: ${NOTHING}`);
        return;
      }
      const all = curves.flatMap((curve) => curve.points);
      const [xs, ys] = [all.map(([x]) => x), all.map(([, y]) => y).filter((y) => Number.isFinite(y))];
      const positive = ys.filter((y) => y > 0);
      const log = positive.length > 1 && Math.max(...positive) / Math.min(...positive) > 30;
      let [low, high] = log ? [Math.min(...positive), Math.max(...positive)] : [Math.min(0, ...ys), Math.max(...ys)];
      if (high <= low) high = low + (Math.abs(low) || 1);
      const [first, last] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1e-9)];
      const across = (x) => pad.left + ((x - first) / (last - first)) * (width - pad.left - pad.right);
      const share = (y) => (log ? Math.log(y / low) / Math.log(high / low) : (y - low) / (high - low));
      const up = (y) => height - pad.bottom - share(y) * (height - pad.top - pad.bottom);
      this.left = (pixels) => first + ((pixels - pad.left) / (width - pad.left - pad.right)) * (last - first);
      for (const value of ticks(low, high, log)) {
        svg.append(make("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: up(value), y2: up(value) }));
        svg.append(make("text", { x: pad.left - 6, y: up(value) + 4, "text-anchor": "end" }, number(value)));
      }
      const marks = ticks(first, last, false);
      for (const value of marks.filter((_, place) => width > 420 || place % 2 === 0 || marks.length < 4)) {
        const text = axis === "time" ? seconds(value) : value.toLocaleString("en");
        svg.append(make("text", { x: across(value), y: height - 6, "text-anchor": across(value) > width - 40 ? "end" : "middle" }, text));
      }
      curves.forEach((curve, place) => {
        const drawn = curve.points.filter(([, y]) => !log || y > 0);
        const path = drawn.map(([x, y], step) => `${step ? "L" : "M"}${across(x).toFixed(1)} ${up(y).toFixed(1)}`).join("");
        svg.append(make("path", { class: `curve k${place % 6}`, d: path }));
      });
      this.longest = curves.reduce((best, curve) => (curve.points.length > best.length ? curve.points : best), []);
      this.tell(svg, curves, across, up, pad, height, log);
    }

    tell(svg, curves, across, up, pad, height, log) {
      const at = this.at === null ? null : Math.min(this.at, this.longest.length - 1);
      const [x] = at === null ? this.longest.at(-1) : this.longest[at];
      const words = curves.map((curve, place) => {
        const near = curve.points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
        if (!log || near[1] > 0) svg.append(make("circle", { class: `dot k${place % 6}`, cx: across(near[0]), cy: up(near[1]), r: 3.5 }));
        return [`${curves.length > 1 ? `${listed(curve.sites)} ` : ""}${number(near[1])}`, place];
      });
      if (at !== null) svg.append(make("line", { class: "cursor", x1: across(x), x2: across(x), y1: pad.top, y2: height - pad.bottom }));
      const when = axis === "time" ? `after ${seconds(x)}` : `round ${x.toLocaleString("en")}`;
      const text = `${at === null ? "last" : when}: ${words.map(([word]) => word).join(", ")}`;
      if (this.told !== text) {
        const dot = (place) => (curves.length < 2 ? null : make("svg", { viewBox: "0 0 10 10", class: "chart mark", "aria-hidden": "true" }, make("circle", { cx: 5, cy: 5, r: 4.5, class: `dot k${place % 6}` })));
        const parts = words.map(([word, place]) => make("span", {}, dot(place), `${word}${place < words.length - 1 ? "," : ""}`));
        this.reading.replaceChildren(`${at === null ? "last" : when}: `, ...parts);
        this.told = text;
      }
      this.box.setAttribute("aria-label", `${this.id}, ${at === null ? when : ""} ${text}`);
    }
  }

  // Lanes

  const lanes = new Map();
  let laneAt = null;

  function lane(name) {
    const bar = make("div", { class: "bar", tabindex: "0", role: "img" });
    const parts = {
      row: make("div", { class: "lane" }), bar,
      who: make("b", {}, name), status: make("small"), shares: make("div", { class: "shares" }), note: make("small"), numbers: make("span"),
    };
    parts.shares.append(parts.numbers, parts.note);
    parts.row.append(make("div", { class: "who" }, parts.who, parts.status), bar, parts.shares);
    const bins = 120;
    const choose = (place) => { laneAt = place === null ? null : [name, Math.max(0, Math.min(bins - 1, place))]; showLanes(); };
    bar.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -bins, End: bins }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      choose((laneAt && laneAt[0] === name ? laneAt[1] : bins - 1) + move);
    });
    bar.addEventListener("pointermove", (event) => {
      const box = bar.getBoundingClientRect();
      choose(Math.floor((bins * (event.clientX - box.left)) / box.width));
    });
    for (const gone of ["pointerleave", "blur"]) bar.addEventListener(gone, () => choose(null));
    return parts;
  }

  function shares(site) {
    const total = Object.values(site.seconds).reduce((sum, value) => sum + value, 0);
    return Object.entries(site.seconds)
      .filter(([, value]) => total && value / total >= 0.0005)
      .map(([kind, value]) => [kind, `${number((100 * value) / total)}%`]);
  }

  function showLanes() {
    const names = state.sites.map((site) => site.name);
    if ([...lanes.keys()].join("\n") !== names.join("\n")) {
      lanes.clear();
      names.forEach((name) => lanes.set(name, lane(name)));
      find("lanes").replaceChildren(...[...lanes.values()].map((parts) => parts.row));
    }
    const kinds = new Set();
    for (const site of state.sites) {
      const parts = lanes.get(site.name);
      const heights = Array(120).fill(0);
      const svg = make("svg", { viewBox: "0 0 120 30", preserveAspectRatio: "none", "aria-hidden": "true" });
      for (const [kind, row] of Object.entries(site.bins)) {
        kinds.add(kind);
        const path = row.map((value, place) => {
          const top = 30 - 30 * (heights[place] + value);
          heights[place] += value;
          return value > 0 ? `M${place} ${top.toFixed(2)}h1.02v${(30 * value).toFixed(2)}h-1.02z` : "";
        });
        svg.append(make("path", { class: `f-${kind.replace(" ", "-")}`, d: path.join("") }));
      }
      if (laneAt && laneAt[0] === site.name) svg.append(make("line", { class: "cursor", x1: laneAt[1] + 0.5, x2: laneAt[1] + 0.5, y1: 0, y2: 30 }));
      parts.bar.replaceChildren(svg);
      const text = shares(site).map(([kind, share]) => `${kind === "here" ? "connected" : kind} ${share}`).join(", ");
      parts.status.textContent = site.status + (site.round === null ? "" : `, round ${site.round.toLocaleString("en")}`);
      parts.numbers.textContent = shares(site).filter(([kind]) => ["computing", "here"].includes(kind)).map(([kind, share]) => `${kind === "here" ? "connected" : kind} ${share}`).join("");
      parts.note.textContent = site.seen_by ? `as ${site.seen_by} sees it` : shares(site).filter(([kind]) => !["computing", "here"].includes(kind)).map((pair) => pair.join(" ")).join(", ");
      parts.bar.setAttribute("aria-label", `${site.name}: ${site.status}${text ? `; ${text}` : ""}`);
    }
    const shown = Object.keys(KINDS).filter((kind) => kinds.has(kind));
    find("key").replaceChildren(...shown.map((kind) => make("li", {}, make("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, make("rect", { width: 10, height: 10, class: `f-${kind.replace(" ", "-")}` })), KINDS[kind])));
    find("times").replaceChildren(make("span", {}, clock(state.begin)), make("span", {}, clock(state.end)));
    readLane();
  }

  function readLane() {
    let text = "";
    if (laneAt) {
      const site = state.sites.find((one) => one.name === laneAt[0]);
      const width = (state.end - state.begin) / 120, from = state.begin + laneAt[1] * width;
      const parts = Object.entries(site?.bins ?? {}).filter(([, row]) => row[laneAt[1]] > 0.004);
      text = `${laneAt[0]}, ${clock(from)} to ${clock(from + width)}: ` + (parts.map(([kind, row]) => `${kind === "here" ? "connected" : kind} ${number(100 * row[laneAt[1]])}%`).join(", ") || "nothing known");
    }
    const place = find("lane-reading");
    if (place.textContent !== text) place.textContent = text;
  }

  // Links

  let chosen = null;
  const key = (link) => `${link.a}\n${link.b}`;

  function linkState(link) {
    if (!link.known) return ["not seen from here", "over"];
    if (link.left_out) return ["left out", "left"];
    if (link.open) return ["open", "open"];
    return state.live ? ["not open", "shut"] : ["closed", "over"];
  }

  function words(link) {
    const [text] = linkState(link);
    return `${link.a} and ${link.b}: ${text}, latency ${link.latency === null ? "not known" : seconds(link.latency)}, to ${link.b} ${bytes(link.there.bytes)}, to ${link.a} ${bytes(link.back.bytes)}`;
  }

  function both(there, back) {
    return [make("span", {}, `→ ${there}`), make("span", {}, `← ${back}`)];
  }

  function row(link) {
    const [text, look] = linkState(link);
    const cell = (label, ...children) => make("td", { "data-label": label }, ...children);
    const lost = !link.known ? ["–"] : [make("span", {}, `${link.lost} × lost`), make("span", {}, `${link.again.toLocaleString("en")} again`)];
    const measured = link.there.measured || link.back.measured ? both(rate(link.there.measured), rate(link.back.measured)) : ["–"];
    const state_ = make("td", { class: `state ${look}` }, text, link.waiting ? make("span", { class: "over" }, `${bytes(link.waiting)} on the way`) : null);
    return make("tr", { class: chosen === key(link) ? "chosen" : null }, make("th", { scope: "row" }, `${link.a} – ${link.b}`), state_,
      cell("latency", link.latency === null ? "–" : seconds(link.latency)), cell("rate now", ...(state.live ? both(rate(link.there.rate), rate(link.back.rate)) : ["–"])),
      cell("rate measured", ...measured), cell("bytes", ...both(bytes(link.there.bytes), bytes(link.back.bytes))), cell("losses", ...lost));
  }

  const edges = new Map();
  let drawn = "";

  function showLinks() {
    find("links").tBodies[0].replaceChildren(...state.links.map(row));
    const names = state.sites.map((site) => site.name);
    const shape = JSON.stringify([names, state.links.map(key)]);
    const place = (name) => {
      const angle = (2 * Math.PI * names.indexOf(name)) / names.length - Math.PI / 2;
      return [150 + (names.length > 1 ? 92 * Math.cos(angle) : 0), 130 + (names.length > 1 ? 92 * Math.sin(angle) : 0)];
    };
    if (shape !== drawn) {
      drawn = shape;
      edges.clear();
      const svg = make("svg", { viewBox: "0 0 300 262", role: "group", "aria-label": "The network" });
      for (const link of state.links) {
        const [[x1, y1], [x2, y2]] = [place(link.a), place(link.b)];
        const ends = { x1, y1, x2, y2 };
        const group = make("g", { tabindex: "0", role: "img" }, make("line", { ...ends, class: "edge" }), make("line", { ...ends, class: "touch" }));
        const choose = (value) => () => { chosen = value; showLinks(); };
        for (const name of ["focus", "pointerenter"]) group.addEventListener(name, choose(key(link)));
        for (const name of ["blur", "pointerleave"]) group.addEventListener(name, choose(null));
        edges.set(key(link), group);
        svg.append(group);
      }
      for (const name of names) {
        const [x, y] = place(name);
        svg.append(make("circle", { cx: x, cy: y, r: 9, class: "node", "data-site": name }));
        svg.append(make("text", { x, y: y + (y < 130 - 1 ? -16 : 25) }, name.length > 16 ? `${name.slice(0, 15)}…` : name));
      }
      find("drawing").replaceChildren(svg);
    }
    for (const link of state.links) {
      const group = edges.get(key(link)), [, look] = linkState(link);
      const flow = (link.there.rate ?? 0) + (link.back.rate ?? 0);
      group.setAttribute("class", chosen === key(link) ? "chosen" : "");
      group.setAttribute("aria-label", words(link));
      group.firstChild.setAttribute("class", `edge ${look === "left" ? "out" : look}`);
      group.firstChild.setAttribute("stroke-width", String(2 + Math.min(3, Math.log10(1 + flow / 1e4))));
    }
    for (const dot of find("drawing").querySelectorAll(".node")) {
      const site = state.sites.find((one) => one.name === dot.dataset.site);
      dot.setAttribute("class", site && state.live && /^(away|not connected|left out|has not)/.test(site.status) ? "node off" : "node");
    }
  }

  // Lists

  function showLists() {
    find("next").replaceChildren(...(state.next.length ? state.next.map((one) => {
      const waiting = Object.entries(one.waiting).map(([name, size]) => `${bytes(size)} to ${name}`);
      const to = one.to.length ? listed(one.to) : "nobody";
      return make("li", {}, make("b", {}, one.site), ` sends the ${one.what} of round ${one.round.toLocaleString("en")}, ${bytes(one.bytes)} each, to ${to}`,
        make("span", { class: "hint" }, waiting.length ? `not acknowledged yet: ${listed(waiting)}` : "all earlier messages have arrived"));
    }) : [make("li", { class: "hint" }, state.live ? "no message has been made yet" : "nothing: the run has ended here")]));
    const news = state.news.map((one) => make("li", {}, make("time", {}, clock(one.time)), make("b", {}, one.site), ` ${one.text}`));
    const list = find("news"), above = list.scrollTop;
    list.replaceChildren(...(news.length ? news : [make("li", { class: "hint" }, "nothing yet")]));
    list.scrollTop = above;
  }

  const charts = ["loss", "disagreement"].map((id) => new Chart(id));

  function show() {
    showHeader();
    charts.forEach((chart) => chart.draw());
    showLanes();
    showLinks();
    showLists();
    document.body.dataset.shown = String(state.time);
  }

  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      document.querySelectorAll("[data-axis]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      charts.forEach((chart) => chart.choose(null));
    });
  }

  show();
  if (state.follow) {
    const stream = new EventSource("events");
    stream.onmessage = (message) => { state = JSON.parse(message.data); find("gone").hidden = true; show(); };
    stream.onerror = () => { find("gone").hidden = false; };
    addEventListener("pagehide", () => stream.close());
  }
})();
