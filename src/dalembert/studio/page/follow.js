// A teacher's session: one page leads, others follow it by a link: the same settings, story step, time and camera. They only read.

import { byId, element, sleep } from "./dom.js";
import { getJson, postJson } from "./api.js";
import { unpackArrays } from "./data.js";

const EVERY = 200; // ms between looks at what has changed
const SIGN = 3000; // ms between signs of life, with the time of the motion
const OFF = 0.4; // seconds by which the clock of a follower may be off
const LIVE = 100; // ms between looks at what is driven
const AGAIN = 1000; // ms until a lost teacher is looked for again

// What a follower needs; the time apart, which changes all the while.
function stateOf(studio, panel, teller) {
  const { player, scene } = studio;
  const { camera, controls } = scene;
  const story = teller.story ? { name: teller.story.name, step: teller.step } : null;
  const view = [...camera.position.toArray(), ...controls.target.toArray()].map((x) => Number(x.toPrecision(6)));
  const steady = { request: panel.request, story, playing: player.playing, speed: player.speed, follow: scene.follow };
  return { ...steady, camera: scene.follow ? null : view, frame: player.playing ? null : player.frame };
}

export function offerLeading(studio, panel, teller) {
  const button = byId("lead");
  button.hidden = false;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const state = () => ({ ...stateOf(studio, panel, teller), frame: studio.player.frame });
      const { room, key } = await postJson("api/lead", { state: state() });
      studio.leading = { room, key };
      const link = `${location.origin}/?follow=${room}`;
      const field = element("input", { readonly: true, value: link, "aria-label": "The link for those who follow", size: 40 });
      byId("banner").replaceChildren("Who opens this link sees what you see: ", field);
      byId("banner").hidden = false;
      field.select();
      let told = "";
      let last = 0;
      for (;;) {
        await sleep(EVERY);
        const now = JSON.stringify(stateOf(studio, panel, teller));
        if (now === told && performance.now() - last < SIGN) continue;
        told = now;
        last = performance.now();
        await postJson("api/lead", { room, key, state: state() });
      }
    } catch (error) {
      byId("banner").replaceChildren(`The others do not follow any more: ${error.message}`);
      byId("banner").hidden = false;
      button.disabled = false;
      delete studio.leading;
    }
  });
}

// Takes over every state of the teacher; show(request) sets the panel and asks for a show.
export async function followTeacher(room, catalogue, studio, panel, teller, show) {
  document.documentElement.dataset.following = "yes";
  const alone = element("a", { href: "/", text: "look around yourself" });
  const tell = (text) => byId("banner").replaceChildren(text, alone);
  byId("banner").hidden = false;
  tell("You see what the teacher shows; ");
  let live = null; // the drive that is watched
  let stale = false; // it has ended, and its end was not yet replaced
  for (let number = 0; ; ) {
    try {
      const news = await getJson(`api/follow?room=${encodeURIComponent(room)}&after=${number}`);
      if (news.number === number) continue;
      number = news.number;
      if (news.live) await watch(news.live);
      if (news.state) await take(news.state);
      if (live) await sleep(LIVE);
      tell("You see what the teacher shows; ");
    } catch (error) {
      tell(`The teacher has gone (${error.message}); `);
      await sleep(AGAIN);
    }
  }

  // What the teacher drives, or where a plan shall bring it.
  async function watch(now) {
    const { scene, player } = studio;
    if (now.drive === null) return endWatching();
    if (now.drive) {
      const answer = await fetch(`api/follow?room=${encodeURIComponent(room)}&show=1`);
      if (!answer.ok) return;
      live = now.drive;
      player.pause();
      studio.draw(unpackArrays(await answer.json()), { fresh: true });
      player.go(0);
      studio.setFollow(scene.follow);
      scene.beginLive();
      studio.tellScale();
      document.documentElement.dataset.driving = "watch";
      requestAnimationFrame(function draw() {
        if (live !== now.drive) return;
        scene.drawLive();
        requestAnimationFrame(draw);
      });
    }
    if (!live) return;
    if (now.discs) scene.showDiscs(now.discs);
    if (now.goal) scene.showPlan(now.goal, now.path ?? []);
    if (now.pose) scene.receive(now.pose);
    if (now.time !== undefined) player.clock.textContent = `t = ${now.time.toFixed(1)}`;
  }

  function endWatching() {
    if (!live) return;
    live = null;
    stale = true;
    document.documentElement.dataset.driving = "";
    studio.scene.endLive();
  }

  async function take({ request, story, playing, speed, follow, camera, frame }) {
    const told = story && catalogue.stories.find(({ name }) => name === story.name);
    const moved = panel.changedSince(request);
    if (moved) endWatching();
    const turned = told ? teller.story !== told || teller.step !== story.step : teller.story;
    if (told && turned) teller.tell(told, story.step);
    else if (turned) teller.end();
    if (panel.changedSince(request) || (stale && !live)) show(request);
    if (moved || turned || stale) await arrived();
    stale = false;
    const { player, scene } = studio;
    player.speed = speed;
    if (scene.follow !== follow) studio.setFollow(follow);
    if (camera) scene.look(camera);
    if (live) return;
    const off = (Math.abs(player.frame - frame) * player.span) / (player.last || 1) / (player.rate * speed);
    if (!playing || !player.playing || Math.abs(off) > OFF) player.go(frame);
    if (playing) player.play();
    else player.pause();
  }

  // Until the answer is drawn, or it is known that none will come.
  async function arrived() {
    const before = document.documentElement.dataset.ready;
    for (let k = 0; k < 150 && document.documentElement.dataset.ready === before; k++) await sleep(40);
  }
}
