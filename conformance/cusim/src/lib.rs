//! A simulated CUDA driver: what array interchange needs of `libcuda.so.1`, on host memory.
