//! An array argument is taken by value.

use cai_dlpack::python::In;
use pyo3::prelude::*;

#[pyfunction]
fn rows(a: &In<f32, 2>) -> usize {
    a.len()
}

fn main() {}
