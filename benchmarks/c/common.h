/* What the hand-written steps share: the loop that saves a row of doubles after every `every` steps, the end of Newton's
   iteration, and small rotations. */
#include <math.h>
#include <stdint.h>

#define LIMIT 40

static inline double larger(double a, double b) { return a > b ? a : b; }

/* Whether x is at round-off after the updates d and e with one Jacobian: e = c d^2, and the next would be 2 e^2/d. */
static inline int finished(double size, double d, double e) {
  return d <= 0x1p-36 * size || (d <= 0x1p-8 * size && e * e <= 0x1p-58 * size * d);
}

/* g <- g W, brought back to the group by one Newton-Schulz step g (3 - g^T g)/2. */
static inline void rotate(double g[3][3], const double W[3][3]) {
  double n[3][3], c[3][3];
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 3; j++) n[i][j] = g[i][0] * W[0][j] + g[i][1] * W[1][j] + g[i][2] * W[2][j];
  for (int i = 0; i < 3; i++)
    for (int j = i; j < 3; j++)
      c[i][j] = c[j][i] = (i == j ? 1.5 : 0.0) - 0.5 * (n[0][i] * n[0][j] + n[1][i] * n[1][j] + n[2][i] * n[2][j]);
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 3; j++) g[i][j] = n[i][0] * c[0][j] + n[i][1] * c[1][j] + n[i][2] * c[2][j];
}

/* The Cayley map of a planar displacement (2 phi, V, 0): cosine, sine, and the translation. */
typedef struct { double c, s, x, y; } Motion;

static inline Motion cayley_se2(double phi, double V) {
  double k = 1.0 / (1.0 + phi * phi);
  return (Motion){(1.0 - phi * phi) * k, 2.0 * phi * k, k * V, k * phi * V};
}

/* (c, s, x, y) <- (c, s, x, y) m; the rotation is two numbers, so its normalisation is one factor. */
static inline Motion moved(Motion g, Motion m) {
  return (Motion){g.c * m.c - g.s * m.s, g.s * m.c + g.c * m.s, g.x + g.c * m.x - g.s * m.y, g.y + g.s * m.x + g.c * m.y};
}

static inline Motion normalised(Motion g) {
  double k = 1.5 - 0.5 * (g.c * g.c + g.s * g.s);
  g.c *= k;
  g.s *= k;
  return g;
}

/* The angle of (c, s) next to the previous one. */
static inline double unwrapped(double c, double s, double previous) {
  double angle = atan2(s, c);
  return angle + 2 * M_PI * rint((previous - angle) / (2 * M_PI));
}

/* A file defines State, Parameters, WORDS, step() -> 1 if it succeeded, and observe(); this is its run. The number of good
   steps comes back. */
#define RUN                                                                                                                  \
  int64_t run(const Parameters *p, double h, int64_t saves, int64_t every, State *state, double *out) {                      \
    State s = *state;                                                                                                        \
    int64_t done = 0;                                                                                                        \
    for (int64_t i = 0; i < saves; i++, out += WORDS) {                                                                      \
      for (int64_t k = 0; k < every; k++, done++)                                                                            \
        if (!step(p, h, &s)) goto end;                                                                                       \
      observe(p, h, &s, out);                                                                                                \
    }                                                                                                                        \
  end:                                                                                                                       \
    *state = s;                                                                                                              \
    return done;                                                                                                             \
  }
