// A story: steps that one clicks through, each a request with a text, a camera and a time; and "Make it fail".

import { byId, element, formatNumber } from "./dom.js";
import { clone } from "./data.js";
import { rememberPlot } from "./choice.js";
import { writeAddress, writeStoryAddress } from "./address.js";

const MOTION = matchMedia("(prefers-reduced-motion: reduce)");

export class Storyteller {
  // show(request): sets the panel and asks for a show of it.
  constructor(catalogue, panel, studio, show) {
    Object.assign(this, { stories: catalogue.stories ?? [], panel, studio, show });
    byId("stories").hidden = this.stories.length === 0;
    byId("stories-items").replaceChildren(
      ...this.stories.map((story) =>
        element("button", {
          type: "button",
          text: story.title,
          on: {
            click: () => {
              byId("stories").open = false;
              this.tell(story, 0);
            },
          },
        }),
      ),
    );
    byId("lesson-next").addEventListener("click", () => this.go(1));
    byId("lesson-back").addEventListener("click", () => this.go(-1));
    byId("lesson-end").addEventListener("click", () => {
      this.end();
      writeAddress(panel.request);
    });
    addEventListener("keydown", (event) => {
      const far = { PageDown: 1, PageUp: -1 }[event.key];
      if (!far || !this.story) return;
      event.preventDefault();
      this.go(far);
    });
  }

  tell(story, step) {
    Object.assign(this, { story, step });
    this.look = story.steps[step];
    writeStoryAddress(story.name, step);
    this.describe();
    this.show(clone(this.look.request));
  }

  go(far) {
    const step = this.step + far;
    if (step === this.story.steps.length) return byId("lesson-end").click();
    if (this.story.steps[step]) this.tell(this.story, step);
  }

  end() {
    this.story = this.look = null;
    byId("lesson").hidden = true;
    document.documentElement.dataset.story = "";
  }

  describe() {
    const { steps, title, name } = this.story;
    byId("lesson").hidden = false;
    document.documentElement.dataset.story = name;
    byId("lesson-text").textContent = this.look.text;
    byId("lesson").setAttribute("aria-label", `Story: ${title}, step ${this.step + 1} of ${steps.length}`);
    byId("lesson-back").disabled = this.step === 0;
    byId("lesson-next").textContent = this.step === steps.length - 1 ? "end" : "next";
    byId("lesson-dots").replaceChildren(
      ...steps.map((_, k) =>
        element(
          "li",
          {},
          element("button", {
            type: "button",
            text: String(k + 1),
            "aria-label": `Step ${k + 1}`,
            "aria-current": k === this.step ? "step" : null,
            on: { click: () => this.tell(this.story, k) },
          }),
        ),
      ),
    );
  }

  // Before the answer to a step is drawn: the plot that it names; what `Studio.draw` takes comes back.
  prepare(data) {
    if (!this.look) return {};
    const plot = data.plots.find(({ title }) => title === this.look.plot);
    if (plot) rememberPlot(plot.group, plot.title);
    return { camera: this.look.camera };
  }

  // After it is drawn: from where it plays. A step arrives once: sliders that are moved in a story begin nothing anew.
  arrive() {
    if (!this.look) return;
    const { follow, begin } = this.look;
    this.look = null;
    this.studio.setFollow(follow);
    this.studio.player.pause();
    this.studio.player.go(begin * this.studio.player.last);
    if (!MOTION.matches) this.studio.player.play();
  }
}

// The button: the same start with settings at which one of two methods fails, in two panes; pressed again, as it was.
export class Failing {
  constructor(catalogue, panel, show) {
    Object.assign(this, { fails: catalogue.fails ?? {}, panel, show, before: null });
    this.button = byId("fail");
    this.button.addEventListener("click", () => this.toggle());
  }

  toggle() {
    const { request, name } = this.panel;
    const { before } = this;
    if (before) {
      this.before = null;
      return this.show(before);
    }
    const change = this.fails[name];
    this.before = clone(request);
    const config = { ...clone(request.config), run: { ...request.config.run, ...change.run } };
    if (change.run.steps) delete config.run.t_end;
    this.show({ ...clone(request), config: { ...config, method: change.method ?? config.method }, against: change.against, panes: true });
  }

  // What is different: the step, or the time.
  sentence(name) {
    const { text, run } = this.fails[name];
    const { step, steps } = this.panel.system.example.run;
    const larger = formatNumber(run.step / step, 2);
    const longer = formatNumber((run.step * run.steps) / (step * steps), 2);
    const changes = [
      ...(run.step > step ? [`a step ${larger} times as large`] : []),
      ...(run.step * run.steps > 1.2 * step * steps ? [`a time ${longer} times as long`] : []),
    ];
    return text ?? `The same start, with ${changes.join(" and ")}: one clock, two methods.`;
  }

  // After every answer: the button belongs to a system and says what it will do.
  refresh() {
    const { name, request } = this.panel;
    if (this.before && (this.before.config.system.name !== name || !request.panes)) this.before = null;
    this.button.hidden = !this.fails[name] || request.saved === true;
    this.button.textContent = this.before ? "As it was" : "Make it fail";
    this.button.title = this.before ? "The settings from before" : "The same start with a larger step or a longer time, two methods side by side";
    if (this.before) byId("why").textContent = this.sentence(name);
  }
}
