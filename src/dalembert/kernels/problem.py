"""What is to be run: two functions, their arguments, and which of these vary over lanes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from .builder import BUDGET
from .known import Lowered, known
from .layout import axes_of, lanes_of, one_lane
from .program import LoweringError


@dataclass
class Problem:
    """advance(consts, loop, u) -> loop and observe(consts, loop) -> record with concrete arguments."""

    advance: Callable
    observe: Callable
    consts: Any
    loop: Any
    controls: Any
    lanes: int | None
    const_axes: list[bool]
    loop_axes: list[bool]
    control_axes: list[bool]

    @cached_property
    def const_tree(self) -> Any:
        """The shapes of the constants of one lane."""
        return _specs(self.consts, self.const_axes)

    @cached_property
    def loop_tree(self) -> Any:
        """The shapes of the loop of one lane."""
        return _specs(self.loop, self.loop_axes)

    @cached_property
    def loop_specs(self) -> list[jax.ShapeDtypeStruct]:
        """The leaves of `loop_tree`."""
        return jax.tree.leaves(self.loop_tree)

    @property
    def control_tree(self) -> Any:
        """The control of one step."""
        rows = _specs(self.controls, self.control_axes)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)

    def require_steps(self, steps: int) -> None:
        """Refuse controls that have not one row a step."""
        for leaf, varies in zip(jax.tree.leaves(self.controls), self.control_axes, strict=True):
            given = np.shape(leaf)[1 if varies else 0]
            if given != steps:
                raise ValueError(f"controls have {given} rows for {steps} steps")

    def lowered(self, budget: int = BUDGET) -> Lowered:
        """The program of this problem, kept for all problems with the same functions and shapes."""
        trees = (self.const_tree, self.loop_tree, self.control_tree)
        leaves, structure = jax.tree.flatten(trees)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        key = (_hashable(self.advance), _hashable(self.observe), structure, shapes, budget)

        def trace() -> Lowered:
            from .lower import lower  # late, for a program that is known needs none of it

            return lower(self.advance, self.observe, *trees, budget=budget)

        return _remembered(key, lambda: known((self.advance, self.observe, structure, shapes, budget), trace))


def problem(advance: Callable, observe: Callable, consts: Any, loop: Any, controls: Any = None, *,
            lanes: int | None = None, axes: Any = None) -> Problem:
    """Check and describe what is to be run; `controls` holds u for every step.

    With `lanes`, `axes` = (consts, loop) or (consts, loop, controls) says like `in_axes` of vmap which leaves have a leading lane
    axis (default: the loop has).
    """
    if axes is None:
        axes = (None, None if lanes is None else 0)
    const_axes, loop_axes = axes_of(consts, axes[0]), axes_of(loop, axes[1])
    control_axes = axes_of(controls, axes[2] if len(axes) > 2 else None)
    found = (lanes_of(jax.tree.leaves(consts), const_axes) | lanes_of(jax.tree.leaves(loop), loop_axes)
             | lanes_of(jax.tree.leaves(controls), control_axes))
    if lanes is not None:
        found.add(lanes)
    if len(found) > 1:
        raise ValueError(f"leaves disagree about the number of lanes: {sorted(found)}")
    lanes = found.pop() if found else None
    return Problem(advance, observe, consts, loop, controls, lanes, const_axes, loop_axes, control_axes)


def _specs(tree: Any, axes: list[bool]) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [one_lane(leaf, varies) for leaf, varies in zip(leaves, axes, strict=True)])


# ---- programs in memory

_programs: OrderedDict[Any, Lowered | LoweringError] = OrderedDict()
REMEMBERED = 128


class _Identity:
    """Stands for an object that has no hash."""

    def __init__(self, it: Any):
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Identity) and self.it is other.it


def _hashable(function: Any) -> Any:
    try:
        hash(function)
    except TypeError:
        return _Identity(function)
    return function


def _remembered(key: Any, build: Callable[[], Lowered]) -> Lowered:
    if key not in _programs:
        try:
            _programs[key] = build()
        except LoweringError as error:
            _programs[key] = error
        if len(_programs) > REMEMBERED:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    found = _programs[key]
    if isinstance(found, LoweringError):
        raise found
    return found
