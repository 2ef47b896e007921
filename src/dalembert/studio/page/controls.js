// The panel on the left: system, parameters, initial state, run, method and the method to compare with, made from the catalogue.

import { element } from "./dom.js";
import { makeAbsent, makeField } from "./fields.js";
import { clone } from "./data.js";
import { holderOf, holds, runControls } from "./places.js";

const PARTS = ["choice", "system", "method", "against", "run", "initial", "back"];
const TITLES = { system: "Parameters", method: "Method", against: "Compare with", run: "Time", initial: "Initial state" };
const NONE = "nothing";
const SAVED = "the run in the file";

export class Panel {
  // changed(request) is called with the whole request after every change; complete(name) promises the rest of a system's entry.
  constructor(root, catalogue, changed, complete) {
    Object.assign(this, { root, catalogue, changed, complete });
    this.systems = new Map(catalogue.systems.map((system) => [system.name, system]));
    this.methods = new Map(catalogue.methods.map((method) => [method.name, method]));
    this.fieldsOf = new Map();
    this.holders = new Map(PARTS.map((part) => [part, element("div")]));
    root.replaceChildren(...this.holders.values());
    root.addEventListener("submit", (event) => event.preventDefault());
  }

  get fields() {
    return [...this.fieldsOf.values()].flat();
  }

  get name() {
    return this.request.config?.system?.name;
  }

  get system() {
    return this.systems.get(this.name);
  }

  set(request) {
    this.request = { ...clone(request), complete: true }; // the server solves the constraint for dependent velocities
    this.fillIn();
    this.build();
  }

  // The initial state spelled out, where the request leaves parts of it to the system.
  fillIn() {
    const { config } = this.request;
    const { configuration } = this.system?.example.initial ?? {};
    if (config && configuration) config.initial = { configuration: clone(configuration), ...config.initial };
  }

  async completeSystem() {
    const { name, system } = this;
    if (!system || system.initial || this.completing === name) return;
    this.completing = name;
    try {
      this.systems.set(name, await this.complete(name));
    } catch {
      this.completing = null; // the next show asks again
      return;
    }
    if (this.name !== name) return;
    this.fillIn();
    this.build(["method", "against", "initial"]);
  }

  setAt(place, value) {
    const { holder, last } = holderOf(this.request, place);
    if (value === undefined) delete holder[last];
    else holder[last] = value;
  }

  // A value from elsewhere than its control.
  put(place, value) {
    this.setAt(place, clone(value));
    this.build();
    this.tell();
  }

  tell() {
    this.complain(null);
    delete this.request.saved; // what a file held is shown only until something changes
    const { controls, config } = this.request;
    if (Array.isArray(controls) && controls.length !== config?.run.steps) delete this.request.controls;
    this.changed(this.request);
  }

  chooseSystem(name) {
    const { example, methods } = this.systems.get(name);
    const against = this.request.against;
    const fits = against && (methods?.includes(against.name) ?? against.name === "runge-kutta");
    this.request = { ...this.request, config: clone(example), against: null };
    delete this.request.controls;
    if (fits) this.openComparison(against.name);
    if (fits) this.request.against = { name: against.name };
    this.build();
    this.tell();
  }

  chooseMethod(part, name) {
    if (part === "against") {
      this.openComparison(name);
      this.request.against = name ? { name } : null;
    } else this.request.config.method = { name };
    this.build([part, "run"]);
    this.tell();
  }

  // Methods are compared where they differ: at settings that were measured to, unless a person has chosen others.
  openComparison(name) {
    const { config, against } = this.request;
    const example = this.system?.example.run;
    const differs = this.catalogue.fails?.[this.name]?.run;
    const same = (run) => JSON.stringify(run) === JSON.stringify(config.run);
    if (!example || !differs) return;
    if (name && !against && same(example)) config.run = { ...example, ...differs };
    else if (!name && same({ ...example, ...differs })) config.run = clone(example);
  }

  changedSince(request) {
    return JSON.stringify(request) !== JSON.stringify(this.request);
  }

  // Velocities that the server worked out from the constraint.
  learn(velocity) {
    const field = this.fields.find(({ place }) => place === "initial.velocity");
    if (!velocity || !field) return;
    field.learn(velocity);
    this.request.config.initial.velocity = velocity;
  }

  // Shows an error at the control whose place it names; returns whether there is one.
  complain(problem) {
    for (const field of this.fields) field.complain(null);
    if (!problem) return true;
    const fits = this.fields.filter(
      ({ place }) => problem.place === place || problem.place.startsWith(`${place}.`) || place.startsWith(`${problem.place}.`),
    );
    const distance = ({ place }) => Math.abs(place.length - problem.place.length);
    const field = problem.place && fits.sort((a, b) => distance(a) - distance(b))[0];
    if (field) field.complain(problem.message);
    return Boolean(field);
  }

