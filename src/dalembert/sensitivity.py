"""Forward sensitivities: the derivative of a run along a curve of problems, carried beside the run by the same backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Pair(NamedTuple):
    """A pytree with the tangents of its real leaves, in their order."""

    value: Any
    slopes: list


def split(tree: Any) -> tuple[list, list, Callable[[list, list], Any]]:
    """(real leaves, other leaves, how to put them together again): only real numbers have tangents."""
    leaves, structure = jax.tree.flatten(tree)
    real = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def join(reals: list, others: list) -> Any:
        first, second = iter(reals), iter(others)
        return jax.tree.unflatten(structure, [next(first) if mark else next(second) for mark in real])

    def pick(wanted: bool) -> list:
        return [leaf for leaf, mark in zip(leaves, real, strict=True) if mark is wanted]

    return pick(True), pick(False), join


def pair(value: Any, tangent: Any) -> Pair:
    """A pytree with a tangent of the same structure (None: zero)."""
    reals, _, _ = split(value)
    return Pair(value, [jnp.zeros_like(leaf) for leaf in reals] if tangent is None else split(tangent)[0])


def push(function: Callable, *arguments: Pair) -> Pair:
    """`function` at the values of its arguments, with its derivative along their slopes."""
    reals, others, join = split([argument.value for argument in arguments])
    joins: list[Callable] = []

    def on_reals(*leaves):
        result, rest, put = split(function(*join(list(leaves), others)))
        joins.append(put)
        return result, rest

    slopes = [slope for argument in arguments for slope in argument.slopes]
    value, tangent, rest = jax.jvp(on_reals, tuple(reals), tuple(slopes), has_aux=True)
    return Pair(joins[-1](value, rest), tangent)


def tangent_tree(both: Pair) -> Any:
    """The slopes in the shape of the value, zero where a leaf is no real number."""
    _, others, join = split(both.value)
    return join(both.slopes, [jnp.zeros(jnp.shape(leaf)) for leaf in others])
