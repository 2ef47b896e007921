/* Free rigid body, the explicit map of docs/exact-rigid-body.md (c/body_map.c), one thread a trajectory.

   By hand: momentum and quaternion in registers, two reciprocal square roots a step, constants loaded once. Rows of `state`,
   n trajectories each: q (4), m (3), p (3), r (3), a (3), f (3), C. */
extern "C" __global__ void __launch_bounds__(64)
run(const double *__restrict__ unused, double h, long long steps, double *__restrict__ state, long long n) {
  long long lane = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (lane >= n) return;
  double *row = state + lane, q[4], m[3], p[3], r[3], a[3], f[3];
  for (int i = 0; i < 4; i++) q[i] = row[i * n];
  for (int i = 0; i < 3; i++)
    m[i] = row[(4 + i) * n], p[i] = row[(7 + i) * n], r[i] = row[(10 + i) * n], a[i] = row[(13 + i) * n], f[i] = row[(16 + i) * n];
  double C = row[19 * n], size = sqrt(C);
  for (long long step = 0; step < steps; step++) {
    double P[3], t[4] = {0.0};
    for (int i = 0; i < 3; i++) P[i] = m[i] + (p[i] * m[i] + r[i] * m[(i + 1) % 3] * m[(i + 2) % 3]);
    double scale = size * rsqrt(P[0] * P[0] + P[1] * P[1] + P[2] * P[2]);
    for (int i = 0; i < 3; i++) {
      double w = m[i] + P[i] * scale;
      m[i] = P[i] * scale;
      t[0] += a[i] * w * w, t[1 + i] = f[i] * w;
    }
    double w = q[0] * t[0] - q[1] * t[1] - q[2] * t[2] - q[3] * t[3], x = q[0] * t[1] + q[1] * t[0] + q[2] * t[3] - q[3] * t[2];
    double y = q[0] * t[2] - q[1] * t[3] + q[2] * t[0] + q[3] * t[1], z = q[0] * t[3] + q[1] * t[2] - q[2] * t[1] + q[3] * t[0];
    double unit = rsqrt(w * w + x * x + y * y + z * z);
    q[0] = unit * w, q[1] = unit * x, q[2] = unit * y, q[3] = unit * z;
  }
  for (int i = 0; i < 4; i++) row[i * n] = q[i];
  for (int i = 0; i < 3; i++) row[(4 + i) * n] = m[i];
}
