"""A show: what the page draws of a request, as data.

`present` checks a request, integrates its runs and returns the scene, the momentum in its own space, the plots, and how
each run went beside what its method claims.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, cycle
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..groups import Group
from ..integrators import EXACT, MEANINGS, METHODS, Claims, EulerPoincareSuslov, Integrator
from ..io.config import Job
from ..io.dataset import open_dataset
from ..kernels import evaluate, one_at_a_time
from ..mechanics import InvariantSystem, LRSystem, MechanicalSystem, MechanismSystem, State, System, without_forces
from ..mechanics.mechanism import Joint
from ..mechanics.system import unit_element
from ..models import MODELS, unicycle
from ..optimise import Plan, Tracker, plan, track
from ..plotting.runs import about, principal_axes
from ..plotting.studies import momentum_locus
from ..plotting.style import FLOOR
from ..simulation import Run, simulate, to_json
from . import requests
from .catalogue import STORIES, example
from .requests import RunFrames, StudioInput
from .scenes import AIM, globe, make_scene, mechanism_of, picture, rotate, stretch_of
from .view import CONSTRAINT, DARK, GREY, INKS, SURFACE, TEXTS, Array, View, label, pack_array, sphere_shape, surface

PARKS: dict[str, dict[str, Any]] = STORIES["park"]
"""Systems that plans bring to a goal, their sizes, and the push on their inputs that disturbs them."""
OWN_GOALS = "have two inputs on SO(3), SE(2) or SE(2) x SO(2), or are mechanisms on wheels with at most one that steers"
NO_WAY = "no way there was found from those that were tried: pull the goal elsewhere, or an obstacle away"
GOALS = {False: "[x, y, angle]", True: "a quaternion [x, y, z, w]"}
PLAN_STEPS, PUSH_STEPS, MAX_GOAL, MAX_DISCS, LONGEST = 100, 4, 50.0, 3, 12.0  # the last: seconds
HURRY_SECONDS, PATIENT_SECONDS = 0.02, 0.5
"""How long further ways around discs are tried while the pointer moves, and when it rests."""
STRENGTH, MOTOR_SECONDS = 6.0, 2.0
"""The acceleration by an input without bounds when the stick is full, and the time in which a motor finds its rate."""
HELD_ANGLE, HELD_RATE = 0.5, 6.0
"""How far the stick turns a joint (rad), and how quickly it is there (1/s)."""
CALM, REACHED, MAX_HITCH = 10.0, 5e-3, 1.2
"""What the rates of joints cost that steer (per (rad/s)^2), what counts as at the goal, how far trailers bend (rad)."""
DRIVES: dict[str, Any] = STORIES["drive"]
"""What stick and keys do to the inputs of a system."""
LOCUS_POINTS = 25
"""Points of the grid of a momentum locus in each direction."""
ROUND_OFF, SOLVER_ACCURACY = 1e-11, 1e-9
"""Relative sizes up to which a number counts as round-off, and an invariant as conserved by the solver."""
MAX_DRIVE_STEPS, MAX_DRIVEN, SHOWN_STEPS = 50, 40_000, 40
MOST_HALVED = 50_000  # steps of a run that is made again with half the step
"""Steps in one request of somebody who drives, and controls in a whole drive, which must fit into a request."""
LEANING = ("rolling-disk", "bicycle")
"""Models that stand on their wheels and lean."""
NEGLIGIBLE = 1e-6
"""A component of the velocity that stays below this part of the others is not drawn."""


_rehearsed: set[str] = set()  # kinds of requests that this process knows


def present(request: Any, opened: StudioInput, cancelled: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """The answer to a request: scene, momentum, plots, and how every run went."""
    frames, saved = requests.check_request(request, opened)
    answer: dict[str, Any] = {"discs": opened.obstacles(request)}
    if saved is not None:
        attributes, config = open_dataset(saved).attrs, ""
        title = str(attributes.get("system") or saved.name)
        named = (requests.config_of_file(saved) or {}).get("method", {}).get("name")
        method = named or str(attributes.get("method", "")).partition("(")[0]
        method = next((each.name for each in METHODS.values() if each.build.__name__ == method), method)
        runs = [requests.frames_of_file(saved, frames)]
        summaries = [_summary(runs[0], method, None, attributes)]
    else:
        jobs, velocity = requests.jobs_of(request, opened)
        title, config = jobs[0].names["system"], jobs[0].text
        answer["initial"] = {} if velocity is None else {"velocity": velocity}
        if not request.get("controls") and (kind := requests.kind_of(request)) not in _rehearsed:
            _rehearsed.add(kind)
            make_scene([requests.rehearse(jobs[0])])
            claims_of(jobs[0].integrator, jobs[0].system)
            with one_at_a_time(kind):  # another process compiles the steps
                pass
        done = [
            requests.integrate(job, requests.frame_interval(job, frames), cancelled, opened, controls)
            for job, controls in ((job, requests.controls_of(request, job)) for job in jobs)
        ]
        times = max((np.asarray(run.t) for run, *_ in done), key=lambda t: abs(t[-1] - t[0]))
        runs = [requests.frames_of_run(done[k][0], job, k, times, done[k][1]) for k, job in enumerate(jobs)]
        finer: list[RunFrames] = []
        if len(jobs) > 1 and not request.get("controls") and all(map(_can_be_halved, jobs)):
            for k, job in enumerate(jobs):
                half = replace(job, run={"step": job.run["step"] / 2, "steps": 2 * job.run["steps"]})
                run = requests.integrate(half, 2 * requests.frame_interval(job, frames), cancelled, opened)[0]
                finer.append(requests.frames_of_run(run, job, k, times))
        summaries = [_summary(runs[k], job.names["method"], done[k][2], {}) for k, job in enumerate(jobs)]
    apart = bool(request.get("panes")) and len(runs) > 1
    answer |= _present(runs, summaries, title, config, apart)
    if saved is None and len(runs) > 1:
        answer["verdict"] = compare_runs(runs, summaries, finer)
    return answer


def _can_be_halved(job: Job) -> bool:
    return not (job.events or job.integrator.variable_step) and job.run["steps"] <= MOST_HALVED


def show_run(run: Run) -> dict[str, Any]:
    """What the page plays of a run of Python."""
    frames = requests.frames_of_run(run)
    return _present([frames], [_summary(frames, run.integrator.name, None, {})], run.system.title, "", False)


def _present(
    runs: Sequence[RunFrames], summaries: list[dict[str, Any]], title: str, config: str, apart: bool
) -> dict[str, Any]:
    """Scene, momentum, plots and words of runs; two of them in two panes where they are `apart`."""
    view, caption = make_scene(runs[:1] if apart else runs)
    beside = make_scene([replace(runs[1], alone=True)], view)[0].data() if apart else None
    momentum, name, mechanism = momentum_view(runs), runs[0].name, mechanism_of(runs[0])
    called = getattr(without_forces(runs[0].system), "names", None) if runs[0].system is not None else None
    own = (mechanism.parts.name if mechanism is not None else called.system if called else "") or title  # not its file
    return {
        "title": MODELS[title].title if title in MODELS else own,
        "why": MODELS[name].why if name in MODELS else "",
        "time": pack_array(runs[0].t),
        "runs": summaries,
        "scene": view.data(),
        "beside": beside,
        "verdict": "",
        "momentum": None if momentum is None else momentum.data(),
        "plots": conservation_plots(runs) + motion_plots(runs),
        "caption": " ".join([caption, *tell_events(runs[0].trajectory)]),
        "inputs": [each.name for each in (runs[0].system.inputs if runs[0].system else None) or ()],
        "goal": goal_kind(runs[0].name, runs[0].system),
        "config": config,
    }


def tell_events(run: Run | None) -> list[str]:
    """When the events of a run happened, a sentence for each."""
    told = []
    for name, found in ({} if run is None else run.events).items():
        times = ", ".join(f"{t:.4g}" for t in found.t[:5]) + (", .." if len(found) > 5 else "")
        happens = f"happens at t = {times}{' and ends the run' if found.stop else ''}" if times else "does not happen"
        told.append(f"The event '{name}' {happens}.")
    return told


def compare_runs(
    runs: Sequence[RunFrames], summaries: Sequence[Mapping[str, Any]], finer: Sequence[RunFrames] = ()
) -> str:
    """Which of two runs kept more, in sentences: also where it is the one that is not geometric.

    `finer` are the same with half the step: the motion that changes less is nearer to the true one.
    """
    (first, second), told = [summary["label"] for summary in summaries], []
    scale = stretch_of(runs[0].parts[0]) if runs[0].parts[0].ndim == 2 else 1.0  # of a point, as it is drawn
    texts = TEXTS["verdict"]
    failed = [summary["status"] != "ok" for summary in summaries]
    if any(failed):
        told.append(texts["both stopped" if all(failed) else "stopped"].format(first if failed[0] else second))
    for key in ("energy_error", "constraint", "group"):
        sizes = [summary[key] for summary in summaries]
        if None in sizes or max(sizes) < texts["least"]:
            continue
        better, worse = (first, second) if sizes[0] <= sizes[1] else (second, first)
        ratio = max(sizes) / max(min(sizes), FLOOR)
        kept = texts[key].format(energy=summaries[0]["energy_title"].lower())
        numbers = {"kept": kept, "better": better, "worse": worse}
        numbers |= {"small": two_figures(min(sizes)), "large": two_figures(max(sizes))}
        told.append(texts["alike" if ratio < texts["ratio"] else "differ"].format(**numbers))
        if key == "energy_error" and better.startswith("runge") and ratio >= texts["ratio"]:
            told.append(texts["runge-kutta"])

    def between(one: RunFrames, other: RunFrames) -> float:
        drawn = [run.parts if len(run.parts) > 1 else (run.parts[0] * scale,) for run in (one, other)]
        return max(motion_distance(*parts) for parts in zip(*drawn, strict=True))

    apart = between(*runs)
    how = "together" if apart < texts["visible"] else "apart" if apart < 1.0 else "far apart"
    told.append(texts[how].format(apart=two_figures(apart if apart >= 1.0 else 100 * apart)))
    if finer and how != "together":
        changes = [between(*pair) for pair in zip(runs, finer, strict=True)]
        (small, better), (large, worse) = sorted(zip(changes, (first, second), strict=True))
        if small > texts["unsure"]:
            told.append(texts["neither"])
        elif large > texts["ratio"] * small:
            told.append(texts["nearer"].format(better=better, worse=worse, small=two_figures(100 * small)))
    return " ".join(told)


def two_figures(size: float) -> str:
    """A size as one reads it: 0, 0.053, 3.5e-4, 6.3e4."""
    if size == 0.0 or 1e-3 <= size < 1e3:
        return f"{float(f'{size:.2g}'):g}"
    mantissa, exponent = f"{size:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def motion_distance(one: Array, other: Array) -> float:
    """The largest distance of two motions at one time, as a part of the extent of the smaller one."""
    flat = [np.asarray(values, float).reshape(len(values), -1) for values in (one, other)]
    extent = min(float(np.linalg.norm(np.ptp(values, axis=0))) for values in flat)
    return float(np.linalg.norm(flat[0] - flat[1], axis=1).max()) / max(extent, 1e-12)


def _summary(frames: RunFrames, method: str, seconds: float | None, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """How a run went; of one in a file that cannot hold its system, the attributes of the file tell."""
    run, energy = frames.trajectory, frames.conservation
    if run is None:
        failed = attributes.get("status") == "failed"
        numbers = {"energy_error": energy.peak, "constraint": frames.constraint.max(), "group": frames.distance.max()}
        step, steps = float(attributes.get("step") or 0.0), len(frames.t) - 1
        if step:  # frames are fewer than steps
            steps = round(abs(float(frames.t[-1] - frames.t[0]) / step))
        about: dict[str, Any] = {"steps": steps, "step": step, "claims": []}
        about |= {"backend": attributes.get("backend", ""), "status": "failed" if failed else "ok", "failed_at": None}
        about |= {"reason": attributes.get("reason", ""), "time_failed": float(frames.t[-1]) if failed else None}
    else:
        summary, started = run.summary(frames.balance), run.failed_at != -1
        constraint = summary.constraint or 0.0 if started else None
        numbers = {"energy_error": summary.energy_defect, "constraint": constraint, "group": summary.group}
        change = momentum_change(frames) if started else None
        moved = None if change is None else float(change.max())
        claims = judge_claims(claims_of(run.integrator, run.system), frames, numbers, moved)
        about = {name: getattr(summary, name) for name in ("steps", "step", "backend", "status", "failed_at")}
        about |= {"reason": summary.reason or "", "claims": claims}
        about["time_failed"] = None if summary.status == "ok" else summary.time
    about |= {"label": method, "seconds": seconds, "colour": frames.colour, "energy_title": energy.title}
    return about | {key: to_json(numbers[key]) for key in ("energy_error", "constraint", "group")}


class Drive:
    """A run that goes on while somebody drives it: a request takes some steps under stick and keys.

    The controls of every step are linear in the stick (x, y) and in what the system does, as `DRIVES` says; they are
    told to the page, and `simulate` with them repeats the run bit for bit.
    """

    def __init__(self, request: Any, opened: StudioInput):
        requests.check_request(request, opened)
        (self.job,), _ = requests.jobs_of({**request, "against": None}, opened)
        self.names = [each.name for each in self.job.system.inputs or ()]
        if not self.names or self.job.integrator.variable_step:
            raise InvalidInput("only a system with inputs can be driven, by a method of constant step")
        self.law = DRIVES.get(self.job.names["system"]) or guess_law(self.job)
        self.run: Run | None = None
        self.steps = self.push = self.planned = 0  # taken, of a push that are left, of the plan that were taken
        self.step = float(self.job.run["step"])
        self.tracker: Tracker | None = None
        self.known: Plan | None = None  # the last good plan

    @cached_property
    def parking(self) -> dict[str, Any]:
        return park_law(self.job)

    def begin(self, request: Mapping[str, Any], opened: StudioInput) -> dict[str, Any]:
        """The show of the start, and what the inputs are."""
        ahead = [float(self.law.get(name, {}).get("y", 0.0)) for name in self.names]  # it moves, so that it has a scale
        config = {**request["config"], "run": {"step": self.step, "steps": SHOWN_STEPS}}
        rest = {"config": config, "frames": SHOWN_STEPS, "complete": True, "controls": [ahead] * SHOWN_STEPS}
        self.go([0.0, 0.0], 2)  # what a first and a next step need is compiled before somebody drives
        self.run, self.steps = None, 0
        return {"show": present(rest, opened), "step": self.step, "inputs": self.names}

    def go(self, stick: Any, steps: Any) -> dict[str, Any]:
        """Take some steps: the controls of each, the time and the places of all parts at the end."""
        if not _are_numbers(stick, 2) or not isinstance(steps, int) or not 1 <= steps <= MAX_DRIVE_STEPS:
            raise InvalidInput(f"to drive, the page sends stick [x, y] and steps, 1 to {MAX_DRIVE_STEPS}")
        if (self.steps + steps) * len(self.names) > MAX_DRIVEN:
            raise InvalidInput(f"a drive has at most {MAX_DRIVEN} controls: end it, and save it")
        x, y = (min(max(float(each), -1.0), 1.0) for each in stick)
        rows, job = [], self.job
        for _ in range(steps):
            rows.append(self.controls(self.state, x, y))
            given = job.state if self.run is None else self.run
            made = simulate(job.system, job.integrator, given, step=self.step, steps=1, controls=np.array(rows[-1:]))
            if made.status != "ok":
                return {"controls": rows[:-1], "failed": str(made.reason)} | self._shown()
            self.run = made
            self.steps += 1
        return {"controls": rows} | self._shown()

    @property
    def state(self) -> State:
        """Where it is now."""
        return self.job.state if self.run is None else self.run.last

    def plan(self, goal: Any, discs: Any = (), patient: bool = False) -> dict[str, Any]:
        """Plan from here to rest at a goal, with least effort.

        It is a pose [x, y, angle] in the plane, around discs [x, y, radius], or an attitude, a quaternion [x, y, z, w].
        """
        if (kind := goal_kind(self.job.names["system"], self.job.system)) is None:
            raise InvalidInput(
                f"this system is not brought to a goal; allowed: {', '.join(PARKS)}, and one's own that {OWN_GOALS}"
            )
        turns = kind == "attitude"
        if not _are_numbers(goal, 4 if turns else 3) or (turns and not any(goal)):
            raise InvalidInput(f"the goal is {str(goal)[:40]}; allowed: {GOALS[turns]}, each at most {MAX_GOAL:g}")
        known = isinstance(discs, list | tuple) and all(_are_numbers(disc, 3) and disc[2] > 0 for disc in discs)
        if not known or len(discs) > MAX_DISCS:
            allowed = f"at most {MAX_DISCS}, each [x, y, radius] with a positive radius"
            raise InvalidInput(f"the discs are {str(discs)[:40]}; allowed: {allowed}")
        begin, end = time.perf_counter(), _rest_at(self.job.system, goal)
        found = self._plan_turn(end) if turns else self._plan_way(goal, end, discs, patient)
        if isinstance(found, str):
            self.tracker = self.known = None
            nothing: dict[str, Any] = {"path": [], "planned": [], "step": self.step, "seconds": 0.0, "cost": None}
            return nothing | {"status": "blocked", "reason": found}
        good, steered = _arrives(found), "twin" in self.parking
        weight = [10.0] * 3 + [0.3] * 3 if turns else 10.0  # of a turn the angles more than the rates
        light = None if "cost" in self.parking else 0.01  # the inputs of a mechanism have sizes of their own
        with warnings.catch_warnings():  # of a plan that is not known to be the cheapest: the page says so
            warnings.simplefilter("ignore")
            self.tracker, self.planned = track(found, state_weight=weight, control_weight=light) if good else None, 0
        self.known, self.step = found if good else None, float(found.step)
        drawn = AIM * np.asarray(found.g)[:, :, 2] if turns else np.asarray(_pose(found.g))[:, :2, 2]
        why = found.reason if "cost" not in self.parking else "" if good else NO_WAY  # to find out more would take long
        if steered and not good:
            why = f"after {found.iterations} iterations from the way of a car the goal is missed; {NO_WAY}"
        told: dict[str, Any] = {"status": found.status, "reason": why, "cost": to_json(float(found.cost))}
        told |= {"tried": self.tried, "step": self.step}
        told |= {"path": drawn.tolist() if good else [], "planned": np.asarray(found.controls).tolist() if good else []}
        return told | {"seconds": time.perf_counter() - begin}

    def _problem(self, end: State) -> dict[str, Any]:
        """What all plans from here to a goal have in common."""
        options: dict[str, Any] = {"start": self.state._replace(t=np.zeros(())), "goal": end, "steps": PLAN_STEPS}
        options |= {"cost": self.parking.get("cost", _effort), "free_goal": self.parking.get("idle", ())}
        return options | {"tolerance": 1e-3 if "cost" in self.parking else 1e-6, "max_iterations": 80}

    def _plan_turn(self, end: State) -> Plan:
        """The better of two turns: one that began as the shortest, and one that began as the last plan."""
        shortest, more = self.parking["turn"]
        turn = np.asarray(self.state.g).T @ np.asarray(end.g)
        duration = shortest + more * float(np.arccos(np.clip((np.trace(turn) - 1) / 2, -1.0, 1.0)))
        guesses = [None] if self.known is None else [None, self.known]
        found: list[Plan] = [
            plan(self.job.system, self.job.integrator, guess=guess, duration=duration, **self._problem(end))
            for guess in guesses
        ]
        return min(found, key=lambda each: (each.status != "optimal", float(each.cost)))

    def _plan_way(self, goal: Sequence[float], end: State, discs: Sequence[Any], patient: bool) -> Plan | str:
        """A way on the floor, or why there can be none.

        The last plan is the first guess; where that is far away, or leads nowhere, it is a way of arcs and lines.
        Around discs several are tried while there is time, more if the pointer rests (`patient`): the shortest wins.
        """
        begin = time.perf_counter()
        job, law = self.job, self.parking
        pose = np.asarray(_pose(self.state.g))
        for where, there in (("where it is", pose), ("at the goal", np.asarray(_pose(end.g)))):
            if _touches(there, [(0, 0.0)], discs, law):
                return f"it would touch an obstacle {where}: drag that away"
        far = [[1e3, 1e3, 1.0]] * (MAX_DISCS - len(discs))
        bounded = bool(discs) or "steering" in law or "cost" in law  # of these both are one program
        options = self._problem(end) | {
            "path": keep_clear(np.array([*discs, *far], float), law) if bounded else None
        }  # fmt: skip
        ways: Any = [] if self.known is None else [(self.known, self.known.duration)]
        once = options | {"max_iterations": 1, "guess": np.zeros((PLAN_STEPS, len(self.names)))}
        if ("steering" in law or "axle" in law) and self.template is None:
            self.template = plan(job.system, job.integrator, duration=PLAN_STEPS * self.step, **once)
        if "steering" in law and self.template is not None:
            ways_there = ways_around(
                _in_frame(pose, goal), [(*_in_frame(pose, disc)[:2], float(disc[2])) for disc in discs], law
            )
            arcs = (way_along(self.template, each, law, self.response) for each in ways_there[: 10 if patient else 4])
            first = next(arcs)  # the others only where they are tried
            ways = [way for way in ways if abs(way[1] - first.duration) < 0.35 * first.duration]
            ways = chain(ways, ((each, each.duration) for each in chain([first], arcs)))
        else:
            x, y, angle = _in_frame(pose, goal)
            seconds, more = law.get("turn", (PLAN_STEPS * float(job.run["step"]), 0.0))
            usual = seconds + more * float(np.hypot(x, y) + abs(angle))
            ways = [way for way in ways if abs(way[1] - usual) < 0.35 * usual]
            if "axle" not in law:
                ways = [*ways, (None, usual)]
            elif isinstance(rolled := self._roll_along(goal, usual, discs, patient), str):
                return rolled
            else:
                ways = [(rolled, rolled.duration), *ways]
        made: list[Plan] = []
        for guess, duration in ways:
            made.append(plan(job.system, job.integrator, guess=guess, duration=duration, **options))
            late = time.perf_counter() - begin > (PATIENT_SECONDS if patient else HURRY_SECONDS)
            if any(map(_arrives, made)) and (late or not discs or "twin" in law):
                break
        self.tried = len(made)
        return min(made, key=lambda each: (not _arrives(each), each.status != "optimal", _length(each)))

    def _roll_along(self, goal: Sequence[float], duration: float, discs: Sequence[Any], patient: bool) -> Plan | str:
        """A first guess for a mechanism: the way of a unicycle as heavy, or of a car as long, on which its wheels roll.

        That one's origin is on the axle; a joint that steers has the steering angle of the car, trailers follow.
        """
        law, shift, like = self.parking, np.eye(3), self.template
        assert like is not None
        shift[0, 2] = law["axle"]
        here, there = (np.asarray(g) @ shift for g in (_pose(self.state.g), _pose(_rest_at(like.system, goal).g)))
        place = _in_frame(here, (*there[:2, 2], np.arctan2(there[1, 0], there[0, 0])))
        if "twin" in law:
            twin: Drive = law["twin"]
            discs = [(*_in_frame(here, disc)[:2], float(disc[2])) for disc in discs]
            found = twin._plan_way(place, _rest_at(twin.job.system, place), discs, patient)
            if isinstance(found, str) or not _arrives(found):
                return found if isinstance(found, str) else NO_WAY
            twin.known = way = found
        else:
            asked: dict[str, Any] = {"cost": _effort, "tolerance": 1e-3, "steps": PLAN_STEPS, "max_iterations": 80}
            ends = [law["like"].state(_pose(_rest_at(law["like"], each).g), np.zeros(3)) for each in ((0, 0, 0), place)]
            way = plan(law["like"], self.job.integrator, start=ends[0], goal=ends[1], duration=duration, **asked)
        (discrete, numbers, nodes), n = like.problem, like.system.group.dim
        pose, xi = here @ np.asarray(_pose(way.g)) @ np.linalg.inv(shift), np.zeros((PLAN_STEPS + 1, n))
        xi[:, :2], xi[:, 2] = way.xi[:, :2], -law["axle"] * way.xi[:, 0]
        hinges, known, driven = np.tile(np.asarray(nodes.g[1])[0], (len(xi), 1)), [0, 1, 2], [0, 1]
        if "twin" in law:
            known, driven = [*known, 3 + law["slot"]], [1, 3 + law["slot"]]
            turned = np.asarray(way.g[1])
            hinges[:, law["slot"]], xi[:, known[3]] = np.arctan2(turned[:, 1, 0], turned[:, 0, 0]), way.xi[:, 3]
        others = [k for k in range(3, n) if k not in known]
        for k in range(len(xi)):
            rows = np.asarray(evaluate(_rows_at, like.system, (pose[k], hinges[k])))
            xi[k, others] = np.linalg.lstsq(rows[:, others], -rows[:, known] @ xi[k, known], rcond=None)[0]
            hinges[k + 1 :, np.array(others) - 3] += way.step * xi[k, others]
        forces = np.diff(xi[:, driven], axis=0) / way.step @ np.linalg.pinv(self.response[driven]).T
        axes = [axis.name for axis in like.system.axes()]
        nodes = nodes._replace(g=(pose, hinges), w=xi[:, [axes.index(name) for name in like.coordinates[n:]]])
        problem = discrete, {**numbers, "h": np.asarray(way.step)}, nodes
        return replace(like, step=way.step, controls=forces, problem=problem)

    tried = 1  # ways to the last goal
    template: Plan | None = None  # whose nodes a way of arcs replaces

    @cached_property
    def response(self) -> Array:
        return input_responses(self.job)[0]

    def park(self, steps: Any, push: Any) -> dict[str, Any]:
        """Take some steps along the plan with feedback; a push turns the body aside, and feedback brings it back."""
        if self.tracker is None or not isinstance(steps, int) or not 1 <= steps <= MAX_DRIVE_STEPS:
            raise InvalidInput(f"to park, plan first, and send steps, 1 to {MAX_DRIVE_STEPS}")
        steps = min(steps, PLAN_STEPS - self.planned)
        self.push = PUSH_STEPS if push else 0
        found = self.go([0.0, 0.0], steps) if steps else {"controls": []} | self._shown()
        return found | {"left": PLAN_STEPS - self.planned}

    def _shown(self) -> dict[str, Any]:
        if self.run is None:
            return {"time": float(self.job.state.t), "pose": []}
        view, _ = make_scene([requests.frames_of_run(self.run, self.job)])
        return {"time": float(self.run.last.t), "pose": view.pose()}

    def controls(self, state: Any, x: float, y: float) -> list[float]:
        """What acts at a state: the stick, less friction and springs that a driver's hands would be."""
        system = self.job.system
        if self.tracker is not None and self.planned < PLAN_STEPS:
            now = np.asarray(self.planned * self.step)
            given = self.tracker.control(self.planned, state._replace(t=now))
            pushed = self.parking["push"] if self.push > 0 else {}
            self.planned += 1
            self.push -= 1
            wanted = zip(system.inputs or (), given, strict=True)
            return [float(np.clip(u + pushed.get(each.name, 0.0), each.low, each.high)) for each, u in wanted]
        if "balance" in self.law:
            return _balance(state, self.law["balance"], x, y)
        seen = np.asarray(evaluate(_observe, system, state)) if self.law else np.zeros(0)
        names, found = (*system.coordinate_names, *system.rate_names), []
        for name in self.names:
            law = self.law.get(name, {})
            value = x * law.get("x", 0.0) + y * law.get("y", 0.0)
            value -= sum(gain * float(seen[names.index(of)]) for of, gain in law.get("feel", {}).items())
            if "angle" in law:
                before = np.asarray(state.g[law["to"]])[:2, :2] if "to" in law else np.eye(2)
                turn = before.T @ np.asarray(state.g[law["angle"]])[:2, :2]
                value -= law["spring"] * float(np.arctan2(turn[1, 0], turn[0, 0]))
            found.append(float(np.clip(value, law.get("low", -np.inf), law.get("high", np.inf))))
        return found


