// Driving: a session of the server takes steps in real time under keys, stick or gamepad; what was driven becomes an ordinary run.

import { afterPicture, byId, element, formatNumber, sleep, swatch } from "./dom.js";
import { cssColour } from "./theme.js";
import { clone, unpackArrays } from "./data.js";
import { postJson } from "./api.js";

const CHUNK = 40; // ms between requests, at least
const MOST_STEPS = 25; // of one request; who falls behind slows down
const MOST_DISCS = 3;
const DISC = 0.4; // the radius of an obstacle, m; less of what is seen from near
const FAR = 8; // from where the camera sees goals and obstacles in their whole size, m
const CALM = 150; // ms after which a pointer rests
const AWAKE = 4000; // ms between signs of life while nothing else is asked
const NUDGE = [0.25, Math.PI / 18]; // by a key: m, rad
const WORDS = {
  pose: {
    park: "Park",
    title: "Put a goal on the floor: a plan brings it there",
    ask: "Press on the floor where it shall stand, and pull to where it shall look. Or arrow keys: forward, back, turn.",
    go: "Drive there",
    push: "Push it aside",
  },
  attitude: {
    park: "Turn",
    title: "Turn a ghost of it as it shall be: a plan turns it there",
    ask: "Turn the green ghost as it shall be: drag it, or arrow keys (with Shift they roll). The line is where its third axis will point.",
    go: "Turn there",
    push: "Push it",
  },
};
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const SOON = 0.05; // seconds of a plan that a picture of its goal waits for, and after which it is told that one is made
const limit = (value) => Math.min(Math.max(value, -1), 1);

// At rest in the middle: velocities, or what a mechanism calls its coordinates and rates.
function atRest({ velocity, momentum, configuration, ...named }) {
  const count = (velocity ?? momentum)?.length;
  return count ? { velocity: Array(count).fill(0) } : Object.fromEntries(Object.keys(named).map((name) => [name, 0]));
}

export class Driver {
  // show(request): sets the panel to the run that was driven and asks for a show of it. busy(bool): something is compiled.
  constructor(panel, studio, show, busy) {
    Object.assign(this, { panel, studio, show, busy, session: null, beginning: null, held: new Set() });
    this.button = byId("drive");
    this.button.addEventListener("click", () => (this.session ? this.stop() : this.start(false)));
    byId("park").addEventListener("click", () => this.start(true));
    byId("park-go").addEventListener("click", () => this.driveThere());
    byId("park-push").addEventListener("click", () => (this.push = true));
    byId("park-disc").addEventListener("click", () => this.addDisc());
    byId("park-clear").addEventListener("click", () => this.setDiscs([]));
    byId("park-cancel").addEventListener("click", () => this.stop());
    this.listenToGoal(byId("scene"));
    addEventListener("keydown", (event) => this.key(event, true), { capture: true });
    addEventListener("keyup", (event) => this.key(event, false), { capture: true });
    addEventListener("blur", () => this.held.clear());
    addEventListener("pagehide", () => this.session && this.ask({ session: this.session, end: true }, { keepalive: true }));
    this.listenToStick(byId("stick"));
  }

  // Those who follow a page that leads see what it drives.
  ask(body, options = {}) {
    return postJson("api/drive", { ...body, ...this.studio.leading }, options);
  }

  refresh() {
    const saved = this.panel.request.saved === true;
    this.button.hidden = saved || !(this.studio.data?.inputs?.length > 0);
    this.kind = this.studio.data?.goal;
    byId("park").hidden = this.button.hidden || Boolean(this.session) || !this.kind;
    const words = WORDS[this.kind ?? "pose"];
    byId("park").textContent = words.park;
    byId("park").title = words.title;
    byId("park-go").textContent = words.go;
    byId("park-push").textContent = words.push;
    byId("park-discs").hidden = this.kind === "attitude";
  }

