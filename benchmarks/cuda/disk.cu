/* Vertical rolling disk, Lagrange-d'Alembert with Cayley at node 1/2, one thread a trajectory: the scheme of c/disk.c with
   the whole state in registers.

   By hand: 2 unknowns (w, psi), analytic Jacobian, one reciprocal for each Jacobian and one for each Cayley map; rotations
   are a cosine and a sine. Multipliers, residual and unwrapped angles are not computed, since only last states are kept.
   Rows of `state`, n trajectories each: cos, sin, x, y of the plane, cos, sin of the wheel, p (4), x (2), change (2), bend (2),
   sign, iterations summed, good steps. Parameters: m, Ir, Iw, r. */
struct Equations {
  double mr, Ir, Iw, r, e, torque, total;

  __device__ void value(double w, double psi, double &f1, double &f2) const {
    double phi = e * w, b = e * psi;
    f1 = Iw * w * (1.0 + phi * phi) + mr * psi * phi * (2.0 * r * b) - torque;
    f2 = Ir * psi * (1.0 + b * b) + mr * r * psi * (1.0 - phi * phi) - total;
  }
};

extern "C" __global__ void __launch_bounds__(64)
run(const double *__restrict__ p, double h, long long steps, double *__restrict__ state, long long n) {
  long long lane = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (lane >= n) return;
  double *row = state + lane;
  double c = row[0], s = row[n], px = row[2 * n], py = row[3 * n], gc = row[4 * n], gs = row[5 * n];
  double p0 = row[6 * n], p1 = row[7 * n], p2 = row[8 * n], p3 = row[9 * n];
  double a = row[10 * n], b = row[11 * n], ca = row[12 * n], cb = row[13 * n], ba = row[14 * n], bb = row[15 * n];
  double sign = row[16 * n], count = row[17 * n], good = row[18 * n];
  Equations q = {p[0] * p[3], p[1], p[2], p[3], 0.25 * h, 0.0, 0.0};
  for (long long step = 0; step < steps; step++) {
    q.torque = p0, q.total = q.r * p1 + p3;
    double w = a + ca + ba, psi = b + cb + bb, det = 1.0, f1, f2;
    bool over = false;
    int used = 0;
    for (; used < 40 && !over; used++) {
      q.value(w, psi, f1, f2);
      double phi = q.e * w, turn = q.e * psi, V = 2.0 * turn * q.r;
      double j11 = q.Iw * (1.0 + 3.0 * phi * phi) + q.mr * turn * V, j12 = 2.0 * q.mr * phi * V;
      double j21 = -2.0 * q.mr * q.r * turn * phi;
      double j22 = q.Ir * (1.0 + 3.0 * turn * turn) + q.mr * q.r * (1.0 - phi * phi);
      det = j11 * j22 - j12 * j21;
      double inverse = __drcp_rn(det);
      double d1 = (j22 * f1 - j12 * f2) * inverse, d2 = (j11 * f2 - j21 * f1) * inverse;
      w -= d1, psi -= d2;
      q.value(w, psi, f1, f2);
      double e1 = (j22 * f1 - j12 * f2) * inverse, e2 = (j11 * f2 - j21 * f1) * inverse;
      w -= e1, psi -= e2;
      double size = fmax(fabs(w), fabs(psi)), d = fmax(fabs(d1), fabs(d2)), e = fmax(fabs(e1), fabs(e2));
      over = d <= 0x1p-36 * size || (d <= 0x1p-8 * size && e * e <= 0x1p-58 * size * d);
    }
    if (!over || det * sign < 0.0) break;
    double phi = q.e * w, turn = q.e * psi, V = 2.0 * q.r * turn, D = 1.0 + phi * phi;
    double k = __drcp_rn(D), hc = (1.0 - phi * phi) * k, hs = 2.0 * phi * k, hx = k * V, hy = phi * hx;
    double l = __drcp_rn(1.0 + turn * turn), wc = (1.0 - turn * turn) * l, ws = 2.0 * turn * l, speed = q.mr * psi;
    p0 = D * (q.Iw * w + hy * speed), p1 = D * hc * speed, p2 = -D * hs * speed, p3 = q.Ir * psi * (1.0 + turn * turn);
    for (int half = 0; half < 2; half++) {
      px += c * hx - s * hy, py += s * hx + c * hy;
      double next = c * hc - s * hs, wheel = gc * wc - gs * ws;
      s = s * hc + c * hs, c = next, gs = gs * wc + gc * ws, gc = wheel;
    }
    double one = 1.5 - 0.5 * (c * c + s * s), other = 1.5 - 0.5 * (gc * gc + gs * gs);
    c *= one, s *= one, gc *= other, gs *= other;
    ba = w - a - ca, bb = psi - b - cb, ca = w - a, cb = psi - b, a = w, b = psi, sign = det;
    count += used, good += 1.0;
  }
  row[0] = c, row[n] = s, row[2 * n] = px, row[3 * n] = py, row[4 * n] = gc, row[5 * n] = gs;
  row[6 * n] = p0, row[7 * n] = p1, row[8 * n] = p2, row[9 * n] = p3;
  row[10 * n] = a, row[11 * n] = b, row[12 * n] = ca, row[13 * n] = cb, row[14 * n] = ba, row[15 * n] = bb;
  row[16 * n] = sign, row[17 * n] = count, row[18 * n] = good;
}