def _balance(state: State, law: Mapping[str, float], x: float, y: float) -> list[float]:
    """The torques that hold a tower on a ball upright, leaning as much as the speed wants that the stick asks for."""
    (pose, neck), xi = (np.asarray(part) for part in state.g), np.asarray(state.xi)
    turn = pose[:3, :3] @ neck
    up, spin, speed = turn[2], neck.T @ xi[:3] + xi[6:9], neck.T @ xi[3:6]  # all in the frame of the tower
    missing = law["lean"] * (law["speed"] * np.array([y, -x]) - speed[:2])
    missing *= min(1.0, law["most"] / max(float(np.linalg.norm(missing)), 1e-9))
    tilt = np.array([up[1] + missing[1], -up[0] - missing[0], 0.0])
    return [float(u) for u in -law["tilt"] * tilt - np.array([law["rate"], law["rate"], law["yaw"]]) * spin]


def _are_numbers(given: Any, count: int) -> bool:
    """Whether this is a list of so many numbers that a floor has room for."""
    numbers = isinstance(given, list) and len(given) == count
    return numbers and all(isinstance(x, int | float) and abs(x) <= MAX_GOAL for x in given)


def guess_law(job: Job) -> dict[str, Any]:
    """What the stick does to inputs that nobody has described.

    On the plane x turns a joint that an input steers, and a spring holds it there; motors of wheels go forward together
    with y and, where nothing is steered, turn the body with x. Of other inputs what steers or turns follows x, the
    first of the rest y. An input without bounds is as strong as gives something an acceleration of `STRENGTH`.
    """
    system, free = job.system, ["x", "y"]
    response, seen = input_responses(job)
    sizes = input_sizes(job, response)
    mechanism, inputs = without_forces(system), system.inputs or ()
    law: dict[str, dict[str, Any]] = {each.name: {"low": each.low, "high": each.high} for each in inputs}
    joints = motor_joints(mechanism) if isinstance(mechanism, MechanismSystem) else {}
    wheels = idle_names(mechanism) if isinstance(mechanism, MechanismSystem) else []
    plane, rolling = system.group.factors[0].picture == "plane", []
    for k, (name, made) in enumerate(law.items()):
        joint = joints.get(name)
        turned = name.rpartition(" ")[0] if joint is None else joint.names[0]
        if f"{turned} rate" not in system.rate_names:
            continue
        at = len(system.coordinate_names) + system.rate_names.index(f"{turned} rate")
        if joint is not None and (joint.geared or turned in wheels):
            rolling.append(k)
            made["feel"] = {f"{turned} rate": 1 / (MOTOR_SECONDS * seen[at, k])}
        elif plane and free and turned in system.coordinate_names:
            stiff, reversed_ = HELD_RATE**2 / seen[at, k], (wheelbase(system) or (1.0, 0.0))[0] < 0
            made["feel"] = {turned: stiff, f"{turned} rate": 2 * HELD_RATE / seen[at, k]}
            made[free.pop(0)] = HELD_ANGLE * stiff * (1.0 if reversed_ else -1.0)
    moved = np.linalg.pinv(response[:3, rolling], rcond=1e-6) if plane and rolling else np.zeros((0, 3))
    steers = "x" in free and np.linalg.matrix_rank(response[:2, rolling], rtol=1e-6) == 2
    for k, (ahead, turn) in zip(rolling, zip(moved[:, 1], moved[:, 0], strict=True), strict=False):
        strong = min(sizes[each] for each in rolling)
        law[inputs[k].name]["y"] = strong * ahead / np.abs(moved[:, 1]).max()
        if steers:
            law[inputs[k].name]["x"] = -0.4 * strong * turn / np.abs(moved[:, 0]).max()
    free = [each for each in ("y", "x") if not any(each in made for made in law.values())]
    for (name, made), size in zip(law.items(), sizes, strict=True):
        if not {"x", "y"} & set(made):
            turns = not free or any(word in name.lower() for word in ("steer", "turn", "yaw"))
            key = "x" if turns else free.pop(0)
            made[key] = size * (-1.0 if key == "x" else 1.0)
    return law


