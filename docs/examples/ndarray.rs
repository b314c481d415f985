//! An array of ndarray as a DLPack tensor, and what comes back as an array of ndarray:
//! `cargo run --example ndarray --features ndarray`.
//!
//! Nothing is copied: the array is moved into the view, and its memory is freed with the last tensor of it.

use cai_dlpack::view::LiveStream;
use cai_dlpack::{CaiView, Error};
use ndarray::{Array2, ArrayViewD, Axis};

fn main() -> Result<(), Error> {
    let rows = Array2::from_shape_fn((2, 3), |(row, column)| (10 * row + column) as f32);
    let at = rows.as_ptr();

    // In any order of its axes: a transposed array is a view in Fortran order.
    let view = CaiView::from_ndarray(rows.reversed_axes())?;
    assert_eq!(
        (view.shape(), view.elem_strides()),
        (&[3, 2][..], &[1, 3][..])
    );

    // Another library takes the tensor, and writes to the memory where it is.
    let tensor = view.to_dlpack(LiveStream::NONE)?;
    drop(view);
    let mut taken = CaiView::from_dlpack(tensor, LiveStream::NONE)?;
    let mut elements = taken.typed_mut::<f32>()?;
    // SAFETY: the array lives, and nothing else reads or writes it.
    let mut array = unsafe { elements.host_array_mut() }?;
    array *= 2.0;
    assert_eq!(array.as_ptr(), at);

    let elements = taken.typed::<f32>()?;
    // SAFETY: the array lives, and nothing writes to it.
    let array: ArrayViewD<'_, f32> = unsafe { elements.host_array() }?;
    let sums = array.sum_axis(Axis(0));
    assert_eq!(sums, ndarray::arr1(&[6.0, 66.0]).into_dyn());
    println!("{array} has the sums {sums}");
    Ok(())
}
