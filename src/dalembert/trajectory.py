"""What a run leaves, with the forms people want it in: states at any time, coordinates, tables, files, figures."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ParamSpec

import jax
import numpy as np

from ._lazy import from_above
from .analysis import comparison
from .analysis.branches import explain_branch_end
from .errors import InvalidInput, UnknownName, spell
from .integrators import BRANCH_LOST
from .io.atomic import atomic_path
from .io.dataset import load_run, save_run, to_xarray
from .kernels import evaluate
from .mechanics import MechanicalSystem, State, Steered, feedback
from .numerics import is_long_run, is_traced, require_known, show, shows_progress
from .plotting.runs import plot_named, plot_trajectory, trajectory_html
from .simulation import Run, driver, prepared, states_at

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Page:
    """HTML that a notebook shows: a whole page in a frame of this height, or an element alone."""

    html: str
    height: int | None = None

    def _repr_html_(self) -> str:
        if self.height is None:
            return self.html
        frame = f'style="width:100%; height:{self.height}px; border:0" sandbox="allow-scripts"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page, complete or not at all."""
        with atomic_path(Path(path)) as temporary:
            Path(temporary).write_text(self.html, encoding="utf-8")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("system", "step", "records", "final", "tangents", "events", "controls"),
    meta_fields=("integrator", "backend", "note", "interrupted", "batched", "controlled", "every"),
)
@dataclass(frozen=True, eq=False, repr=False)
class Trajectory(Run):
    """The result of a run: arrays over the saved states, with methods to examine, save and plot them.

    `t`, `g`, `xi` and `momentum` have the saved states as their first axis (in an ensemble the members before it), and
    `run[name]` has a coordinate, rate, load or input by its name. A run that failed keeps its good part: `status` is
    "failed", `failed_at` the number of good steps (-1: the start has no solution) and `reason` says why. `simulate(
    system, integrator, run, ...)` goes on from its end; a continued run is bit for bit the long run.
    """

    @classmethod
    def of(cls, run: Run) -> Trajectory:
        """A run with these forms added."""
        made = object.__new__(cls)
        made.__dict__.update(run.__dict__)
        return made

    def at(self, times: Any) -> State:
        """The states at any times within the run: a number or an array, whose shape comes first in the result.

        The method's own steps lead there from the last saved state before, the last of them with a fraction of the
        size, so the states have the order of the method and agree with the saved ones. In an ensemble the members come
        first, with NaN after a member's end. Inside JAX transformations the states have derivatives, in the times too;
        times outside the run give NaN there.
        """
        return jax.vmap(lambda run: run.at(times))(self) if self._is_many else states_at(self, times)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        """A coordinate, a rate, an input or a load of the system by its name, shape (saves,): run["steer"].

        Loads are the Lagrange multipliers of the continuous motion at the saved states, and the inputs of a closed loop
        (`with_feedback`) are what its policy gives there. In a name _ may stand for a blank.
        """
        system, inputs = self.system, [each.name for each in self.system.inputs or ()]
        observed, loop = (*system.coordinate_names, *system.rate_names), feedback(system)
        steered = [each.name for each in loop.system.inputs or ()] if loop else []
        name = spell(name, (*observed, *system.load_names, *inputs, *steered))
        if name in inputs and self.controls is not None:
            return self.controls_at_states()[..., inputs.index(name)]  # type: ignore[no-any-return]
        if name not in (*observed, *system.load_names, *steered):
            driven = (*steered, *(inputs if self.controlled else ()))
            raise UnknownName("quantity", name, (*observed, *system.load_names, *driven))
        if np.ndim(self.final.status):
            raise InvalidInput("run[name] needs one run: take a member of the ensemble, or `sweep` with a reduction")
        states = self.records.state
        u = self.controls_at_states() if self.controls is not None else np.zeros((len(self.t), len(inputs)))
        kinds: Any = (_loads, system.load_names), (_steering, steered), (_observe, observed)
        function, names = next(kind for kind in kinds if name in kind[1])
        values = evaluate(function, loop if name in steered else system, (states, u), lanes=len(self.t), axes=(None, 0))
        found: np.ndarray[Any, Any] = (values if is_traced(values) else np.asarray(values))[:, names.index(name)]
        return found

    # -- other forms ---------------------------------------------------------------------------------------------------
    def coordinates(self, kind: str, convention: str = "ZXZ") -> np.ndarray[Any, Any]:
        """The configurations as numbers (saves, k): "quaternion", "euler", "pose" (theta, x, y) or "position".

        Euler angles follow the `convention`; angles count whole turns (see `Group.along`).
        """
        require_known("run.coordinates(kind)", self.records, "ask for them outside, or take run.g and run.angles")
        return self.system.group.along(kind, self.g, self.angles, convention)

    def to_xarray(self, *, reaction: bool = False) -> xarray.Dataset:
        """The run as an `xarray.Dataset` with names, units and provenance; `reaction` adds the reaction forces."""
        self._require_one("run.to_xarray()")
        return to_xarray(self, reaction=reaction)

    def save(self, path: str | Path) -> None:
        """Save the run as a NetCDF (.nc) or Zarr (.zarr) file, atomically; `dalembert.load(path)` reads it."""
        self._require_one("run.save(path)")
        save_run(self, path)

    def __repr__(self) -> str:
        told = super().__repr__().removesuffix(">")
        if np.ndim(self.final.status) and not is_traced(self.final.status):
            kinds, counts = np.unique(self.status, return_counts=True)
            told += "".join(f", {count} {kind}" for kind, count in zip(kinds[::-1], counts[::-1], strict=True))
        elif not is_traced(self.final.status) and self.status != "failed":  # its reason is told already
            told += f", {self.status}" + f", stopped by {self.stopped_by}" * (self.stopped_by is not None)
        return f"{told}>"

    def _repr_html_(self) -> str:
        return repr(self) if is_traced(self.records) else trajectory_html(self)

    def plot(
        self,
        path: str | Path | None = None,
        *,
        of: Sequence[str] = (),
        width: float | None = None,
        panels: Sequence[str] = (),
    ) -> Figure:
        """Draw the motion, the energy error and the distance from the constraint; `path` saves it (.png, .pdf, .svg).

        With names, as in `of=["speed", "left torque"]`, it draws `run[name]` over time instead, a panel for each unit.
        `width` is that of the figure in inches: in one column of a page (`width=3.4`) panels stand below each other,
        no more than a page holds; `panels=["motion", "controls"]` chooses them.
        """
        self._require_one("run.plot()")
        if width is not None and not (isinstance(width, int | float | np.number) and 0.0 < width < np.inf):
            raise InvalidInput(f"width is {show(width)}; allowed: the width of the figure in inches, such as 3.37")
        of, panels = ((each,) if isinstance(each, str) else each for each in (of, panels))
        if not of:
            return plot_trajectory(self, path, width=width, panels=panels)
        return plot_named(self.t, {name: self[name] for name in of}, self.system.units, path=path, width=width)

    def show(self, *, height: int = 640) -> Page:
        """Play the run in a notebook: the studio's player as one offline page; `.save(path)` writes it as HTML."""
        self._require_one("run.show()")
        return Page(self._one(from_above("studio", "player"))(self), height)

    def animate(self, path: str | Path | None = None, *, seconds: float = 8.0) -> Page:
        """A film of the run for a notebook, `seconds` long; `path` (.gif, or .mp4 with ffmpeg) saves it as well."""
        self._require_one("run.animate()")
        film = self._one(from_above("studio", "film_of"))
        with TemporaryDirectory(prefix="dalembert-film-") as folder:
            file = Path(folder) / "film.gif" if path is None else Path(path)
            film(self, file, seconds)
            data = base64.b64encode(file.read_bytes()).decode()
        tag = "video controls loop autoplay" if file.suffix == ".mp4" else "img"
        kind = "video/mp4" if file.suffix == ".mp4" else "image/gif"
        return Page(f'<{tag} style="max-width:100%" src="data:{kind};base64,{data}"></{tag.split()[0]}>')

    def _one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, if this is one run."""
        if np.ndim(self.final.status):
            raise InvalidInput("a player and a film show one run; this is an ensemble")
        return function

    def _failure_reason(self, code: int, count: int) -> str:
        """The reason, with the exact threshold of the step where the branch of an Euler-Poincare-Suslov run ends."""
        one = count >= 0 and not np.ndim(self.final.status)
        if code != BRANCH_LOST or not one or self.integrator.name != "euler-poincare-suslov":
            return super()._failure_reason(code, count)
        momentum = np.asarray(self.final.carry.impulse) / float(self.step)
        return explain_branch_end(self.system, self.integrator, momentum, float(self.step), steps=1)


def _observe(system: MechanicalSystem, point: tuple[State, Any]) -> Any:
    state, _ = point
    return system.observe(state.t, state.g, state.xi)


def _loads(system: MechanicalSystem, point: tuple[State, Any]) -> Any:
    state, u = point
    return system.multipliers(state.t, state.g, state.xi, u)


def _steering(loop: Steered, point: tuple[State, Any]) -> Any:
    state, _ = point
    return loop.policy(state.t, state.g, state.xi)


P = ParamSpec("P")


def _with_forms(function: Callable[P, Run]) -> Callable[P, Trajectory]:
    """The function with its run as a `Trajectory`."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> Trajectory:
        return Trajectory.of(function(*arguments, **options))

    call.__annotations__ = {**function.__annotations__, "return": "Trajectory"}
    return call


_shown = shows_progress(lambda bar: bar.count, is_long_run)
simulate = _shown(_with_forms(driver.simulate))
ensemble = _shown(_with_forms(driver.ensemble))
load = _with_forms(load_run)


@wraps(prepared.prepare)
def prepare(*arguments: Any, **options: Any) -> prepared.PreparedRun:
    return replace(prepared.prepare(*arguments, **options), form=Trajectory.of)


@shows_progress(lambda bar: bar.count)
@wraps(comparison.compare)
def compare(*arguments: Any, **options: Any) -> comparison.Comparison:
    made = comparison.compare(*arguments, **options)
    return replace(made, runs={name: Trajectory.of(run) for name, run in made.runs.items()})