def input_responses(job: Job) -> tuple[Array, Array]:
    """What a unit of each input adds to the rates (n, inputs) at the start, and to those of all that is observed."""
    count, step = len(job.system.inputs or ()), float(job.run["step"])
    ends = [
        simulate(job.system, job.integrator, job.state, step=step, steps=1, controls=row[None]).last
        for row in np.concatenate([np.zeros((1, count)), 1e-3 * np.eye(count)])
    ]
    seen = [(np.asarray(end.xi), np.asarray(evaluate(_observe, job.system, end))) for end in ends]
    added = [[(new - old) / (1e-3 * step) for new, old in zip(each, seen[0], strict=True)] for each in seen[1:]]
    return np.stack([each[0] for each in added], axis=1), np.stack([each[1] for each in added], axis=1)


def input_sizes(job: Job, response: Array) -> list[float]:
    """How strong each input is when the stick is full: its bound, or what gives an acceleration of `STRENGTH`."""
    bounds = [min(abs(each.low), abs(each.high)) for each in job.system.inputs or ()]
    strongest = np.abs(response).max(axis=0)
    return [b if 0 < b < np.inf else STRENGTH / r if r > 0 else 0.0 for b, r in zip(bounds, strongest, strict=True)]


def goal_kind(name: str, system: MechanicalSystem | None) -> str | None:
    """What kind of goal a plan brings a system to: a "pose" in the plane, an "attitude"; None where it is offered none.

    It has at least two inputs and turns freely, or is in the plane a body, one that is steered, or a mechanism on
    wheels and castors, of whose other joints one at most is driven: it steers, and trailers follow.
    """
    if name in PARKS:
        return "attitude" if "turn" in PARKS[name] else "pose"
    if system is None or len(system.inputs or ()) < 2:
        return None
    pictures = [factor.picture for factor in system.group.factors]
    if pictures == ["attitude"] and system.group.is_rotation_group(3) and not system.constraints:
        return "attitude"
    mechanism = without_forces(system)
    if isinstance(mechanism, MechanismSystem):
        wheels, loose = idle_names(mechanism), mechanism.parts.flat - len(idle_names(mechanism))
        steers = sum(not each.geared and each.names[0] not in wheels for each in motor_joints(mechanism).values())
        return "pose" if pictures == ["plane", "point"] and (steers == 1 or not loose) else None
    return "pose" if pictures in (["plane"], ["plane", "dial"]) else None


