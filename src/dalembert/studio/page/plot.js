// A plot on two canvases: the curves, drawn when the data change, and above them a cursor that follows the scene's time.

import { element, formatNumber, swatch } from "./dom.js";
import { cssColour, legible } from "./theme.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 18;
const BOTTOM = 18;
const ROUNDING = 1e-6;
const LARGEST = 0.999e30;
const SMALLEST = 1.1e-17; // what is zero on a logarithmic axis

// As many digits as tell the ticks apart; there may be a single one, at 0.
export function tickLabel(value, { log, ticks }) {
  if (log) return `1e${Math.round(Math.log10(value))}`;
  const largest = Math.max(...ticks.map(Math.abs));
  const digits = 1 + Math.ceil(Math.log10(largest / (ticks[1] - ticks[0])));
  return formatNumber(value, digits > 3 ? digits : 3);
}

function linearTicks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const spacing = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const ticks = [];
  for (let k = Math.ceil(low / spacing - 1e-9); k * spacing <= high + 1e-9 * spacing; k++) ticks.push(k * spacing);
  return ticks;
}

function decadeTicks(low, high, count) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const every = Math.max(1, Math.ceil((last - first) / count));
  const ticks = [];
  for (let k = first; k <= last; k += every) ticks.push(10 ** k);
  return ticks;
}

// An axis: its range, `at(value)` in pixels and ticks.
class Axis {
  constructor(low, high, log, from, to, count) {
    Object.assign(this, { low, high, log, from, to });
    const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    this.offset = a;
    this.factor = (to - from) / (b - a || 1);
    this.ticks = log ? decadeTicks(low, high, count) : linearTicks(low, high, count);
  }

  at(value) {
    return this.from + this.factor * ((this.log ? Math.log10(Math.max(Math.abs(value), this.low)) : value) - this.offset);
  }
}

