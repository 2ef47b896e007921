// The views of one Show: scene, momentum, plots, claims. The player's frame moves them all at once.

import { byId, element, formatNumber, swatch } from "./dom.js";
import { cssColour, legible, onTheme } from "./theme.js";
import { View3D } from "./scene3d.js";
import { PlotView } from "./plot.js";
import { plotCards, rememberPlot } from "./choice.js";
import { Player } from "./player.js";
import { claimsOf } from "./claims.js";
import { listenToKeys } from "./keys.js";

const SETTLED = 1200; // ms: what was shown for so long is what a change is compared with

export class Studio {
  constructor() {
    this.scene = new View3D(byId("scene"));
    this.plots = [];
    this.hidden = new Set();
    this.player = new Player(
      (frame) => this.setFrame(frame),
      () => [this.scene, this.beside, this.momentum].forEach((view) => view?.drawNow()),
    );
    byId("follow").addEventListener("change", (event) => this.setFollow(event.target.checked));
    byId("reset-camera").addEventListener("click", () => this.resetCamera());
    onTheme(() => this.data && this.draw(this.data));
    listenToKeys(this.player);
  }

  setFollow(follow) {
    byId("follow").checked = follow;
    this.scene.setFollow(follow);
    this.beside?.setFollow(follow);
  }

  setFrame(frame) {
    this.scene.setFrame(frame);
    if (this.data?.beside) this.beside.setFrame(frame);
    if (this.data?.momentum) this.momentum.setFrame(frame);
    for (const plot of this.plots) plot.setFrame(frame);
  }

  resetCamera() {
    this.scene.resetCamera();
    if (this.data?.momentum) this.momentum.resetCamera();
  }

  // Draws a Show; `fresh` when it is of another system than the one before, `camera` the direction from which to look.
  draw(data, { fresh = false, camera = null } = {}) {
    const now = performance.now();
    if (fresh) this.ghost = [];
    else if (this.data && this.data !== data && now - this.drawnAt > SETTLED) this.ghost = pathsOf(this.data);
    this.drawnAt = now;
    this.data = data;
    const { target, position } = data.scene.camera;
    const distance = Math.hypot(...position.map((x, k) => x - target[k]));
    if (camera) data.scene.camera.position = target.map((x, k) => x + (distance * camera[k]) / Math.hypot(...camera));
    if (fresh) this.hidden = new Set();
    byId("title").textContent = data.title;
    document.title = `${data.title} · dalembert studio`;
    byId("caption").textContent = data.caption ?? "";
    this.tellWhy(data.why);
    this.scene.hidden = this.hidden;
    this.drawBeside(data);
    this.scene.show(data.scene, { reset: fresh || Boolean(camera), ghost: this.ghost ?? [] });
    this.scene.discs = null;
    if (data.discs?.length) this.scene.showDiscs(data.discs);
    this.beside?.copyCamera(this.scene);
    this.tellScale();
    this.drawMomentum(data, fresh);
    this.drawPlots(data);
    this.drawClaims(data);
    drawLegend(byId("legend"), data.scene.parts, data.runs, this.ghost?.length > 0);
    tellFailures(data.runs);
    this.player.setTime(data.time);
    document.documentElement.dataset.ready = String(Number(document.documentElement.dataset.ready ?? 0) + 1);
  }

  // How large the squares of the floor are.
  tellScale() {
    const spacing = this.scene.ground?.userData.spacing;
    byId("floor-scale").textContent = spacing ? `squares of ${formatNumber(spacing)} m` : "";
  }

  // The second run in a pane of its own, seen by the same camera.
  drawBeside(data) {
    const shown = Boolean(data.beside);
    const [first, second] = data.runs;
    byId("beside").hidden = !shown;
    byId("pane-name").hidden = !shown;
    byId("panes-choice").hidden = !second;
    byId("panes").checked = shown;
    if (shown) {
      byId("pane-name").replaceChildren(swatch(legible(first.colour)), first.label);
      byId("beside-name").replaceChildren(swatch(legible(second.colour)), second.label);
      this.beside ??= new View3D(byId("scene-beside"));
      this.beside.hidden = this.hidden;
      this.beside.frame = this.scene.frame;
      this.beside.show(data.beside);
    }
    this.scene.lead(shown ? this.beside : null);
  }