def park_law(job: Job) -> dict[str, Any]:
    """How a plan brings a system to a goal, as `stories.toml` says, its lengths in those of the vehicle; or a guess."""
    name, system = job.names["system"], job.system
    base = float(getattr(system, "parameters", {}).get("length", 1.0))
    if name in PARKS:
        law = dict(PARKS[name])
    else:
        response = input_responses(job)[0]
        sizes = dict(zip((each.name for each in system.inputs or ()), input_sizes(job, response), strict=True))
        found, mechanism = wheelbase(system), without_forces(system)
        length, axle = found or (0.0, 0.0)
        base, steers = (length if found else 1.0), length > 0
        seen = response[:3] if isinstance(mechanism, MechanismSystem) else response  # of the body
        reached = [size * float(np.abs(one).max()) for size, one in zip(sizes.values(), seen.T, strict=True)]
        slower = max(1.0, 1.1 / np.sqrt(max(min(reached), 1e-3)))  # of bang-bang turns by half a circle half as much
        if goal_kind(name, system) == "attitude":
            law, pushed = dict(PARKS["satellite"]), list(sizes)[:2]
        else:
            law, turns = dict(PARKS["car" if steers else "unicycle"]), (steering_slot(system) or 0) if steers else -3
            pushed = [list(sizes)[int(np.argmax(np.abs(response[3 + turns]) * list(sizes.values())))]]
        if isinstance(mechanism, MechanismSystem):
            idle, flat = idle_names(mechanism), [axis.name.removesuffix(" rate") for axis in system.axes()[3:]]
            bent = [k for k, each in enumerate(flat) if each not in idle]
            strong = np.array([*sizes.values()])
            if bent and not steers:
                raise InvalidInput("its steering does not turn it as the front wheels of a car do: no plan is made")
            if steers:
                bounds = [min(abs(each.low), abs(each.high)) for each in system.inputs or ()]
                ahead = np.maximum(np.abs(response[1]), 1e-12)
                weakest = strong if bent[1:] else bounds  # who pulls a trailer goes as the stick would
                law |= twin_of(length, axle, float(np.max(ahead * weakest)))
                law |= {"slot": turns, "bent": {k: law["steering"] if k == turns else MAX_HITCH for k in bent}}
                aside = STRENGTH / np.maximum(np.abs(response[3 + turns]), 1e-12)
                strong = np.where(np.arange(len(strong)) == np.argmin(aside), aside, 1 / ahead)
                del law["steering"]
            elif (place := axle_of(mechanism)) is not None:
                heavy = np.sqrt(np.diag(np.linalg.inv(response[:2] @ response[:2].T)))  # effort for an acceleration
                law |= {"axle": place, "like": unicycle(mass=float(heavy[1]), inertia=float(heavy[0]))}
            base = base if steers else size_of(mechanism)
            law |= {"idle": [*idle, *(flat[k] for k in bent if k != turns)], "cost": effort_in(strong, bent)}
        law["turn"] = [slower * each for each in PARKS["satellite"]["turn"]]
        law["push"] = {each: sizes[each] for each in pushed}
    return {**law, "length": base} | {
        key: base * law[key] for key in ("radius", "reach", "ahead", "pace") if key in law
    }


