use rstest::rstest;

use crate::protocol::dtype::DType;
use crate::protocol::rule::Rule;
use crate::view::{Bool, CaiView, Elements, Lent, LentMut, View, ViewMut};

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

/// An impl that a user's crate may write in safe code: it declares bytes, and asks for views of 16 of them each.
struct Liar;

impl Elements for Liar {
    type View<'a> = View<'a, [f64; 2]>;
    type ViewMut<'a> = ViewMut<'a, [f64; 2]>;

    const DTYPES: &'static [DType] = &[DType::U8];

    fn view(array: Lent<'_>) -> Self::View<'_> {
        <[f64; 2] as Elements>::view(array)
    }

    fn view_mut(array: LentMut<'_>) -> Self::ViewMut<'_> {
        <[f64; 2] as Elements>::view_mut(array)
    }
}

/// Under Miri the copy is a read past the end if the type is not checked.
#[test]
#[should_panic = "an array of uint8 is no complex128"]
fn an_impl_by_hand_makes_no_view_of_another_type() {
    let view = CaiView::from_vec(vec![1_u8; 3], [3]).expect("a view");
    let _ = view.typed_as::<Liar>().map(|view| view.copy_to_vec());
}

/// As that, of what is written.
#[test]
#[should_panic = "an array of uint8 is no complex128"]
fn an_impl_by_hand_makes_no_mutable_view_of_another_type() {
    let mut view = CaiView::from_vec(vec![1_u8; 3], [3]).expect("a view");
    let _ = view.typed_as_mut::<Liar>().map(|view| view.copy_to_vec());
}
