"use strict";
// The script of a report: light and dark, and charts of learning curves. It has no dependencies,
// fetches nothing, and writes text by textContent only, so that a label is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const TOP = 28; // pixels above the curves, for the name of the metric

/** A new SVG element with these attributes. */
function svg(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

/** A new HTML element with this class, and with a text or children. */
function html(name, className = "", ...content) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...content);
  return node;
}

// Numbers

/** 1500 as 1.5k, 2000000 as 2M: for the ticks of an axis. */
function shortNumber(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return String(Number((value / size).toPrecision(6))) + letter;
  }
  return String(Number(value.toPrecision(6)));
}

/** A number with four digits, or a larger one as a whole number: for the readout. */
function fullNumber(value) {
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

/** About `count` round numbers from low to high. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const found = [];
  // So many steps reach high. Beyond 2 ** 53 numbers have gaps, and a tick + 1 may be the same one.
  for (let i = 0; i <= count + 1; i++) {
    const tick = (first + i) * step;
    if (tick <= high + step * 1e-9 && tick !== found.at(-1)) found.push(tick);
  }
  return found;
}

/** The unit of a time axis of this many seconds: its name and its size. */
function timeUnit(seconds) {
  return seconds < 300 ? ["s", 1] : seconds < 3 * 3600 ? ["min", 60] : ["h", 3600];
}

/** The value at `x` of the line through the points; null outside of them. */
function valueAt(xs, ys, x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  const width = xs[high] - xs[low];
  return width > 0 ? ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / width : ys[low];
}

// A chart

/** Draws the curves of one figure, and reads their values out. */
class Chart {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(document.getElementById(figure.dataset.curves).textContent);
    this.hidden = new Set(); // numbers of groups that are switched off
    this.position = null; // where values are read, from 0 to 1 along the axis; null: nowhere
    this.metric = figure.querySelector(".metric");
    this.axis = figure.querySelector(".axis");
    this.each = figure.querySelector(".each");
    this.plot = figure.querySelector(".plot");
    this.readout = html("div", "readout");
    this.readout.hidden = true;
    this.makeLegend(figure.querySelector(".legend"));
    for (const control of [this.metric, this.axis, this.each]) control?.addEventListener("change", () => this.draw());
    this.listen();
    new ResizeObserver(() => this.plot.clientWidth !== this.width && this.draw()).observe(this.plot);
    this.draw();
  }

  /** One switch for each group; a single group needs none. */
  makeLegend(place) {
    this.data.groups.forEach((group, number) => {
      const box = html("input");
      box.type = "checkbox";
      box.checked = true;
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(number);
        else this.hidden.add(number);
        this.draw();
      });
      const count = group.seeds.length === 1 ? "1 seed" : `${group.seeds.length} seeds`;
      const name = html("bdi", "", group.label);
      const parts = [swatch(group.style), name, html("span", "count", count)];
      place.append(html("label", "", ...(this.data.groups.length > 1 ? [box] : []), ...parts));
    });
  }

  /** The plot is a slider: pointing, touching and the arrow keys move the place that is read. */
  listen() {
    const { plot } = this;
    plot.tabIndex = 0;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-valuemin", "0");
    plot.setAttribute("aria-valuemax", "100");
    const point = (event) => {
      const left = plot.getBoundingClientRect().left + this.frame.left;
      this.read(Math.min(1, Math.max(0, (event.clientX - left) / this.frame.width)));
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.read(null));
    plot.addEventListener("blur", () => this.read(null));
    plot.addEventListener("keydown", (event) => {
      const now = this.position ?? 0.5;
      const moves = { ArrowLeft: now - 0.02, ArrowRight: now + 0.02, Home: 0, End: 1, Escape: null };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const next = moves[event.key];
      this.read(next === null ? null : Math.min(1, Math.max(0, next)));
    });
  }

  /** The visible curves of the chosen metric: of each group its lines of [x, y] arrays. */
  lines() {
    const axis = this.axis.value;
    const metric = this.data.metrics.find((one) => one.name === this.metric.value) ?? this.data.metrics[0];
    return metric.groups.flatMap((curves, number) => {
      if (!curves || this.hidden.has(number)) return [];
      const seeds = curves.seeds.flatMap((seed, which) =>
        seed ? [{ name: this.data.groups[number].seeds[which], x: this.data.grids[seed[0]][axis], y: seed[1] }] : [],
      );
      const [x, mean, low, high] = curves[axis] ?? [[], []];
      return [{ group: this.data.groups[number], seeds, x, mean, low, high }];
    });
  }

  draw() {
    this.width = this.plot.clientWidth;
    this.shown = this.lines();
    const showSeeds = !this.each || this.each.checked;
    const range = extent(this.shown, showSeeds);
    const label = this.metric.selectedOptions[0]?.textContent ?? "";
    this.frame = this.makeFrame(range);
    const { width, height } = this.frame;
    const whole = height + TOP + 46;
    const viewBox = `0 0 ${this.width} ${whole}`; // a printed page may be narrower
    const chart = svg("svg", { width: this.width, height: whole, viewBox, role: "presentation" });
    const inner = svg("g", { transform: `translate(${this.frame.left},${TOP})` });
    chart.append(inner);
    this.drawAxes(inner, label);
    for (const line of this.shown) this.drawBand(inner, line);
    // Seeds that were never at the same place, for example in time, have no mean.
    for (const line of this.shown) if (showSeeds || !line.x.length) this.drawSeeds(inner, line);
    for (const line of this.shown) this.drawMean(inner, line);
    if (!this.shown.length) {
      const text = "None of the groups that are switched on has this metric.";
      inner.append(svg("text", { x: width / 2, y: height / 2, class: "empty" }, text));
    }
    this.mark = svg("g", { class: "mark" });
    inner.append(this.mark);
    this.plot.replaceChildren(chart, this.readout);
    this.plot.setAttribute("aria-label", `${label} over ${this.axis.selectedOptions[0].textContent}: read values`);
    this.read(this.position);
  }

  /** Where the axes are, what they begin and end with, and from values to pixels. */
  makeFrame([left, right, low, high]) {
    const [unit, size] = this.axis.value === "seconds" ? timeUnit(right) : ["", 1];
    const height = Math.round(Math.min(420, Math.max(230, this.width * 0.5)));
    const yTicks = ticks(low, high, height / 60);
    const widest = Math.max(...yTicks.map((tick) => shortNumber(tick).length), 1);
    const margin = 14 + widest * 7.5;
    const width = Math.max(50, this.width - margin - 16);
    return {
      left: margin, width, height, unit, size, low, high, yTicks,
      start: left,
      end: right,
      x: (value) => ((value - left) / (right - left)) * width,
      y: (value) => height - ((value - low) / (high - low)) * height,
    };
  }

  drawAxes(inner, label) {
    const { width, height, unit, size, start, end, x, y, yTicks } = this.frame;
    for (const tick of yTicks) {
      inner.append(svg("line", { x1: 0, x2: width, y1: y(tick), y2: y(tick), class: "grid" }));
      inner.append(svg("text", { x: -8, y: y(tick) + 4, class: "y tick" }, shortNumber(tick)));
    }
    for (const tick of ticks(start / size, end / size, width / 90)) {
      const at = x(tick * size);
      const anchor = at > width - 14 ? "end" : "middle";
      inner.append(svg("line", { x1: at, x2: at, y1: height, y2: height + 5, class: "axis" }));
      const edge = anchor === "end" ? width + 12 : at;
      inner.append(svg("text", { x: edge, y: height + 20, class: "tick", "text-anchor": anchor }, shortNumber(tick)));
    }
    inner.append(svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "axis" }));
    const name = unit ? `wall time (${unit})` : this.axis.selectedOptions[0].textContent;
    inner.append(svg("text", { x: width / 2, y: height + 40, class: "name" }, name));
    inner.append(svg("text", { x: 4 - this.frame.left, y: -12, class: "metric" }, label));
  }

  drawBand(inner, { group, x, low, high }) {
    if (!low || x.length < 2) return;
    const there = x.map((at, i) => `${px(this.frame.x(at))},${px(this.frame.y(high[i]))}`);
    const back = x.map((at, i) => `${px(this.frame.x(at))},${px(this.frame.y(low[i]))}`).reverse();
    inner.append(svg("path", { d: `M${[...there, ...back].join("L")}Z`, class: `band ${group.style}` }));
  }

  drawSeeds(inner, { group, seeds }) {
    for (const seed of seeds) {
      if (seed.x.length > 1) inner.append(svg("path", { d: this.path(seed.x, seed.y), class: `seed ${group.style}` }));
      else this.drawDots(inner, seed.x, seed.y, group.style);
    }
  }

  drawMean(inner, { group, x, mean }) {
    if (x.length > 1) inner.append(svg("path", { d: this.path(x, mean), class: `mean ${group.style}` }));
    else this.drawDots(inner, x, mean, group.style);
  }

  drawDots(inner, xs, ys, style) {
    xs.forEach((x, i) => {
      inner.append(svg("circle", { cx: px(this.frame.x(x)), cy: px(this.frame.y(ys[i])), r: 2.6, class: `dot ${style}` }));
    });
  }

  path(xs, ys) {
    return "M" + xs.map((x, i) => `${px(this.frame.x(x))},${px(this.frame.y(ys[i]))}`).join("L");
  }

  /** Show the values at this position; hide them if it is null. */
  read(position) {
    this.position = position;
    this.mark.replaceChildren();
    this.readout.hidden = position === null || !this.shown.length;
    this.plot.setAttribute("aria-valuenow", Math.round(100 * (position ?? 0)));
    if (this.readout.hidden) {
      this.plot.setAttribute("aria-valuetext", "no values read; use the arrow keys");
      return;
    }
    const { start, end, unit, size, x, y, height } = this.frame;
    const at = start + position * (end - start);
    const place = unit ? `${fullNumber(at / size)} ${unit}` : `${Math.round(at).toLocaleString("en")} steps`;
    this.mark.append(svg("line", { x1: x(at), x2: x(at), y1: 0, y2: height }));
    const rows = this.shown.map((line) => {
      const [mean, low, high] = [line.mean, line.low, line.high].map((ys) => (ys ? valueAt(line.x, ys, at) : null));
      if (mean !== null) this.mark.append(svg("circle", { cx: x(at), cy: y(mean), r: 4, class: `dot ${line.group.style}` }));
      const seeds = line.seeds.map((seed) => valueAt(seed.x, seed.y, at)).filter((value) => value !== null);
      return { label: line.group.label, style: line.group.style, mean, low, high, seeds };
    });
    this.showRows(place, rows);
    this.placeReadout(x(at) + this.frame.left);
  }

  showRows(place, rows) {
    const said = rows.map(({ label, mean }) => `${label} ${mean === null ? "no value" : fullNumber(mean)}`);
    this.plot.setAttribute("aria-valuetext", `${place}: ${said.join(", ")}`);
    const lines = rows.map(({ label, style, mean, low, high, seeds }) => {
      const band = low === null ? "" : ` (${fullNumber(low)} to ${fullNumber(high)})`;
      const value = html("b", "", mean === null ? "–" : fullNumber(mean));
      const head = html("div", "", swatch(style), html("bdi", "", label), " ", value, band);
      const each = seeds.length > 8 ? [Math.min(...seeds), Math.max(...seeds)].map(fullNumber).join(" to ")
        : seeds.map(fullNumber).join("  ");
      return html("div", "group", head, ...(seeds.length > 1 ? [html("div", "values", `seeds ${each}`)] : []));
    });
    this.readout.replaceChildren(html("div", "place", place), ...lines);
  }

  /** Beside the pointer, on the side with more room. On a narrow screen, style puts it below. */
  placeReadout(x) {
    const right = x > this.width / 2;
    this.readout.style.left = right ? "" : `${x + 14}px`;
    this.readout.style.right = right ? `${this.width - x + 14}px` : "";
  }
}

