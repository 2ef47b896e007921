/* Rolling disk on SE(2) x SO(2), Lagrange-d'Alembert with Cayley at node 1/2, original nodes: v2 = 0, v1 = r psi'.

   By hand: with phi = h w/4, V = h r psi/2 the discrete equations reduce to 2 unknowns (w, psi),
     Iw w (1 + phi^2) + m r psi phi V = p_w,   Ir psi (1 + (h psi/4)^2) + m r^2 psi (1 - phi^2) = r p_1 + p_phi,
   with an analytic Jacobian; the multipliers, in the rows (0, alpha, 0, -r alpha) and (0, 0, 1, 0), follow. */
#include "common.h"
#define WORDS 33

typedef struct { double m, Ir, Iw, r, alpha; } Parameters;
typedef struct { const Parameters *p; double h, torque, total; } Problem;

static inline void equations(const Problem *q, const double x[2], double f[2]) {
  const Parameters *P = q->p;
  double w = x[0], psi = x[1], mr = P->m * P->r, phi = 0.25 * q->h * w, b = 0.25 * q->h * psi;
  f[0] = P->Iw * w * (1.0 + phi * phi) + mr * psi * phi * (0.5 * q->h * P->r * psi) - q->torque;
  f[1] = P->Ir * psi * (1.0 + b * b) + mr * P->r * psi * (1.0 - phi * phi) - q->total;
}

static inline void jacobian(const Problem *q, const double x[2], double J[2][2]) {
  const Parameters *P = q->p;
  double mr = P->m * P->r, e = 0.25 * q->h, phi = e * x[0], b = e * x[1], V = 2.0 * b * P->r;
  J[0][0] = P->Iw * (1.0 + 3.0 * phi * phi) + mr * b * V, J[0][1] = 2.0 * mr * phi * V;
  J[1][0] = -2.0 * mr * P->r * b * phi, J[1][1] = P->Ir * (1.0 + 3.0 * b * b) + mr * P->r * (1.0 - phi * phi);
}

#include "newton2.h"
typedef struct {
  double origin, steps;
  Motion g;
  double gc, gs, p[4];
  Branch branch;
  double residual, iterations, lambda[2], angle[2];
} State;

static inline int step(const Parameters *P, double h, State *s) {
  double mr = P->m * P->r, e = 0.25 * h, total = P->r * s->p[1] + s->p[3], x[2], det;
  const Problem problem = {P, h, s->p[0], total};
  int count;
  if (!follow(&problem, &s->branch, x, &det, &count)) return 0;
  double w = x[0], psi = x[1];
  double phi = e * w, V = 0.5 * h * P->r * psi, b = e * psi, D = 1.0 + phi * phi;
  Motion half = cayley_se2(phi, V);
  double k = 1.0 / (1.0 + b * b), c = (1.0 - b * b) * k, sn = 2.0 * b * k;
  double speed = mr * psi, mu1 = speed * (1.0 - phi * phi), mu2 = 2.0 * speed * phi, mu3 = P->Ir * psi * (1.0 + b * b);
  double impulse = (mu1 - s->p[1]) / P->alpha;
  s->residual = larger(fabs(P->Iw * w * D + speed * phi * V - s->p[0]), fabs(mu3 + P->r * mu1 - total));
  s->iterations = count;
  s->lambda[0] = impulse / h, s->lambda[1] = (mu2 - s->p[2]) / h;
  s->p[0] = D * (P->Iw * w + half.y * speed), s->p[1] = D * half.c * speed, s->p[2] = -D * half.s * speed, s->p[3] = mu3;
  s->g = normalised(moved(moved(s->g, half), half));
  double gc = s->gc * c - s->gs * sn, gs = s->gs * c + s->gc * sn;
  s->gc = gc * c - gs * sn, s->gs = gs * c + gc * sn;
  double n = 1.5 - 0.5 * (s->gc * s->gc + s->gs * s->gs);
  s->gc *= n, s->gs *= n;
  advance(&s->branch, x, det);
  s->steps += 1.0;
  return 1;
}

static inline void observe(const Parameters *P, double h, State *s, double *out) {
  double w = s->p[0] / P->Iw, psi = (P->r * s->p[1] + s->p[3]) / (P->m * P->r * P->r + P->Ir);
  s->angle[0] = unwrapped(s->g.c, s->g.s, s->angle[0]);
  s->angle[1] = unwrapped(s->gc, s->gs, s->angle[1]);
  out[0] = s->origin + s->steps * h;
  out[1] = s->g.c, out[2] = -s->g.s, out[3] = s->g.x;
  out[4] = s->g.s, out[5] = s->g.c, out[6] = s->g.y;
  out[7] = 0.0, out[8] = 0.0, out[9] = 1.0;
  out[10] = s->gc, out[11] = -s->gs, out[12] = s->gs, out[13] = s->gc;
  out[14] = w, out[15] = P->r * psi, out[16] = 0.0, out[17] = psi;
  out[18] = P->Iw * w, out[19] = P->m * P->r * psi, out[20] = 0.0, out[21] = P->Ir * psi;
  out[22] = s->branch.x[0], out[23] = P->r * s->branch.x[1], out[24] = 0.0, out[25] = s->branch.x[1];
  out[26] = s->residual, out[27] = s->iterations, out[28] = s->lambda[0], out[29] = s->lambda[1];
  out[30] = s->angle[0], out[31] = s->angle[1], out[32] = s->steps;
}

RUN
