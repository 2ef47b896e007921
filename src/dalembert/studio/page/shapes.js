// A part of a scene as an object of three.js with `update(frame)`. Geometry is made once; an update moves it and allocates nothing.

import { Track, knownPoints } from "./data.js";
import { edged, facesToIndex, inkMaterial, sector, solidMaterial, spokes, strokes, twoTone, upright } from "./ink.js";
import { behind, pale, textSprite, wideLine } from "./ink.js";
import { legible } from "./theme.js";

const UP = new THREE.Vector3(0, 0, 1);
const EDGED_FACES = 300;
const FLAT = 1e-4; // of a deformed body that is pressed flat: without any thickness it has no light and shade
const SOLIDS = new Set(["box", "ellipsoid", "cylinder", "cone", "torus", "mesh"]); // they have shadows
const place3 = new Float32Array(3);
const place4 = new Float32Array(4);
const place9 = new Float32Array(9);
const arrowVector = new THREE.Vector3();

// Each builder returns {objects, update(frame)?, points?}: points is what the camera must see besides the objects' own boxes.
const BUILDERS = {
  box: ({ size }, colour, opacity) => ({ objects: edged(new THREE.BoxGeometry(...size), colour, opacity) }),

  ellipsoid({ axes }, colour, opacity) {
    const geometry = twoTone(new THREE.SphereGeometry(1, 40, 24), (x, y, z) => x * y * z > 0);
    geometry.scale(...axes);
    geometry.computeVertexNormals();
    const smooth = new THREE.SphereGeometry(1, 40, 24).toNonIndexed();
    const normal = smooth.attributes.normal.array;
    for (let i = 0; i < normal.length; i += 3) for (let axis = 0; axis < 3; axis++) normal[i + axis] /= axes[axis];
    smooth.normalizeNormals();
    geometry.setAttribute("normal", smooth.attributes.normal);
    return { objects: [new THREE.Mesh(geometry, solidMaterial(colour, opacity, opacity === 1))] };
  },

  cylinder({ radius, height }, colour, opacity) {
    const geometry = upright(new THREE.CylinderGeometry(radius, radius, height, 48));
    const seenThrough = opacity < 0.6; // a patch of a plane, say: it has no parts
    const mesh = new THREE.Mesh(twoTone(geometry.clone(), sector), solidMaterial(colour, opacity, !seenThrough));
    const rim = new THREE.LineSegments(new THREE.EdgesGeometry(geometry, 25), inkMaterial(opacity));
    const reach = height / 2 + 1e-3 * radius;
    const marks = height < radius && !seenThrough ? [strokes(spokes(radius, [reach, -reach]), 0.6 * opacity)] : [];
    return { objects: [mesh, rim, ...marks] };
  },

  cone: ({ radius, height }, colour, opacity) => ({
    objects: edged(upright(new THREE.ConeGeometry(radius, height, 32)), colour, opacity),
  }),

  torus({ radius, tube }, colour, opacity) {
    const geometry = new THREE.TorusGeometry(radius, tube, 16, 64);
    return { objects: [new THREE.Mesh(twoTone(geometry, sector), solidMaterial(colour, opacity, true))] };
  },

  mesh({ vertices, faces }, colour, opacity) {
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(Float32Array.from(vertices), 3));
    geometry.setIndex(facesToIndex(faces));
    // Few faces make a solid with edges, many a smooth surface.
    const solid = faces.length <= EDGED_FACES;
    const shown = solid ? geometry.toNonIndexed() : geometry;
    shown.computeVertexNormals();
    const material = solidMaterial(colour, opacity);
    material.side = THREE.DoubleSide;
    const edges = solid ? [new THREE.LineSegments(new THREE.EdgesGeometry(geometry, 30), inkMaterial(opacity))] : [];
    return { objects: [new THREE.Mesh(shown, material), ...edges] };
  },

  plane({ size }, colour, opacity) {
    const [width, height] = Array.isArray(size) ? size : [size, size];
    const geometry = new THREE.PlaneGeometry(width, height);
    const material = new THREE.MeshBasicMaterial({
      color: legible(colour),
      transparent: true,
      opacity,
      side: THREE.DoubleSide,
      depthWrite: false,
    });
    const border = new THREE.LineSegments(
      new THREE.EdgesGeometry(geometry),
      new THREE.LineBasicMaterial({ color: legible(colour), transparent: true, opacity: Math.min(1, opacity + 0.35) }),
    );
    return { objects: [new THREE.Mesh(geometry, material), border] };
  },

  line({ points, width = 2 }, colour, opacity) {
    const flat = Float32Array.from(points.flat ? points.flat() : points);
    return { objects: flat.length > 3 ? [wideLine(flat, legible(colour), width, opacity)] : [], points: flat };
  },

  trace({ points, width = 2, whole = false }, colour, opacity) {
    const count = knownPoints(points);
    const known = points.subarray(0, 3 * count);
    if (count < 2) return { objects: [], points: known };
    const past = wideLine(known, legible(colour), width, opacity);
    const tip = wideLine(new Float32Array(6), legible(colour), width, opacity); // from the last whole frame to now
    const ends = tip.geometry.attributes.instanceStart.data;
    const future = whole ? [wideLine(known, pale(colour), Math.max(1, 0.5 * width), 1)] : [];
    for (const line of future) behind(line, 2);
    const track = new Track(known, 3);
    const update = (frame) => {
      const last = Math.min(Math.floor(frame), count - 1);
      past.visible = last > 0;
      past.geometry.instanceCount = Math.max(last, 1);
      track.at(Math.min(frame, count - 1), place3);
      for (let axis = 0; axis < 3; axis++) {
        ends.array[axis] = known[3 * last + axis];
        ends.array[3 + axis] = place3[axis];
      }
      ends.needsUpdate = true;
      tip.visible = frame > last && last < count - 1;
    };
    return { objects: [...future, past, tip], update, points: known };
  },

  arrow({ from, to, width, crossed = false, text = "" }, colour, opacity, scale) {
    const usual = width ?? 0.009 * scale;
    const material = solidMaterial(colour, opacity);
    const shaft = new THREE.Mesh(upright(new THREE.CylinderGeometry(0.5, 0.5, 1, 16)).translate(0, 0, 0.5), material);
    const head = new THREE.Mesh(upright(new THREE.ConeGeometry(0.5, 1, 24)).translate(0, 0, -0.5), material);
    const arrow = new THREE.Group().add(shaft, head);
    if (!crossed) for (const part of [shaft, head]) part.add(seenThrough(part.geometry, colour, opacity)); // no body hides it
    const words = text ? textSprite(text, colour, 0.9) : null;
    if (words) words.userData.beside = arrow.add(words);
    const cross = crossed ? textSprite("✕", colour, 1.2) : null; // nothing may move along it
    if (cross) arrow.add(cross);
    const start = new Track(from, 3);
    const end = new Track(to, 3);
    const update = (frame) => {
      arrow.visible = start.at(frame, place3);
      arrow.position.fromArray(place3);
      arrow.visible &&= end.at(frame, place3);
      arrowVector.fromArray(place3).sub(arrow.position);
      const length = arrowVector.length();
      arrow.visible &&= length > 1e-6 * scale;
      if (!arrow.visible) return;
      const thick = Math.min(usual, 0.09 * length); // a short arrow is a slim one
      const tip = 3.6 * thick;
      arrow.quaternion.setFromUnitVectors(UP, arrowVector.divideScalar(length));
      shaft.scale.set(thick, thick, length - 0.9 * tip);
      head.position.z = length;
      head.scale.set(0.8 * tip, 0.8 * tip, tip);
      if (cross) cross.position.z = 0.5 * (length - tip);
      if (words) {
        words.visible = length > 6 * usual; // a short arrow needs no name
        words.position.z = length + 0.3 * tip;
      }
    };
    return { objects: [arrow], update, points: Float32Array.from([...from, ...to].flat()) };
  },

  label: ({ text }, colour) => ({ objects: [textSprite(text, colour)] }),
};

