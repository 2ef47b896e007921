/* Nonholonomic particle z' = y x' in V = (x^2 + y^2)/2, Lagrange-d'Alembert at beta = 1/2, velocity form.

   By hand: w = p + A(q)^T l - h V_q(q~)/2, A(q~) w = 0, q~ = q + h w/2. w3 = p3 + l and l = y~ w1 - p3 leave 2 unknowns
   (w1, w2), an analytic Jacobian and Cramer's rule; any V(x, y) goes into GRADIENT and HESSIAN. With -DEXPLICIT the step is
   solved by hand instead: for this V it is linear in w2 and then in l, and no iteration is left. */
#include "common.h"
#define WORDS 17

typedef struct { double unused; } Parameters;
typedef struct { double origin, steps, q[3], p[3], inner[3], w[3], l, dw[2], sign, residual, iterations; } State;

static inline void gradient(double x, double y, double *vx, double *vy) { *vx = x, *vy = y; }
static inline void hessian(double x, double y, double *xx, double *xy, double *yy) { *xx = 1.0, *xy = 0.0, *yy = 1.0; }

static inline int step(const Parameters *unused, double h, State *s) {
  double x = s->q[0], y = s->q[1], e = 0.5 * h, k = e * e, w1, w2, l, det = 1.0;
  const double *p = s->p;
  int count = 0;
#ifdef EXPLICIT
  double K = 1.0 / (1.0 + k);
  w2 = (p[1] - e * y) * K;
  double yt = y + e * w2;
  l = (yt * K * (p[0] - e * x) - p[2]) / (1.0 + yt * y * K);
  w1 = (p[0] - e * x - y * l) * K;
#else
  double before = 0.0, vx, vy, xx, xy, yy;
  int done = 0;
  w1 = s->w[0] + s->dw[0];
  w2 = s->w[1] + s->dw[1];
  for (; count < LIMIT && !done; count++) {
    double xt = x + e * w1, yt = y + e * w2;
    gradient(xt, yt, &vx, &vy);
    hessian(xt, yt, &xx, &xy, &yy);
    double f1 = w1 - p[0] + y * (yt * w1 - p[2]) + e * vx, f2 = w2 - p[1] + e * vy;
    double j11 = 1.0 + y * yt + k * xx, j12 = e * y * w1 + k * xy, j21 = k * xy, j22 = 1.0 + k * yy;
    det = j11 * j22 - j12 * j21;
    double inverse = 1.0 / det, u1 = (j22 * f1 - j12 * f2) * inverse, u2 = (j11 * f2 - j21 * f1) * inverse;
    w1 -= u1;
    w2 -= u2;
    double change = larger(fabs(u1), fabs(u2));
    done = settled(larger(fabs(w1), fabs(w2)), change, before, count);
    before = change;
  }
  if (!done || det * s->sign < 0) return 0;
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
  s->dw[0] = w1 - s->w[0], s->dw[1] = w2 - s->w[1];
  s->w[0] = w1, s->w[1] = w2, s->w[2] = w3, s->l = l, s->sign = det;
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
