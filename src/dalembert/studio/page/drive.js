// Driving: a session of the server takes steps in real time under keys, stick or gamepad; what was driven becomes an ordinary run.

import { byId } from "./dom.js";
import { clone, unpackArrays } from "./data.js";
import { postJson } from "./api.js";

const CHUNK = 40; // ms between requests, at least
const MOST_STEPS = 25; // of one request; who falls behind slows down
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const limit = (value) => Math.min(Math.max(value, -1), 1);

export class Driver {
  // show(request): sets the panel to the run that was driven and asks for a show of it.
  constructor(catalogue, panel, studio, show) {
    Object.assign(this, { drives: new Set(catalogue.drives ?? []), panel, studio, show, session: null, held: new Set() });
    this.button = byId("drive");
    this.button.addEventListener("click", () => (this.session ? this.stop() : this.start()));
    addEventListener("keydown", (event) => this.key(event, true), { capture: true });
    addEventListener("keyup", (event) => this.key(event, false), { capture: true });
    addEventListener("blur", () => this.held.clear());
    addEventListener("pagehide", () => this.session && postJson("api/drive", { session: this.session, end: true }, { keepalive: true }));
    this.listenToStick(byId("stick"));
  }

  refresh() {
    this.button.hidden = !this.drives.has(this.panel.name) || this.panel.request.saved === true;
  }

  key(event, down) {
    if (!this.session || !KEYS[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    if (down) this.held.add(event.key);
    else this.held.delete(event.key);
  }

  listenToStick(stick) {
    this.stick = [0, 0];
    const move = (event) => {
      const { left, top, width, height } = stick.getBoundingClientRect();
      this.stick = [limit((2 * (event.clientX - left)) / width - 1), limit(1 - (2 * (event.clientY - top)) / height)];
      this.drawStick();
    };
    stick.addEventListener("pointerdown", (event) => {
      stick.setPointerCapture(event.pointerId);
      move(event);
    });
    stick.addEventListener("pointermove", (event) => stick.hasPointerCapture(event.pointerId) && move(event));
    for (const end of ["pointerup", "pointercancel"])
      stick.addEventListener(end, () => {
        this.stick = [0, 0];
        this.drawStick();
      });
  }

  drawStick() {
    const [x, y] = this.wanted();
    byId("knob").style.transform = `translate(${(36 * x).toFixed(1)}px, ${(-36 * y).toFixed(1)}px)`;
  }

  // What keys, stick and gamepad say together.
  wanted() {
    let [x, y] = this.stick;
    for (const key of this.held) {
      x += KEYS[key][0];
      y += KEYS[key][1];
    }
    const pad = [...(navigator.getGamepads?.() ?? [])].find(Boolean);
    if (pad) {
      if (Math.abs(pad.axes[0]) > 0.1) x += pad.axes[0];
      if (Math.abs(pad.axes[1]) > 0.1) y -= pad.axes[1];
    }
    return [limit(x), limit(y)];
  }

  async start() {
    const { panel, studio } = this;
    const request = clone(panel.request);
    delete request.controls;
    this.button.disabled = true;
    try {
      const begun = await postJson("api/drive", { request });
      this.request = request;
      this.stepSize = begun.step;
      this.rows = [];
      studio.player.pause();
      studio.draw(unpackArrays(begun.show), { fresh: true });
      studio.player.go(0);
      studio.setFollow(true);
      studio.scene.beginLive();
      this.session = begun.session;
    } catch (error) {
      byId("status").textContent = error.message;
      return;
    } finally {
      this.button.disabled = false;
    }
    document.documentElement.dataset.driving = "yes";
    this.button.textContent = "Stop";
    byId("scene").focus({ preventScroll: true });
    this.draw = this.draw.bind(this);
    requestAnimationFrame(this.draw);
    this.run();
  }

  async run() {
    let began = performance.now();
    let steps = 0;
    while (this.session) {
      const asked = performance.now();
      let due = Math.floor((asked - began) / 1000 / this.stepSize) - steps;
      if (due > MOST_STEPS) {
        began += (due - MOST_STEPS) * 1000 * this.stepSize; // the machine is too slow for real time: the clock waits
        due = MOST_STEPS;
      }
      if (due < 1) {
        await sleep(4);
        continue;
      }
      this.drawStick();
      try {
        const moved = await postJson("api/drive", { session: this.session, stick: this.wanted(), steps: due });
        this.rows.push(...moved.controls);
        steps += moved.controls.length;
        this.studio.scene.receive(moved.pose);
        this.studio.player.clock.textContent = `t = ${moved.time.toFixed(1)}`;
        if (moved.failed) {
          byId("status").textContent = `It stopped: ${moved.failed}`;
          this.stop();
        }
      } catch (error) {
        byId("status").textContent = error.message;
        this.stop();
      }
      await sleep(Math.max(0, CHUNK - (performance.now() - asked)));
    }
  }

  draw() {
    if (!this.session) return;
    this.studio.scene.drawLive();
    requestAnimationFrame(this.draw);
  }

  // Something else is shown: the drive is over, and forgotten.
  leave() {
    if (!this.session) return;
    this.rows = null;
    this.stop();
  }

  // What was driven, as a run with its controls: it is replayed, plotted, saved and exported as any other.
  stop() {
    const { session, rows, request } = this;
    if (!session) return;
    this.session = null;
    this.held.clear();
    document.documentElement.dataset.driving = "";
    this.button.textContent = "Drive";
    this.studio.scene.endLive();
    this.studio.setFollow(false);
    postJson("api/drive", { session, end: true }).catch(() => {});
    if (!rows) return;
    if (rows.length < 2) return this.show(request);
    const config = { ...request.config, run: { step: this.stepSize, steps: rows.length } };
    this.show({ ...request, config, against: null, panes: false, controls: rows });
  }
}
