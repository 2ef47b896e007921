// One 3D view: a renderer, a camera that frames what is drawn, and the parts of a View. It draws only when something changed.

import { buildPart, disposeObject, sizeLabels } from "./shapes.js";
import { FIELD, frameOf, groundObject } from "./framing.js";
import { behind, castShadows, edged, upright, wideLine } from "./ink.js";
import { cssColour } from "./theme.js";

// Where pictures come too slowly, they are drawn without the surface of the floor (its lines stay), then with fewer points. Once
// the motion rests, a picture is drawn in full.
const LEVELS = [{ ratio: 1 }, { ratio: 1, bare: true }, { ratio: 0.85, bare: true }, { ratio: 0.7, bare: true }];
const SLOW = 30; // ms between pictures, above which there are too few a second
const FAST = 20; // below which more may be tried
const PATIENCE = [8, 400]; // pictures before the next worse and the next better level
const REST = 500; // ms without a picture: the motion rests
const NEAR = 6; // sizes of what is followed from which the camera looks at most
const TRAIL = 20_000; // points of the path of what is driven
const SAMPLES = 24; // frames that are looked at to frame the motion
const corner = new THREE.Vector3();
const moved = new THREE.Vector3();

// Whether the browser draws without a graphics processor.
const SOFTWARE = (() => {
  const context = document.createElement("canvas").getContext("webgl2");
  if (!context) return false;
  const about = context.getExtension("WEBGL_debug_renderer_info");
  const name = context.getParameter(about ? about.UNMASKED_RENDERER_WEBGL : context.RENDERER);
  context.getExtension("WEBGL_lose_context")?.loseContext();
  return /swiftshader|llvmpipe|softpipe|software/i.test(name);
})();

export class View3D {
  constructor(canvas) {
    this.canvas = canvas;
    try {
      this.renderer = new THREE.WebGLRenderer({ canvas, antialias: !SOFTWARE, alpha: true });
    } catch (error) {
      throw new Error(`the 3D view needs WebGL, which this browser does not give (${error.message})`);
    }
    Object.assign(this, { level: 0, changed: 0, pace: 0, drawnAt: 0, ratio: 0 });
    this.setLevel(LEVELS[0]);
    this.camera = new THREE.PerspectiveCamera(FIELD, 1, 0.01, 1000);
    this.camera.up.set(0, 0, 1);
    this.controls = new THREE.OrbitControls(this.camera, canvas);
    this.controls.addEventListener("start", () => (this.movedByHand = true));
    this.controls.addEventListener("change", () => {
      this.invalidate();
      if (!this.copying) this.partner?.copyCamera(this);
    });
    this.frame = 0;
    this.hidden = new Set();
    this.follow = false;
    this.retired = []; // scenes to be disposed of once their successor is drawn: it takes over their compiled shaders
    this.drawn = 0; // pictures drawn so far, for tests and curiosity
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
  }

  // A new View. The camera stays where a hand put it, unless `reset`. `ghost`: paths of the setting before.
  show(view, { reset = false, ghost = [] } = {}) {
    if (this.scene) this.retired.push(this.scene);
    if (reset) this.movedByHand = false;
    this.view = view;
    this.scene = new THREE.Scene();
    this.addLights();
    if (view.ground) this.scene.add((this.ground = groundObject(view.ground)));
    else this.ground = null;
    const scale = sizeOf(view);
    const told = new Set(); // arrows that have their names beside them
    this.parts = view.parts.map((part) => ({ ...buildPart(part, scale, told), run: part.run, part }));
    this.parts.forEach(({ group, part }) =>
      (part.parent === null || part.parent === undefined ? this.scene : this.parts[part.parent].group).add(group),
    );
    this.followed =
      this.parts.find(({ part }) => part.follow) ??
      this.parts.find((p) => p.run === 0 && p.moving && (p.part.parent ?? null) === null);
    if (ghost.length) this.scene.add(...ghost.map((points) => behind(wideLine(points, cssColour("--ghost"), 2, 1), 3)));
    this.shadows = this.ground ? castShadows(this.scene, view.ground) : null;
    this.applyHidden();
    this.resize();
    sizeLabels(this.scene, this.height, FIELD);
    if (this.leader) this.copyCamera(this.leader);
    else if (reset || !this.movedByHand) this.frameCamera(reset);
    this.setFrame(this.frame);
  }

