//! Every small layout, through ndarray and back.

use ndarray::{ArrayD, Slice};

use super::*;

/// Six numbers in every order, with gaps and backwards, in up to three axes.
fn every_layout(mut visit: impl FnMut(ArrayD<i32>)) {
    let shapes: [&[usize]; 7] = [&[], &[6], &[2, 3], &[1, 6], &[2, 1, 3], &[0], &[2, 0]];
    for shape in shapes {
        let count: usize = shape.iter().product();
        for way in 0..8_usize {
            let numbers = (0..count as i32).collect();
            let mut array = ArrayD::from_shape_vec(shape, numbers).unwrap();
            if way & 1 != 0 {
                array = array.reversed_axes();
            }
            for axis in 0..shape.len() {
                if way >> (axis.min(1) + 1) & 1 != 0 {
                    array.invert_axis(Axis(axis));
                } else if way == 1 && array.shape()[axis] > 1 {
                    array.slice_axis_inplace(Axis(axis), Slice::new(0, None, 2));
                }
            }
            visit(array);
        }
    }
}

#[test]
fn arrays_come_back_as_they_were() {
    every_layout(|array| {
        let numbers: Vec<i32> = array.iter().copied().collect();
        let views = [
            CaiView::from_ndarray(array.clone()).unwrap(),
            CaiView::from_shared_ndarray(array.clone().into_shared()).unwrap(),
        ];
        for view in views {
            let typed = view.typed::<i32>().unwrap();
            assert_eq!(typed.copy_to_vec().unwrap(), numbers, "{array:?}");
            // SAFETY: the numbers are there, and nothing writes to them.
            assert_eq!(unsafe { typed.host_array() }.unwrap(), array);
        }
    });
}

#[test]
fn numbers_are_written_in_place() {
    every_layout(|array| {
        let mut view = CaiView::from_ndarray(array.clone()).unwrap();
        let mut typed = view.typed_mut::<i32>().unwrap();
        // SAFETY: the numbers are there, and nothing else reads or writes them.
        unsafe { typed.host_array_mut() }
            .unwrap()
            .mapv_inplace(|number| 10 * number);
        let numbers: Vec<i32> = array.iter().map(|number| 10 * number).collect();
        assert_eq!(view.typed::<i32>().unwrap().copy_to_vec().unwrap(), numbers);
    });
}

#[test]
fn repeated_elements_are_read() {
    let view = CaiView::from_vec([1_i32, 2], [2, 1]).unwrap();
    let wide = view.typed::<i32>().unwrap().broadcast(&[3, 2, 2]).unwrap();
    // SAFETY: the numbers are there, and nothing writes to them.
    let wide = unsafe { wide.host_array() }.unwrap();
    assert_eq!(wide.sum(), 3 * 2 * 3);
}

#[test]
fn shared_arrays_are_read_only() {
    let mut view = CaiView::from_shared_ndarray(ndarray::arr1(&[1_i32]).into_shared()).unwrap();
    assert!(view.typed_mut::<i32>().is_err());
}

/// ndarray has no such array, also without elements: it multiplies the extents of the other axes.
#[test]
fn an_empty_array_of_huge_extents_is_refused() {
    let empty = CaiView::from_vec(Vec::<i32>::new(), [0]).unwrap();
    for (shape, is_taken) in [
        (&[0, 1 << 40, 1 << 40][..], false),
        (&[1 << 40, 0, 1 << 40], false),
        (&[0, 1 << 62], false),
        (&[0, 1 << 60], true),
        (&[0, 1 << 30, 1 << 30], true),
    ] {
        let mut view = empty.reshape(shape).unwrap();
        // SAFETY: there are no elements.
        let read = unsafe { view.typed::<i32>().unwrap().host_array() };
        assert_eq!(
            read.map(|array| array.shape().to_vec()).is_ok(),
            is_taken,
            "{shape:?}"
        );
        let mut typed = view.typed_mut::<i32>().unwrap();
        // SAFETY: there are no elements.
        let written = unsafe { typed.host_array_mut() }.map(drop);
        match written {
            Ok(()) => assert!(is_taken, "{shape:?}"),
            Err(Error::Violation(refused)) => assert_eq!(refused.rule(), Rule::SizeOverflow),
            Err(other) => panic!("{other}"),
        }
    }
}
