"""Runs that are prepared once and called many times: fitting, control, learning and sampling are loops over such calls.

`prepare` fixes the system, the method, the step, their number and what is saved. A call gives a state, and other
parameters or controls of the same shapes; beside its steps it costs microseconds, for nothing is described, checked or
compiled again but what may have changed. What is not saved is neither computed nor copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..integrators import OK, REASONS, Integrator, require_arguments, require_state
from ..kernels import Backend, Chain, Words, concrete_leaves, find_chain, shapes_of
from ..mechanics import MechanicalSystem, State, admit_velocity
from ..numerics import call_own, is_traced, require_instance, require_known, show
from .driver import (
    WATCH,
    Replay,
    Schedule,
    begin_loop,
    bind_blocks,
    finish_run,
    in_doubles,
    judge_traced,
    make_replay,
    make_schedule,
    run_steps,
    simulate,
)  # fmt: skip
from .events import captured_values
from .loop import (
    NO_RECORD,
    Constants,
    LoopState,
    RunKernel,
    all_finite,
    depends_on_time,
    end_before_gaps,
    mark_failures,
    read_rows,
    run_kernel,
    sample_controls,
)
from .results import Record, Run

Numbers = np.ndarray[Any, Any]
Observable = Callable[[Any, State], Any]
FIELDS = (*State._fields, *(name for name in Record._fields if name not in ("state", "step_size")))
NUMBERS = (jax.Array, np.ndarray, np.number, np.bool_, int, float)
SAVES = f'"all", "final", names among {", ".join(FIELDS)}, or a function (system, state) -> arrays'


class SavedRecord(NamedTuple):
    """What is saved at a state, and the number of its step: NO_RECORD where a number of it is not finite."""

    values: Any
    steps: Any


class Saved:
    """What one call of a prepared run returns: the `values` that `save` asked for, and how the run ended.

    `values` is the final state, a dictionary of the chosen fields, or the results of the function; all but the final
    state have the saved states as their first axis. A run that failed keeps its good part.
    """

    __slots__ = ("_final", "values")

    def __init__(self, values: Any, final: LoopState | tuple[Chain, Words]):
        self.values, self._final = values, final

    @property
    def final(self) -> LoopState:
        """The state of the loop after the last step."""
        if isinstance(self._final, LoopState):
            return self._final
        chain, words = self._final
        loop: LoopState = chain.carry(words)
        self._final = loop
        return loop

    @property
    def status(self) -> str:
        """ "ok" or "failed"."""
        require_known("saved.status", self.final.status, "take saved.final.status, 0 where all is well")
        return "ok" if self.final.status == OK else "failed"

    @property
    def steps(self) -> int:
        """How many steps succeeded; -1 if the start has no solution."""
        require_known("saved.steps", self.final.steps, "take saved.final.steps")
        return int(self.final.steps)

    @property
    def reason(self) -> str:
        """Why the run failed, or an empty string."""
        require_known("saved.reason", self.final.status, "take saved.final.status, 0 where all is well")
        return REASONS[int(self.final.status)]

    def __repr__(self) -> str:
        shapes = jax.tree.map(np.shape, self.values)
        known = not is_traced((self.final.status, self.final.steps))
        return f"<Saved after {self.steps} steps, {self.status}: {shapes}>" if known else f"<Saved, traced: {shapes}>"


@lru_cache(maxsize=256)
def saving_kernel(integrator: Integrator, monitor: bool, save: str | tuple[str, ...] | Observable) -> RunKernel:
    """Return the loop whose records are what `save` names and nothing else."""
    kernel = run_kernel(integrator, monitor)

    def observe(consts: Constants, loop: LoopState) -> SavedRecord:
        record: Record = kernel.observe(consts, loop)
        values: Any
        if save == "final":
            values = record.state
        elif isinstance(save, tuple):
            values = {name: getattr(record.state if name in State._fields else record, name) for name in save}
        else:
            assert callable(save)
            values = call_own("save(system, state)", save, consts[0], record.state)
            if wrong := [leaf for leaf in jax.tree.leaves(values) if not isinstance(leaf, NUMBERS)]:
                raise InvalidInput(f"save(system, state) gave {show(wrong[0])}; allowed: arrays of numbers")
        known = all_finite((jnp.zeros(()), values)) | (loop.status != OK)
        return SavedRecord(values, jnp.where(known, loop.steps, NO_RECORD).astype(int))

    return kernel._replace(observe=observe)


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A compiled run, called as run(state, parameters, controls) as often as needed; `prepare` makes it.

    Calls from several threads do not disturb each other.
    """

    system: MechanicalSystem
    schedule: Schedule
    step: float
    save: Any
    kernel: RunKernel
    blocks: tuple[tuple[int, int], ...]
    kind: Any
    form: Callable[[Run], Any] = lambda run: run  # of a run with all its records
    _known: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __call__(self, state: State, parameters: Any = None, controls: Any = None) -> Any:
        """Run from `state`: a Trajectory if all is saved, otherwise what was asked for, as `Saved`.

        `parameters` take the place of the system's own, with the same structure and shapes, or are a system of the same
        kind; `controls` that of the controls given to `prepare`. Nothing is kept from one call to the next.
        """
        system, leaves = (self.system, None) if parameters is None else self._with(parameters)
        if (known := self._known.get(controls is None)) is not None:
            replay, constants, rows = known
            if (made := self._run_again(replay, constants, rows, system, leaves, state, controls)) is not None:
                return made
        schedule = self.schedule
        held = schedule.controls
        if controls is not None:
            _require_rows(controls)
            held = sample_controls(controls, 0.0, self.step, schedule.steps, system.inputs)
        found = self._find(system, leaves, held, state)
        if found is None:
            return self._run_the_long_way(system, replace(schedule, controls=held), in_doubles(state))
        chain, constants, start, rows = found
        method, asked, initial = schedule.integrator, False, self.save != "final"
        if leaves is not None or "taken" not in self._known:
            if method.must_ask(system):
                method.ask(system, state, self.step)
                asked = True
            elif leaves is None:  # and it need not be asked of this system again
                self._known["taken"] = True
        words = chain.run(constants, start, rows, self.blocks, initial, judged=asked)
        if words is None:
            method.require(system, state, self.step)
            words = chain.run(constants, start, rows, self.blocks, initial, judged=True)
            assert words is not None
        plain = controls is None or (system.inputs and type(held) is np.ndarray)
        if leaves is None and plain and "taken" in self._known:
            part = (lambda made: made) if self.save == "all" else attrgetter("values")
            replay = make_replay(chain, state, self.step, self.blocks, initial, part)
            if replay is not None:
                self._known[controls is None] = replay, constants, rows
        return self._finish(system, state, held, chain, words)

    def _run_again(
        self, replay: Replay, constants: bytes, rows: list[Any], system: MechanicalSystem, leaves: list[Any] | None,
        state: State, controls: Any,
    ) -> Any:  # fmt: skip
        """Return the same of a call of a kind that was checked before; None where something has to be asked or refused.

        Such calls come by the million: they do as little as they can.
        """
        schedule, held = self.schedule, self.schedule.controls
        if leaves is not None:
            given = concrete_leaves([*leaves, self.step])
            if given is None or shapes_of(given) != self._known["own"] or schedule.integrator.must_ask(system):
                return None
            constants = replay.chain.constants(given)
        if controls is not None:
            if (held := read_rows(controls, schedule.steps, system.inputs or ())) is None:
                return None
            rows = [held]
        words = replay.run(constants, state, rows)
        if words is None:
            return None
        if self.save == "all" or not replay.is_well(words):
            return self._finish(system, state, held, replay.chain, words, replay)
        return Saved(replay.records(words), (replay.chain, words))

    def _finish(
        self, system: MechanicalSystem, state: State, held: Any, chain: Chain, words: Words,
        replay: Replay | None = None,
    ) -> Any:  # fmt: skip
        """Return what a run that left these words has to give."""
        if not (well := chain.is_well(words)):
            require_state(system, state, self.step)  # its momentum too, which no program judged
        if self.save == "all":
            return self.form(finish_run(self.schedule, system, np.asarray(self.step), chain, words, held, replay))
        if well:
            return Saved(chain.records(words, single=self.save == "final").values, (chain, words))
        return self._end_where_it_failed(chain.records(words), chain.carry(words))

    def _find(
        self, system: MechanicalSystem, leaves: list[Any] | None, held: Any, state: State
    ) -> tuple[Chain, bytes, list[Numbers], list[Numbers]] | None:
        """Return the chain of this run with the words of its constants, its start and its controls."""
        schedule, known = self.schedule, self._known.get("chain")
        rows: list[Any] = [] if held is None else [held] if type(held) is np.ndarray else jax.tree.leaves(held)
        start, start_tree = jax.tree.flatten(state)
        given = concrete_leaves([*start, *rows] if rows else start)
        if known is not None and given is not None and shapes_of(given) == known[2][1]:
            chain, constants, (tree, _) = known
            if leaves is not None:
                others = concrete_leaves([*leaves, self.step])
                constants = chain.constants(others) if others and shapes_of(others) == self._known["own"] else None
            alike = start_tree == tree and state.group is not None
            if alike and constants is not None and (t := given[0].item()) + self.step != t:
                return chain, constants, given[: len(start)] if rows else given, given[len(start) :] if rows else rows
        require_arguments(system, schedule.integrator, state, self.step)
        require_state(system, state, self.step)
        if schedule.backend not in ("auto", "llvm") or schedule.t_end is not None:
            return None
        state = in_doubles(state)
        judge, consts = (admit_velocity, system, tuple(state[:3])), (system, np.asarray(self.step))
        kernel, method = self.kernel, schedule.integrator
        check = partial(method.ask, system, state, self.step)
        found = find_chain(judge, *kernel, consts, state, held, WATCH, check)
        saves = schedule.steps // schedule.save_every + 2
        if found is None or not found[0].fits(schedule.steps, saves):
            return None
        chain, const_leaves, start, rows = found
        constants = chain.constants(const_leaves)
        if system is self.system:
            kinds = jax.tree.structure(state), shapes_of([*start, *rows])
            self._known["own"] = shapes_of(concrete_leaves(jax.tree.leaves(consts)) or [])
            self._known["chain"] = chain, constants, kinds
        return chain, constants, start, rows

    def _end_where_it_failed(self, records: Any, final: LoopState) -> Saved:
        """Return what is good of a run: all of it, or what comes before the step that failed."""
        records, final = end_before_gaps(records, final, lanes=False)
        good = int(np.count_nonzero(np.diff(np.asarray(records.steps), prepend=-2) > 0))
        end = max(good, 1) - 1 if self.save == "final" else slice(max(good, 1))
        return Saved(jax.tree.map(lambda leaf: np.asarray(leaf)[end], records.values), final)

    def _run_the_long_way(self, system: MechanicalSystem, schedule: Schedule, state: State) -> Any:
        """Return the same where there is no native code, where another back end is wanted, or where the run is long."""
        method = schedule.integrator
        options: dict[str, Any] = {"step": self.step, "steps": schedule.steps}
        if self.save == "all":
            return self.form(
                simulate(
                    system, method, state, **options, save_every=schedule.save_every, controls=schedule.controls,
                    monitor=schedule.monitor, backend=schedule.backend,
                )
            )  # fmt: skip
        if not is_traced((system, state)):
            method.require(system, state, self.step)
        consts, given, found = (system, np.asarray(self.step)), (state, schedule.first_controls), cast(Any, None)
        if is_traced((system, state, schedule.controls)):  # inside jit, native calls
            found = bind_blocks(schedule, self.kernel, consts, given)
        if found is None:
            loop = begin_loop(schedule, judge_traced(self.kernel, (consts, state)), consts, given)
            result = run_steps(schedule, self.kernel, consts, loop)
            if not is_traced((result.records, result.carry)):
                return self._end_where_it_failed(result.records, result.carry)
            found = mark_failures(result.records, result.carry, schedule.sources(consts, state))[::-1]
        final, records = found
        last = self.save == "final"
        return Saved(jax.tree.map(lambda leaf: leaf[-1] if last else leaf, records.values), final)

    def _with(self, parameters: Any) -> tuple[MechanicalSystem, list[Any]]:
        """Return the system with other parameters, without building it again, and its leaves."""
        if given := isinstance(parameters, MechanicalSystem):
            other = parameters
        elif "parameters" in vars(self.system):
            other = object.__new__(type(self.system))
            other.__dict__.update(self.system.__dict__, parameters=parameters)
            other.__dict__.pop("_taken", None)  # methods took the system with its own parameters
        else:
            raise InvalidInput(
                f"a {type(self.system).__name__} has no parameters of its own: give a system of the same kind instead"
            )
        leaves, structure = jax.tree.flatten(other)
        if structure != self.kind[0] and getattr(other, "names", None) != (
            names := getattr(self.system, "names", None)
        ):
            other = copy(other)  # names change no number: those of the prepared system stay
            other.__dict__["names"] = names
            leaves, structure = jax.tree.flatten(other)
        if (structure, [np.shape(leaf) for leaf in leaves]) != self.kind:
            raise InvalidInput(
                f"parameters are {describe_shapes(parameters)}; allowed: those of the prepared system, "
                f"{describe_shapes(self.system if given else vars(self.system)['parameters'])}"
            )
        return other, leaves