function extent(curves, key, log, levels = []) {
  let low = Infinity;
  let high = -Infinity;
  const take = (number) => {
    const value = log ? Math.abs(number) : number;
    if (!Number.isFinite(value) || (log && value <= SMALLEST)) return; // zeros stand on the lower edge
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  for (const curve of curves) curve[key].forEach(take);
  levels.forEach(({ value }) => take(value));
  if (low > high) return log ? [1e-17, 1e-13] : [0, 1];
  if (log)
    return [10 ** Math.floor(Math.log10(low)), 10 ** Math.max(Math.ceil(Math.log10(high)), Math.floor(Math.log10(low)) + 2)];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const flat = high - low <= ROUNDING * size; // a constant, in numbers of 32 bits
  const room = key !== "y" ? 0 : flat ? Math.max(1e-12, 0.1 * size) : 0.06 * (high - low);
  return [low - room, high + (room || (high > low ? 0 : 1))];
}

export class PlotView {
  // seek(frame) is called where a person clicks or drags on a plot over time, choose(title) where one chooses another plot.
  constructor(seek, choose) {
    this.title = element("span", { class: "plot-title" });
    this.choice = element("select", { class: "plot-title", "aria-label": "What is plotted", hidden: true });
    this.choice.addEventListener("change", () => choose(this.choice.value));
    this.values = element("span", { class: "plot-values" });
    this.base = element("canvas", { role: "img" });
    this.above = element("canvas", { class: "above", "aria-hidden": "true" });
    this.help = element("p", { class: "help", hidden: true });
    this.ask = element("button", {
      type: "button",
      class: "ask",
      text: "?",
      "aria-label": "What does this show?",
      "aria-expanded": "false",
      on: { click: () => this.toggleHelp() },
    });
    this.area = element("div", { class: "plot-area" }, this.base, this.above);
    this.element = element(
      "figure",
      { class: "plot" },
      element("figcaption", {}, element("span", {}, this.title, this.choice, this.ask), this.values),
      this.help,
      this.area,
    );
    this.frame = 0;
    this.hidden = new Set();
    new ResizeObserver(() => this.draw()).observe(this.area);
    const drag = (event) => event.buttons && this.longest && this.data.x === "time" && seek(this.frameAt(event));
    this.area.addEventListener("pointerdown", drag);
    this.area.addEventListener("pointermove", drag);
  }

  // One of several plots: where there are more, their titles can be chosen.
  show(plot, titles, runs, hidden) {
    this.data = plot;
    this.longest = plot.curves.reduce((best, curve) => (curve.x.length > (best?.x.length ?? 0) ? curve : best), null); // a run that stopped is shorter
    this.hidden = hidden;
    this.colours = plot.curves.map((curve) => curve.colour ?? runs[curve.run]?.colour ?? "#555555");
    this.title.textContent = plot.title;
    this.title.hidden = titles.length > 1;
    this.choice.hidden = titles.length < 2;
    if (titles.join() !== this.titles?.join())
      this.choice.replaceChildren(...titles.map((title) => element("option", { value: title, text: title })));
    this.titles = titles;
    this.choice.value = plot.title;
    this.help.textContent = plot.help ?? "";
    this.ask.hidden = !plot.help;
    this.ask.title = plot.help ?? "";
    this.base.setAttribute("aria-label", `${plot.title}: ${plot.y} against ${plot.x}. ${plot.help ?? ""}`);
    this.readouts = plot.curves.map((curve, k) => {
      const number = element("span", { class: "number" });
      const name = curve.name ? `${curve.name} ` : null;
      return { number, whole: element("span", { title: curve.label }, swatch(legible(this.colours[k])), name, number) };
    });
    // Of components only those of the first run are told: the others have the same colours.
    const told = this.readouts.filter((_, k) => !plot.curves[k].name || plot.curves[k].run === 0);
    this.values.replaceChildren(...told.map(({ whole }) => whole));
    this.draw();
  }

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
    this.ask.setAttribute("aria-expanded", String(!this.help.hidden));
  }

  curves() {
    return this.data.curves.filter((curve) => !this.hidden.has(curve.run));
  }

  context(canvas) {
    const ratio = Math.min(devicePixelRatio, 2);
    const [width, height] = [this.width * ratio, this.height * ratio].map(Math.round);
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }

  draw() {
    if (!this.data) return;
    this.width = this.area.clientWidth;
    this.height = this.area.clientHeight;
    if (this.width < 80 || this.height < 60) return;
    const { log = false, level } = this.data;
    const curves = this.curves();
    this.x = new Axis(...extent(curves, "x", false), false, LEFT, this.width - RIGHT, 5);
    this.y = new Axis(...extent(curves, "y", log, level ?? []), log, this.height - BOTTOM, TOP, 4);
    if (this.data.equal) this.makeEqual();
    this.inks = this.colours.map(legible);
    this.cursorInk = cssColour("--cursor");
    this.told = -1;
    const context = this.context(this.base);
    this.drawAxes(context);
    for (const { label, value } of level ?? []) this.drawLevel(context, label, value);
    this.data.curves.forEach((curve, k) => this.hidden.has(curve.run) || this.drawCurve(context, curve, this.inks[k]));
    this.drawCursor();
  }

  drawAxes(context) {
    const { x, y } = this;
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 1;
    context.strokeStyle = cssColour("--rule");
    context.fillStyle = cssColour("--muted");
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.beginPath();
    for (const tick of y.ticks) {
      const height = Math.round(y.at(tick)) + 0.5;
      context.moveTo(LEFT, height);
      context.lineTo(this.width - RIGHT, height);
      context.fillText(tickLabel(tick, y), LEFT - 6, height);
    }
    context.stroke();
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillText(this.data.y, 0, 0);
    context.textAlign = "center";
    const name = context.measureText(this.data.x).width;
    for (const tick of x.ticks)
      if (x.at(tick) < this.width - RIGHT - name - 20)
        context.fillText(tickLabel(tick, x), x.at(tick), this.height - BOTTOM + 5);
    context.textAlign = "right";
    context.fillText(this.data.x, this.width - RIGHT, this.height - BOTTOM + 5);
  }

  drawLevel(context, label, value) {
    const height = this.y.at(value);
    context.strokeStyle = context.fillStyle = cssColour("--muted");
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(LEFT, height);
    context.lineTo(this.width - RIGHT, height);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = "right";
    context.textBaseline = "bottom";
    context.fillText(label, this.width - RIGHT, height - 2);
  }

  drawCurve(context, curve, colour) {
    context.strokeStyle = colour;
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    context.setLineDash(curve.run > 0 ? [6, 3] : []);
    context.beginPath();
    let down = false;
    for (let i = 0; i < curve.x.length; i++) {
      const known = Number.isFinite(curve.x[i]) && Number.isFinite(curve.y[i]);
      if (known) context[down ? "lineTo" : "moveTo"](this.x.at(curve.x[i]), this.y.at(curve.y[i]));
      down = known;
    }
    context.stroke();
    context.setLineDash([]);
  }

  setFrame(frame) {
    this.frame = frame;
    if (this.x) this.drawCursor();
  }

  drawCursor() {
    const context = this.context(this.above);
    if (this.longest && this.data.x === "time") {
      const { x } = this.longest;
      const at = this.x.at(x[Math.min(Math.round(this.frame), x.length - 1)]);
      context.strokeStyle = this.cursorInk;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(at, TOP);
      context.lineTo(at, this.height - BOTTOM);
      context.stroke();
    }
    const frame = Math.round(this.frame);
    for (let k = 0; k < this.data.curves.length; k++) {
      const curve = this.data.curves[k];
      const i = Math.min(frame, curve.x.length - 1);
      const known = Number.isFinite(curve.y[i]) && !this.hidden.has(curve.run);
      if (frame !== this.told) this.readouts[k].number.textContent = known ? this.readout(curve.y[i]) : "–";
      if (!known) continue;
      context.fillStyle = this.inks[k];
      context.beginPath();
      context.arc(this.x.at(curve.x[i]), this.y.at(curve.y[i]), 3.2, 0, 2 * Math.PI);
      context.fill();
    }
    this.told = frame;
  }

  readout(value) {
    if (Math.abs(value) > LARGEST) return `beyond ${value < 0 ? "-" : ""}1e30`; // as the server sends what is larger
    return this.data.log && Math.abs(value) <= SMALLEST ? "0" : formatNumber(value, 3);
  }

  frameAt(event) {
    const { x } = this.longest;
    const box = this.area.getBoundingClientRect();
    const value = this.x.offset + ((event.clientX - box.left) * (this.area.offsetWidth / box.width || 1) - LEFT) / this.x.factor;
    let nearest = 0;
    for (let i = 1; i < x.length; i++) if (Math.abs(x[i] - value) < Math.abs(x[nearest] - value)) nearest = i;
    return nearest;
  }

  // A picture in a plane (momentum against momentum) has one scale.
  makeEqual() {
    const scale = Math.min(Math.abs(this.x.factor), Math.abs(this.y.factor));
    const grow = (axis, count) => {
      const half = Math.abs((axis.to - axis.from) / scale) / 2;
      const middle = (axis.low + axis.high) / 2;
      return new Axis(middle - half, middle + half, false, axis.from, axis.to, count);
    };
    this.x = grow(this.x, 5);
    this.y = grow(this.y, 4);
  }
}
