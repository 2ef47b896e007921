"""`python -m tools.claims`: measure every claim, then write docs/claims.json, claims.md and claims/METHOD.md.

It ends with 1 and names them where claims are not met that the published figures met.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from .. import xla

# Figures come from native kernels; XLA compiles what is evaluated a few times.
os.environ.setdefault("XLA_FLAGS", xla.QUICK)
os.environ.update(xla.WITHOUT_PLACES | os.environ)

from .measure import Figures
from .page import claims_pages, verdicts
from .store import Store, Task, all_tasks, measure_tasks, missing_tasks, task_key


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.claims", description=__doc__)
    parser.add_argument(
        "--store", type=Path, default=Path("build/claims.jsonl"), help="what is measured so far; deleted at the end"
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where the pages go")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="measure only what has this text in its key, and write no page")
    parser.add_argument("--keep", action="store_true", help="use what other sources measured")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing: write the pages from claims.json and the store"
    )
    given = parser.parse_args()
    published = json.loads((given.docs / "claims.json").read_text(encoding="utf-8"))
    if given.page:
        return write(published | Store(given.store, keep=True).figures, given.docs)
    store = Store(given.store, given.keep)
    try:
        fill(store, missing_tasks(store, given.only), given.jobs)
    except KeyboardInterrupt:
        raise SystemExit(
            f"stopped; {given.store} keeps what is measured, and the same command goes on from there"
        ) from None
    if not given.only:
        write(store.figures, given.docs)
        given.store.unlink(missing_ok=True)
        if broken := broken_claims(published, store.figures):
            raise SystemExit(f"not met, and met before: {'; '.join(broken)}")


def fill(store: Store, todo: list[Task], jobs: int) -> None:
    """Measure what is missing, and say how far it is."""
    begin = time.monotonic()
    for k, (task, figures, seconds) in enumerate(measure_tasks(todo, jobs), 1):
        store.add(task_key(task), figures)
        ended = next((f"{word}: {figures[word][:90]}" for word in ("refused", "failed") if word in figures), "done")
        print(
            f"{k}/{len(todo)}, {(time.monotonic() - begin) / 60:.1f} min: {task_key(task)} ({seconds:.1f} s) {ended}",
            flush=True,
        )


def write(figures: dict[str, Figures], docs: Path) -> None:
    known = [task_key(task) for task in all_tasks()]
    figures = {name: figures[name] for name in known if name in figures}
    (docs / "claims.json").write_text(json.dumps(figures, indent=0) + "\n", encoding="utf-8")
    found = verdicts(figures)
    (docs / "claims").mkdir(exist_ok=True)
    for name, text in claims_pages(figures, found, [name for name in known if name not in figures]).items():
        (docs / name).write_text(text, encoding="utf-8")
    unmet = [v for v in found if v.met is False]
    print(f"{sum(v.met is True for v in found)} claims met, {len(unmet)} not met: {docs / 'claims.md'}")


def broken_claims(published: dict[str, Figures], figures: dict[str, Figures]) -> list[str]:
    """The claims that these figures do not meet and the published ones do, as "method, system, property"."""
    before, now = (
        {f"{v.label}, {v.case}, {v.name}" for v in verdicts(each) if v.met is False} for each in (published, figures)
    )
    return sorted(now - before)


if __name__ == "__main__":
    main()
