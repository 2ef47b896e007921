"""The free rigid body: the map of discrete Moser-Veselov against its own C, and a work-precision table of the methods
(and heyoka, if installed).

Run: .venv/bin/python benchmarks/rigid_body.py [steps]. The C is compiled with gcc -O3 -march=native.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import dalembert  # noqa: F401  (64-bit JAX)
from dalembert.integrators import DiscreteMoserVeselov, ImplicitMidpoint, LiePoissonSplitting, Rattle, RungeKutta
from dalembert.integrators.free_body import map_constants
from dalembert.models import exact_body, rigid_body
from dalembert.simulation import simulate

INERTIA, MOMENTUM, END = [0.6, 0.8, 1.0], [1.8, 0.4, -0.9], 1000.0
SOURCE = r"""
#include <math.h>
void run(const double *k, double *state, long n) {
  double x = state[0], y = state[1], z = state[2], a = state[3], b = state[4], c = state[5], d = state[6];
  for (long i = 0; i < n; i++) {
    double P = x + (k[0]*x + k[3]*(y*z)), Q = y + (k[1]*y + k[4]*(z*x)), R = z + (k[2]*z + k[5]*(x*y));
    double s = sqrt(k[12]/(P*P + Q*Q + R*R)), nx = P*s, ny = Q*s, nz = R*s;
    double u = x + nx, v = y + ny, w = z + nz;
    double e = k[6]*u*u + k[7]*v*v + k[8]*w*w, f = k[9]*u, g = k[10]*v, h = k[11]*w;
    double A = a*e - b*f - c*g - d*h, B = a*f + b*e + c*h - d*g, C = a*g - b*h + c*e + d*f, D = a*h + b*g - c*f + d*e;
    double t = 1/sqrt(A*A + B*B + C*C + D*D);
    a = A*t; b = B*t; c = C*t; d = D*t; x = nx; y = ny; z = nz;
  }
  state[0] = x; state[1] = y; state[2] = z; state[3] = a; state[4] = b; state[5] = c; state[6] = d;
}
"""


def compiled():
    folder = Path(tempfile.mkdtemp())
    (folder / "map.c").write_text(SOURCE)
    subprocess.run(
        ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", folder / "map.so", folder / "map.c", "-lm"],
        check=True,
    )
    return ctypes.CDLL(str(folder / "map.so"))


def speed(steps: int) -> None:
    """Nanoseconds a step of the C loop and of `simulate`, taken in turn; the best of five."""
    library = compiled()
    step, _ = map_constants(jnp.diag(jnp.asarray(INERTIA)), jnp.asarray(MOMENTUM), jnp.asarray(0.1), 2, "moments")
    numbers = np.concatenate([step.p, step.r, step.a, step.f, [step.C]]).astype(float)
    system = rigid_body(INERTIA)
    state = system.state(momentum=MOMENTUM)
    run = lambda n: simulate(system, DiscreteMoserVeselov(2), state, step=0.1, steps=n, save_every=n)
    backend = run(1000).backend
    best = {"C": np.inf, backend: np.inf}
    for _ in range(5):
        values = np.array([*MOMENTUM, 1.0, 0.0, 0.0, 0.0])
        begin = time.perf_counter()
        library.run(
            numbers.ctypes.data_as(ctypes.c_void_p), values.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(steps)
        )
        middle = time.perf_counter()
        final = run(steps)
        best["C"] = min(best["C"], middle - begin)
        best[backend] = min(best[backend], time.perf_counter() - middle)
    gap = np.abs(values[:3] - final.momentum[-1]).max()
    print(
        f"map of order 2, {steps} steps: "
        + ", ".join(f"{name} {1e9 * t / steps:.1f} ns a step" for name, t in best.items())
    )
    print(f"ratio to C {best[backend] / best['C']:.2f}; momenta differ by {gap:.1e}")


def table() -> None:
    """Error at t = 1000 of momentum and attitude against the time taken."""
    system = rigid_body(INERTIA)
    state = system.state(momentum=MOMENTUM)
    motion = exact_body(INERTIA, MOMENTUM, END)
    methods = [DiscreteMoserVeselov(order) for order in ("exact", 2, 4, 6, 8, 10)]
    methods += [DiscreteMoserVeselov(6, "scaled"), Rattle(), LiePoissonSplitting(), ImplicitMidpoint(), RungeKutta()]
    print(f"\nt = {END:g}   {'method':42s}{'step':>7s}{'ms':>9s}{'momentum':>10s}{'attitude':>10s}")
    for method in methods:
        for h in (2.0, 0.5) if getattr(method, "order", 0) == "exact" else (0.1, 0.025):
            steps = round(END / h)
            simulate(system, method, state, step=h, steps=steps, save_every=steps)
            begin = time.perf_counter()
            run = simulate(system, method, state, step=h, steps=steps, save_every=steps).check()
            taken = time.perf_counter() - begin
            errors = np.abs(run.momentum[-1] - motion.momentum).max(), np.abs(run.g[-1] - motion.attitude).max()
            print(f"           {method!s:42s}{h:7g}{1e3 * taken:9.2f}{errors[0]:10.1e}{errors[1]:10.1e}")


def heyoka() -> None:
    """The same motion by heyoka's Taylor method, with momentum alone and with the quaternion."""
    try:
        import heyoka as hy
    except ImportError:
        print("\nheyoka is not installed: no comparison with it")
        return
    m, q = hy.make_vars("m1", "m2", "m3"), hy.make_vars("q0", "q1", "q2", "q3")
    w = [m[i] / INERTIA[i] for i in range(3)]
    euler = [(m[i], m[(i + 1) % 3] * w[(i + 2) % 3] - m[(i + 2) % 3] * w[(i + 1) % 3]) for i in range(3)]
    turns = [
        (q[0], -0.5 * (q[1] * w[0] + q[2] * w[1] + q[3] * w[2])),
        (q[1], 0.5 * (q[0] * w[0] + q[2] * w[2] - q[3] * w[1])),
        (q[2], 0.5 * (q[0] * w[1] + q[3] * w[0] - q[1] * w[2])),
        (q[3], 0.5 * (q[0] * w[2] + q[1] * w[1] - q[2] * w[0])),
    ]
    motion = exact_body(INERTIA, MOMENTUM, END)
    for name, equations, start in (
        ("momentum", euler, MOMENTUM),
        ("full motion", euler + turns, [*MOMENTUM, 1.0, 0.0, 0.0, 0.0]),
    ):
        integrator = hy.taylor_adaptive(equations, start)
        begin = time.perf_counter()
        integrator.propagate_until(END)
        taken = time.perf_counter() - begin
        print(
            f"heyoka, {name}: {1e3 * taken:.2f} ms, momentum error "
            f"{np.abs(integrator.state[:3] - motion.momentum).max():.1e}"
        )


if __name__ == "__main__":
    speed(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
    table()
    heyoka()
