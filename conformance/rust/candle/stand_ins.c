/* Stands for cuBLAS and cuRAND where candle's tests for a GPU are linked, and where they run on the simulated driver: a
   device of candle opens both, and these tests compute nothing. On a GPU the loader finds the real ones. */

#define SUCCEEDS(name) int name(void) { return 0; }

SUCCEEDS(cublasCreate_v2)
SUCCEEDS(cublasDestroy_v2)
SUCCEEDS(cublasSetStream_v2)
SUCCEEDS(curandCreateGenerator)
SUCCEEDS(curandDestroyGenerator)
SUCCEEDS(curandSetPseudoRandomGeneratorSeed)
SUCCEEDS(curandSetStream)
