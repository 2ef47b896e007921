// The clock of the page: which frame is shown, at the browser's own frame rate. It runs only while playing.

import { byId, element, formatNumber } from "./dom.js";

const WHOLE = 12; // seconds that a motion takes at speed 1 if real time would be too fast or too slow to watch
const DWELL = 0.9; // seconds at the end before it begins again
const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 10];
const COMFORTABLE = [5, 30];

function oneTwoFive(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return (
    power *
    [1, 2, 5, 10].reduce((best, factor) => (Math.abs(factor * power - value) < Math.abs(best * power - value) ? factor : best), 1)
  );
}

export class Player {
  constructor(show, draw) {
    this.show = show; // called with every new frame
    this.draw = draw; // called while playing: what is shown is drawn at once
    this.time = new Float32Array([0]);
    this.frame = 0;
    this.playing = false;
    this.speed = 1;
    this.rate = 1; // units of the motion's time in a second at speed 1
    this.button = byId("play");
    this.scrub = byId("scrub");
    this.clock = byId("clock");
    this.button.addEventListener("click", () => this.toggle());
    this.scrub.addEventListener("input", () => this.seek(Number(this.scrub.value)));
    const speeds = byId("speed");
    speeds.replaceChildren(
      ...SPEEDS.map((speed) => element("option", { value: speed, text: `${speed}×`, selected: speed === 1 })),
    );
    speeds.addEventListener("change", () => (this.speed = Number(speeds.value)));
    this.tick = this.tick.bind(this);
  }

  get last() {
    return this.time.length - 1;
  }

  get span() {
    return this.time[this.last] - this.time[0];
  }

  // New times; the same part of the motion stays in view.
  setTime(time) {
    const part = this.last > 0 ? this.frame / this.last : 0;
    this.time = time;
    const length = Math.abs(this.span) || 1;
    const real = length >= COMFORTABLE[0] && length <= COMFORTABLE[1];
    this.rate = real ? 1 : oneTwoFive(length / WHOLE);
    byId("speed").title = real ? "1× is real time" : `1× shows ${formatNumber(this.rate)} of the motion's time in a second`;
    this.scrub.max = this.last;
    this.go(part * this.last);
  }

  go(frame) {
    this.frame = Math.min(Math.max(frame, 0), this.last);
    const whole = Math.round(this.frame);
    this.scrub.value = whole;
    const low = Math.floor(this.frame);
    const now = this.time[low] + (this.frame - low) * ((this.time[low + 1] ?? this.time[low]) - this.time[low]);
    const digits = this.span > 50 ? 1 : this.span > 2 ? 2 : 3;
    this.clock.textContent = `t = ${now.toFixed(digits)} / ${this.time[this.last].toFixed(digits)}`;
    this.scrub.setAttribute("aria-valuetext", this.clock.textContent);
    this.show(this.frame);
  }

  seek(frame) {
    this.pause();
    this.go(frame);
  }

  stepBy(frames) {
    this.seek(Math.round(this.frame) + frames);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.playing || this.last < 1) return;
    this.playing = true;
    if (this.frame >= this.last) this.go(0);
    this.label("Pause", "pause");
    this.before = performance.now();
    this.rested = 0;
    requestAnimationFrame(this.tick);
  }

  pause() {
    this.playing = false;
    this.label("Play", "play");
  }

  label(text, icon) {
    this.button.setAttribute("aria-label", text);
    this.button.title = `${text} (space)`;
    this.button.dataset.icon = icon;
  }

  tick(now) {
    if (!this.playing) return;
    requestAnimationFrame(this.tick);
    const seconds = Math.min(Math.max(now - this.before, 0) / 1000, 0.25);
    this.before = now;
    if (this.frame >= this.last) {
      this.rested += seconds;
      if (this.rested > DWELL) {
        this.rested = 0;
        this.go(0);
      }
      return;
    }
    // Frames are evenly spaced in steps of the integrator, so their number advances evenly.
    this.go(this.frame + (seconds * this.speed * this.rate * this.last) / (Math.abs(this.span) || 1));
    this.draw();
  }
}