/** A number of pixels, short in the page's text. */
function px(value) {
  return value.toFixed(1);
}

/** A small line in the colour and the dashes of a group. */
function swatch(style) {
  const line = svg("svg", { width: 22, height: 10, class: `swatch ${style}`, "aria-hidden": "true" });
  line.append(svg("line", { x1: 0, y1: 5, x2: 22, y2: 5 }));
  return line;
}

/** The range of both axes over all lines: [left, right, low, high], with a little room. */
function extent(lines, withSeeds) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  const add = (xs, ...all) => {
    for (const x of xs) [left, right] = [Math.min(left, x), Math.max(right, x)];
    for (const ys of all) for (const y of ys ?? []) [low, high] = [Math.min(low, y), Math.max(high, y)];
  };
  for (const line of lines) {
    add(line.x, line.mean, line.low, line.high);
    for (const seed of line.seeds) if (withSeeds || !line.x.length) add(seed.x, seed.y);
  }
  if (!(left <= right)) [left, right, low, high] = [0, 1, 0, 1];
  if (left === right) [left, right] = [left - (Math.abs(left) * 0.05 || 1), right + (Math.abs(right) * 0.05 || 1)];
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [left, right, low - room, high + room];
}

// The page

/** A switch between light and dark; without it, the page follows the reader's system. */
function makeThemeSwitch(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.hidden = false;
  button.setAttribute("aria-label", "Switch between light and dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
}

/** Let the keyboard scroll a table that is wider than the screen; others are not stops of the Tab key. */
function makeScrollable(box) {
  new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }).observe(box);
}

makeThemeSwitch(document.getElementById("theme"));
document.querySelectorAll(".scroll").forEach(makeScrollable);
document.querySelectorAll("figure[data-curves]").forEach((figure) => new Chart(figure));
// A printed page has another width, and shows what is folded.
const folded = () => document.querySelectorAll("details:not([open])");
let opened = [];
addEventListener("beforeprint", () => (opened = [...folded()]).forEach((part) => (part.open = true)));
addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