  key(event, down) {
    if (!this.session || !KEYS[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    if (this.mode === "plan") return down && this.nudge(...KEYS[event.key], event.shiftKey);
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

  // A first goal, whose plan is compiled while somebody reads what to do: ahead and to the left, or a quarter of a turn.
  showExample() {
    const half = Math.SQRT1_2;
    this.aim(this.kind === "attitude" ? [0, half, 0, half] : [3 * this.size, this.size, 0.5]);
    const { session } = this;
    const idle = setInterval(() => {
      if (this.session !== session || this.mode !== "plan") return clearInterval(idle);
      if (!this.asking) this.ask({ session, alive: true }).catch(() => {}); // somebody thinks, and is not gone
    }, AWAKE);
  }

  // The goal moved by a key: on the floor along where it looks, or turned; an attitude is turned as it is seen.
  nudge(x, y, roll) {
    if (this.kind === "attitude") {
      const axis = roll ? new THREE.Vector3(0, 0, -x - y) : new THREE.Vector3(-y, x, 0);
      const turn = new THREE.Quaternion().setFromAxisAngle(axis, NUDGE[1]);
      return this.aim(this.studio.scene.turnAsSeen(turn, this.goal));
    }
    const [a, b, angle] = this.goal ?? [0, 0, 0];
    const far = NUDGE[0] * this.size * y;
    this.aim([a + far * Math.cos(angle), b + far * Math.sin(angle), angle - NUDGE[1] * x]);
  }

  // An obstacle between the start and the goal, to be dragged elsewhere; the plan goes around it.
  addDisc() {
    const [x, y] = this.goal ?? [4, 0];
    const far = Math.hypot(x, y) || 1;
    const aside = this.size * [0.3, -0.9, 1.5][this.discs.length];
    const disc = [0.55 * x - (aside * y) / far, 0.55 * y + (aside * x) / far, DISC * this.size];
    this.setDiscs([...this.discs, disc].slice(0, MOST_DISCS));
  }

  setDiscs(discs) {
    this.discs = discs;
    byId("park-disc").disabled = discs.length >= MOST_DISCS;
    byId("park-clear").disabled = discs.length === 0;
    if (this.kind === "pose") this.studio.scene.showDiscs(discs);
    if (this.goal) this.aim([...this.goal]);
  }

  // A goal on the floor: press where it shall stand, pull to where it shall look; an attitude is turned like a ball in the
  // middle of the picture. The plan follows the pointer.
  listenToGoal(canvas) {
    let place = null;
    let held = -1; // the obstacle that is dragged
    const point = (event) => (this.kind === "attitude" ? this.studio.scene.spherePoint(event) : this.studio.scene.floorPoint(event));
    const aim = (event) => {
      const to = point(event);
      if (!to) return;
      if (this.kind === "attitude") {
        const turn = new THREE.Quaternion().setFromUnitVectors(place, to);
        place = to;
        return this.aim(this.studio.scene.turnAsSeen(turn, this.goal));
      }
      if (held >= 0) return this.setDiscs(this.discs.map((disc, k) => (k === held ? [to.x, to.y, disc[2]] : disc)));
      const far = Math.hypot(to.x - place.x, to.y - place.y);
      this.aim([place.x, place.y, far > 0.15 ? Math.atan2(to.y - place.y, to.x - place.x) : (this.goal?.[2] ?? 0)]);
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (this.mode !== "plan" || event.button !== 0 || !(place = point(event))) return;
      canvas.setPointerCapture(event.pointerId);
      held = this.discs.findIndex(([x, y, r]) => Math.hypot(place.x - x, place.y - y) < r);
      if (this.kind !== "attitude") aim(event);
    });
    canvas.addEventListener("pointermove", (event) => place && this.mode === "plan" && aim(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (place = null));
  }

  // One request at a time, the newest goal next. A goal whose plan comes soon is drawn with it, and the next is asked for once
  // that is seen: without a graphics processor, pictures would take the time of plans.
  async aim(goal) {
    this.goal = goal;
    if (!(this.plan?.seconds < SOON)) this.studio.scene.showPlan(goal, this.plan?.path ?? []);
    if (this.asking) return;
    this.asking = true;
    for (let patient = false; this.session && this.mode === "plan" && (this.goal !== this.answered || patient); ) {
      const asked = this.goal;
      patient = asked === this.answered; // the pointer rests: there is time for other ways around
      try {
        this.planning = new AbortController();
        this.asked = this.ask({ session: this.session, goal: asked, discs: this.discs, patient }, { signal: this.planning.signal });
        this.plan = await this.tellBusy(this.asked);
        this.plans += 1; // what to do is told until somebody does it
        this.tellPlan();
      } catch (error) {
        if (error.name === "AbortError") break;
        byId("park-text").textContent = error.message;
      }
      this.answered = asked;
      patient = !patient && this.discs.length > 0 && this.goal === asked;
      if (patient) await sleep(CALM);
      if (this.mode === "plan") this.studio.scene.showPlan(this.goal, this.plan?.path ?? []);
      await afterPicture();
    }
    this.asking = false;
  }

  // While a plan is made that does not come at once: for how long, and a button that gives it up.
  async tellBusy(asked) {
    const began = performance.now();
    const first = this.plan ? "" : " The first plan of a kind of system is compiled, once: up to a minute.";
    const tell = () => {
      byId("park-busy").hidden = false;
      byId("park-seconds").textContent = `Planning … ${Math.round((performance.now() - began) / 1000)} s.${first}`;
      timer = setTimeout(tell, 1000);
    };
    let timer = setTimeout(tell, 1000 * SOON);
    try {
      return await asked;
    } finally {
      clearTimeout(timer);
      byId("park-busy").hidden = true;
      this.planning = null;
    }
  }

  tellPlan() {
    const { status, reason, cost, seconds, planned, path, step, tried } = this.plan;
    const took = seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
    const found = tried > 1 ? `the shortest of ${tried} ways, tried in ${took}` : `found in ${took}`;
    const good = path.length > 0;
    byId("park-go").disabled = !good;
    byId("park-text").textContent = good
      ? `${this.plans === 1 ? WORDS[this.kind].ask : ""} A plan of ${formatNumber(step * planned.length, 2)} s: effort ${formatNumber(cost, 3)}${status === "optimal" ? "" : ", which is not known to be the least"}, ${found}. Its controls:`
      : `No plan (${status}): ${reason}`;
    const canvas = byId("park-controls");
    const ink = canvas.getContext("2d");
    ink.clearRect(0, 0, canvas.width, canvas.height);
    const most = Math.max(...planned.flat().map(Math.abs), 1e-9);
    const colours = ["--accent", "--muted", "--ink"].map(cssColour);
    byId("park-inputs").replaceChildren(...(good ? this.inputs.map((name, k) => element("span", {}, swatch(colours[k % 3]), name)) : []));
    for (let k = 0; k < (planned[0]?.length ?? 0); k++) {
      ink.strokeStyle = colours[k % 3];
      ink.lineWidth = 2;
      ink.beginPath();
      planned.forEach((row, i) => ink.lineTo((canvas.width * i) / planned.length, canvas.height * (0.5 - (0.46 * row[k]) / most)));
      ink.stroke();
    }
  }

  // A plan that is being made is waited for: the server follows its last one, in steps of its own.
  async driveThere() {
    while (this.session && this.goal !== this.answered) await sleep(CHUNK);
    this.mode = "park";
    while (this.asking) await sleep(CHUNK);
    if (!this.session || !this.plan.path.length) return (this.mode = "plan");
    this.stepSize = this.plan.step;
    document.documentElement.dataset.driving = "park";
    this.studio.scene.controls.enabled = true;
    this.studio.scene.showPlan(this.goal, this.plan.path);
    this.run();
  }

  async start(park) {
    const { panel, studio } = this;
    const request = clone(panel.request);
    delete request.controls;
    const { step } = panel.system?.example.run ?? {};
    if (step < request.config.run.step) request.config.run.step = step; // large ones show how a method fails
    byId("status").textContent = "";
    if (park) request.config.initial = atRest(request.config.initial);
    this.mode = park ? "plan" : "drive";
    this.plan = this.goal = this.answered = null;
    this.plans = 0;
    this.discs = [];
    this.beginning?.abort();
    const giveUp = (this.beginning = new AbortController());
    this.busy(true);
    try {
      const begun = await this.ask({ request }, { signal: giveUp.signal });
      this.request = request;
      this.stepSize = begun.step;
      this.inputs = begun.inputs;
      this.rows = [];
      studio.player.pause();
      studio.draw(unpackArrays(begun.show), { fresh: true });
      studio.player.go(0);
      studio.setFollow(!park);
      studio.scene.beginLive();
      studio.tellScale();
      studio.scene.controls.enabled = !park;
      this.size = Math.min(1, studio.scene.camera.position.distanceTo(studio.scene.controls.target) / FAR);
      this.session = begun.session;
    } catch (error) {
      if (error.name !== "AbortError") byId("status").textContent = error.message;
      return;
    } finally {
      if (this.beginning === giveUp) this.busy((this.beginning = null));
    }
    document.documentElement.dataset.driving = park ? "plan" : "yes";
    this.button.textContent = "Stop";
    this.refresh();
    byId("park-go").disabled = true;
    byId("park-text").textContent = WORDS[this.kind ?? "pose"].ask;
    byId("park-controls").getContext("2d").clearRect(0, 0, 999, 999);
    byId("park-inputs").replaceChildren();
    if (park) this.setDiscs((studio.data.discs ?? []).slice(0, MOST_DISCS));
    if (park) this.showExample();
    byId("scene").focus({ preventScroll: true });
    this.draw = this.draw.bind(this);
    requestAnimationFrame(this.draw);
    if (!park) this.run();
  }

  // The next steps: under the stick, or along the plan.
  async advance(steps) {
    if (this.mode !== "park") return this.ask({ session: this.session, stick: this.wanted(), steps });
    const push = this.push ?? false;
    this.push = false;
    return this.ask({ session: this.session, push, steps: Math.min(steps, 10) });
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
        this.asked = this.advance(due);
        const moved = await this.asked;
        if (!this.session) return;
        this.rows.push(...moved.controls);
        steps += moved.controls.length;
        this.studio.scene.receive(moved.pose);
        this.studio.player.clock.textContent = `t = ${moved.time.toFixed(1)}`;
        if (moved.left === 0) {
          await sleep(600);
          this.stop();
        }
        if (moved.failed) {
          byId("status").textContent = `It stopped: ${moved.failed}`;
          this.stop();
        }
      } catch (error) {
        if (!this.session) return;
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
    this.beginning?.abort();
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
    this.studio.scene.controls.enabled = true;
    this.studio.setFollow(false);
    this.refresh();
    const end = () => this.ask({ session, end: true }).catch(() => {});
    if (this.planning) this.planning.abort(); // the server ends the session of a page that has gone
    else Promise.resolve(this.asked).then(end, end); // what is under way is answered first
    if (!rows) return;
    if (rows.length < 2) return this.show(request);
    const config = { ...request.config, run: { step: this.stepSize, steps: rows.length } };
    this.show({ ...request, config, against: null, panes: false, controls: rows });
  }
}
