//! Numbers of the host as views: of whatever they come, they are there, once, as long as a view or a tensor is.

use super::*;
use crate::protocol::rule::Rule;
use crate::view::{LiveStream, View};

fn values(count: usize) -> Vec<i32> {
    (0..count as i32).collect()
}

/// Every shape of a few elements, from each kind of memory.
#[test]
fn every_shape_of_every_source() {
    let shapes: [&[usize]; 7] = [&[], &[0], &[1], &[6], &[2, 3], &[3, 0, 2], &[1, 2, 1, 3]];
    for shape in shapes {
        let count = shape.iter().product();
        let made = [
            CaiView::from_vec(values(count), shape),
            CaiView::from_vec(values(count).into_boxed_slice(), shape),
            CaiView::from_arc(values(count).into(), shape),
        ];
        for (at, view) in made.into_iter().enumerate() {
            let mut view = view.unwrap();
            assert_eq!(
                view.typed::<i32>().unwrap().copy_to_vec().unwrap(),
                values(count)
            );
            assert_eq!(view.producer_number(), Some(Stream::None));
            match view.typed_mut::<i32>() {
                Ok(mut typed) => {
                    // SAFETY: nothing else reads or writes the numbers.
                    unsafe { typed.host_slice_mut() }.unwrap().fill(7);
                    assert_eq!(typed.copy_to_vec().unwrap(), vec![7; count]);
                }
                Err(_) => assert_eq!(at, 2, "only shared memory is read-only"),
            }
        }
    }
}

#[test]
fn a_tensor_keeps_them_and_the_last_frees_them() {
    let shared: Arc<[i32]> = values(4).into();
    for view in [
        CaiView::from_vec(values(4), [2, 2]),
        CaiView::from_arc(Arc::clone(&shared), [2, 2]),
    ] {
        let view = view.unwrap();
        let part = view.typed::<i32>().unwrap().index(0, 1).unwrap();
        let tensor = part.cai().to_dlpack(LiveStream::NONE).unwrap();
        drop(part);
        drop(view);
        let back = CaiView::from_dlpack(tensor, LiveStream::NONE).unwrap();
        assert_eq!(
            back.typed::<i32>()
                .and_then(|view: View<'_, i32>| view.copy_to_vec())
                .unwrap(),
            [2, 3]
        );
    }
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn another_number_of_elements_is_refused() {
    for (count, shape) in [
        (6, &[5][..]),
        (6, &[7]),
        (0, &[]),
        (1, &[0]),
        (6, &[usize::MAX, 2]),
        (6, &[1 << 62, 8]),
    ] {
        for refused in [
            CaiView::from_vec(values(count), shape),
            CaiView::from_arc(values(count).into(), shape),
        ] {
            let rule = refused.unwrap_err().rule();
            assert!(
                matches!(
                    rule,
                    Rule::ShapeOverride
                        | Rule::ShapeRange
                        | Rule::CountOverflow
                        | Rule::SizeOverflow
                ),
                "{rule:?}"
            );
        }
    }
}
