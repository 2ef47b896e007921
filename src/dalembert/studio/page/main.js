// The page: a request goes out and a Show comes back and is drawn; or, in an exported page, the Show is there already.

import { afterPicture, byId, element } from "./dom.js";
import { unpackArrays } from "./data.js";
import { Studio } from "./studio.js";
import { Panel } from "./controls.js";
import { Simulator, fetchCatalogue, fetchSystem } from "./api.js";
import { offerFiles } from "./save.js";
import { readAddress, readStoryAddress, writeAddress } from "./address.js";
import { Failing, Storyteller } from "./story.js";
import { Driver } from "./drive.js";
import { followTeacher, offerLeading } from "./follow.js";

// One of each kind of thing: drawn unseen while the first show is made, so that the browser has compiled for them when it comes.
const part = (shape, more = {}) => ({ run: 0, name: "", colour: "#444444", opacity: 1, parent: null, shape, position: null, rotation: null, ...more });
const REHEARSAL = {
  ground: { size: 4, centre: [0, 0, 0], normal: [0, 0, 1] },
  camera: { position: [2, -3, 2], target: [0, 0, 0] },
  parts: [
    part({ kind: "box", size: [1, 1, 1] }, { opacity: 0.45, position: [0, 0, 0.5] }),
    part({ kind: "ellipsoid", axes: [0.2, 0.2, 0.2] }),
    part({ kind: "trace", points: new Float32Array([0, 0, 0, 1, 0, 0, 1, 1, 0]) }),
    part({ kind: "arrow", from: [0, 0, 0], to: [0, 0, 2], text: "v" }),
  ],
};

function rehearse({ scene }) {
  scene.canvas.style.visibility = "hidden";
  scene.show(REHEARSAL, { reset: true });
  scene.setFrame(1.5);
  scene.drawNow();
  scene.frame = 0;
}

async function startLive(studio) {
  const asked = fetchCatalogue();
  rehearse(studio);
  const catalogue = await asked;
  let shown = null;
  let good = null; // the request of what is shown
  const simulator = new Simulator({
    show(payload, request) {
      const name = request.config?.system.name ?? "";
      const first = shown === null;
      studio.scene.canvas.style.visibility = "";
      panel.complain(null);
      if (!panel.changedSince(request)) panel.learn(payload.initial?.velocity);
      tellProblem(null);
      const data = unpackArrays(payload);
      const arrived = !panel.changedSince(request);
      studio.draw(data, { fresh: name !== shown, ...(arrived ? teller.prepare(data) : {}) });
      shown = name;
      good = request;
      byId("stage").classList.remove("stale");
      if (first) studio.begin();
      if (arrived) teller.arrive();
      failing.refresh();
      driver.refresh();
      afterPicture().then(() => panel.completeSystem()); // which keeps the processor busy
    },
    problem: (problem) => tellProblem(panel.complain(problem) ? null : problem.message),
    busy: tellBusy,
    lost(lost) {
      byId("banner").hidden = !lost;
      byId("banner").textContent = lost ? "The studio does not answer. Trying again; the picture stays." : "";
    },
  });
  const ask = (request) => {
    driver.leave();
    if (panel.name !== shown && panel.system) announce(panel.system);
    offerTries(studio, panel);
    simulator.ask(request);
  };
  studio.request = () => panel.request;
  const changed = (request) => {
    if (teller.story?.steps[teller.step].request.config.system.name !== panel.name) teller.end(); // it tells of another system
    writeAddress(request);
    ask(request);
  };
  const panel = new Panel(byId("panel"), catalogue, changed, fetchSystem);
  const set = (request) => {
    panel.set(request);
    ask(panel.request);
  };
  const teller = new Storyteller(catalogue, panel, studio, set);
  const failing = new Failing(catalogue, panel, (request) => {
    teller.end();
    set(request);
    writeAddress(panel.request);
    studio.player.go(0);
    studio.begin();
  });
  const drove = (request) => {
    shown = null; // the scene of the drive is not that of a run
    set(request);
  };
  const driver = new Driver(panel, studio, drove, tellBusy);
  globalThis.driver = driver; // for the console and the tests
  const take = () => {
    const told = readStoryAddress(catalogue);
    if (told) return teller.tell(told.story, told.step);
    teller.end();
    set(readAddress(catalogue) ?? catalogue.start);
  };
  addEventListener("hashchange", take);
  byId("panes").addEventListener("change", (event) => {
    panel.request.panes = event.target.checked;
    panel.tell();
  });
  byId("cancel").addEventListener("click", () => {
    if (driver.beginning) return driver.beginning.abort();
    simulator.cancel();
    byId("stage").classList.remove("stale");
    if (!good) return;
    panel.set(good);
    writeAddress(good);
    announce(panel.system ?? {});
    byId("stage").classList.remove("stale");
    offerTries(studio, panel);
  });
  offerFiles(studio, () => panel.request, catalogue.mp4);
  take();
  const room = new URLSearchParams(location.search).get("follow");
  if (room) followTeacher(room, catalogue, studio, panel, teller, set);
  else offerLeading(studio, panel, teller);
}