  // Driving: the solid parts are moved by what arrives, and nothing else is drawn but a trail.
  beginLive() {
    const counts = new Map();
    this.livePoses = new Map();
    for (const { group, part } of this.parts) {
      const { kind } = part.shape;
      if (["trace", "line", "arrow"].includes(kind)) {
        if ((part.parent ?? null) === null) group.userData.shown = group.visible = false;
        continue;
      }
      const name = `${part.name} ${kind}`;
      counts.set(name, (counts.get(name) ?? 0) + 1);
      this.livePoses.set(`${name} ${counts.get(name)}`, { group });
    }
    if (this.ground) {
      this.scene.remove(this.ground);
      this.ground = groundObject({ ...this.view.ground, size: 10 * this.view.ground.size, lines: 120 });
      this.scene.add(this.ground);
    }
    this.trail = new THREE.LineSegments(new THREE.BufferGeometry(), new THREE.LineBasicMaterial({ color: cssColour("--accent") }));
    this.trail.geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(3 * TRAIL), 3));
    this.trail.geometry.setDrawRange(0, 0);
    this.trail.frustumCulled = false;
    this.scene.add(this.trail);
    this.arrived = this.between = 0;
    this.settled = null;
    const tall = this.camera.aspect < 1;
    this.zoom(this.follow ? 1.4 : this.ground ? (tall ? 1.8 : 2.5) : tall ? 1.5 : 1.1); // for goals there must be room
  }

  // [[key, position, quaternion], ...]: where the parts will be once the time between two arrivals has gone by.
  receive(pose) {
    if (!this.livePoses) return;
    const now = performance.now();
    this.between = this.arrived ? Math.min(now - this.arrived, 500) : 0;
    this.arrived = now;
    for (const [key, position, quaternion] of pose) {
      const live = this.livePoses.get(key);
      if (!live) continue;
      live.from = { position: live.group.position.clone(), quaternion: live.group.quaternion.clone() };
      live.to = {
        position: position ? new THREE.Vector3(...position) : null,
        quaternion: quaternion ? new THREE.Quaternion(...quaternion) : null,
      };
    }
  }

  drawLive() {
    const part = this.between ? Math.min((performance.now() - this.arrived) / this.between, 1) : 1;
    if (part === 1 && this.settled === this.arrived) return; // nothing moves
    this.settled = part === 1 ? this.arrived : null;
    const anchor = this.followed ? moved.copy(this.followed.group.position) : null;
    for (const { group, from, to } of this.livePoses.values()) {
      if (!to) continue;
      if (to.position) group.position.lerpVectors(from.position, to.position, part);
      if (to.quaternion) group.quaternion.slerpQuaternions(from.quaternion, to.quaternion, part);
    }
    if (anchor) {
      const here = this.followed.group.position;
      anchor.subVectors(here, anchor);
      this.camera.position.add(anchor);
      this.controls.target.add(anchor);
      this.camera.updateMatrixWorld();
      const { drawRange, attributes } = this.trail.geometry;
      const at = Math.min(drawRange.count, TRAIL - 2);
      attributes.position.setXYZ(at, here.x - anchor.x, here.y - anchor.y, 0.002);
      attributes.position.setXYZ(at + 1, here.x, here.y, 0.002);
      attributes.position.needsUpdate = true;
      this.trail.geometry.setDrawRange(0, at + 2);
    }
    this.invalidate();
    this.drawNow();
  }

  // Where a pointer meets the floor z = 0.
  floorPoint({ clientX, clientY }) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    moved.set((2 * (clientX - left)) / width - 1, 1 - (2 * (clientY - top)) / height, 0.5).unproject(this.camera);
    moved.sub(this.camera.position);
    const distance = -this.camera.position.z / moved.z;
    return distance > 0 ? moved.clone().multiplyScalar(distance).add(this.camera.position) : null;
  }

  // Where a pointer touches a sphere in the middle of the picture, as seen from the camera; beside it, on its rim.
  spherePoint({ clientX, clientY }) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    const size = 0.4 * Math.min(width, height);
    const [x, y] = [(clientX - left - width / 2) / size, (top + height / 2 - clientY) / size];
    const rest = 1 - x * x - y * y;
    return new THREE.Vector3(x, y, rest > 0 ? Math.sqrt(rest) : 0).normalize();
  }

  // A turn as seen from the camera, applied to an attitude [x, y, z, w] in space.
  turnAsSeen(turn, attitude) {
    const eye = this.camera.quaternion;
    const moved = eye.clone().multiply(turn).multiply(eye.clone().conjugate());
    return moved.multiply(new THREE.Quaternion(...attitude)).normalize().toArray();
  }

  // The attitude [x, y, z, w] of what can be turned, as it is now.
  attitude() {
    return this.parts.find(({ part }) => part.ghost).group.quaternion.toArray();
  }

  // A goal as an arrow [x, y, angle] on the floor or a ghost of the body at [x, y, z, w], and the path of the plan to it.
  showPlan(goal, path) {
    this.retire(this.planned);
    const size = 0.02 * this.camera.position.distanceTo(this.controls.target);
    this.planned = new THREE.Group();
    const colour = cssColour("--good");
    if (goal.length === 4) this.showGhost(goal, colour);
    else {
      const [x, y, angle] = goal;
      const head = new THREE.Mesh(new THREE.ConeGeometry(0.6 * size, 2 * size, 24), new THREE.MeshBasicMaterial({ color: colour }));
      head.position.set(x, y, 0.02 * size);
      head.rotation.set(0, 0, angle - Math.PI / 2);
      this.planned.add(head);
    }
    if (path.length > 1)
      this.planned.add(wideLine(Float32Array.from(path.flatMap(([x, y, z = 0.01 * size]) => [x, y, z])), colour, 3, 1));
    this.scene.add(this.planned);
    this.invalidate();
  }

  // The body once more, in one colour that lets light through, at the attitude of the goal.
  showGhost(attitude, colour) {
    if (!this.aimed) {
      const { group } = this.parts.find(({ part }) => part.ghost);
      const skin = new THREE.MeshLambertMaterial({ color: colour, transparent: true, opacity: 0.4, depthWrite: false, side: THREE.DoubleSide });
      const edge = new THREE.LineBasicMaterial({ color: colour });
      this.aimed = group.clone();
      this.aimed.traverse((object) => {
        if (object.material) object.material = object.isMesh ? skin : edge;
      });
      this.scene.add(this.aimed);
    }
    this.aimed.quaternion.fromArray(attitude);
  }

  // What is shown no more goes once its successor is drawn, which takes over its shaders: they are slow to compile.
  retire(object) {
    if (!object) return;
    this.scene.remove(object);
    this.retired.push(object);
  }

  // Obstacles on the floor, [[x, y, radius], ...].
  showDiscs(discs) {
    this.retire(this.discs);
    this.discs = new THREE.Group();
    for (const [x, y, radius] of discs) {
      const [mesh, rim] = edged(upright(new THREE.CylinderGeometry(radius, radius, 0.3 * radius, 40)), cssColour("--bad"), 0.8);
      for (const object of [mesh, rim]) object.position.set(x, y, 0.15 * radius);
      this.discs.add(mesh, rim);
    }
    this.scene.add(this.discs);
    this.invalidate();
  }

  endLive() {
    this.livePoses = this.planned = this.discs = this.aimed = null;
    this.movedByHand = false;
  }

  // Two panes with one camera: this one frames what both show, and the other looks from the same place.
  lead(other) {
    this.partner = other;
    if (other) Object.assign(other, { partner: this, leader: this });
  }

  copyCamera(other) {
    this.copying = true;
    if (!this.follow) this.controls.target.copy(other.controls.target);
    this.camera.position.copy(other.camera.position).sub(other.controls.target).add(this.controls.target);
    this.camera.near = other.camera.near;
    this.camera.far = other.camera.far;
    this.camera.updateProjectionMatrix();
    this.controls.update();
    this.copying = false;
    this.invalidate();
  }

  // What both panes show; a motion that has flown away does not make the other one tiny.
  contentsOfBoth() {
    const own = this.contents();
    if (!this.partner?.scene || !own.length) return own;
    const box = new THREE.Box3().setFromPoints(own);
    box.expandByScalar(0.2 * box.min.distanceTo(box.max));
    const others = this.partner.contents().filter((point) => box.containsPoint(point));
    this.partner.setFrame(this.partner.frame);
    return [...own, ...others];
  }

  addLights() {
    this.scene.add(new THREE.HemisphereLight("#ffffff", "#b8b0a8", 2.1));
    const sun = new THREE.DirectionalLight("#ffffff", 1.5);
    sun.position.set(2, -3, 5);
    this.scene.add(sun);
  }

  setFrame(frame) {
    this.frame = frame;
    if (!this.scene) return;
    const anchor = this.follow && this.followed ? moved.copy(this.followed.group.position) : null;
    for (const part of this.parts) part.update(frame);
    if (anchor) {
      anchor.subVectors(this.followed.group.position, anchor);
      this.camera.position.add(anchor);
      this.controls.target.add(anchor);
      this.camera.updateMatrixWorld();
    }
    this.invalidate();
  }

  setFollow(follow) {
    this.follow = follow;
    if (follow && this.followed) {
      this.comeNear();
      const box = this.bodies();
      if (box.isEmpty()) moved.copy(this.followed.group.position);
      else box.getCenter(moved);
      moved.sub(this.controls.target);
      this.camera.position.add(moved);
      this.controls.target.add(moved);
      this.controls.update();
    }
    this.invalidate();
  }

  // The room that the solid bodies of the first run take now.
  bodies() {
    const box = new THREE.Box3();
    this.scene.updateMatrixWorld();
    for (const { group, run, part, moving } of this.parts)
      if (run === 0 && (moving || (part.parent ?? null) !== null))
        for (const object of group.children) if (object.isMesh && object.userData.solid) box.expandByObject(object);
    return box;
  }

  // What is followed is seen: where its path is long, the camera comes nearer than all of that asks for.
  comeNear() {
    if (this.leader || this.movedByHand) return;
    const { group } = this.followed;
    const box = new THREE.Box3();
    group.traverse((object) => object.isMesh && box.expandByObject(object));
    const nearest = NEAR * box.getSize(corner).length();
    const distance = this.camera.position.distanceTo(this.controls.target);
    if (!(nearest > 0 && distance > nearest)) return;
    this.camera.position.sub(this.controls.target).multiplyScalar(nearest / distance).add(this.controls.target);
    this.camera.near = nearest / 200;
    this.camera.updateProjectionMatrix();
  }

  setHidden(runs) {
    this.hidden = runs;
    this.applyHidden();
    this.setFrame(this.frame);
  }

  applyHidden() {
    for (const part of this.parts) part.group.userData.shown = !this.hidden.has(part.run);
  }

  // The corners of every part at some frames, and the points of its lines.
  contents() {
    const points = [];
    const box = new THREE.Box3();
    const frames = Math.max(...this.parts.map(({ part }) => frameCount(part)), 1);
    const samples = Math.min(SAMPLES, frames);
    for (let k = 0; k < samples; k++) {
      for (const part of this.parts) part.update(samples > 1 ? (k * (frames - 1)) / (samples - 1) : 0);
      this.scene.updateMatrixWorld();
      for (const { group, points: own, part } of this.parts) {
        if (!group.visible || part.shape.kind === "label" || (own && k > 0)) continue;
        if (own) {
          const stride = 3 * Math.max(1, Math.floor(own.length / 3 / 256));
          for (let i = 0; i + 2 < own.length; i += stride)
            if (Number.isFinite(own[i]))
              points.push(new THREE.Vector3(own[i], own[i + 1], own[i + 2]).applyMatrix4(group.matrixWorld));
          continue;
        }
        for (const object of group.children) {
          if (!object.isMesh || !object.geometry) continue;
          object.geometry.boundingBox ?? object.geometry.computeBoundingBox();
          box.copy(object.geometry.boundingBox);
          for (let i = 0; i < 8; i++) {
            corner.set(i & 1 ? box.max.x : box.min.x, i & 2 ? box.max.y : box.min.y, i & 4 ? box.max.z : box.min.z);
            points.push(corner.clone().applyMatrix4(object.matrixWorld));
          }
        }
      }
    }
    return points;
  }

  frameCamera(always) {
    const given = this.view.camera ?? { position: [3, -4, 2.5], target: [0, 0, 0] };
    const position = new THREE.Vector3(...given.position);
    const target = new THREE.Vector3(...given.target);
    let fit = { eye: position, target };
    const points = given.exact ? [] : this.contentsOfBoth();
    if (points.length) fit = frameOf(points, position.clone().sub(target), this.camera.up, this.camera.aspect);
    if (!always && points.length && this.stillFits(points, fit)) return;
    this.camera.position.copy(fit.eye);
    this.controls.target.copy(fit.target);
    const distance = fit.eye.distanceTo(fit.target);
    this.camera.near = distance / 200;
    this.camera.far = distance * 50;
    this.camera.updateProjectionMatrix();
    this.controls.update();
  }

  // While a slider moves, the camera stays as long as the picture is neither cut nor tiny: a jumping scale confuses.
  stillFits(points, fit) {
    if (!this.framed) return !(this.framed = true);
    this.camera.updateMatrixWorld();
    const inside = points.every((point) => {
      corner.copy(point).project(this.camera);
      return Math.abs(corner.x) < 1 && Math.abs(corner.y) < 1;
    });
    const now = this.camera.position.distanceTo(this.controls.target);
    return inside && fit.eye.distanceTo(fit.target) > 0.75 * now;
  }

  resetCamera() {
    this.movedByHand = false;
    if (this.leader) return this.copyCamera(this.leader);
    this.frameCamera(true);
    this.setFrame(this.frame);
    if (this.follow) this.setFollow(true);
  }

  // From a place to a point: [x, y, z, x, y, z].
  look(view) {
    this.movedByHand = true;
    this.camera.position.fromArray(view);
    this.controls.target.fromArray(view, 3);
    this.controls.update();
    this.invalidate();
  }

  zoom(factor) {
    this.movedByHand = true;
    this.camera.position.sub(this.controls.target).multiplyScalar(factor).add(this.controls.target);
    this.controls.update();
    this.invalidate();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    if (!width || !height || (this.width === width && this.height === height)) return;
    [this.width, this.height] = [width, height];
    this.renderer.setSize(width, height, false);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    if (this.scene) sizeLabels(this.scene, height, FIELD);
    if (this.scene && !this.movedByHand && !this.follow) this.resetCamera();
    this.invalidate();
  }

  invalidate() {
    if (this.waiting || !this.scene) return;
    this.waiting = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.waiting = 0;
    this.drawn += 1;
    this.adapt();
    this.setLevel(LEVELS[this.level]);
    this.render();
    clearTimeout(this.resting);
    if (this.level || SOFTWARE) this.resting = setTimeout(() => this.drawInFull(), REST);
  }

  // What is wanted already, in this frame of the browser and not in its next.
  drawNow() {
    if (!this.waiting) return;
    cancelAnimationFrame(this.waiting);
    this.draw();
  }

  // The words at the tips of arrows, on the side to which these point, moved so that the edge of the picture does not cut
  // them and none lies on another.
  keepWordsApart() {
    const { aspect } = this.camera;
    const tall = Math.tan((FIELD * Math.PI) / 360); // of a picture from -1 to 1
    const inside = (at, size, middle) => (Math.abs(at) < 1.2 ? Math.min(Math.max(middle, 1 - (1 - at) / size), (1 + at) / size) : middle);
    const taken = [];
    this.scene.updateMatrixWorld();
    this.camera.updateMatrixWorld();
    this.scene.traverseVisible((object) => {
      if (!object.isSprite) return;
      const { x, y } = corner.setFromMatrixPosition(object.matrixWorld).project(this.camera);
      const [wide, high] = [object.scale.x / (tall * aspect), object.scale.y / tall];
      let [right, up] = [0, 0];
      if (object.userData.beside) {
        const start = moved.setFromMatrixPosition(object.userData.beside.matrixWorld).project(this.camera);
        [right, up] = [(x - start.x) / wide, (y - start.y) / high];
        const most = 2 * Math.max(Math.abs(right), Math.abs(up)) || 1;
        [right, up] = [right / most, up / most];
      }
      object.center.set(inside(x, wide, 0.5 - right), inside(y, high, 0.5 - up));
      if (object.userData.aspect < 2) return; // a cross, or the name of an axis
      const left = x - object.center.x * wide;
      const low = y - object.center.y * high;
      const off = (at) => Math.abs(at - low) + (at < -1 || at + high > 1 ? 9 : 0);
      const isFree = (at) => taken.every(([l, b, w, h]) => at > b + h || b > at + high || left > l + w || l > left + wide);
      const places = [low, ...taken.flatMap(([, b, , h]) => [b + h + 1e-6, b - high - 1e-6])].filter(isFree);
      const [best] = places.sort((one, other) => off(one) - off(other));
      object.center.y = (y - best) / high;
      taken.push([left, best, wide, high]);
    });
  }

  render() {
    this.shadows?.();
    this.keepWordsApart();
    this.renderer.render(this.scene, this.camera);
    this.retired.forEach(disposeObject);
    this.retired.length = 0;
  }

  // In full; without a graphics processor twice as fine, which smooths the edges.
  drawInFull() {
    this.setLevel({ ratio: SOFTWARE ? 2 / Math.min(devicePixelRatio, 2) : 1 });
    this.render();
  }

  setLevel({ ratio, bare = false }) {
    const wanted = ratio * Math.min(devicePixelRatio, 2);
    if (wanted !== this.ratio) this.renderer.setPixelRatio((this.ratio = wanted));
    if (this.ground) this.ground.children[0].visible = !bare;
  }

  // A worse level while pictures come too slowly, a better one after a long time in which they come fast.
  adapt() {
    const now = performance.now();
    const between = now - this.drawnAt;
    this.drawnAt = now;
    if (between > REST) return;
    this.pace += 0.2 * (between - this.pace);
    const since = this.drawn - this.changed;
    const step = this.pace > SLOW && since > PATIENCE[0] ? 1 : this.pace < FAST && since > PATIENCE[1] ? -1 : 0;
    if (!step || !LEVELS[this.level + step]) return;
    this.level += step;
    this.changed = this.drawn;
  }

  picture() {
    this.drawInFull();
    return new Promise((done) => this.canvas.toBlob(done, "image/png"));
  }
}

function frameCount(part) {
  const tracks = [part.position, part.rotation, part.shape.from, part.shape.to].filter((track) => track instanceof Float32Array);
  return Math.max(1, ...tracks.map((track) => track.shape?.[0] ?? 1));
}

// A length that belongs to the scene: the ground's, or the camera's distance.
function sizeOf(view) {
  if (view.ground?.size) return view.ground.size;
  if (!view.camera) return 4;
  return Math.hypot(...view.camera.position.map((x, i) => x - view.camera.target[i]));
}
