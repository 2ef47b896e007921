/* Free rigid body, discrete Moser-Veselov of any order as the explicit map of docs/exact-rigid-body.md:
   momentum and quaternion in principal axes, the constants computed once at the start. Nothing is solved; what is left is written as a C programmer would. */
#include "common.h"
#define WORDS 22

typedef struct { double inverse[3][3]; } Parameters;
typedef struct { double origin, steps, q[4], m[3], phase, p[3], r[3], a[3], f[3], C, axes[3][3]; } State;

static inline void compose(const double p[4], const double q[4], double out[4]) {
  out[0] = p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3];
  out[1] = p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2];
  out[2] = p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1];
  out[3] = p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0];
}

static inline int step(const Parameters *unused, double h, State *s) {
  double *m = s->m, P[3], turn[4], q[4];
  for (int i = 0; i < 3; i++) P[i] = m[i] + (s->p[i] * m[i] + s->r[i] * m[(i + 1) % 3] * m[(i + 2) % 3]);
  double scale = sqrt(s->C / (P[0] * P[0] + P[1] * P[1] + P[2] * P[2]));
  turn[0] = 0.0;
  for (int i = 0; i < 3; i++) {
    double w = m[i] + P[i] * scale;
    m[i] = P[i] * scale;
    turn[0] += s->a[i] * w * w;
    turn[1 + i] = s->f[i] * w;
  }
  compose(s->q, turn, q);
  double unit = 1.0 / sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
  for (int i = 0; i < 4; i++) s->q[i] = unit * q[i];
  s->steps += 1.0;
  return unit > 0.0;
}

static inline void observe(const Parameters *p, double h, const State *s, double *out) {
  double q[4] = {s->q[0], s->q[1], s->q[2], s->q[3]}, R[3][3];
  double a = q[0], b = q[1], c = q[2], d = q[3];
  R[0][0] = 1 - 2 * (c * c + d * d), R[0][1] = 2 * (b * c - a * d), R[0][2] = 2 * (b * d + a * c);
  R[1][0] = 2 * (b * c + a * d), R[1][1] = 1 - 2 * (b * b + d * d), R[1][2] = 2 * (c * d - a * b);
  R[2][0] = 2 * (b * d - a * c), R[2][1] = 2 * (c * d + a * b), R[2][2] = 1 - 2 * (b * b + c * c);
  double m[3];
  out[0] = s->origin + s->steps * h;
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < 3; j++) out[1 + 3 * i + j] = R[i][0] * s->axes[j][0] + R[i][1] * s->axes[j][1] + R[i][2] * s->axes[j][2];
    m[i] = s->axes[i][0] * s->m[0] + s->axes[i][1] * s->m[1] + s->axes[i][2] * s->m[2];
  }
  for (int i = 0; i < 3; i++) {
    out[10 + i] = out[16 + i] = p->inverse[i][0] * m[0] + p->inverse[i][1] * m[1] + p->inverse[i][2] * m[2];
    out[13 + i] = m[i];
  }
  out[19] = 0.0, out[20] = 0.0, out[21] = s->steps;
}

RUN
