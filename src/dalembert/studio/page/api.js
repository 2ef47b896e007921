// The server: one request at a time, the newest waits; a lost connection is retried quietly and the last request sent again.

import { sleep } from "./dom.js";

const WAIT = 50; // ms from the last change to a request
const BACK_OFF = [500, 1000, 2000, 4000, 5000];

function post(path, body, options = {}) {
  const head = { "Content-Type": "application/json" };
  return fetch(path, { method: "POST", headers: head, body: JSON.stringify(body), ...options });
}

// The answer as an object, or an Error whose message says what is wrong.
async function jsonOf(asked) {
  const answer = await asked;
  if (!answer.ok) throw new Error((await problemOf(answer)).message);
  return answer.json();
}

export const postJson = (path, body, options) => jsonOf(post(path, body, options));
export const getJson = (path) => jsonOf(fetch(path));
export const fetchCatalogue = () => getJson("api/catalogue");

// What is known of a system once it is chosen: its initial state and the methods that take it.
export const fetchSystem = (name) => getJson(`api/system?name=${encodeURIComponent(name)}`);

async function problemOf(answer) {
  const fallback = { message: `The studio answered ${answer.status} ${answer.statusText}.`, place: "" };
  try {
    return { ...fallback, ...(await answer.json()).error };
  } catch {
    return fallback;
  }
}

// A file for the person: {blob, name}, or an Error whose message says what is wrong.
export async function fetchFile(request, kind) {
  const answer = await post("api/save", { request, kind });
  if (!answer.ok) throw new Error((await problemOf(answer)).message);
  const name = /filename="?([^";]+)"?/.exec(answer.headers.get("Content-Disposition") ?? "")?.[1];
  return { blob: await answer.blob(), name: name ?? `motion.${kind}` };
}

export class Simulator {
  // on.show(payload, request), on.problem({message, place}), on.busy(bool), on.lost(bool)
  constructor(on) {
    this.on = on;
    this.wanted = null;
    this.number = 0;
    this.running = false;
  }

  ask(request) {
    this.wanted = structuredClone(request);
    this.number += 1;
    // An answer about another system would flash up and vanish: it is given up.
    if (this.current && this.current.request.config?.system.name !== request.config?.system.name) this.current.abort.abort();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), WAIT);
  }

  // Gives up what is under way: the server stops it when the connection closes.
  cancel() {
    this.wanted = null;
    clearTimeout(this.timer);
    this.current?.abort.abort();
  }

  async run() {
    if (this.running || !this.wanted) return;
    this.running = true;
    this.on.busy(true);
    while (this.wanted) {
      const request = this.wanted;
      const number = this.number;
      this.wanted = null;
      await this.once(request, number);
    }
    this.running = false;
    this.on.busy(false);
  }

  async once(request, number) {
    const abort = new AbortController();
    this.current = { request, abort };
    let answer, body;
    try {
      answer = await post("api/show", request, { signal: abort.signal });
      body = answer.ok ? await answer.json() : await problemOf(answer);
    } catch {
      if (abort.signal.aborted) return;
      await this.reconnect();
      this.wanted ??= request;
      return;
    } finally {
      this.current = null;
    }
    if (abort.signal.aborted) return;
    if (answer.status === 503) await this.again(request, 1000 * (Number(answer.headers.get("Retry-After")) || 1));
    // Answers come in order; one that is out of date but of this system still moves the picture along with the slider.
    else if (answer.ok) this.on.show(body, request);
    else if (number === this.number) this.on.problem(body);
  }

  async again(request, ms) {
    await sleep(ms);
    this.wanted ??= request;
  }

  async reconnect() {
    this.on.lost(true);
    for (let attempt = 0; ; attempt++) {
      await sleep(BACK_OFF[Math.min(attempt, BACK_OFF.length - 1)]);
      try {
        if ((await fetch("api/ping")).ok) break;
      } catch {
        // still lost
      }
    }
    this.on.lost(false);
  }
}
