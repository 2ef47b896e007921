/* Chaplygin sleigh on SE(2), Moser-Veselov: iota* M' = iota* Ad*_W M, W = cay(h w, h v, 0).

   By hand: 2 unknowns phi = h w/2 and V = h v. With D = 1 + phi^2,
     h D M = (2 phi T + (ma phi - mb) V,  m V - 2 ma phi^2 - 2 mb phi,  m phi V + 2 ma phi - 2 mb phi^2),
   T the moment about the blade; quadratic equations, analytic Jacobian, Cramer's rule. The rotation is kept as (cos, sin). */
#include "common.h"
#define WORDS 24

typedef struct { double T, m, ma, mb; } Parameters;
typedef struct { double origin, steps; Motion g; double M[3], phi, V, dphi, dV, sign, residual, iterations, lambda, angle; } State;

static inline int step(const Parameters *p, double h, State *s) {
  double phi = s->phi, V = s->V, before = 0.0, det = 1.0;
  Motion W = cayley_se2(phi, V);
  double T0 = s->M[0] - (W.x * s->M[2] - W.y * s->M[1]);
  double T1 = W.c * s->M[1] + W.s * s->M[2], T2 = W.c * s->M[2] - W.s * s->M[1];
  double t0 = h * T0, t1 = h * T1;
  int count = 0, done = 0;
  phi += s->dphi;
  V += s->dV;
  for (; count < LIMIT && !done; count++) {
    double D = 1.0 + phi * phi;
    double f0 = 2.0 * p->T * phi + (p->ma * phi - p->mb) * V - t0 * D;
    double f1 = p->m * V - 2.0 * phi * (p->ma * phi + p->mb) - t1 * D;
    double j00 = 2.0 * p->T + p->ma * V - 2.0 * t0 * phi, j01 = p->ma * phi - p->mb;
    double j10 = -2.0 * (2.0 * p->ma * phi + p->mb + t1 * phi), j11 = p->m;
    det = j00 * j11 - j01 * j10;
    double inverse = 1.0 / det, u = (j11 * f0 - j01 * f1) * inverse, w = (j00 * f1 - j10 * f0) * inverse;
    phi -= u;
    V -= w;
    double change = larger(2.0 * fabs(u), fabs(w));
    done = settled(larger(2.0 * fabs(phi), fabs(V)), change, before, count);
    before = change;
  }
  if (!done || det * s->sign < 0) return 0;
  double scale = 1.0 / (h * (1.0 + phi * phi));
  double r0 = scale * (2.0 * p->T * phi + (p->ma * phi - p->mb) * V) - T0;
  double r1 = scale * (p->m * V - 2.0 * phi * (p->ma * phi + p->mb)) - T1;
  double M2 = scale * (p->m * phi * V + 2.0 * phi * (p->ma - p->mb * phi));
  s->g = normalised(moved(s->g, W));
  s->residual = larger(fabs(r0), fabs(r1));
  s->iterations = count;
  s->lambda = (M2 - T2) / h;
  s->M[0] = T0, s->M[1] = T1, s->M[2] = M2;
  s->dphi = phi - s->phi, s->dV = V - s->V, s->phi = phi, s->V = V, s->sign = det;
  s->steps += 1.0;
  return 1;
}

static inline void observe(const Parameters *p, double h, State *s, double *out) {
  double inverse = 1.0 / (p->T * p->m - p->mb * p->mb);
  s->angle = unwrapped(s->g.c, s->g.s, s->angle);
  out[0] = s->origin + s->steps * h;
  out[1] = s->g.c, out[2] = -s->g.s, out[3] = s->g.x;
  out[4] = s->g.s, out[5] = s->g.c, out[6] = s->g.y;
  out[7] = 0.0, out[8] = 0.0, out[9] = 1.0;
  out[10] = (p->m * s->M[0] + p->mb * s->M[1]) * inverse, out[11] = (p->T * s->M[1] + p->mb * s->M[0]) * inverse;
  out[12] = 0.0;
  out[13] = s->M[0], out[14] = s->M[1], out[15] = s->M[2];
  out[16] = 2.0 * s->phi / h, out[17] = s->V / h, out[18] = 0.0;
  out[19] = s->residual, out[20] = s->iterations, out[21] = s->lambda, out[22] = s->angle, out[23] = s->steps;
}

RUN
