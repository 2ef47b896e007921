// What shapes are made of: materials, wide lines, edges, two-toned surfaces and labels.

import { cssColour, isDark, legible, readable } from "./theme.js";

const SHADOWED = 0.3; // what lets more light through has no shadow
const WORD = 19; // pixels, the height of a line of words
const TINT = 0.8; // the darker tone of two-toned bodies, which makes their rotation visible

// The colour of what is yet to come: mixed with the background, since see-through lines show their joints.
export function pale(colour) {
  return `#${new THREE.Color(legible(colour)).lerp(new THREE.Color(cssColour("--scene")), 0.5).getHexString()}`;
}

export function solidMaterial(colour, opacity, twoToned = false) {
  const clear = opacity < 1;
  return new THREE.MeshLambertMaterial({
    color: legible(colour),
    transparent: clear,
    opacity,
    depthWrite: !clear,
    vertexColors: twoToned,
    side: clear ? THREE.DoubleSide : 0,
    polygonOffset: true,
    polygonOffsetFactor: 1,
    polygonOffsetUnits: 1,
  });
}

export function inkMaterial(opacity) {
  return new THREE.LineBasicMaterial({ color: isDark() ? "#0b1016" : "#10202c", transparent: true, opacity: 0.55 * opacity });
}

// Every triangle gets the light or the dark tone by the octant or sector its middle lies in.
export function twoTone(indexed, isDarkTone) {
  const geometry = indexed.toNonIndexed();
  indexed.dispose();
  const position = geometry.attributes.position.array;
  const colours = new Float32Array(position.length);
  for (let i = 0; i < position.length; i += 9) {
    const middle = [0, 1, 2].map((axis) => position[i + axis] + position[i + 3 + axis] + position[i + 6 + axis]);
    colours.fill(isDarkTone(...middle) ? TINT * TINT : 1, i, i + 9);
  }
  geometry.setAttribute("color", new THREE.BufferAttribute(colours, 3));
  return geometry;
}

export function strokes(points, opacity) {
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(points), 3));
  return new THREE.LineSegments(geometry, inkMaterial(opacity));
}

export const upright = (geometry) => geometry.rotateX(Math.PI / 2); // three's cylinders stand along y, ours along z

export function edged(geometry, colour, opacity) {
  return [
    new THREE.Mesh(geometry, solidMaterial(colour, opacity)),
    new THREE.LineSegments(new THREE.EdgesGeometry(geometry, 25), inkMaterial(opacity)),
  ];
}

export function spokes(radius, heights, count = 8) {
  const points = [];
  for (const height of heights)
    for (let k = 0; k < count; k++) {
      const angle = (2 * Math.PI * k) / count;
      points.push(0, 0, height, radius * Math.cos(angle), radius * Math.sin(angle), height);
    }
  return points;
}

export const sector = (x, y) => Math.floor((Math.atan2(y, x) / Math.PI) * 4 + 8) % 2 === 0;

export function facesToIndex(faces) {
  const index = [];
  for (const face of faces) for (let i = 1; i + 1 < face.length; i++) index.push(face[0], face[i], face[i + 1]);
  return index;
}

export function wideLine(points, ink, width, opacity) {
  const geometry = new THREE.LineGeometry();
  geometry.setPositions(points);
  const material = new THREE.LineMaterial({
    color: ink,
    linewidth: width,
    transparent: opacity < 1,
    opacity,
    depthWrite: opacity === 1,
  });
  const line = new THREE.Line2(geometry, material);
  line.frustumCulled = false;
  return line;
}

// Lines in one place: those further behind (larger layer) give way, without flicker.
export function behind(line, layer) {
  Object.assign(line.material, { polygonOffset: true, polygonOffsetFactor: layer, polygonOffsetUnits: 4 * layer });
  return line;
}

// Words, drawn twice as large as they are shown: of larger ones, small pictures would show little but the rim.
export function textSprite(text, colour, size = 1) {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const high = Math.round(2 * WORD * size);
  const font = `500 ${0.7 * high}px system-ui, sans-serif`;
  context.font = font;
  canvas.width = Math.ceil(context.measureText(text).width + 0.4 * high);
  canvas.height = high;
  context.font = font;
  context.textBaseline = "middle";
  context.lineWidth = 0.16 * high;
  context.lineJoin = "round";
  context.strokeStyle = cssColour("--scene");
  context.strokeText(text, 0.2 * high, 0.5 * high);
  context.fillStyle = readable(colour);
  context.fillText(text, 0.2 * high, 0.5 * high);
  const texture = new THREE.CanvasTexture(canvas);
  texture.colorSpace = THREE.SRGBColorSpace;
  const sprite = new THREE.Sprite(
    new THREE.SpriteMaterial({ map: texture, sizeAttenuation: false, depthTest: false, transparent: true }),
  );
  sprite.userData = { pixels: WORD * size, aspect: canvas.width / canvas.height };
  sprite.renderOrder = 10;
  return sprite;
}

const SUN = new THREE.Vector3(2, -3, 5).normalize();
const onFloor = new THREE.Group().matrix.clone(); // the bundle has no name for its matrices

// Flat shadows of the solid bodies on the floor: the same geometry pressed onto it along the light, in one opaque tone, so that
// shadows do not add up. Returns the function that moves them to where the bodies are.
export function castShadows(scene, { centre = [0, 0, 0], normal = [0, 0, 1] }) {
  const n = new THREE.Vector3(...normal).normalize();
  const d = n.dot(new THREE.Vector3(centre[0], centre[1], centre[2] ?? 0));
  const s = n.dot(SUN);
  const row = (axis) => ["x", "y", "z"].map((other) => (axis === other ? 1 : 0) - (SUN[axis] * n[other]) / s);
  onFloor.set(...row("x"), (SUN.x * d) / s, ...row("y"), (SUN.y * d) / s, ...row("z"), (SUN.z * d) / s, 0, 0, 0, 1);
  const press = onFloor.clone();
  const material = new THREE.MeshBasicMaterial({ color: cssColour("--shadow"), side: THREE.DoubleSide });
  behind({ material }, 2);
  const pairs = [];
  scene.traverse((object) => {
    if (object.isMesh && object.userData.solid && object.material.opacity >= SHADOWED) pairs.push({ object, shadow: null });
  });
  for (const pair of pairs) {
    pair.shadow = new THREE.Mesh(pair.object.geometry, material);
    pair.shadow.matrixAutoUpdate = false;
    pair.shadow.frustumCulled = false;
    scene.add(pair.shadow);
  }
  return () => {
    scene.updateMatrixWorld();
    for (const { object, shadow } of pairs) {
      shadow.matrix.multiplyMatrices(press, object.matrixWorld);
      shadow.visible = isShown(object);
    }
  };
}

function isShown(object) {
  for (let at = object; at; at = at.parent) if (!at.visible) return false;
  return true;
}
