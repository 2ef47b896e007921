/* Generic Suslov body, Moser-Veselov, one thread a trajectory: the scheme of c/suslov.c with the whole state in registers.

   By hand: 2 unknowns, quadratic equations, analytic Jacobian, one reciprocal for each Jacobian and one for each Cayley map;
   the multiplier and the residual are not computed, since only last states are kept. Rows of `state`, n trajectories each:
   g (9), m (3), x (2), change (2), bend (2), sign, iterations summed, good steps. */
struct Equations {
  double I11, I12, I13, I22, I23, t1, t2;

  __device__ void value(double a, double b, double &f1, double &f2) const {
    double k = 0.5 * (I13 * a + I23 * b), r = 1.0 + 0.25 * (a * a + b * b);
    f1 = I11 * a + I12 * b + b * k - t1 * r;
    f2 = I12 * a + I22 * b - a * k - t2 * r;
  }
};

extern "C" __global__ void __launch_bounds__(64)
run(const double *__restrict__ p, double h, long long steps, double *__restrict__ state, long long n) {
  long long lane = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (lane >= n) return;
  double g[3][3], m[3], a, b, ca, cb, ba, bb, sign, count, good;
  double *row = state + lane;
  for (int i = 0; i < 9; i++) g[i / 3][i % 3] = row[i * n];
  for (int i = 0; i < 3; i++) m[i] = row[(9 + i) * n];
  a = row[12 * n], b = row[13 * n], ca = row[14 * n], cb = row[15 * n], ba = row[16 * n], bb = row[17 * n];
  sign = row[18 * n], count = row[19 * n], good = row[20 * n];
  Equations q = {p[0], p[1], p[2], p[3], p[4], 0.0, 0.0};
  for (long long step = 0; step < steps; step++) {
    double s = __drcp_rn(1.0 + 0.25 * (a * a + b * b)), sa = s * a, sb = s * b;
    double aa = 0.5 * sa * a, ab = 0.5 * sa * b, bb2 = 0.5 * sb * b;
    const double W[3][3] = {{1.0 - bb2, ab, sb}, {ab, 1.0 - aa, -sa}, {-sb, sa, 1.0 - (aa + bb2)}};
    double T[2];
    for (int j = 0; j < 2; j++) T[j] = W[0][j] * m[0] + W[1][j] * m[1] + W[2][j] * m[2];
    q.t1 = h * T[0], q.t2 = h * T[1];
    double x = a + ca + ba, y = b + cb + bb, det = 1.0, f1, f2;
    bool over = false;
    int used = 0;
    for (; used < 40 && !over; used++) {
      q.value(x, y, f1, f2);
      double k = 0.5 * (q.I13 * x + q.I23 * y);
      double j11 = q.I11 + 0.5 * (y * q.I13 - q.t1 * x), j12 = q.I12 + k + 0.5 * (y * q.I23 - q.t1 * y);
      double j21 = q.I12 - k - 0.5 * (x * q.I13 + q.t2 * x), j22 = q.I22 - 0.5 * (x * q.I23 + q.t2 * y);
      det = j11 * j22 - j12 * j21;
      double inverse = __drcp_rn(det);
      double d1 = (j22 * f1 - j12 * f2) * inverse, d2 = (j11 * f2 - j21 * f1) * inverse;
      x -= d1, y -= d2;
      q.value(x, y, f1, f2);
      double e1 = (j22 * f1 - j12 * f2) * inverse, e2 = (j11 * f2 - j21 * f1) * inverse;
      x -= e1, y -= e2;
      double size = fmax(fabs(x), fabs(y)), d = fmax(fabs(d1), fabs(d2)), e = fmax(fabs(e1), fabs(e2));
      over = d <= 0x1p-36 * size || (d <= 0x1p-8 * size && e * e <= 0x1p-58 * size * d);
    }
    if (!over || det * sign < 0.0) break;
    double N[3][3], C[3][3];
    for (int i = 0; i < 3; i++)
      for (int j = 0; j < 3; j++) N[i][j] = g[i][0] * W[0][j] + g[i][1] * W[1][j] + g[i][2] * W[2][j];
    for (int i = 0; i < 3; i++)
      for (int j = i; j < 3; j++)
        C[i][j] = C[j][i] = (i == j ? 1.5 : 0.0) - 0.5 * (N[0][i] * N[0][j] + N[1][i] * N[1][j] + N[2][i] * N[2][j]);
    for (int i = 0; i < 3; i++)
      for (int j = 0; j < 3; j++) g[i][j] = N[i][0] * C[0][j] + N[i][1] * C[1][j] + N[i][2] * C[2][j];
    double scale = __drcp_rn(h * (1.0 + 0.25 * (x * x + y * y)));
    double n1 = q.I11 * x + q.I12 * y, n2 = q.I12 * x + q.I22 * y, n3 = q.I13 * x + q.I23 * y;
    m[0] = T[0], m[1] = T[1], m[2] = scale * (n3 + 0.5 * (x * n2 - y * n1));
    ba = x - a - ca, bb = y - b - cb, ca = x - a, cb = y - b, a = x, b = y, sign = det;
    count += used, good += 1.0;
  }
  for (int i = 0; i < 9; i++) row[i * n] = g[i / 3][i % 3];
  for (int i = 0; i < 3; i++) row[(9 + i) * n] = m[i];
  row[12 * n] = a, row[13 * n] = b, row[14 * n] = ca, row[15 * n] = cb, row[16 * n] = ba, row[17 * n] = bb;
  row[18 * n] = sign, row[19 * n] = count, row[20 * n] = good;
}
