//! Room 1: both protocols as values. No pointer is followed, no CUDA, no Python.
#![forbid(unsafe_code)]
