"""A snakeboard: three gaits, and a circle that it pumps itself along without a motor.

`python snakeboard.py`, or `dalembert run snakeboard.toml --json`, which takes the system from `make`.
"""

import jax.numpy as jnp
import numpy as np

import dalembert as da

GAITS = {"drive": (3.0, 3.0), "turn on the spot": (6.0, 3.0), "park sideways": (6.0, 4.0)}  # rates of rotor and wheels


def make(rotor=3.0, wheels=3.0):
    """The board with its rotor and wheels swinging by 0.7 at these rates."""
    return da.models.snakeboard_gait(da.models.snakeboard(), rotor=0.7, wheels=0.7, rotor_rate=rotor, wheel_rate=wheels)


def circle(x):
    """The unit circle about the origin, counterclockwise."""
    return 1.0 - x @ x


def main():
    method = da.LagrangeDAlembert()
    for name, (rotor, wheels) in GAITS.items():
        board = make(rotor, wheels)
        state = board.state(xi=[0.0, 0.0, 0.0, 0.7 * rotor, 0.7 * wheels])
        run = da.simulate(board, method, state, step=0.01, steps=500).check()
        x, y = run.g[0][-1, :2, 2]
        print(f"{name:18s} after 5 s: turned by {run.angles[-1, 0]:6.2f} rad, moved by ({x:6.2f}, {y:6.2f}) m")
    rider = da.models.snakeboard_on_path(da.models.snakeboard(), circle, speed=0.5)
    state = rider.state([[1.6, 1.2, 0.0], 0.0, 0.0], np.zeros(5))
    run = da.simulate(rider, method, state, step=0.01, steps=3000, save_every=500).check()
    for t, g, xi in zip(run.t, run.g[0], run.xi, strict=True):
        print(
            f"t = {float(t):5.1f} s   speed = {xi[1]:.3f} m/s   off the circle by {abs(jnp.hypot(*g[:2, 2]) - 1):.1e} m"
        )
    return run


if __name__ == "__main__":
    main()
