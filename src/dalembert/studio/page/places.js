// Places of a request that controls stand for.

export const runControls = (run, limits) => [
  {
    place: "run.step",
    label: "step h",
    kind: "number",
    low: run.step / 20,
    high: run.step * 20,
    help: "Time of one step. Make it larger and watch who keeps the energy.",
  },
  {
    place: "run.steps",
    label: "steps",
    kind: "integer",
    low: Math.max(10, Math.round(run.steps / 50)),
    high: Math.min(limits.steps, 1000 * run.steps),
  },
];

// "initial.configuration.0.angle" is a way down a request; "against" begins one of its own.
export function holderOf(request, place) {
  const keys = place.split(".");
  const last = keys.pop();
  let holder = keys[0] === "against" ? request : request.config;
  for (const key of keys) holder = holder?.[key];
  return { holder, last };
}

export const holds = ({ holder, last }) => holder !== null && typeof holder === "object" && last in holder;
