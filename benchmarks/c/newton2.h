/* Newton's method for two unknowns, as dalembert does it: the guess is the parabola through the last three solutions, each
   Jacobian serves two updates d and e, and the iteration ends when the next update would be below round-off. A file defines
   Problem, equations() and jacobian() before it includes this one. */
typedef struct { double x[2], change[2], bend[2], sign; } Branch;

static inline int follow(const Problem *q, const Branch *b, double x[2], double *det, int *count) {
  int over = 0;
  x[0] = b->x[0] + b->change[0] + b->bend[0];
  x[1] = b->x[1] + b->change[1] + b->bend[1];
  for (*count = 0; *count < LIMIT && !over; ++*count) {
    double f[2], J[2][2], d0, d1, e0, e1;
    equations(q, x, f);
    jacobian(q, x, J);
    *det = J[0][0] * J[1][1] - J[0][1] * J[1][0];
    double inverse = 1.0 / *det;
    d0 = (J[1][1] * f[0] - J[0][1] * f[1]) * inverse, d1 = (J[0][0] * f[1] - J[1][0] * f[0]) * inverse;
    x[0] -= d0, x[1] -= d1;
#ifdef BOUNDED /* an update as small as this leaves x at round-off */
    if (larger(fabs(d0), fabs(d1)) <= 0x1p-36 * larger(fabs(x[0]), fabs(x[1]))) {
      over = 1;
      continue;
    }
#endif
    equations(q, x, f);
    e0 = (J[1][1] * f[0] - J[0][1] * f[1]) * inverse, e1 = (J[0][0] * f[1] - J[1][0] * f[0]) * inverse;
    x[0] -= e0, x[1] -= e1;
    over = finished(larger(fabs(x[0]), fabs(x[1])), larger(fabs(d0), fabs(d1)), larger(fabs(e0), fabs(e1)));
  }
  return over && *det * b->sign >= 0;
}

static inline void advance(Branch *b, const double x[2], double det) {
  for (int i = 0; i < 2; i++) {
    double change = x[i] - b->x[i];
    b->bend[i] = change - b->change[i], b->change[i] = change, b->x[i] = x[i];
  }
  b->sign = det;
}