// Another system: its name and story at once, the picture of the one before faded until its own arrives.
function announce({ title, name, why }) {
  byId("title").textContent = title ?? name;
  byId("why").textContent = why ?? "";
  byId("stage").classList.add("stale");
}

// Changes worth making, one click each, seen from the beginning; and the way back.
function offerTries(studio, panel) {
  const tries = panel.system?.tries ?? [];
  const offered = byId("tries").dataset;
  if (offered.system === panel.name) return; // the buttons are there: who has just pressed one keeps the focus
  offered.system = panel.name ?? "";
  const button = (text, kind, change) => {
    const click = () => {
      change();
      studio.player.go(0);
      studio.player.play();
    };
    return element("button", { type: "button", class: kind, text, on: { click } });
  };
  byId("tries").hidden = tries.length === 0;
  byId("tries").replaceChildren(
    "Try",
    ...tries.map(({ text, place, value }) => button(text, "try", () => panel.put(place, value))),
    button("as it was", "quiet", () => panel.chooseSystem(panel.name)),
  );
}

// Only what takes a while is told.
let busyTimer = 0;
function tellBusy(busy) {
  byId("view").classList.toggle("busy", Boolean(busy));
  clearTimeout(busyTimer);
  if (busy)
    busyTimer = setTimeout(() => {
      const began = performance.now() - 700;
      const tell = () => {
        const seconds = Math.round((performance.now() - began) / 1000);
        byId("waiting-text").textContent = `Simulating … ${seconds} s. A new kind of system is compiled first, once.`;
        busyTimer = setTimeout(tell, 1000);
      };
      tell();
      byId("waiting").hidden = false;
    }, 700);
  else byId("waiting").hidden = true;
}

// Present: large type and nothing but the motion, in full screen where the browser gives it.
function offerPresenting() {
  const present = (on) => {
    document.documentElement.toggleAttribute("data-present", on);
    byId("present").setAttribute("aria-pressed", String(on));
  };
  byId("present").addEventListener("click", async () => {
    const on = !document.documentElement.hasAttribute("data-present");
    present(on);
    try {
      if (on) await document.documentElement.requestFullscreen();
      else if (document.fullscreenElement) await document.exitFullscreen();
    } catch {
      // a browser without full screen: large type is worth something too
    }
  });
  addEventListener("fullscreenchange", () => document.fullscreenElement || present(false));
}

function tellProblem(message) {
  byId("problem").textContent = message ?? "";
  byId("problem").hidden = !message;
}

function startExport(studio, text) {
  document.documentElement.dataset.mode = "export";
  studio.draw(unpackArrays(JSON.parse(text)), { fresh: true });
  offerFiles(studio, null);
  studio.begin();
}

async function start() {
  const stored = byId("show");
  offerPresenting();
  try {
    const studio = new Studio();
    globalThis.studio = studio; // for the console and the tests
    if (stored) startExport(studio, stored.textContent);
    else await startLive(studio);
  } catch (error) {
    tellProblem(`The page could not start: ${error.message}`);
    throw error;
  }
}

start();