def describe_shapes(tree: Any) -> str:
    """Return the shapes of a tree, for a message."""
    if isinstance(tree, MechanicalSystem):
        return (
            f"a {type(tree).__name__} on {tree.group} with arrays {[np.shape(leaf) for leaf in jax.tree.leaves(tree)]}"
        )
    return show(jax.tree.map(np.shape, tree))


def prepare(
    system: MechanicalSystem,
    integrator: Integrator,
    *,
    step: float,
    steps: int,
    save_every: int = 1,
    save: str | Sequence[str] | Observable = "all",
    controls: Any = None,
    monitor: bool = False,
    backend: Backend = "auto",
) -> PreparedRun:
    """Prepare many short runs, as in control and sampling: run = prepare(...), then run(state, parameters, controls).

    Everything that does not change is done once. `save` chooses what a call returns: "all" (a `Trajectory`, bit for bit
    that of `simulate`), or a `Saved` with the "final" state, with fields such as ("g", "xi"), or with what a function
    (system, state) -> arrays in JAX gives; nothing else is computed or copied. The other arguments are those of
    `simulate`; a run begins at the time of its state.
    """
    require_instance("system", system, MechanicalSystem, "a system")
    require_instance("method", integrator, Integrator, "a method")
    require_known("the step of a prepared run", step, "da.simulate has derivatives in its step")
    chosen: Any = save
    if isinstance(save, str) and save not in ("all", "final"):
        chosen = (save,)
    elif isinstance(save, list | tuple):
        chosen = tuple(save)
    if isinstance(chosen, tuple) and (not chosen or any(name not in FIELDS for name in chosen)):
        raise InvalidInput(f"save is {show(save)}; allowed: {SAVES}")
    if not (isinstance(chosen, str | tuple) or callable(chosen)):
        raise InvalidInput(f"save is {show(save)}; allowed: {SAVES}")
    if callable(chosen) and is_traced(captured_values(chosen)):
        raise InvalidInput(
            "save(system, state) holds a number that JAX traces; allowed: known numbers. Put it into the parameters of "
            "the system, or let save return what it is applied to"
        )
    _require_rows(controls)
    every = steps if chosen == "final" else save_every
    schedule = make_schedule(integrator, monitor, step, steps, None, 0.0, every, controls, system.inputs, backend, None)
    kernel = schedule.kernel if chosen == "all" else saving_kernel(integrator, monitor, chosen)
    leaves, structure = jax.tree.flatten(system)
    kind = structure, [np.shape(leaf) for leaf in leaves]
    return PreparedRun(system, schedule, float(step), chosen, kernel, tuple(schedule.blocks()), kind)


def _require_rows(controls: Any) -> None:
    if depends_on_time(controls):
        raise InvalidInput("controls of a prepared run have one row a step: a function of time needs a t0")
