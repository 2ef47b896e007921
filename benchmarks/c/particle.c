/* Nonholonomic particle z' = y x' in V = (x^2 + y^2)/2, Lagrange-d'Alembert at beta = 1/2, velocity form.

   By hand: w = p + A(q)^T l - h V_q(q~)/2, A(q~) w = 0, q~ = q + h w/2. w3 = p3 + l and l = y~ w1 - p3 leave 2 unknowns
   (w1, w2) and an analytic Jacobian; any V(x, y) goes into gradient() and hessian(). With -DEXPLICIT the step is
   solved by hand instead: for this V it is linear in w2 and then in l, and no iteration is left. */
#include "common.h"
#define WORDS 17

typedef struct { double unused; } Parameters;
static inline void gradient(double x, double y, double *vx, double *vy) { *vx = x, *vy = y; }
static inline void hessian(double x, double y, double *xx, double *xy, double *yy) { *xx = 1.0, *xy = 0.0, *yy = 1.0; }

typedef struct { double x, y, e; const double *p; } Problem; /* e = h/2 */

static inline void equations(const Problem *q, const double w[2], double f[2]) {
  double xt = q->x + q->e * w[0], yt = q->y + q->e * w[1], vx, vy;
  gradient(xt, yt, &vx, &vy);
  f[0] = w[0] - q->p[0] + q->y * (yt * w[0] - q->p[2]) + q->e * vx;
  f[1] = w[1] - q->p[1] + q->e * vy;
}

static inline void jacobian(const Problem *q, const double w[2], double J[2][2]) {
  double xt = q->x + q->e * w[0], yt = q->y + q->e * w[1], k = q->e * q->e, xx, xy, yy;
  hessian(xt, yt, &xx, &xy, &yy);
  J[0][0] = 1.0 + q->y * yt + k * xx, J[0][1] = q->e * q->y * w[0] + k * xy;
  J[1][0] = k * xy, J[1][1] = 1.0 + k * yy;
}

#include "newton2.h"
typedef struct { double origin, steps, q[3], p[3], inner[3], w[3], l; Branch branch; double residual, iterations; } State;

static inline int step(const Parameters *unused, double h, State *s) {
  double x = s->q[0], y = s->q[1], e = 0.5 * h, w1, w2, l;
  const double *p = s->p;
  int count = 0;
#ifdef EXPLICIT
  double K = 1.0 / (1.0 + e * e);
  w2 = (p[1] - e * y) * K;
  double yt = y + e * w2;
  l = (yt * K * (p[0] - e * x) - p[2]) / (1.0 + yt * y * K);
  w1 = (p[0] - e * x - y * l) * K;
#else
  const Problem problem = {x, y, e, p};
  double w[2], det;
  if (!follow(&problem, &s->branch, w, &det, &count)) return 0;
  advance(&s->branch, w, det);
  w1 = w[0], w2 = w[1];
  l = (y + e * w2) * w1 - p[2];
#endif
  double w3 = p[2] + l, qx = x + e * w1, qy = y + e * w2, gx, gy;
  gradient(qx, qy, &gx, &gy);
  double mu1 = p[0] - y * l, mu2 = p[1];
  s->residual = larger(fabs(mu1 - e * gx - w1), larger(fabs(mu2 - e * gy - w2), fabs(w3 - qy * w1)));
  s->iterations = count;
  s->inner[0] = qx, s->inner[1] = qy, s->inner[2] = s->q[2] + e * w3;
  s->q[0] = x + h * w1, s->q[1] = y + h * w2, s->q[2] += h * w3;
  s->p[0] = mu1 - h * gx, s->p[1] = mu2 - h * gy, s->p[2] = w3;
  s->w[0] = w1, s->w[1] = w2, s->w[2] = w3, s->l = l;
  s->steps += 1.0;
  return 1;
}

static inline void observe(const Parameters *unused, double h, const State *s, double *out) {
  out[0] = s->origin + s->steps * h;
  for (int i = 0; i < 3; i++) {
    out[1 + i] = s->inner[i];
    out[4 + i] = out[7 + i] = out[10 + i] = s->w[i];
  }
  out[13] = s->residual, out[14] = s->iterations, out[15] = s->l / h, out[16] = s->steps;
}

RUN
