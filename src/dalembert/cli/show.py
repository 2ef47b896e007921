"""`dalembert show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ._app import Json, Plot, app, examples, number, print_json, print_table, require_picture


@app.command(
    epilog=examples(
        "dalembert show sleigh.nc",
        "dalembert show sleigh.nc --plot sleigh.png",
        "dalembert show sleigh.nc --config > again.toml",
        "dalembert show sleigh.nc --csv position > path.csv",
        "dalembert show mysystem.toml   (what it describes: is the constraint really nonholonomic?)",
    )
)
def show(
    file: Annotated[
        Path, typer.Argument(help="A .nc or .zarr file that `dalembert run --out` wrote, or a configuration.")
    ],
    plot: Plot = None,
    config: Annotated[
        bool, typer.Option("--config", help="Print the configuration that made it, to run it again.")
    ] = False,
    csv: Annotated[str | None, typer.Option(help="Print these columns (with commas between) over time as CSV.")] = None,
    as_json: Json = False,
) -> None:
    """What a data file holds: where it came from, how the run went, and its columns. Of a configuration: its system and constraint."""
    from ..atomic import replacing
    from ..errors import InvalidInput
    from ..files import load, open_dataset
    from ..plotting import plot_trajectory

    if file.suffix == ".toml":
        if plot is not None or config or csv is not None:
            raise InvalidInput(
                f"{file} is a configuration; --plot, --config and --csv show a data file: dalembert run {file} --out run.nc"
            )
        return _show_configuration(file, as_json)
    data = open_dataset(file)
    if plot is not None:
        require_picture(plot)
        with replacing(plot) as temporary:
            plot_trajectory(load(file), temporary)
    if config:
        if "config" not in data.attrs:
            raise InvalidInput(f"{file} holds no configuration: it was not written by `dalembert run`")
        print(data.attrs["config"], end="")
    elif csv is not None:
        _print_csv(data, file, [name.strip() for name in csv.split(",")])
    elif as_json:
        print_json({"file": str(file), "attributes": _attributes(data), "columns": _columns(data)})
    else:
        _print_summary(file, data)


def _show_configuration(file: Path, as_json: bool) -> None:
    """The system of a configuration, and whether its constraint is really nonholonomic at the start."""
    from ..analysis.nonholonomy import nonholonomy
    from ..config import load
    from ..errors import InvalidInput
    from ..report import plain

    job = load(file)
    system = job.system
    result: dict[str, Any] = {
        **job.names,
        "group": str(system.group),
        "dimension": system.group.dim,
        "constraints": system.constraints,
        "holonomic": system.holonomic_constraints,
    }
    with job.blaming():
        try:
            found = nonholonomy(system, job.state.g, t=float(job.state.t))
        except InvalidInput as fault:  # not linear in the velocity: brackets say nothing of it
            result["nonholonomy"] = str(fault)
        else:
            result |= {"nonholonomy": str(found), "growth": list(found.growth), "integrable": plain(found.covectors)}
    if as_json:
        print_json({"file": str(file), **result})
        return
    for key, value in result.items():
        if value is not None:
            print(f"{key:12} {value}")


def _attributes(data: Any) -> dict[str, Any]:
    return {key: value.item() if hasattr(value, "item") else value for key, value in data.attrs.items()}


def _columns(data: Any) -> dict[str, dict[str, Any]]:
    """Shape, unit and range of every column."""
    from ..report import plain

    found = {}
    for name, column in data.variables.items():
        if column.dtype.kind not in "iuf":
            continue
        found[str(name)] = {
            "shape": list(column.shape),
            "dimensions": list(map(str, column.dims)),
            "unit": column.attrs.get("units"),
            "what": column.attrs.get("long_name"),
            "min": plain(column.min()),
            "max": plain(column.max()),
        }
    return found


def _print_summary(file: Path, data: Any) -> None:
    shown = ("system", "group", "method", "step", "status", "reason", "backend", "dalembert", "created")
    for key in shown:
        if data.attrs.get(key) not in (None, ""):
            print(f"{key:10} {data.attrs[key]}")
    lines = [
        (
            name,
            entry["what"] or "",
            entry["unit"] or "",
            " x ".join(map(str, entry["shape"])),
            number(entry["min"]),
            number(entry["max"]),
        )
        for name, entry in _columns(data).items()
    ]
    print_table(str(file), ("column", "what it is", "unit"), ("shape", "least", "largest"), lines)


def _print_csv(data: Any, file: Path, names: list[str]) -> None:
    """time, then the components of the wanted columns."""
    import numpy as np

    from ..errors import InvalidInput, UnknownName

    columns = [str(name) for name, column in data.variables.items() if column.dtype.kind in "iuf"]
    if data["time"].ndim != 1:
        raise InvalidInput(f"{file} holds an ensemble; --csv prints one run")
    parts, heads = [data["time"].values[:, None]], ["time"]
    for name in names:
        if name not in columns:
            raise UnknownName(f"column of {file}", name, columns)
        values = data[name].values.reshape(len(data["time"]), -1)
        labels = data["component"].values if "component" in data[name].dims else range(values.shape[1])
        heads += [name] if values.shape[1] == 1 else [f"{name}_{label}" for label in labels]
        parts.append(values)
    print(",".join(heads))
    for row in np.concatenate(parts, axis=1):
        print(",".join(format(entry, ".17g") for entry in row))