// {group, update(frame), points}: the part's objects in a group that moves with its position and rotation.
export function buildPart(part, scale, told = new Set()) {
  const build = BUILDERS[part.shape.kind];
  const named = part.shape.kind === "arrow" && part.name && part.named !== false && !part.shape.crossed && !part.run && !told.has(part.name);
  if (named) told.add(part.name);
  // The second run's path is thinner and on top: where two methods agree, both colours are seen.
  const shape =
    part.shape.kind === "trace" && part.run > 0 ? { ...part.shape, width: 0.45 * (part.shape.width ?? 2) } : named ? { ...part.shape, text: part.name } : part.shape;
  const { objects, update: inner, points } = build ? build(shape, part.colour, part.opacity ?? 1, scale) : { objects: [] };
  const group = new THREE.Group();
  const position = part.position ? new Track(part.position, 3) : null;
  const rotation = part.rotation ? new Track(part.rotation, 4) : null;
  const matrix = part.matrix ? new Track(part.matrix, 9) : null; // of a method that has left the rotations: the body is deformed
  group.matrixAutoUpdate = !matrix;
  if (objects.length) group.add(...objects);
  if (SOLIDS.has(part.shape.kind)) for (const object of objects) object.userData.solid = true;
  if (shape.kind === "trace" && part.run > 0)
    objects.forEach((line) => behind(line, (line.material.polygonOffsetFactor ?? 0) - 1));
  const update = (frame) => {
    let known = true;
    if (position) {
      known = position.at(frame, place3);
      if (known) group.position.fromArray(place3);
    }
    if (rotation && known) {
      known = rotation.at(frame, place4);
      if (known) group.quaternion.fromArray(place4).normalize();
    }
    if (matrix && known) {
      matrix.at(frame, place9);
      const { x, y, z } = group.position;
      const [a, b, c, d, e, f, g, h, i] = place9;
      group.matrix.set(a + FLAT, b, c, x, d, e + FLAT, f, y, g, h, i + FLAT, z, 0, 0, 0, 1);
    }
    group.visible = known && group.userData.shown !== false;
    if (inner) inner(frame);
  };
  return { group, update, points, moving: Boolean(position?.moving) };
}

// What of an arrow is inside a body shines through it.
function seenThrough(geometry, colour, opacity) {
  const material = new THREE.MeshBasicMaterial({ color: legible(colour), transparent: true, opacity: 0.35 * opacity, depthTest: false });
  return new THREE.Mesh(geometry, material);
}

// Labels keep their size in pixels, whatever the size of the view.
export function sizeLabels(root, pixelsHigh, fieldOfView) {
  const large = document.documentElement.hasAttribute("data-present") ? 1.5 : 1;
  const unit = (2 * large * Math.tan((fieldOfView * Math.PI) / 360)) / pixelsHigh;
  root.traverse((object) => {
    if (object.isSprite)
      object.scale.set(unit * object.userData.pixels * object.userData.aspect, unit * object.userData.pixels, 1);
  });
}

export function disposeObject(root) {
  root.traverse((object) => {
    object.geometry?.dispose();
    object.material?.map?.dispose();
    object.material?.dispose();
  });
}
