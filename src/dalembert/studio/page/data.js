// What the server sends: arrays of float32 in base64, unpacked into Float32Array with a `shape`, and tracks over the frames.

function unpack(packed) {
  const text = atob(packed.f32);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const numbers = new Float32Array(bytes.buffer);
  numbers.shape = packed.shape ?? [numbers.length];
  return numbers;
}

// The same value with every {"f32", "shape"} inside it unpacked.
export function unpackArrays(value) {
  if (Array.isArray(value)) return value.map(unpackArrays);
  if (value === null || typeof value !== "object") return value;
  if (typeof value.f32 === "string") return unpack(value);
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, unpackArrays(inner)]));
}

// A vector over the frames, or a constant one; `at` writes its value at a fractional frame into `out` and allocates nothing.
export class Track {
  constructor(values, width) {
    this.values = values;
    this.width = width;
    this.moving = values instanceof Float32Array && values.length > width;
    this.frames = this.moving ? Math.floor(values.length / width) : 1;
  }

  at(frame, out) {
    const { values, width } = this;
    const low = this.moving ? Math.min(Math.floor(frame), this.frames - 1) : 0;
    const high = Math.min(low + 1, this.frames - 1);
    const part = this.moving ? frame - low : 0;
    // Quaternions q and -q are one rotation: take the nearer.
    let sign = 1;
    if (width === 4) {
      let product = 0;
      for (let i = 0; i < 4; i++) product += values[low * 4 + i] * values[high * 4 + i];
      if (product < 0) sign = -1;
    }
    for (let i = 0; i < width; i++) {
      const start = values[low * width + i];
      const end = sign * values[high * width + i];
      out[i] = part > 0 && Number.isFinite(end) ? start + part * (end - start) : start;
    }
    return Number.isFinite(out[0]);
  }
}

// How many points come before the first that is not a number: a run that stopped has no more.
export function knownPoints(points, width = 3) {
  const count = Math.floor(points.length / width);
  for (let k = 0; k < count; k++) if (!Number.isFinite(points[k * width])) return k;
  return count;
}

export function clone(value) {
  return structuredClone(value);
}
