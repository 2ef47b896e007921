/* Free rigid body, discrete Moser-Veselov by Newton's method: M' = W^T M, M = vee(W J - J W^T)/h, W = cay(x).

   By hand: 3 unknowns x; with n = I x the equations h M (1 + |x|^2/4) = n + x cross n / 2 are quadratic, their Jacobian is
   I + (hat(x) I - hat(n))/2 - h M x^T/2, and the 3 x 3 system is solved by its adjugate. I^-1 is passed in. */
#include "common.h"
#define WORDS 22

typedef struct { double I[3][3], inverse[3][3]; } Parameters;
typedef struct { double origin, steps, g[3][3], m[3], x[3], change[3], bend[3], sign, residual, iterations; } State;

static inline void cross(const double a[3], const double b[3], double c[3]) {
  c[0] = a[1] * b[2] - a[2] * b[1], c[1] = a[2] * b[0] - a[0] * b[2], c[2] = a[0] * b[1] - a[1] * b[0];
}

static inline void times(const double A[3][3], const double x[3], double y[3]) {
  for (int i = 0; i < 3; i++) y[i] = A[i][0] * x[0] + A[i][1] * x[1] + A[i][2] * x[2];
}

/* F = n + x cross n / 2 - t (1 + |x|^2/4), n = I x */
static inline void equations(const Parameters *p, const double t[3], const double x[3], double n[3], double F[3]) {
  double xn[3], r = 1.0 + 0.25 * (x[0] * x[0] + x[1] * x[1] + x[2] * x[2]);
  times(p->I, x, n);
  cross(x, n, xn);
  for (int i = 0; i < 3; i++) F[i] = n[i] + 0.5 * xn[i] - t[i] * r;
}

/* x -= K F inverse; the largest change comes back. */
static inline double update(const double K[3][3], const double F[3], double inverse, double x[3], double *size) {
  double change = *size = 0.0;
  for (int i = 0; i < 3; i++) {
    double u = (K[i][0] * F[0] + K[i][1] * F[1] + K[i][2] * F[2]) * inverse;
    x[i] -= u;
    change = larger(change, fabs(u)), *size = larger(*size, fabs(x[i]));
  }
  return change;
}

static inline int step(const Parameters *p, double h, State *s) {
  double a = s->x[0], b = s->x[1], c = s->x[2], q = 1.0 / (1.0 + 0.25 * (a * a + b * b + c * c)), f = 0.5 * q;
  double aa = f * a * a, bb = f * b * b, cc = f * c * c, ab = f * a * b, ac = f * a * c, bc = f * b * c;
  const double W[3][3] = {{1.0 - (bb + cc), ab - q * c, ac + q * b},
                          {ab + q * c, 1.0 - (aa + cc), bc - q * a},
                          {ac - q * b, bc + q * a, 1.0 - (aa + bb)}};
  double T[3], t[3], x[3], n[3], xn[3], det = 1.0;
  for (int j = 0; j < 3; j++) {
    T[j] = W[0][j] * s->m[0] + W[1][j] * s->m[1] + W[2][j] * s->m[2];
    t[j] = h * T[j];
    x[j] = s->x[j] + s->change[j] + s->bend[j];
  }
  int count = 0, done = 0;
  for (; count < LIMIT && !done; count++) {
    double J[3][3], K[3][3], F[3], d, e, size;
    equations(p, t, x, n, F);
    for (int j = 0; j < 3; j++) {
      double column[3] = {p->I[0][j], p->I[1][j], p->I[2][j]}, xc[3];
      cross(x, column, xc);
      for (int i = 0; i < 3; i++) J[j][i] = column[i] + 0.5 * (xc[i] - t[i] * x[j]); /* column j of the Jacobian */
    }
    J[0][1] -= 0.5 * n[2], J[0][2] += 0.5 * n[1], J[1][0] += 0.5 * n[2];
    J[1][2] -= 0.5 * n[0], J[2][0] -= 0.5 * n[1], J[2][1] += 0.5 * n[0];
    cross(J[1], J[2], K[0]);
    cross(J[2], J[0], K[1]);
    cross(J[0], J[1], K[2]);
    det = J[0][0] * K[0][0] + J[0][1] * K[0][1] + J[0][2] * K[0][2];
    double inverse = 1.0 / det;
    d = update(K, F, inverse, x, &size);
    equations(p, t, x, n, F);
    e = update(K, F, inverse, x, &size);
    done = finished(size, d, e);
  }
  if (!done || det * s->sign < 0) return 0;
  double scale = 1.0 / (h * (1.0 + 0.25 * (x[0] * x[0] + x[1] * x[1] + x[2] * x[2])));
  times(p->I, x, n);
  cross(x, n, xn);
  s->residual = 0.0;
  for (int i = 0; i < 3; i++) {
    s->residual = larger(s->residual, fabs(scale * (n[i] + 0.5 * xn[i]) - T[i]));
    double change = x[i] - s->x[i];
    s->bend[i] = change - s->change[i], s->change[i] = change, s->x[i] = x[i], s->m[i] = T[i];
  }
  rotate(s->g, W);
  s->iterations = count;
  s->sign = det;
  s->steps += 1.0;
  return 1;
}

static inline void observe(const Parameters *p, double h, const State *s, double *out) {
  out[0] = s->origin + s->steps * h;
  for (int i = 0; i < 9; i++) out[1 + i] = s->g[i / 3][i % 3];
  times(p->inverse, s->m, out + 10);
  for (int i = 0; i < 3; i++) out[13 + i] = s->m[i], out[16 + i] = s->x[i] / h;
  out[19] = s->residual, out[20] = s->iterations, out[21] = s->steps;
}

RUN