def twin_of(length: float, axle: float, acceleration: float) -> dict[str, Any]:
    """A car as long as a steered mechanism, whose ways it can go: slower where its motor is weak."""
    config = {**example("car"), "initial": {"velocity": [0.0] * 4}}
    sizes = {"length": length, "centre": length / 2, "inertia": length**2 / 2, "steering": length**2 / 10}
    twin = Drive({"config": config | {"system": config["system"] | sizes}}, StudioInput())
    slower = max(1.0, float(np.sqrt(2 * length / acceleration)))  # a smooth way s in T accelerates by 5.8 s/T^2
    twin.parking |= {"pace": twin.parking["pace"] / slower, "rest": twin.parking["rest"] * slower}
    twin.parking["longest"] = LONGEST * slower
    return {"twin": twin, "axle": axle}


def motor_joints(system: MechanismSystem) -> dict[str, Joint]:
    """The joints that inputs turn, by the names of these."""
    return {each.name: system.parts.joints[each.first] for each in system.parts.parts if each.kind == "motor"}


def steering_slot(system: MechanicalSystem) -> int | None:
    """Which angle an input steers, beside the pose: of a mechanism the joint that is no wheel's, else the only one."""
    mechanism, pictures = without_forces(system), [factor.picture for factor in system.group.factors]
    if isinstance(mechanism, MechanismSystem) and pictures == ["plane", "point"]:
        wheels = idle_names(mechanism)
        slots = [j.slot for j in motor_joints(mechanism).values() if not j.geared and j.names[0] not in wheels]
        return slots[0] if len(slots) == 1 else None
    return 0 if pictures == ["plane", "dial"] and system.constraints == 2 else None


def wheelbase(system: MechanicalSystem) -> tuple[float, float] | None:
    """The length at which a vehicle turns by its steering angle as a car does, and how far ahead its axle lies.

    tan(angle) = length w/v1 and v2 = -axle w; the length is negative where it steers the other way. None for another.
    """
    if (slot := steering_slot(system)) is None:
        return None
    found, n = [], system.group.dim
    others = [k for k in range(n) if k not in (1, 3 + slot)]
    for angle in (0.2, 0.5):
        shape = about(2, angle)[:2, :2] if n == 4 and np.ndim(unit_element(system.group)[1]) == 2 else np.zeros(n - 3)
        if np.ndim(shape) == 1:
            shape[slot] = angle
        rows = np.asarray(evaluate(_rows_at, system, (np.eye(3), shape)))
        moved = np.linalg.lstsq(rows[:, others], -rows[:, 1], rcond=1e-9)[0]
        if abs(moved[0]) < 1e-9 or np.abs(rows[:, others] @ moved + rows[:, 1]).max() > 1e-9:
            return None
        found.append((float(np.tan(angle) / moved[0]), float(-moved[1] / moved[0])))
    apart = max(abs(one - other) for one, other in zip(*found, strict=True))
    return found[0] if apart < 1e-6 * abs(found[0][0]) else None