  // Makes these parts of the panel anew; the others, where a person may be typing or dragging, stay.
  build(parts = PARTS) {
    const focused = document.activeElement?.getAttribute("aria-label");
    const { system, request, catalogue } = this;
    const { method, run } = request.config ?? {};
    const fitting = system?.methods ?? [...new Set([method?.name, request.against?.name, "runge-kutta"])].filter(Boolean);
    const makers = {
      choice: () => [this.systemChoice()],
      system: () => this.controlsOf(system?.parameters ?? []),
      method: () => [this.methodChoice("method", method, fitting), ...this.controlsOf(this.optionsOf(method))],
      against: () => [
        this.methodChoice("against", request.against, fitting),
        ...this.controlsOf(this.optionsOf(request.against), "against"),
      ],
      run: () => this.controlsOf(runControls(system?.example.run ?? run, catalogue.limits)),
      initial: () => this.controlsOf(this.initialControls()),
      back: () =>
        system
          ? [
              element("button", {
                type: "button",
                class: "quiet",
                text: "Back to the example's values",
                on: { click: () => this.chooseSystem(this.name) },
              }),
            ]
          : [],
    };
    for (const part of parts) {
      this.made = [];
      const children = request.config || part === "choice" ? makers[part]() : [];
      this.fieldsOf.set(part, this.made);
      this.fill(part, children);
    }
    if (focused && !this.root.contains(document.activeElement))
      this.root.querySelector(`:is(input, select)[aria-label="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  fill(part, children) {
    const holder = this.holders.get(part);
    const title = TITLES[part];
    if (!title || children.length === 0) return holder.replaceChildren(...children);
    const open = holder.querySelector("details")?.open ?? true;
    holder.replaceChildren(element("details", { open }, element("summary", { text: title }), ...children));
  }

  // The system's, for what the request says; a velocity or momentum that the example does not have gets a plain vector.
  initialControls() {
    const { initial = [] } = this.system ?? {};
    const given = this.request.config.initial ?? {};
    const plain = ["velocity", "momentum"]
      .filter((kind) => Array.isArray(given[kind]) && !initial.some(({ place }) => place === `initial.${kind}`))
      .map((kind) => ({
        place: `initial.${kind}`,
        label: kind,
        kind: "vector",
        low: -2 * Math.max(...given[kind].map(Math.abs), 1),
        high: 2 * Math.max(...given[kind].map(Math.abs), 1),
      }));
    return [...initial.filter(({ place }) => holds(holderOf(this.request, place))), ...plain];
  }

  optionsOf(method) {
    return this.methods.get(method?.name)?.options ?? [];
  }

  controlsOf(controls, part = null) {
    return controls
      .map((control) => (part ? { ...control, place: control.place.replace(/^\w+/, part) } : control))
      .map((control) => this.controlOf(control))
      .filter(Boolean);
  }

  controlOf(control) {
    const { holder, last } = holderOf(this.request, control.place);
    if (!holder) return null;
    const given = holder[last] ?? (control.optional ? null : control.value);
    const change = (next) => {
      this.setAt(control.place, next);
      this.tell();
    };
    const rebuild = (next) => {
      change(next);
      this.build();
    };
    if (given === null || given === undefined) return control.optional ? makeAbsent(control, rebuild) : null;
    return this.field(control, given, (next) => (next === undefined ? rebuild(next) : change(next)));
  }

  field(control, value, change) {
    const made = makeField(control, value, change);
    this.made.push(made);
    return made.element;
  }

  systemChoice() {
    const names = [...this.systems.keys()];
    const titles = names.map((name) => this.systems.get(name).title ?? name);
    const known = this.systems.has(this.name);
    const control = {
      place: "system",
      label: "System",
      kind: "choice",
      choices: known ? names : ["", ...names],
      names: known ? titles : [this.name ?? SAVED, ...titles],
      help: this.system?.summary,
    };
    return this.field(control, known ? this.name : "", (name) => name && this.chooseSystem(name));
  }

  methodChoice(part, method, fitting) {
    const choices = part === "against" ? [NONE, ...fitting] : fitting;
    const name = method?.name ?? NONE;
    const control = {
      place: part,
      label: part === "method" ? "Method" : "Compare with",
      kind: "choice",
      choices: choices.includes(name) ? choices : [name, ...choices],
      refused: this.system?.refused,
      help: this.methods.get(name)?.summary,
    };
    return this.field(control, name, (chosen) => this.chooseMethod(part, chosen === NONE ? null : chosen));
  }
}
