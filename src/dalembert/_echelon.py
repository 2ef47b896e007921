"""Null spaces of constraint rows in reduced echelon form, on plain numbers: the documented bases of D."""

from __future__ import annotations

import numpy as np

from .errors import InvalidInput


def null_basis(rows: np.ndarray) -> np.ndarray:
    """Columns that span ker A, unit in the free coordinates: the reduced echelon form with the largest entries as pivots."""
    rows, pivots = echelon(rows)
    free = [j for j in range(rows.shape[1]) if j not in pivots]
    basis = np.zeros((rows.shape[1], len(free)))
    basis[free, range(len(free))] = 1.0
    basis[pivots] = -rows[:, free]
    return basis + 0.0


def echelon(rows: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """(the reduced echelon form of A, the columns of its pivots), with the largest entries as pivots."""
    rows = np.array(rows, float)
    m, n = rows.shape
    pivots: list[int] = []
    for i in range(m):
        k, j = divmod(int(np.argmax(np.abs(rows[i:]))), n)
        if np.abs(rows[i + k, j]) < 1e-12 * max(1.0, np.abs(rows).max()):
            raise InvalidInput(f"the {m} constraint rows are linearly dependent: rank {i}")
        rows[[i, i + k]] = rows[[i + k, i]]
        rows[i] /= rows[i, j]
        others = np.arange(m) != i
        rows[others] -= np.outer(rows[others, j], rows[i])
        pivots.append(j)
    return rows, pivots
