// A typed number and its slider.

import { element, formatNumber } from "./dom.js";

export const NOTCHES = 400;

const isLogarithmic = ({ low, high }) => low > 0 && high / low >= 100;

const tidy = (value) => Number(value.toPrecision(4));

// Position of a slider <-> value; logarithmic where the range spans decades.
export function sliderScale(control) {
  const { low, high } = control;
  if (isLogarithmic(control)) {
    const ratio = Math.log(high / low);
    return {
      toValue: (notch) => tidy(low * Math.exp((ratio * notch) / NOTCHES)),
      toNotch: (value) => (NOTCHES * Math.log(Math.max(value, low) / low)) / ratio,
    };
  }
  return {
    toValue: (notch) => tidy(low + ((high - low) * notch) / NOTCHES),
    toNotch: (value) => (NOTCHES * (value - low)) / (high - low),
  };
}

export const hasRange = ({ low, high }) => Number.isFinite(low) && Number.isFinite(high) && high > low;

// A typed number and, where there is a range, a slider. change(value) is called with numbers only; complain(text) otherwise.
export function numberInput(control, name, value, change, complain) {
  const whole = control.kind === "integer";
  const round = (number) => (whole ? Math.round(number) : number);
  const text = element("input", {
    type: "text",
    inputmode: whole ? "numeric" : "decimal",
    class: "number",
    "aria-label": name,
    spellcheck: "false",
    autocomplete: "off",
  });
  const write = (number) => (text.value = whole ? String(number) : formatNumber(number, 6));
  const scale = hasRange(control) ? sliderScale(control) : null;
  const slider = scale && element("input", { type: "range", min: 0, max: NOTCHES, step: 1, "aria-label": `${name}, slider` });
  const show = (number) => {
    if (typeof number !== "number") return;
    write(number);
    if (slider) slideTo(number);
  };
  const slideTo = (number) => {
    slider.value = scale.toNotch(number);
    slider.setAttribute("aria-valuetext", formatNumber(number));
  };
  slider?.addEventListener("input", () => {
    const number = round(scale.toValue(Number(slider.value)));
    write(number);
    slider.setAttribute("aria-valuetext", formatNumber(number));
    change(number);
  });
  const typed = () => {
    const number = Number(text.value.trim().replace(",", "."));
    if (text.value.trim() === "" || !Number.isFinite(number))
      return complain(`“${text.value}” is not a number. Write it like 0.5, -3 or 1e-3.`);
    if (whole && !Number.isInteger(number)) return complain(`${text.value} is not a whole number.`);
    if (slider) slideTo(number);
    change(number);
  };
  text.addEventListener("input", typed);
  text.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const now = Number(text.value);
    if (!direction || !Number.isFinite(now)) return;
    event.preventDefault();
    const span = hasRange(control) && !isLogarithmic(control) ? control.high - control.low : Math.abs(now) || 1;
    const next = whole ? now + direction : tidy(now + (direction * span) / 50);
    show(next);
    change(next);
  });
  show(value);
  return { text, slider, show };
}

// A component of a velocity that the constraint determines from the others.
export function followingInput(name, value) {
  const text = element("input", {
    type: "text",
    class: "number",
    "aria-label": name,
    readonly: true,
    title: "follows from the constraint",
  });
  const show = (number) => (text.value = typeof number === "number" ? formatNumber(number) : "follows");
  show(value);
  return { text, slider: element("span", { class: "help", text: "by the constraint" }), show };
}
