"""The tables [[event]] of a configuration: quantities of the motion and the values they pass, by names and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidInput, UnknownName
from .events import QUANTITIES, SCALARS, Event, Quantity, named
from .system import MechanicalSystem, State

KEYS = ("quantity", "index", "value", "direction", "stop", "name")
DIRECTIONS = {"both": 0, "up": 1, "down": -1}


def events_of(tables: Any, system: MechanicalSystem, state: State) -> tuple[Event, ...]:
    """The events of a configuration, checked on its system."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise InvalidInput(f"events are tables [[event]] of key = value lines, with two brackets; given {tables!r}")
    return named([_event(table) for table in tables], system, state)


def _event(table: Mapping[str, Any]) -> Event:
    for key in table:
        if key not in KEYS:
            raise UnknownName("key of [[event]]", key, KEYS)
    if "quantity" not in table:
        raise InvalidInput(f"an [[event]] needs a quantity; allowed: {', '.join(QUANTITIES)}")
    if table["quantity"] not in QUANTITIES:
        raise UnknownName("quantity", table["quantity"], QUANTITIES)
    direction, stop, name = table.get("direction", "both"), table.get("stop", False), table.get("name", "")
    if direction not in DIRECTIONS:
        raise UnknownName("direction of an event", direction, DIRECTIONS)
    if not isinstance(stop, bool) or not isinstance(name, str):
        raise InvalidInput(f"stop is {stop!r} and name is {name!r} in an [[event]]; allowed: true or false, and text")
    quantity = Quantity(table["quantity"], _index(table), _value(table))
    return Event(quantity, DIRECTIONS[direction], stop, name or _name(quantity))


def _index(table: Mapping[str, Any]) -> tuple[int, ...]:
    if "index" not in table and table["quantity"] not in SCALARS:
        raise InvalidInput(
            f"an [[event]] of {table['quantity']} needs an index: 0 for the first component, [row, column] in a matrix"
        )
    given = table.get("index", [])
    index = given if isinstance(given, list) else [given]
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in index):
        raise InvalidInput(f"index in an [[event]] is {given!r}; allowed: a whole number, or a list of these")
    return tuple(index)


def _value(table: Mapping[str, Any]) -> float:
    value = table.get("value", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"value in an [[event]] is {value!r}; allowed: a finite number")
    return float(value)


def _name(quantity: Quantity) -> str:
    index = ",".join(map(str, quantity.index))
    return f"{quantity.kind}{f'[{index}]' if index else ''} = {quantity.value:g}"
