// The take-away menu. Files that hold data come from the server; a picture of the view as it stands is the page's own.

import { byId, element } from "./dom.js";
import { fetchFile } from "./api.js";

const KINDS = [
  ["toml", "Configuration", "for dalembert run and studio"],
  ["nc", "Data (NetCDF)", "every saved state, with names and units"],
  ["png", "Plots (PNG)", "drawn by dalembert"],
  ["gif", "Moving picture (GIF)", "takes some seconds"],
  ["mp4", "Film (MP4)", "takes some seconds"],
  ["html", "Page that plays offline", "one file, no server"],
];

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// requestNow: gives the present request; null in an exported page, which has no server. mp4: whether the server can make films.
export function offerFiles(studio, requestNow, mp4 = false) {
  const menu = byId("take-away");
  const status = byId("status");
  const offer = (label, help, make) =>
    element(
      "button",
      {
        type: "button",
        on: {
          click: async () => {
            menu.open = false;
            status.textContent = `Making: ${label} …`;
            try {
              const { blob, name } = await make();
              download(blob, name);
              status.textContent = `Saved ${name}`;
            } catch (error) {
              status.textContent = `${label}: ${error.message}`;
            }
          },
        },
      },
      label,
      element("small", { text: help }),
    );
  const picture = offer("Picture of this view (PNG)", "the scene as you see it", async () => ({
    blob: await studio.picture(),
    name: "view.png",
  }));
  const config = offer("Configuration", "for dalembert run and studio", async () => ({
    blob: new Blob([studio.data.config]),
    name: "config.toml",
  }));
  const served = requestNow
    ? KINDS.filter(([kind]) => mp4 || kind !== "mp4").map(([kind, label, help]) => offer(label, help, () => fetchFile(requestNow(), kind)))
    : [config];
  byId("take-away-items").replaceChildren(picture, ...served);
  addEventListener("pointerdown", (event) => menu.contains(event.target) || (menu.open = false));
  menu.addEventListener("keydown", (event) => event.key === "Escape" && (menu.open = false));
}
