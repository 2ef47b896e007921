// The request in the address after #, so that a reload or a shared link shows the same.

export function readAddress(catalogue) {
  try {
    const request = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    const known = [...catalogue.systems.map(({ name }) => name), catalogue.start.config?.system.name];
    return known.includes(request.config.system.name) && request.config.run
      ? { against: null, frames: catalogue.start.frames, ...request }
      : null;
  } catch {
    return null;
  }
}

// A link to a step of a story, "#story=cusp&step=2": {story, step}, counted from 0.
export function readStoryAddress(catalogue) {
  const given = new URLSearchParams(location.hash.slice(1));
  const story = (catalogue.stories ?? []).find(({ name }) => name === given.get("story"));
  if (!story) return null;
  return { story, step: Math.min(Math.max(Number.parseInt(given.get("step") ?? "1") - 1 || 0, 0), story.steps.length - 1) };
}

export function writeStoryAddress(name, step) {
  history.replaceState(null, "", `#story=${encodeURIComponent(name)}&step=${step + 1}`);
}

export function writeAddress({ controls, ...request }) {
  if (controls && !Array.isArray(controls)) request.controls = controls; // what was driven is too long for an address
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(request))}`);
}