def axle_of(system: MechanismSystem) -> float | None:
    """How far ahead of its origin the axle lies on which a mechanism turns; None where it also goes to the side."""
    rows = np.asarray(evaluate(_rows_at, system, unit_element(system.group)))
    moved, _, rank, _ = np.linalg.lstsq(rows[:, 2:], -rows[:, :2], rcond=1e-9)
    left = np.abs(rows[:, 2:] @ moved + rows[:, :2]).max(initial=0.0)
    return -float(moved[0, 0]) if rank == moved.shape[0] and left < 1e-9 and abs(moved[0, 1]) < 1e-9 else None


def _rows_at(system: MechanicalSystem, g: Any) -> Any:
    return system.rows(0.0, g)(jnp.zeros(system.group.dim))


def size_of(system: MechanismSystem) -> float:
    """A length for a mechanism: the wheels reach around its origin by a quarter of it."""
    rest = np.zeros((requests.REHEARSED, system.group.dim))
    g = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], len(rest), axis=0), unit_element(system.group))
    found = evaluate(picture, system, (g, rest), lanes=len(rest), axes=(None, 0))
    return 4 * float(np.linalg.norm(np.asarray(found.contacts)[0, :, 0, :2], axis=1).max(initial=0.05))


def idle_names(system: MechanismSystem) -> list[str]:
    """The angles of a mechanism's wheels and castors: a goal leaves them free."""
    parts = system.parts
    rolling = {contact.body for contact in parts.contacts if contact.kind in ("wheel", "omni")}
    idle = (joint for k, joint in enumerate(parts.joints) if joint.spins or joint.follows or k in rolling)
    return [joint.names[0] for joint in idle if joint.names and not joint.geared]


def effort_in(sizes: Array, bent: Sequence[int] = ()) -> Callable[..., Any]:
    """The sum of squares of the inputs, in these sizes, to a power of ten: a slider compiles nothing.

    The rates of joints that bend cost `CALM`: where steering is nearly free, shaking it is cheaper than to drive.
    """
    tens = 10.0 ** np.round(np.log10(np.maximum(sizes, 1e-9)))

    def effort(t: Any, g: Any, xi: Any, u: Any) -> Any:
        return jnp.sum((u / tens) ** 2) + CALM * sum(xi[3 + k] ** 2 for k in bent)

    return effort


def _pose(g: Any) -> Any:
    """The pose in the plane of a configuration."""
    return g[0] if isinstance(g, tuple) else g


def _rest_at(system: MechanicalSystem, goal: Sequence[float]) -> State:
    """At rest at a pose [x, y, angle], or at an attitude [x, y, z, w]."""
    if len(goal) == 4:
        *v, w = np.array(goal, float) / np.linalg.norm(goal)
        hat = np.cross(v, np.eye(3)).T  # v x, as a matrix
        return system.state(np.eye(3) + 2 * w * hat + 2 * hat @ hat, np.zeros(3))
    x, y, angle = map(float, goal)
    pose = np.array([[np.cos(angle), -np.sin(angle), x], [np.sin(angle), np.cos(angle), y], [0, 0, 1]])
    g = unit_element(system.group)
    return system.state((pose, *g[1:]) if isinstance(g, tuple) else pose, np.zeros(system.group.dim))


def keep_clear(discs: Array, law: Mapping[str, Any]) -> Callable[..., Any]:
    """What must not be negative: distances of one or two points of a vehicle from discs, and what steering has left."""
    reach, ahead, steering = law["reach"], law.get("ahead", 0.0), law.get("steering", 0.0)
    bent = tuple(law.get("bent", {}).items())

    def path(t: Any, g: Any, xi: Any, u: Any) -> Any:
        pose = _pose(g)
        points = [pose[:2, 2]] + ([pose[:2, 2] + ahead * pose[:2, 0]] if ahead else [])
        clear = [
            1.0 - (disc[2] + reach) ** 2 / (0.02 + jnp.sum((point - disc[:2]) ** 2))
            for disc in discs
            for point in points
        ]
        left = [g[1][0, 0] - np.cos(steering)] if steering else []
        left += [jnp.cos(g[1][k]) - np.cos(most) for k, most in bent]
        return jnp.stack([*left, *clear])

    return path


Pose2 = tuple[float, float, float]  # x, y, angle; of a disc its radius


def _in_frame(pose: Array, goal: Sequence[float]) -> Pose2:
    """A goal [x, y, angle] in the frame of a pose."""
    x, y, angle = map(float, goal)
    dx, dy = pose[:2, :2].T @ (np.array([x, y]) - pose[:2, 2])
    return float(dx), float(dy), angle - float(np.arctan2(pose[1, 0], pose[0, 0]))


Way = list[tuple[int, float]]


def ways_to(goal: Pose2, law: Mapping[str, float]) -> list[Way]:
    """Ways of three arcs and lines from the origin to a pose, the shortest first: [(turn, signed length), ...].

    They are those of Reeds and Shepp (1990) with three pieces, for the turning radius of the law.
    """
    radius = law["radius"]
    x, y, phi = goal[0] / radius, goal[1] / radius, goal[2]
    found: list[Way] = []
    for flip in (1, -1):  # backwards
        for mirror in (1, -1):
            a, b, c = flip * x, mirror * y, flip * mirror * phi
            p, q = a - np.sin(c), b - 1 + np.cos(c)
            straight, turn = np.hypot(p, q), np.arctan2(q, p)
            words = [((1, 0, 1), (turn, straight, c - turn))]
            if straight <= 4:
                back = -2 * np.arcsin(straight / 4)
                first = turn + back / 2 + np.pi
                words.append(((1, -1, 1), (first, back, c - first + back)))
            p, q = a + np.sin(c), b - 1 - np.cos(c)
            if np.hypot(p, q) >= 2:
                straight = np.sqrt(p * p + q * q - 4)
                first = np.arctan2(q, p) + np.arctan2(2, straight)
                words.append(((1, 0, -1), (first, straight, first - c)))
            for turns, (one, two, three) in words:
                one, three = np.mod(one, 2 * np.pi), np.mod(three, 2 * np.pi)
                pieces = zip(turns, (one, two, three), strict=True)
                found.append([(mirror * turn, flip * radius * float(size)) for turn, size in pieces])
    return sorted(found, key=lambda way: sum(abs(size) for _, size in way))


def ways_around(goal: Pose2, discs: Sequence[Pose2], law: Mapping[str, float]) -> list[Way]:
    """Ways to a pose, also by places beside discs [x, y, .], those that touch none first, then the shorter."""
    ways, (x, y, _) = ways_to(goal, law)[:4], goal
    along = np.array([x, y]) / max(np.hypot(x, y), 1e-9)
    for disc in discs:
        for side in (-1.0, 1.0):
            aside = side * (disc[2] + law["reach"] + 0.3 * law["length"])
            by = (disc[0] - aside * along[1], disc[1] + aside * along[0], float(np.arctan2(along[1], along[0])))
            here = about(2, by[2])
            here[:2, 2] = by[:2]
            after = ways_to(_in_frame(here, goal), law)[:2]
            ways += [one + other for one in ways_to(by, law)[:2] for other in after]
    return sorted(ways, key=lambda way: (_touches(np.eye(3), way, discs, law), sum(abs(size) for _, size in way)))


def _touches(pose: Array, way: Way, discs: Sequence[Sequence[float]], law: Mapping[str, float]) -> bool:
    """Whether a vehicle on this way from a pose touches a disc."""
    points = []
    for turn, size in way:
        poses = pose @ _along_arc(np.linspace(0.0, size, 16), turn / law.get("radius", 1.0))
        points += [poses[:, :2, 2], poses[:, :2, 2] + law.get("ahead", 0.0) * poses[:, :2, 0]]
        pose = poses[-1]
    spots = np.concatenate(points)
    return any(np.linalg.norm(spots - disc[:2], axis=1).min() < disc[2] + law["reach"] for disc in discs)


