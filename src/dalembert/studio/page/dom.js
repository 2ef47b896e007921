// Small helpers for the document: elements are made, never parsed from text.

export const byId = (id) => document.getElementById(id);
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Once a picture was drawn and shown.
export const afterPicture = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))));

// element("p", {class: "help", text: "...", on: {click}}, child, ...): attributes that are null or false are left out.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const plain = (value, digits) => String(Number(value.toPrecision(digits)));

// A number for people: 0.05, 1500, 1.2e-13.
export function formatNumber(value, digits = 4) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6))
    return value
      .toExponential(Math.min(digits - 1, 2))
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  return plain(value, digits);
}

export function swatch(colour) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}
