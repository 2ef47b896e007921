// Keys: space plays, arrows step through the frames, r frames the scene, f follows, p presents. Where a control needs a key, it keeps it.

import { byId } from "./dom.js";

const typing = (target) => target.matches("input:not([type=checkbox]):not([type=range]), select, textarea");

export function listenToKeys(player) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const onSlider = event.target.matches("input[type=range]");
    const onButton = event.target.matches("button, summary, input[type=checkbox]");
    const far = event.shiftKey ? 10 : 1;
    const actions = {
      " ": onButton ? null : () => player.toggle(),
      ArrowRight: onSlider ? null : () => player.stepBy(far),
      ArrowLeft: onSlider ? null : () => player.stepBy(-far),
      Home: onSlider ? null : () => player.seek(0),
      End: onSlider ? null : () => player.seek(player.last),
      r: () => byId("reset-camera").click(),
      f: () => byId("follow").click(),
      p: () => byId("present").click(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
}
