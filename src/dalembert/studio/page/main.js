// The page: a request goes out and a Show comes back and is drawn; or, in an exported page, the Show is there already.

import { byId, element } from "./dom.js";
import { unpackArrays } from "./data.js";
import { Studio } from "./studio.js";
import { Panel } from "./controls.js";
import { Simulator, fetchCatalogue, fetchSystem } from "./api.js";
import { offerFiles } from "./save.js";
import { readAddress, writeAddress } from "./address.js";

async function startLive(studio) {
  const catalogue = await fetchCatalogue();
  let shown = null;
  const simulator = new Simulator({
    show(payload, request) {
      const name = request.config?.system.name ?? "";
      const first = shown === null;
      panel.complain(null);
      if (!panel.changedSince(request)) panel.learn(payload.initial?.velocity);
      tellProblem(null);
      studio.draw(unpackArrays(payload), { fresh: name !== shown });
      shown = name;
      byId("stage").classList.remove("stale");
      if (first) studio.begin();
      panel.completeSystem();
    },
    problem: (problem) => tellProblem(panel.complain(problem) ? null : problem.message),
    busy: tellBusy,
    lost(lost) {
      byId("banner").hidden = !lost;
      byId("banner").textContent = lost ? "The studio does not answer. Trying again; the picture stays." : "";
    },
  });
  const ask = (request) => {
    if (panel.name !== shown && panel.system) announce(panel.system);
    offerTries(studio, panel);
    simulator.ask(request);
  };
  studio.request = () => panel.request;
  const changed = (request) => {
    writeAddress(request);
    ask(request);
  };
  const panel = new Panel(byId("panel"), catalogue, changed, fetchSystem);
  const take = () => {
    panel.set(readAddress(catalogue) ?? catalogue.start);
    ask(panel.request);
  };
  addEventListener("hashchange", take);
  offerFiles(studio, () => panel.request);
  take();
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
  byId("view").classList.toggle("busy", busy);
  clearTimeout(busyTimer);
  if (busy)
    busyTimer = setTimeout(() => (byId("status").textContent = "Simulating … (a new kind of system is compiled first)"), 700);
  else byId("status").textContent = "";
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
