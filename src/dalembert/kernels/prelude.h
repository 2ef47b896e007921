/* What the C of every program begins with: for NVRTC, and for the C compiler of this machine. */
typedef long long word;
#ifdef __CUDACC__
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
#define HELPER static __device__ __forceinline__
#define ROUTINE static __device__ __noinline__
#define FIRST_LANE (begin + (word)blockIdx.x * blockDim.x + threadIdx.x)
#define LANE_STEP ((word)gridDim.x * blockDim.x)
HELPER word bits(double x) { return __double_as_longlong(x); }
HELPER double unbits(word n) { return __longlong_as_double(n); }
HELPER double reciprocal(double x) { return __drcp_rn(x); }
HELPER double guess_inverse_root(double x) { asm("rsqrt.approx.ftz.f64 %0, %0;" : "+d"(x)); return x; }
#else
#include <math.h>
#include <string.h>
#define KERNEL void
#define HELPER static inline
#define ROUTINE static __attribute__((noinline))
#define FIRST_LANE begin
#define LANE_STEP 1
HELPER word bits(double x) { word n; memcpy(&n, &x, 8); return n; }
HELPER double unbits(word n) { double x; memcpy(&x, &n, 8); return x; }
HELPER double reciprocal(double x) { return 1.0 / x; }
HELPER double guess_inverse_root(double x) { return unbits(bits(1.0 / sqrt(x)) & ~0xffffffffLL); }
#endif
/* 1/sqrt(x), root and quotient each rounded correctly, from y within an ulp (proof: tests/kernels/test_roots.py). */
HELPER double round_inverse_root(double x, double y) {
  const double near = x * y, half = unbits(bits(y) - 0x0010000000000000LL);
  const double root = fma(fma(-near, near, x), half, near), e = fma(-root, y, 1.0);
  return fma(fma(e, unbits(bits(e) | 1), e), y, y);
}
ROUTINE double plain_inverse_root(double x) { return reciprocal(sqrt(x)); }
/* How far the upper half of a number is above that of 2^-700: less than RANGE where it is positive and below 2^700. */
#define RANGE 0x57800000u
HELPER unsigned above_least(double x) { return (unsigned)(bits(x) >> 32) - 0x14300000u; }
HELPER double quick_inverse_root(double x) {
  const double guess = guess_inverse_root(x), off = fma(-x, guess * guess, 1.0);
  return round_inverse_root(x, fma(fma(off, 0.375, 0.5), off * guess, guess));
}
HELPER double inverse_root(double x) { return above_least(x) < RANGE ? quick_inverse_root(x) : plain_inverse_root(x); }
/* The same without a branch, in a run that is repeated where the largest `odd` is not below RANGE. */
HELPER double try_inverse_root(double x, unsigned *odd) {
  const unsigned place = above_least(x);
  *odd = *odd > place ? *odd : place;
  return quick_inverse_root(x);
}
HELPER double lesser(double a, double b) { return a < b || a != a ? a : b; }
HELPER double greater(double a, double b) { return a > b || a != a ? a : b; }
HELPER word to_word(double x) {
  if (x != x) return 0;
  if (x >= 9223372036854775808.0) return 0x7fffffffffffffffLL;
  if (x < -9223372036854775808.0) return -0x7fffffffffffffffLL - 1;
  return (word)x;
}
HELPER word add_words(word a, word b) { return (word)((unsigned long long)a + (unsigned long long)b); }
HELPER word sub_words(word a, word b) { return (word)((unsigned long long)a - (unsigned long long)b); }
HELPER word mul_words(word a, word b) { return (word)((unsigned long long)a * (unsigned long long)b); }
HELPER word div_words(word a, word b) { return b == 0 ? -1 : b == -1 ? sub_words(0, a) : a / b; }
HELPER word rem_words(word a, word b) { return b == 0 ? a : b == -1 ? 0 : a % b; }
HELPER word shift_left(word a, word n) { return (word)((unsigned long long)a << n); }
HELPER void convolve(int pairs, word rows, word k, const double *memory, double *result) {
  for (int i = 0; i < pairs; ++i) {
    const double *u = memory + i / 8 * 16 * rows + i % 8, *v = u + 8 * (rows + k);
    double s = 0.0;
    for (word j = 1; j < k; ++j) s = fma(u[8 * j], v[-8 * j], s);
    result[i] = s;
  }
}
