// The ground under a scene, and the place of a camera from which everything is seen.

import { cssColour } from "./theme.js";

export const FIELD = 32; // degrees, vertical
const MARGIN = 1.1;
const PIECES = 16; // of a line of the floor

function niceSpacing(size, lines) {
  const raw = size / lines;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
}

export function groundObject({ size, centre = [0, 0], normal, lines: wanted = 16 }) {
  const spacing = niceSpacing(size, wanted);
  const count = Math.max(2, Math.ceil(size / spacing / 2));
  const half = count * spacing;
  const ground = new THREE.Group();
  const floor = new THREE.Mesh(
    new THREE.PlaneGeometry(2 * half, 2 * half),
    new THREE.MeshBasicMaterial({
      color: cssColour("--floor"),
      side: THREE.DoubleSide,
      polygonOffset: true,
      polygonOffsetFactor: 4,
      polygonOffsetUnits: 8,
    }),
  );
  floor.position.z = -2e-4 * half; // below its lines, also seen from far away
  const points = [];
  // In pieces: software draws no line with an end far behind the camera.
  for (let k = -count; k <= count; k++)
    for (let j = 0; j < PIECES; j++) {
      const [from, to] = [j, j + 1].map((part) => half * ((2 * part) / PIECES - 1));
      points.push(k * spacing, from, 0, k * spacing, to, 0, from, k * spacing, 0, to, k * spacing, 0);
    }
  const lines = new THREE.BufferGeometry();
  lines.setAttribute("position", new THREE.BufferAttribute(new Float32Array(points), 3));
  ground.add(floor, new THREE.LineSegments(lines, new THREE.LineBasicMaterial({ color: cssColour("--grid") })));
  // On the level, lines on whole multiples of the spacing, so that the grid measures.
  const level = !normal || (normal[0] === 0 && normal[1] === 0);
  const snap = (x) => (level ? spacing * Math.round(x / spacing) : x);
  ground.position.set(snap(centre[0]), snap(centre[1]), centre[2] ?? 0);
  if (!level) ground.quaternion.setFromUnitVectors(new THREE.Vector3(0, 0, 1), new THREE.Vector3(...normal).normalize());
  ground.userData.spacing = spacing;
  return ground;
}

// The camera's place for which all points just fit: exact in perspective, one axis of the picture at a time.
export function frameOf(points, direction, up, aspect) {
  const towards = direction.clone().normalize();
  const right = new THREE.Vector3().crossVectors(up, towards).normalize();
  const top = new THREE.Vector3().crossVectors(towards, right);
  const tall = Math.tan((FIELD * Math.PI) / 360) / MARGIN;
  const wide = tall * aspect;
  const reach = [-Infinity, -Infinity, -Infinity, -Infinity];
  let near = -Infinity;
  let far = Infinity;
  for (const point of points) {
    const x = point.dot(right);
    const y = point.dot(top);
    const z = point.dot(towards);
    near = Math.max(near, z);
    far = Math.min(far, z);
    reach[0] = Math.max(reach[0], z + x / wide);
    reach[1] = Math.max(reach[1], z - x / wide);
    reach[2] = Math.max(reach[2], z + y / tall);
    reach[3] = Math.max(reach[3], z - y / tall);
  }
  const distance = Math.max((reach[0] + reach[1]) / 2, (reach[2] + reach[3]) / 2);
  const eye = new THREE.Vector3()
    .addScaledVector(right, (wide * (reach[0] - reach[1])) / 2)
    .addScaledVector(top, (tall * (reach[2] - reach[3])) / 2)
    .addScaledVector(towards, distance);
  return { eye, target: eye.clone().addScaledVector(towards, (near + far) / 2 - distance) };
}
