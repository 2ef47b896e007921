/* Free rigid body, the exact motion of docs/exact-rigid-body.md: theta functions at the time of a saved state, the constants
   of the level computed once at the start. A step counts; what is left is written as a C programmer would. */
#include "common.h"
#define WORDS 22

typedef struct { double inverse[3][3]; } Parameters;
typedef struct {
  double origin, steps, axes[3][3], begin[3][3], size, u0, speed, period, rate, slope, wave, nome, bulge, cubics[5][4], flags[3];
} State;

static inline int step(const Parameters *unused, double h, State *s) {
  s->steps += 1.0;
  return 1;
}

static inline void observe(const Parameters *par, double h, const State *s, double *out) {
  double t = s->steps * h, u = s->u0 + s->speed * t, turns = rint(u / s->period), rest = u - s->period * turns;
  double flip = 1.0 - 2.0 * fabs(turns - 2.0 * rint(0.5 * turns)), z = s->wave * rest, x, ka, kb, kr, ki, v[5];
  if (s->flags[0] > 0) {
    double growth = expm1(fabs(z)), up = 1.0 + growth;
    ka = 1.0, kb = ki = copysign(0.5, z) * (growth + growth / up), kr = 0.5 * (up + 1.0 / up);
    x = s->nome * (up * up + 1.0 / (up * up));
  } else {
    double sine = sin(z), cosine = cos(z);
    ka = cosine, kb = sine, kr = 1.0, ki = 2.0 * sine * cosine, x = 2.0 * (cosine - sine) * (cosine + sine);
  }
  for (int i = 0; i < 5; i++) v[i] = s->cubics[i][0] + x * (s->cubics[i][1] + x * (s->cubics[i][2] + x * s->cubics[i][3]));
  double a = ka * v[0], b = kb * v[1], across = sqrt(a * a + b * b), cphi = a / across, sphi = b / across;
  double width = s->bulge * across, norm = sqrt(v[2] * v[2] + width * width), ct = v[2] / norm, st = width / norm;
  double p = kr * v[3], r = ki * v[4];
  if (s->flags[1] > 0) {
    double real = p * cphi * ct + r * sphi, imaginary = p * sphi - r * cphi * ct;
    p = real, r = imaginary;
  }
  double angle = s->rate * t + s->slope * rest, c = cos(angle), d = sin(angle);
  double scale = (s->flags[2] > 0 ? flip : 1.0) / sqrt(p * p + r * r), cosine = scale * (c * p - d * r), sine = scale * (d * p + c * r);
  double f = flip * cphi, g = flip * sphi, rows[3][3], R[3][3], m[3];
  const double first[3] = {-ct * f, -ct * g, st}, second[3] = {g, -f, 0.0}, third[3] = {st * f, st * g, ct};
  for (int j = 0; j < 3; j++) {
    rows[0][j] = cosine * first[j] - sine * second[j], rows[1][j] = sine * first[j] + cosine * second[j], rows[2][j] = third[j];
    m[j] = s->size * (s->axes[j][0] * third[0] + s->axes[j][1] * third[1] + s->axes[j][2] * third[2]);
  }
  out[0] = s->origin + s->steps * h;
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 3; j++) R[i][j] = s->begin[i][0] * rows[0][j] + s->begin[i][1] * rows[1][j] + s->begin[i][2] * rows[2][j];
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < 3; j++) out[1 + 3 * i + j] = R[i][0] * s->axes[j][0] + R[i][1] * s->axes[j][1] + R[i][2] * s->axes[j][2];
    out[10 + i] = out[16 + i] = par->inverse[i][0] * m[0] + par->inverse[i][1] * m[1] + par->inverse[i][2] * m[2];
    out[13 + i] = m[i];
  }
  out[19] = 0.0, out[20] = 0.0, out[21] = s->steps;
}

RUN
