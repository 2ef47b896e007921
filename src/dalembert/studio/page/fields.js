// One control of the panel: a number with its slider, a vector, a matrix, a choice or a flag, and the place where an error about it is told.

import { element } from "./dom.js";
import { NOTCHES, followingInput, hasRange, numberInput, sliderScale } from "./numbers.js";

const UNIT = 8; // letters: a help text this short is a unit
let fieldCount = 0;

function scalarField(control, value, change, complain) {
  const { text, slider } = numberInput(control, control.label, value, change, complain);
  return { body: [element("div", { class: slider ? "with-slider" : "alone" }, slider, text)] };
}

function vectorField(control, value, change, complain) {
  const now = [...value];
  const dependent = new Set(control.dependent ?? []);
  const names = control.entries?.length === now.length ? control.entries : now.map((_, i) => `${i + 1}`);
  const changeEntry = (i, number) => {
    now[i] = number;
    change([...now]);
  };
  const inputs = now.map((entry, i) =>
    dependent.has(i)
      ? followingInput(`${control.label}, ${names[i]}`, entry)
      : numberInput(control, `${control.label}, ${names[i]}`, entry, (number) => changeEntry(i, number), complain),
  );
  const rows = inputs.map(({ text, slider }, i) =>
    element(
      "div",
      { class: "entry" },
      element("span", { class: "entry-name", text: names[i] }),
      element("div", { class: slider ? "with-slider" : "alone" }, slider, text),
    ),
  );
  // What follows from the constraint; the entries that a person is typing stay.
  const learn = (entries) => dependent.forEach((i) => ((now[i] = entries[i]), inputs[i].show(entries[i])));
  return { body: rows, learn };
}

function matrixField(control, value, change, complain) {
  const now = value.map((row) => [...row]);
  const inputs = [];
  // One slider serves the entry that was touched last: nine of them would be a wall.
  let active = [0, 0];
  const scale = hasRange(control) ? sliderScale(control) : null;
  const slider =
    scale &&
    element("input", {
      type: "range",
      min: 0,
      max: NOTCHES,
      step: 1,
      "aria-label": `${control.label}, slider of the chosen entry`,
    });
  const set = (i, j, number) => {
    now[i][j] = number;
    if (control.symmetric && i !== j) {
      now[j][i] = number;
      inputs[j][i].show(number);
    }
    change(now.map((row) => [...row]));
  };
  const choose = (i, j) => {
    inputs[active[0]][active[1]].text.classList.remove("chosen");
    active = [i, j];
    inputs[i][j].text.classList.add("chosen");
    if (slider) slider.value = scale.toNotch(now[i][j]);
  };
  for (let i = 0; i < now.length; i++)
    inputs.push(
      now[i].map((entry, j) => {
        const input = numberInput(
          { kind: "number" },
          `${control.label}, row ${i + 1}, column ${j + 1}`,
          entry,
          (number) => (set(i, j, number), choose(i, j)),
          complain,
        );
        input.text.addEventListener("focus", () => choose(i, j));
        return input;
      }),
    );
  slider?.addEventListener("input", () => {
    const number = scale.toValue(Number(slider.value));
    inputs[active[0]][active[1]].show(number);
    set(...active, number);
  });
  const grid = element("div", { class: "matrix" }, ...inputs.flat().map(({ text }) => text));
  grid.style.setProperty("--columns", now[0]?.length ?? 1);
  if (now.length) choose(0, 0);
  return { body: [grid, slider] };
}

function choiceField(control, value, change) {
  const options = control.choices.map((choice, k) =>
    element("option", { value: JSON.stringify(choice), text: control.names?.[k] ?? String(choice) }),
  );
  // What cannot be chosen is greyed out and says why.
  const refused = Object.entries(control.refused ?? {}).map(([choice, reason]) =>
    element("option", { value: JSON.stringify(choice), text: choice, title: reason, disabled: true }),
  );
  const select = element(
    "select",
    { "aria-label": control.label, on: { change: () => change(JSON.parse(select.value)) } },
    ...options,
    ...refused,
  );
  select.value = JSON.stringify(value);
  return { body: [select] };
}

function flagField(control, value, change) {
  const box = element("input", { type: "checkbox", "aria-label": control.label, on: { change: () => change(box.checked) } });
  box.checked = Boolean(value);
  return { body: [box] };
}

const FIELDS = {
  number: scalarField,
  integer: scalarField,
  vector: vectorField,
  matrix: matrixField,
  choice: choiceField,
  flag: flagField,
};

function kindOf(control, value) {
  if (control.kind !== "vector" && control.kind !== "matrix") return control.kind;
  return Array.isArray(value?.[0]) ? "matrix" : "vector";
}

// What a parameter that may be absent begins with.
function beginning(control) {
  if (control.kind === "choice") return control.choices[0];
  if (control.kind === "flag") return true;
  if (control.kind === "vector") return (control.entries ?? ["1"]).map(() => 0);
  if (control.kind === "matrix") return [[1]];
  return Math.max(control.low ?? 0, Math.min(1, control.high ?? 1));
}

// An absent parameter: a button that gives it a value.
export function makeAbsent(control, change) {
  const button = element("button", {
    type: "button",
    class: "quiet",
    text: `set ${control.label}`,
    on: { click: () => change(beginning(control)) },
  });
  return element("div", { class: "field", "data-place": control.place }, button);
}

// {element, place, complain(text), learn(value)?} for a control and its present value.
export function makeField(control, value, change) {
  const id = `field-${fieldCount++}`;
  const problem = element("p", { class: "problem", id, role: "alert", hidden: true });
  const complain = (text) => {
    problem.textContent = text ?? "";
    problem.hidden = !text;
    whole.classList.toggle("wrong", Boolean(text));
    if (text) problem.closest("details")?.setAttribute("open", "");
  };
  const changed = (next) => {
    complain(null);
    change(next);
  };
  const { body, learn } = FIELDS[kindOf(control, value)](control, value, changed, complain);
  const clear = control.optional
    ? element("button", { type: "button", class: "quiet clear", text: "leave out", on: { click: () => change(undefined) } })
    : null;
  // A unit stands beside the name, a sentence below.
  const isUnit = control.help && control.help.length <= UNIT;
  const name = element(
    "div",
    { class: "field-name" },
    element("span", { text: isUnit ? `${control.label}, ${control.help}` : control.label }),
    clear,
  );
  const help = control.help && !isUnit ? element("p", { class: "help", text: control.help }) : null;
  const whole = element(
    "div",
    {
      class: `field ${control.kind}`,
      "data-place": control.place,
      role: "group",
      "aria-label": control.label,
      "aria-describedby": id,
    },
    name,
    ...body,
    help,
    problem,
  );
  return { element: whole, place: control.place, complain, learn };
}
