// A run beside the scene: its method, what the method claims and whether it held here, and how fast it was.

import { element, formatNumber, swatch } from "./dom.js";
import { legible } from "./theme.js";

const MARKS = new Map([
  [true, { mark: "✓", word: "held here", style: "held" }],
  [false, { mark: "✗", word: "broken here", style: "broken" }],
]);
const UNMEASURED = { mark: "", word: "claimed; not measured here", style: "unknown" };
const ORDER = [true, false, null];

// "constraint: velocities stay on D to round-off" is shown by its first word; the sentence is the hint.
function claimChip({ text, held }) {
  const { mark, word, style } = MARKS.get(held) ?? UNMEASURED;
  const [name] = text.split(": ");
  return element(
    "li",
    { class: style, title: `${text} (${word})`, "aria-label": `${text}: ${word}` },
    mark ? `${mark} ${name}` : name,
  );
}

function facts(run) {
  const told = [];
  if (Number.isFinite(run.energy_error)) told.push(`${(run.energy_title ?? "energy error").toLowerCase()} ${formatNumber(run.energy_error, 2)}`);
  if (run.constraint > 0) told.push(`constraint ${formatNumber(run.constraint, 2)}`);
  const duration = Number.isFinite(run.seconds) ? ` in ${formatNumber(1000 * run.seconds, 2)} ms` : "";
  told.push(`${Math.max(run.steps, 0).toLocaleString("en")} steps${duration}`);
  return told.join(" · ");
}

// toggle: null where there is one run only, else called to hide and show it.
export function claimsOf(run, shown, toggle) {
  const attributes = toggle
    ? { type: "button", "aria-pressed": String(shown), title: "Hide or show", on: { click: toggle } }
    : {};
  const name = element(toggle ? "button" : "p", { class: "run-name", ...attributes }, swatch(legible(run.colour)), run.label);
  const claims = [...run.claims].sort((a, b) => ORDER.indexOf(a.held) - ORDER.indexOf(b.held));
  return element(
    "div",
    { class: "run" },
    name,
    element("ul", {}, ...claims.map(claimChip)),
    element("p", { class: "facts", text: facts(run) }),
  );
}
