/* Generic Suslov body with the retraction Lagrangian h l(W^tau/h): h M = n + xi cross n / 2 + <xi, n> xi / 4, n = I xi, xi = (a, b, 0).

   By hand: 2 unknowns (a, b), cubic equations with an analytic Jacobian; else as suslov.c. */
#include "common.h"
#define WORDS 23

typedef struct { double I11, I12, I13, I22, I23, I33; } Parameters;
typedef struct { const Parameters *p; double t1, t2; } Problem;

static inline void equations(const Problem *q, const double x[2], double f[2]) {
  const Parameters *p = q->p;
  double a = x[0], b = x[1], n1 = p->I11 * a + p->I12 * b, n2 = p->I12 * a + p->I22 * b;
  double k = 0.5 * (p->I13 * a + p->I23 * b), e = 0.25 * (a * n1 + b * n2);
  f[0] = n1 + b * k + a * e - q->t1;
  f[1] = n2 - a * k + b * e - q->t2;
}

static inline void jacobian(const Problem *q, const double x[2], double J[2][2]) {
  const Parameters *p = q->p;
  double a = x[0], b = x[1], n1 = p->I11 * a + p->I12 * b, n2 = p->I12 * a + p->I22 * b;
  double k = 0.5 * (p->I13 * a + p->I23 * b), e = 0.25 * (a * n1 + b * n2);
  J[0][0] = p->I11 + 0.5 * (b * p->I13 + a * n1) + e, J[0][1] = p->I12 + k + 0.5 * (b * p->I23 + a * n2);
  J[1][0] = p->I12 - k - 0.5 * (a * p->I13 - b * n1), J[1][1] = p->I22 - 0.5 * (a * p->I23 - b * n2) + e;
}

#include "newton2.h"
typedef struct { double origin, steps, g[3][3], m[3]; Branch branch; double residual, iterations, lambda; } State;

static inline int step(const Parameters *p, double h, State *s) {
  double a = s->branch.x[0], b = s->branch.x[1], q = 1.0 / (1.0 + 0.25 * (a * a + b * b)), ab = 0.5 * q * a * b;
  double aa = 0.5 * q * a * a, bb = 0.5 * q * b * b, qa = q * a, qb = q * b;
  const double W[3][3] = {{1.0 - bb, ab, qb}, {ab, 1.0 - aa, -qa}, {-qb, qa, 1.0 - (aa + bb)}};
  double T[3];
  for (int j = 0; j < 3; j++) T[j] = W[0][j] * s->m[0] + W[1][j] * s->m[1] + W[2][j] * s->m[2];
  const Problem problem = {p, h * T[0], h * T[1]};
  double x[2], det;
  int count;
  if (!follow(&problem, &s->branch, x, &det, &count)) return 0;
  a = x[0], b = x[1];
  double n1 = p->I11 * a + p->I12 * b, n2 = p->I12 * a + p->I22 * b, n3 = p->I13 * a + p->I23 * b;
  double e = 0.25 * (a * n1 + b * n2), scale = 1.0 / h;
  double r1 = scale * (n1 + 0.5 * b * n3 + a * e) - T[0], r2 = scale * (n2 - 0.5 * a * n3 + b * e) - T[1];
  double m3 = scale * (n3 + 0.5 * (a * n2 - b * n1));
  rotate(s->g, W);
  s->residual = larger(fabs(r1), fabs(r2));
  s->iterations = count;
  s->lambda = (m3 - T[2]) / h;
  s->m[0] = T[0], s->m[1] = T[1], s->m[2] = m3;
  advance(&s->branch, x, det);
  s->steps += 1.0;
  return 1;
}

static inline void observe(const Parameters *p, double h, const State *s, double *out) {
  double inverse = 1.0 / (p->I11 * p->I22 - p->I12 * p->I12);
  out[0] = s->origin + s->steps * h;
  for (int i = 0; i < 9; i++) out[1 + i] = s->g[i / 3][i % 3];
  out[10] = (p->I22 * s->m[0] - p->I12 * s->m[1]) * inverse, out[11] = (p->I11 * s->m[1] - p->I12 * s->m[0]) * inverse;
  out[12] = 0.0;
  out[13] = s->m[0], out[14] = s->m[1], out[15] = s->m[2];
  out[16] = s->branch.x[0] / h, out[17] = s->branch.x[1] / h, out[18] = 0.0;
  out[19] = s->residual, out[20] = s->iterations, out[21] = s->lambda, out[22] = s->steps;
}

RUN
