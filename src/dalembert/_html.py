"""Tables for notebooks, and how a system shows itself in one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .coordinates import axes


def system_html(system: Any) -> str:
    """Group, components, constraint and parameters."""
    m, k = system.constraints, system.holonomic_constraints
    rows: dict[str, Any] = {
        "configurations": f"{system.group}, dimension {system.group.dim}",
        "velocity": "(" + ", ".join(axis.name for axis in axes(system.group)) + ")",
        "constraints": f"{m}: D has rank {system.group.dim - m}" if m else "none: the system is free",
    }
    if k:
        rows["constraints"] += (
            f"; {k} of them holonomic, phi(g) = 0: configurations stay on a leaf of dimension {system.group.dim - k}"
        )
    rows |= {name: _numbers(value) for name, value in system.constants().items()}
    return table(type(system).__name__, rows)


def parameter_names(parameters: Any) -> dict[str, Any]:
    """The leaves of a pytree of parameters, by names such as "parameter inertia.0"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(parameters)
    return {"parameter " + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def table(title: str, rows: dict[str, Any]) -> str:
    """Names and values, one row each."""
    from html import escape

    cell = "text-align:left; vertical-align:top; font-family:inherit"
    lines = "".join(
        f'<tr><th style="{cell}">{escape(str(name))}</th><td style="{cell}; white-space:pre">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{lines}</table>"


def _numbers(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=6, threshold=40)