  async picture() {
    const views = [this.scene, ...(this.data.beside ? [this.beside] : [])];
    for (const view of views) view.drawInFull();
    if (views.length === 1) return this.scene.picture();
    const canvas = element("canvas", { width: views[0].canvas.width * 2, height: views[0].canvas.height });
    const ink = canvas.getContext("2d");
    views.forEach((view, k) => ink.drawImage(view.canvas, k * views[0].canvas.width, 0));
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  tellWhy(why) {
    if (why !== undefined) byId("why").textContent = why;
  }

  drawMomentum(data, fresh) {
    byId("momentum").hidden = !data.momentum;
    if (!data.momentum) return;
    this.momentum ??= new View3D(byId("momentum-scene"));
    byId("momentum-title").textContent = data.momentum.title;
    this.momentum.hidden = this.hidden;
    this.momentum.show(data.momentum, { reset: fresh });
    drawLegend(byId("momentum-legend"), data.momentum.parts, data.runs);
  }

  drawPlots(data) {
    const cards = plotCards(data.plots, data.momentum ? 1 : 2);
    while (this.plots.length < cards.length) this.plots.push(this.newPlot(this.plots.length));
    this.plots.length = cards.length;
    this.cards = cards;
    const shown = this.plots.map((plot) => plot.element);
    const holder = byId("plots");
    if (shown.length !== holder.children.length || shown.some((child, k) => child !== holder.children[k]))
      holder.replaceChildren(...shown);
    cards.forEach(({ plots, chosen }, k) => {
      const titles = plots.map(({ title }) => title);
      this.plots[k].show(chosen, titles, data.runs, this.hidden);
    });
  }

  newPlot(k) {
    const seek = (frame) => this.player.seek(frame);
    const choose = (title) => {
      rememberPlot(this.cards[k].key, title);
      this.drawPlots(this.data);
      this.plots[k].setFrame(this.player.frame);
    };
    return new PlotView(seek, choose);
  }

  drawClaims(data) {
    byId("verdict").textContent = data.verdict ?? "";
    byId("verdict").hidden = !data.verdict;
    byId("claims").replaceChildren(
      ...data.runs.map((run, k) => claimsOf(run, !this.hidden.has(k), data.runs.length > 1 ? () => this.toggleRun(k) : null)),
    );
  }

  toggleRun(k) {
    this.hidden = new Set(this.hidden);
    if (!this.hidden.delete(k)) this.hidden.add(k);
    this.scene.setHidden(this.hidden);
    if (this.data.beside) this.beside.setHidden(this.hidden);
    if (this.data.momentum) this.momentum.setHidden(this.hidden);
    this.drawPlots(this.data);
    this.drawClaims(this.data);
  }

  begin() {
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.player.play();
  }
}

// The paths of the first run, as they are drawn in space.
function pathsOf({ scene }) {
  const traces = scene.parts.filter(({ shape, run, parent }) => shape.kind === "trace" && run === 0 && (parent ?? null) === null);
  return traces.map(({ shape }) => shape.points.slice()).filter((points) => points.length > 3);
}

// What has a name is told once, in the order of drawing; of the second run only its colour.
function drawLegend(list, parts, runs, ghost = false) {
  const told = new Set();
  const items = [];
  for (const part of parts) {
    const text = part.legend ?? part.name;
    const key = `${text} ${part.colour}`;
    if (!text || told.has(key) || part.run > 0 || part.shape.kind === "label" || part.shape.kind === "none") continue;
    told.add(key);
    items.push([part.colour, text]);
  }
  for (const run of runs.slice(1)) items.push([run.colour, `the same with ${run.label}`]);
  const rows = items.map(([colour, text]) => element("li", {}, swatch(legible(colour)), text));
  if (ghost) rows.push(element("li", {}, swatch(cssColour("--ghost")), "as it was before the change"));
  list.replaceChildren(...rows);
}

// -1 is the start itself.
function whereStopped({ failed_at: step, time_failed: time }) {
  if (step < 0) return "could not start";
  const at = Number.isFinite(step) ? ` at step ${step}` : "";
  return `stopped${at}${Number.isFinite(time) ? ` (t = ${formatNumber(time)})` : ""}`;
}

function tellFailures(runs) {
  const failures = runs.filter((run) => run.status === "failed").map((run) => `${run.label} ${whereStopped(run)}: ${run.reason}`);
  byId("failure").textContent = failures.join("\n");
  byId("failure").hidden = failures.length === 0;
}