def way_along(like: Plan, way: Way, law: Mapping[str, float], response: Array) -> Plan:
    """A first guess for a car: the way with a rest before, between and after its pieces, in which it is steered."""
    pieces = [piece for piece in way if abs(piece[1]) > 1e-6] or [(0, 1e-6)]
    rest, system, angle = law["rest"], cast(System, like.system), np.zeros(PLAN_STEPS + 1)
    ends = np.cumsum([rest] + [time for _, size in pieces for time in (abs(size) / law["pace"], rest)])
    ends *= min(1.0, law.get("longest", LONGEST) / ends[-1])
    times, step = np.linspace(0.0, ends[-1], PLAN_STEPS + 1), ends[-1] / PLAN_STEPS
    gone, turned, before, base = 0.0 * angle, 0.0 * angle, 0.0, np.asarray(_pose(like.g))[0]
    pose = np.tile(base, (len(times), 1, 1))
    for begin, end, (turn, size) in zip(ends[:-1:2], ends[1::2], pieces, strict=True):
        wheels, part = turn * np.arctan(law["length"] / law["radius"]), size * _smooth((times - begin) / (end - begin))
        angle += (wheels - before) * _smooth((times - begin) / rest + 1.0)
        pose[times >= begin] = base @ _along_arc(part[times >= begin], turn / law.get("radius", 1.0))
        base = base @ _along_arc(np.array([size]), turn / law["radius"])[0]
        gone, turned, before = gone + part, turned + part * turn / law["radius"], wheels
    angle -= before * _smooth((times - ends[-2]) / (ends[-1] - ends[-2]))
    spin, speed, steering = (np.gradient(each, step) for each in (turned, gone, angle))
    xi = np.stack([spin, speed, 0.0 * speed, steering], axis=1)
    forces = np.diff(xi[:, [1, 3]], axis=0) / step @ np.linalg.pinv(response[[1, 3]]).T
    discrete, numbers, nodes = like.problem
    w = xi[:, [system.rate_names.index(name) for name in like.coordinates[system.group.dim :]]]
    nodes = nodes._replace(g=(pose, about(2, angle)[:, :2, :2]), w=w)
    problem = discrete, {**numbers, "h": np.asarray(step)}, nodes
    return replace(like, step=step, controls=forces, problem=problem)


def _smooth(x: Array) -> Array:
    """From 0 to 1 while x goes from 0 to 1, with rates that begin and end with 0."""
    x = np.clip(x, 0.0, 1.0)
    return np.asarray(x**3 * (10 - 15 * x + 6 * x**2))


def _along_arc(way: Array, curvature: float) -> Array:
    """The poses after these signed ways along an arc, from the origin."""
    angle = curvature * way
    poses = about(2, angle)
    poses[:, 0, 2] = way * np.sinc(angle / np.pi)
    poses[:, 1, 2] = way * np.sinc(angle / 2 / np.pi) * np.sin(angle / 2)
    return poses


def _arrives(found: Plan) -> bool:
    """Whether a plan can be driven: it ends at the goal, also where its cost is not known to be least."""
    return found.status == "optimal" or (np.isfinite(found.cost) and found.infeasibility < REACHED)


def _length(found: Plan) -> float:
    """The length of the path of a plan in the plane."""
    return float(np.linalg.norm(np.diff(np.asarray(_pose(found.g))[:, :2, 2], axis=0), axis=1).sum())


def _effort(t: Any, g: Any, xi: Any, u: Any) -> Any:
    return u @ u


def _observe(system: MechanicalSystem, state: State) -> Any:
    return system.observe(state.t, state.g, state.xi)


CLAIMS: dict[Any, Claims] = {}  # of methods on kinds of systems that were asked for
MAX_CLAIMS = 512


def claims_of(integrator: Integrator, system: MechanicalSystem) -> Claims:
    """The claims of a method on systems of a kind: they depend on its functions, not on its numbers."""
    leaves, kind = jax.tree.flatten(system)
    key = integrator, kind, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves)
    if key not in CLAIMS:
        if len(CLAIMS) >= MAX_CLAIMS:
            CLAIMS.clear()
        CLAIMS[key] = integrator.claims(system)
    return CLAIMS[key]


def judge_claims(
    claims: Claims, run: RunFrames, peaks: dict[str, float | None], momentum: float | None
) -> list[dict[str, Any]]:
    """Every claim as a sentence, and whether it held in this run: null where one run cannot tell.

    `momentum` is the largest change of the momenta that symmetries conserve, relative to their size.
    """
    order = "exact: the flow itself" if claims.order == EXACT else claims.text().partition(";")[0]
    energy = float(np.abs(run.energy).max()) or 1.0
    speed = 1.0 + float(np.abs(run.velocity).max())
    limits = {
        "constraint": (peaks["constraint"], ROUND_OFF * speed * (1.0 + float(np.abs(run.rows).max(initial=0.0)))),
        "group": (peaks["group"], ROUND_OFF),
        "energy": (peaks["energy_error"], SOLVER_ACCURACY * energy),
        "momentum": (momentum, SOLVER_ACCURACY),
    }
    found: list[dict[str, Any]] = [{"text": order, "held": None, "about": "order"}]
    for name in claims.property_names:
        size, limit = limits.get(name, (None, 0.0))
        held = None if size is None else bool(size <= limit)
        found.append({"text": f"{name}: {MEANINGS[name]}", "held": held, "about": name})
    return found


def conservation_plots(runs: Sequence[RunFrames]) -> list[dict[str, Any]]:
    """The energy (or its balance), the constraint, the momentum and, where a run leaves its group, how far."""
    energy, changes = runs[0].conservation, {run.index: momentum_change(run) for run in runs}
    known = [run for run in runs if changes[run.index] is not None]
    columns: list[tuple[str, str, Sequence[RunFrames], Callable[[RunFrames], Any]]] = [
        (energy.title, energy.label, runs, lambda run: run.conservation.values)
    ]
    if runs[0].rows.shape[1]:
        columns.append(("Constraint", "|A xi - b|", runs, lambda run: run.constraint))
    if known:
        columns.append(("Momentum in space", "relative change", known, lambda run: changes[run.index]))
    if any(run.distance.max() > 1e-13 for run in runs):
        columns.append(("Distance from the group", "|R^T R - 1|", runs, lambda run: run.distance))
    plots = []
    for title, y, which, values in columns:  # exact zeros stand on the floor
        curves = [_curve(run, title, np.maximum(np.abs(values(run)), FLOOR)) for run in which]
        plots.append(_plot("kept", title, y, curves, log=True))
    return plots


