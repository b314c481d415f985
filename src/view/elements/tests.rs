use rstest::rstest;

use crate::protocol::rule::Rule;
use crate::view::{Bool, CaiView};

crate::elements! {
    /// Three of five types, one of them named as its variant.
    #[derive(Debug)]
    pub(super) enum Some3 {
        F32(f32),
        Bool(Bool),
        /// Of four bytes, too.
        I32(i32),
    }
}

/// Returns an array for each type, by its index.
fn arrays() -> [CaiView; 5] {
    [
        CaiView::from_vec(vec![1.0_f32, 2.0], [2]),
        CaiView::from_vec(vec![Bool(1), Bool(0)], [2]),
        CaiView::from_vec(vec![1_i32, 2], [1, 2]),
        CaiView::from_vec(vec![1_u32, 2], [2]),
        CaiView::from_vec(vec![1.0_f64, 2.0], [2]),
    ]
    .map(|view| view.expect("a view"))
}

#[rstest]
fn the_variant_is_that_of_the_type() {
    for (at, mut view) in arrays().into_iter().enumerate() {
        let of = view.typed_as::<Some3>().map(|view| match view {
            Some3::F32(a) => (0, a.copy_to_vec().expect("host").len()),
            Some3::Bool(a) => (1, a.copy_to_vec().expect("host").len()),
            Some3::I32(a) => (2, a.copy_to_vec().expect("host").len()),
        });
        let of_mut = view.typed_as_mut::<Some3>().map(|view| match view {
            Some3::F32(mut a) => (0, a.reborrow().len()),
            Some3::Bool(mut a) => (1, a.reborrow().len()),
            Some3::I32(mut a) => (2, a.reborrow().len()),
        });
        match at {
            0..3 => assert_eq!((of.ok(), of_mut.ok()), (Some((at, 2)), Some((at, 2)))),
            _ => {
                for error in [of.unwrap_err(), of_mut.unwrap_err()] {
                    let text = error.to_string();
                    assert!(text.contains("float32, bool or int32 is wanted"), "{text}");
                    assert!(text.contains(Rule::ViewDtype.id()), "{text}");
                }
            }
        }
    }
}

/// An address that suits one of the types, and not that of the array.
#[rstest]
fn the_address_suits_the_type_that_the_array_has() {
    use crate::protocol::descriptor::{Descriptor, RawTensor};
    use crate::protocol::device::Device;
    use crate::protocol::dtype::DType;
    use crate::protocol::stream::Stream;
    use crate::view::Owner;

    let bytes = [0_u64; 2];
    let data = bytes.as_ptr().expose_provenance() as u64 + 1;
    for (dtype, fits) in [
        (DType::BOOL, true),
        (DType::F32, false),
        (DType::I32, false),
    ] {
        let tensor = RawTensor::new(data, Device::HOST, dtype, &[2]);
        let descriptor = Descriptor::new(&tensor).expect("a tensor");
        // SAFETY: two elements of at most 4 bytes from byte 1 on lie within the 16 of `bytes`, which is there until the
        // function's end; nothing works on a stream.
        let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
        assert_eq!(view.typed_as::<Some3>().is_ok(), fits, "{dtype}");
    }
}
