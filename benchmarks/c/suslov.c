/* Generic Suslov body, Moser-Veselov: iota* M' = iota* W^T M with M = vee(W J - J W^T)/h and W = cay(a, b, 0), (a, b) = h eta.

   By hand: 2 unknowns (a, b). With n = I (a, b, 0), h M (1 + (a^2 + b^2)/4) = n + (a, b, 0) x n / 2, so the equations are
   quadratic and their Jacobian is analytic. The first two momenta are those
   transported, the third follows. The restricted inertia is inverted once. */
#include "common.h"
#define WORDS 23

typedef struct { double I11, I12, I13, I22, I23, I33; } Parameters;
typedef struct { const Parameters *p; double t1, t2; } Problem;

static inline void equations(const Problem *q, const double x[2], double f[2]) {
  const Parameters *p = q->p;
  double a = x[0], b = x[1], k = 0.5 * (p->I13 * a + p->I23 * b), r = 1.0 + 0.25 * (a * a + b * b);
  f[0] = p->I11 * a + p->I12 * b + b * k - q->t1 * r;
  f[1] = p->I12 * a + p->I22 * b - a * k - q->t2 * r;
}

static inline void jacobian(const Problem *q, const double x[2], double J[2][2]) {
  const Parameters *p = q->p;
  double a = x[0], b = x[1], k = 0.5 * (p->I13 * a + p->I23 * b);
  J[0][0] = p->I11 + 0.5 * (b * p->I13 - q->t1 * a), J[0][1] = p->I12 + k + 0.5 * (b * p->I23 - q->t1 * b);
  J[1][0] = p->I12 - k - 0.5 * (a * p->I13 + q->t2 * a), J[1][1] = p->I22 - 0.5 * (a * p->I23 + q->t2 * b);
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
  double scale = 1.0 / (h * (1.0 + 0.25 * (a * a + b * b)));
  double r1 = scale * (n1 + 0.5 * b * n3) - T[0], r2 = scale * (n2 - 0.5 * a * n3) - T[1];
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

static inline void velocity(const Parameters *p, const State *s, double *u, double *v) {
  double inverse = 1.0 / (p->I11 * p->I22 - p->I12 * p->I12);
  *u = (p->I22 * s->m[0] - p->I12 * s->m[1]) * inverse;
  *v = (p->I11 * s->m[1] - p->I12 * s->m[0]) * inverse;
}

static inline void observe(const Parameters *p, double h, const State *s, double *out) {
  double u, v;
  velocity(p, s, &u, &v);
  out[0] = s->origin + s->steps * h;
  for (int i = 0; i < 9; i++) out[1 + i] = s->g[i / 3][i % 3];
  out[10] = u, out[11] = v, out[12] = 0.0;
  out[13] = s->m[0], out[14] = s->m[1], out[15] = s->m[2];
  out[16] = s->branch.x[0] / h, out[17] = s->branch.x[1] / h, out[18] = 0.0;
  out[19] = s->residual, out[20] = s->iterations, out[21] = s->lambda, out[22] = s->steps;
}

RUN

/* The same run without records, with the extremes that `dalembert run` keeps: energy error, constraint, distance from SO(3). */
int64_t monitored(const Parameters *p, double h, int64_t steps, State *state, double peaks[3]) {
  State s = *state;
  double u, v;
  velocity(p, &s, &u, &v);
  double start = 0.5 * (u * s.m[0] + v * s.m[1]), error = 0.0, group = 0.0;
  for (int64_t k = 0; k < steps; k++) {
    if (!step(p, h, &s)) break;
    velocity(p, &s, &u, &v);
    double square = 0.0;
    for (int i = 0; i < 3; i++)
      for (int j = i; j < 3; j++) {
        double d = s.g[0][i] * s.g[0][j] + s.g[1][i] * s.g[1][j] + s.g[2][i] * s.g[2][j] - (i == j);
        square += (i == j ? 1.0 : 2.0) * d * d;
      }
    error = larger(error, fabs(0.5 * (u * s.m[0] + v * s.m[1]) - start));
    group = larger(group, square);
  }
  peaks[0] = error, peaks[1] = 0.0, peaks[2] = sqrt(group);
  *state = s;
  return (int64_t)s.steps;
}
