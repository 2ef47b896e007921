/* The rate of double precision multiply-adds: 8 independent chains a thread. */
extern "C" __global__ void peak(double *out, long long rounds) {
  double x[8], a = 1.0 - 1e-9 * threadIdx.x, b = 1e-9;
  for (int i = 0; i < 8; i++) x[i] = i + blockIdx.x;
  for (long long k = 0; k < rounds; k++)
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = fma(x[i], a, b);
  double sum = 0.0;
  for (int i = 0; i < 8; i++) sum += x[i];
  out[blockIdx.x * (long long)blockDim.x + threadIdx.x] = sum;
}