def _plot(group: str, title: str, y: str, curves: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    about = {"group": group, "title": title, "x": "time", "y": y, "log": False, "help": TEXTS["plots"][title]}
    return about | {"curves": curves} | options


def _curve(run: RunFrames, name: str, values: Array, colour: str | None = None) -> dict[str, Any]:
    """A curve in the colour of its run; one of several components has its own colour and name."""
    points = {"x": pack_array(run.t[: run.valid]), "y": pack_array(values[: run.valid])}
    return {"run": run.index, "label": name, **points} | ({} if colour is None else {"colour": colour, "name": name})


def momentum_change(run: RunFrames) -> Array | None:
    """The relative distance of the momenta that symmetries conserve from their start; None if there are none.

    A free left-invariant system conserves all of Ad*_{g^-1} m, an LR system the components of that on d.
    """
    system = run.system
    if run.momentum.ndim != 2 or run.momentum.shape[1] != run.velocity.shape[1]:
        return None
    if isinstance(system, LRSystem):
        attitude, *others = system.group.factors
        if not attitude.is_rotation_group(3) or not all(factor.is_flat for factor in others):
            return None
        parts = [rotate(run.parts[0], run.momentum[:, :3]), run.momentum[:, 3:]]
        spatial = np.concatenate(parts, axis=1) @ np.asarray(system.subspace)
    elif isinstance(system, InvariantSystem) and system.group.is_rotation_group(3):
        if system.annihilator.shape[0] or system.potential is not None:
            return None
        spatial = rotate(run.parts[0], run.momentum)
    else:
        return None
    return np.asarray(np.linalg.norm(spatial - spatial[0], axis=1) / max(float(np.linalg.norm(spatial[0])), 1e-300))


class Component(NamedTuple):
    """One column of the velocity: what it is, its name, and its unit where that is known."""

    kind: str  # "yaw", "turning", "joint", "moving"
    name: str
    unit: str
    called: str = ""  # by the maker of the system, where that is another name


def velocity_components(
    factors: Sequence[Group | None], count: int, called: Sequence[tuple[str, str]] = ()
) -> list[Component]:
    """The `count` columns of velocities on a product of groups, as `Group.axes` orders them; v1, ... if unknown.

    `called` are their names and units as the maker of the system has them.
    """
    units = {"rad s-1": "rad/s", "m s-1": "m/s"}
    if not all(factors):
        found = [Component("moving", f"v{i + 1}", "") for i in range(count)]
    else:
        found = _components(factors, units)
    if len(called) != len(found):
        return found
    pairs = zip(found, called, strict=True)
    return [each._replace(called=str(name), unit=units.get(str(unit), each.unit)) for each, (name, unit) in pairs]


def _components(factors: Sequence[Group | None], units: Mapping[str, str]) -> list[Component]:
    found = []
    for axes in (factor.axes() for factor in factors if factor):
        turns = [axis.velocity == "rad s-1" for axis in axes]
        turning = "turning" if sum(turns) > 1 else "joint" if all(turns) else "yaw"
        found += [
            Component(turning if turns[i] else "moving", axis.name, units.get(axis.velocity, ""))
            for i, axis in enumerate(axes)
        ]
    return found


def motion_plots(runs: Sequence[RunFrames]) -> list[dict[str, Any]]:
    """Velocities that belong together, by name and unit, the push of the constraint, and the energy."""
    columns = velocity_components(runs[0].factors, runs[0].velocity.shape[1], runs[0].columns)
    yaw, turning, joint, own = (
        [k for k, column in enumerate(columns) if column.kind == kind] for kind in ("yaw", "turning", "joint", "moving")
    )
    sizes = np.max([np.abs(run.velocity[:, own]).max(axis=0) for run in runs], axis=0) if own else np.zeros(0)
    moving = [k for k, size in zip(own, sizes, strict=True) if size > NEGLIGIBLE * sizes.max()]
    in_plane = any(factor.picture == "plane" for factor in runs[0].factors if factor)
    forward = in_plane and {columns[k].name for k in moving} == {"v1"}
    found: list[dict[str, Any]] = []

    def add(title: str, label: str, values: Sequence[Array], names: Sequence[str] = ("",)) -> None:
        """A plot of values (frames, columns), one for each run; each of several columns has a name and a colour."""
        low, high = min(entry.min() for entry in values), max(entry.max() for entry in values)
        level = [{"label": "", "value": 0.0}] if low < 0 < high or title == "Energy" else []
        curves = [
            _curve(run, name, entry.reshape(len(entry), -1)[:, k], colour)
            for k, (name, colour) in enumerate(zip(names, cycle(INKS) if len(names) > 1 else [None], strict=False))
            for run, entry in zip(runs, values, strict=True)
        ]
        found.append(_plot("motion", title, label, curves, level=level))

    for title, which in (
        ("Angular velocity", turning),
        ("Forward velocity" if forward else "Velocity", moving),
        ("Yaw rate", yaw),
        ("Rates of wheels and joints", joint),
    ):
        names = [columns[k].called or columns[k].name for k in which]
        if len(set(names)) < len(names):  # several bodies are numbered
            names = [f"{name}.{names[: i + 1].count(name)}" for i, name in enumerate(names)]
        if names:
            unit = columns[which[0]].unit
            label = (f"{names[0]}..{names[-1]}" if len(names) > 1 else names[0]) + (f", {unit}" if unit else "")
            add(title, label, [run.velocity[:, which] for run in runs], names)
    if runs[0].name in LEANING:  # the axle is y of the body: by how much it leaves the level
        add("Lean", "degrees", [np.degrees(np.arcsin(np.clip(run.parts[0][:, 2, 1], -1.0, 1.0))) for run in runs])
    if [factor.picture for factor in runs[0].factors if factor] == ["attitude", "point"]:
        traces = [np.einsum("ij,tij->t", run.parts[0][0], run.parts[0]) for run in runs]
        add("Turned by", "degrees", [np.degrees(np.arccos(np.clip((trace - 1) / 2, -1.0, 1.0))) for trace in traces])
    push = [np.linalg.norm(run.reaction[:, own], axis=1) for run in runs]
    if own and max(size.max() for size in push) >= 1e-12:
        add("Push of the constraint", "N" if columns[own[0]].unit else "force", push)
    add("Energy", "E, J", [run.energy for run in runs])
    return found


def momentum_view(runs: Sequence[RunFrames]) -> View | None:
    """Momenta on the surfaces that hold them, where the system has three and only its kinetic energy.

    A free body's momenta lie on a sphere and an ellipsoid, a constrained one's on the plane I(d) or, for a discrete
    Lagrangian, on the locus that stands in its place; those of an LR system, seen from space, on a line.
    """
    system = runs[0].system
    if system is None or system.group.dim != 3 or not isinstance(system, InvariantSystem | LRSystem):
        return None
    view, energy = View("Momentum"), float(runs[0].energy[0])
    inertia = np.asarray(system.inertia)  # I xi stands for the momentum of a method that has a restricted one
    points = [run.momentum if run.momentum.shape[1] == 3 else run.velocity @ inertia.T for run in runs]
    size = float(np.abs(np.concatenate(points)).max()) or 1.0
    if isinstance(system, LRSystem):
        view.title = "Momentum seen from space"
        if not system.group.is_rotation_group(3):
            return None
        points = [rotate(run.parts[0], momentum) for run, momentum in zip(runs, points, strict=True)]
        if system.annihilator.shape[0] == 1:  # the components on d are constant: it moves along d's annihilator
            direction = np.asarray(system.annihilator)[0]
            direction = 1.3 * size * direction / np.linalg.norm(direction)
            foot = points[0][0] - (points[0][0] @ direction) / (direction @ direction) * direction
            ends = np.stack([foot - direction, foot + direction])
            view.line("line of constant momentum on d", ends, CONSTRAINT, width=2.0)
    elif not system.annihilator.shape[0]:  # |m| and <m, I^-1 m>/2 are constant: the polhode is where these meet
        view.title = "Momentum in the body: sphere and energy ellipsoid"
        radius = float(np.linalg.norm(points[0][0]))
        if system.group.is_rotation_group(3) and radius > 0:
            view.add("sphere of constant momentum", sphere_shape(radius), SURFACE, opacity=0.25)
        if energy > 0 and system.potential is None:
            moments, axes = principal_axes(inertia)
            shell = globe(np.sqrt(2 * energy * moments), 41, 21) @ axes.T
            view.add("ellipsoid of constant energy", surface(shell), GREY, opacity=0.3)
    elif system.subspace.shape[1] == 2:  # the plane with its ellipse, and the loci of methods that leave the plane
        view.title = "Momentum in the body: plane I(d)"
        subspace = np.asarray(system.subspace)
        spread = inertia @ subspace  # from coordinates on d to momenta
        orthogonal, _ = np.linalg.qr(spread)
        square = 1.2 * size * np.stack(np.meshgrid([-1.0, 1.0], [-1.0, 1.0], indexing="ij"), axis=-1)
        view.add("plane I(d) of the exact motion", surface(square @ orthogonal.T), CONSTRAINT, opacity=0.3)
        if energy > 0 and system.potential is None:
            angle = np.linspace(0, 2 * np.pi, 97)
            circle = np.sqrt(2 * energy) * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
            ellipse = np.linalg.solve(np.linalg.cholesky(subspace.T @ spread).T, circle.T).T @ spread.T
            view.line("ellipse of constant energy", ellipse, GREY, width=2.0)
        for run in runs:
            if run.trajectory is None or not isinstance(run.trajectory.integrator, EulerPoincareSuslov):
                continue
            _, locus = momentum_locus(run.trajectory, LOCUS_POINTS)
            if np.all(np.isfinite(locus)):
                view.title = "Momentum in the body: plane I(d) and discrete locus"
                view.run = run.index
                view.add("locus of the discrete momentum", surface(locus), run.colour, opacity=0.35)
    for run, momentum in zip(runs, points, strict=True):
        view.run = run.index
        view.trace("momentum", momentum, run.colour, width=3.0)
        view.add("momentum now", sphere_shape(0.035 * size), run.colour, position=momentum)
    for k, axis in enumerate(np.eye(3)):
        view.line("", np.stack([0 * axis, 1.25 * size * axis]), DARK, width=1.0, shared=True)
        view.add("", label(f"M{k + 1}"), DARK, position=1.33 * size * axis, shared=True)
    return view
