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

export function writeAddress(request) {
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(request))}`);
}
