/* Chaplygin sleigh on SE(2), Moser-Veselov: iota* M' = iota* Ad*_W M, W = cay(h w, h v, 0).

   By hand: 2 unknowns (h w, V) = h (w, v). With phi = h w/2, D = 1 + phi^2,
     h D M = (2 phi T + (ma phi - mb) V,  m V - 2 ma phi^2 - 2 mb phi,  m phi V + 2 ma phi - 2 mb phi^2),
   T the moment about the blade; quadratic equations with an analytic Jacobian. The rotation is kept as (cos, sin). */
#include "common.h"
#define WORDS 24

typedef struct { double T, m, ma, mb; } Parameters;
typedef struct { const Parameters *p; double t0, t1; } Problem;

static inline void equations(const Problem *q, const double x[2], double f[2]) {
  const Parameters *p = q->p;
  double phi = 0.5 * x[0], V = x[1], D = 1.0 + phi * phi;
  f[0] = p->T * x[0] + (p->ma * phi - p->mb) * V - q->t0 * D;
  f[1] = p->m * V - x[0] * (p->ma * phi + p->mb) - q->t1 * D;
}

static inline void jacobian(const Problem *q, const double x[2], double J[2][2]) {
  const Parameters *p = q->p;
  double phi = 0.5 * x[0], V = x[1];
  J[0][0] = p->T + 0.5 * p->ma * V - q->t0 * phi, J[0][1] = p->ma * phi - p->mb;
  J[1][0] = -(2.0 * p->ma * phi + p->mb + q->t1 * phi), J[1][1] = p->m;
}

#include "newton2.h"
typedef struct { double origin, steps; Motion g; double M[3]; Branch branch; double residual, iterations, lambda, angle; } State;

static inline int step(const Parameters *p, double h, State *s) {
  double phi = 0.5 * s->branch.x[0], V = s->branch.x[1];
  Motion W = cayley_se2(phi, V);
  double T0 = s->M[0] - (W.x * s->M[2] - W.y * s->M[1]);
  double T1 = W.c * s->M[1] + W.s * s->M[2], T2 = W.c * s->M[2] - W.s * s->M[1];
  const Problem problem = {p, h * T0, h * T1};
  double x[2], det;
  int count;
  if (!follow(&problem, &s->branch, x, &det, &count)) return 0;
  phi = 0.5 * x[0], V = x[1];
  double scale = 1.0 / (h * (1.0 + phi * phi));
  double r0 = scale * (2.0 * p->T * phi + (p->ma * phi - p->mb) * V) - T0;
  double r1 = scale * (p->m * V - 2.0 * phi * (p->ma * phi + p->mb)) - T1;
  double M2 = scale * (p->m * phi * V + 2.0 * phi * (p->ma - p->mb * phi));
  s->g = normalised(moved(s->g, W));
  s->residual = larger(fabs(r0), fabs(r1));
  s->iterations = count;
  s->lambda = (M2 - T2) / h;
  s->M[0] = T0, s->M[1] = T1, s->M[2] = M2;
  advance(&s->branch, x, det);
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
  out[16] = s->branch.x[0] / h, out[17] = s->branch.x[1] / h, out[18] = 0.0;
  out[19] = s->residual, out[20] = s->iterations, out[21] = s->lambda, out[22] = s->angle, out[23] = s->steps;
}

RUN
