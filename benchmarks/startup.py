"""The first result of every built-in system from a cold process, without and with the disk cache, and where the time
goes.

Targets: under 3 s without, under 1.5 s with the cache; changing any parameter compiles nothing. The processor time of
the
process is the measure (it does not count what other processes take); wall time is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from _timing import table, verdict

ROOT = Path(__file__).parent.parent
EXAMPLES = ("suslov", "sleigh", "particle")  # shown in parts


# ---- in fresh processes


def timed(command: list[str], cache: str) -> tuple[float, float, str]:
    """(processor seconds, wall seconds, output) of a command."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"DALEMBERT_CACHE": cache}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, output


def command(config: str) -> list[str]:
    return [sys.executable, "-c", "from dalembert.cli import main; main()", "run", config, "--json"]


def measured(example: str, repeats: int) -> list[list[str]]:
    """Rows without and with the cache: processor and wall seconds of the command line, then the parts of one
    process.
    """
    rows = []
    with tempfile.TemporaryDirectory() as warm:
        os.chmod(warm, 0o700)
        run = command(f"examples/{example}.toml")
        timed(run, warm)
        for name, target in (("without cache", 3.0), ("with cache", 1.5)):
            times = []
            for _ in range(repeats):
                with tempfile.TemporaryDirectory() as fresh:
                    os.chmod(fresh, 0o700)
                    cache = warm if name == "with cache" else fresh
                    times.append(timed(run, cache)[:2])
            with tempfile.TemporaryDirectory() as fresh:
                os.chmod(fresh, 0o700)
                child = [sys.executable, __file__, "--parts", example]
                parts = json.loads(timed(child, warm if name == "with cache" else fresh)[2])
            processor, wall = (statistics.median(column) for column in zip(*times, strict=True))
            rows.append(
                [
                    f"{example}, {name}",
                    verdict(processor, target, at_most=True),
                    f"{wall:.2f}",
                    *(f"{parts[key]:.2f}" for key in PARTS),
                ]
            )
    return rows


def every_model(repeats: int) -> list[list[str]]:
    """Rows of all built-in systems with their own examples: processor and wall seconds with a warm cache, the best of
    several.
    """
    from dalembert.io.config import to_toml
    from dalembert.models import MODELS

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        for model in MODELS.values():
            config = Path(folder, f"{model.name}.toml")
            config.write_text(
                to_toml(
                    {
                        "system": {"name": model.name, **model.example},
                        "method": dict(model.method),
                        "initial": dict(model.initial),
                        "run": {"step": model.step, "steps": 100},
                    }
                )
            )
            first = timed(command(str(config)), folder)
            times = [timed(command(str(config)), folder)[:2] for _ in range(repeats)]
            processor, wall = (min(column) for column in zip(*times, strict=True))
            rows.append(
                [model.name, verdict(first[0], 3.0, at_most=True), verdict(processor, 1.5, at_most=True), f"{wall:.2f}"]
            )
    return rows


# ---- inside one process

PARTS = (
    "import jax",
    "import dalembert",
    "load",
    "run",
    "trace+lower",
    "XLA compile",
    "native compile",
    "compilations",
)


class Counter:
    """Seconds in, and numbers of, the compilations of JAX and of LLVM."""

    def __init__(self) -> None:
        import jax

        from dalembert.kernels import llvm, problem

        self.seconds = {"trace+lower": 0.0, "XLA compile": 0.0, "native compile": 0.0}
        self.compilations = 0
        jax.monitoring.register_event_duration_secs_listener(self._event)
        llvm.compile_object = self._wrapped(llvm.compile_object, "native compile", 1)
        problem.lower = self._wrapped(problem.lower, "trace+lower", 0)

    def _event(self, name: str, seconds: float, **_) -> None:
        if name.endswith("backend_compile_duration"):
            self.seconds["XLA compile"] += seconds
            self.compilations += 1
        elif name.endswith("jaxpr_to_mlir_module_duration"):
            self.seconds["trace+lower"] += seconds

    def _wrapped(self, function, part: str, count: int):
        def call(*args, **options):
            begin = time.process_time()
            result = function(*args, **options)
            self.seconds[part] += time.process_time() - begin
            self.compilations += count
            return result

        return call


def parts(example: str) -> dict[str, float]:
    """Processor seconds of the parts of a first result; the last three are inside `load` and `run`."""
    marks = [time.process_time()]
    import jax  # noqa: F401

    marks.append(time.process_time())
    import dalembert as da
    from dalembert.io.config import load_job as load

    marks.append(time.process_time())
    counter = Counter()
    marks.append(time.process_time())
    job = load(ROOT / "examples" / f"{example}.toml")
    marks.append(time.process_time())
    da.simulate(job.system, job.integrator, job.state, step=job.run["step"], steps=job.run["steps"], monitor=True)
    marks.append(time.process_time())
    spans = [b - a for a, b in pairwise(marks)]
    return {
        "import jax": spans[0],
        "import dalembert": spans[1],
        "load": spans[3],
        "run": spans[4],
        **counter.seconds,
        "compilations": counter.compilations,
    }


GENERIC = [[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]]
CHANGES = {
    "inertia": {"inertia": [[3, 0.1, 1], [0.1, 4, 0.5], [1, 0.5, 6]]},
    "normal": {"normal": [0.3, -0.2, 1.1]},
    "momentum": {"momentum": [2.0, 1.0]},
    "step": {"step": -0.02},
    "steps": {"steps": 7},
}


def recompilations() -> dict[str, int]:
    """Compilations that a change of each parameter of a Suslov run causes; 0 is the target."""
    import dalembert as da

    counter = Counter()

    def run(inertia=GENERIC, normal=(0.1, 0.2, 1.0), momentum=(3.0, 2.0), step=0.05, steps=100) -> int:
        before = counter.compilations
        system = da.models.suslov(inertia, normal)
        da.simulate(system, da.EulerPoincareSuslov(), system.state(momentum=momentum), step=step, steps=steps).check()
        return counter.compilations - before

    run()
    return {name: run(**change) for name, change in CHANGES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", action="store_true", help="every built-in system, with a warm cache")
    parser.add_argument("--parts", help=argparse.SUPPRESS)
    parser.add_argument("--recompilations", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.parts:
        print(json.dumps(parts(given.parts)))
    elif given.recompilations:
        print(json.dumps(recompilations()))
    elif given.models:
        table(["dalembert run, processor seconds", "without cache", "with cache", "wall"], every_model(given.repeats))
    else:
        head = ["dalembert run, seconds", "processor", "wall", *PARTS]
        table(head, [row for example in EXAMPLES for row in measured(example, given.repeats)])
        print(
            "`load` and `run` contain the three columns after them; ! marks a missed target (3 s without, "
            "1.5 s with the cache)"
        )
        again = json.loads(timed([sys.executable, __file__, "--recompilations"], "off")[2])
        print(
            "compilations after a change of",
            ", ".join(f"{name}: {count}{' !' if count else ''}" for name, count in again.items()),
        )


if __name__ == "__main__":
    main()
