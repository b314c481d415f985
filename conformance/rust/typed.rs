//! Typed views: what they demand, and the copies that they make.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::{Device, Flags};
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::dtype::code;
use cai_dlpack::protocol::rule::{Field, Rule, Violation};
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{Bool, ConsumeGuard, LiveStream, Owner, View, ViewMut};
use cai_dlpack::{CaiView, Error};
use rstest::rstest;

use crate::arrays::{Array, array};

/// The rule that an answer was refused by.
fn rule<T>(answer: Result<T, impl Into<Error>>) -> Rule {
    match answer.map(drop).map_err(Into::into) {
        Err(Error::Violation(violation)) => violation.rule(),
        Err(other) => panic!("another refusal: {other}"),
        Ok(()) => panic!("not refused"),
    }
}

fn counted(count: i32) -> Vec<i32> {
    (0..count).collect()
}

#[test]
fn the_type_must_be_the_one() {
    let integers = array(counted(6), &[2, 3]);
    let violation = match integers.typed::<f32>() {
        Err(Error::Violation(violation)) => violation,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        violation.to_string(),
        "object = int32 of shape [2, 3], strides [3, 1] (in elements), on cpu:0: the array must have \
         the element type that is requested; float32 is wanted [view-dtype]"
    );
    assert_eq!(rule(integers.typed::<u32>()), Rule::ViewDtype);
    assert!(integers.typed::<i32>().is_ok());
}

#[test]
fn bools_bytes_and_complex_numbers_are_apart() {
    let mask = array(vec![Bool(0), Bool(1), Bool(7)], &[3]);
    assert_eq!(rule(mask.typed::<u8>()), Rule::ViewDtype);
    let values = mask
        .typed::<Bool>()
        .expect("bools")
        .copy_to_vec()
        .expect("a copy");
    assert_eq!(values.map_bools(), [false, true, true]);
    let complex = array(vec![[1.0_f32, -1.0]], &[1]);
    assert_eq!(rule(complex.typed::<f64>()), Rule::ViewDtype);
    let copied = complex
        .typed::<[f32; 2]>()
        .expect("complex64")
        .copy_to_vec();
    assert_eq!(copied.expect("a copy"), [[1.0, -1.0]]);
}

trait MapBools {
    fn map_bools(&self) -> Vec<bool>;
}

impl MapBools for Vec<Bool> {
    fn map_bools(&self) -> Vec<bool> {
        self.iter().map(|each| each.get()).collect()
    }
}

#[test]
fn vectors_and_packed_numbers_are_no_elements() {
    let values = [0_u64; 2];
    let described = |code, bits, lanes| {
        let raw = RawTensor::new(
            values.as_ptr().expose_provenance() as u64,
            Device::HOST,
            DType::from_dlpack(code, bits, lanes).expect("a type"),
            &[2],
        );
        // SAFETY: two elements of at most eight bytes, which outlive the view.
        unsafe {
            CaiView::new(
                Descriptor::new(&raw).expect("a tensor"),
                Stream::None,
                Owner::new(()),
            )
        }
    };
    let pairs = described(code::FLOAT, 32, 2);
    assert_eq!(rule(pairs.typed::<f32>()), Rule::ViewDtype);
    assert_eq!(rule(pairs.typed::<[f32; 2]>()), Rule::ViewDtype);
    let nibbles = described(code::INT, 4, 1);
    assert_eq!(rule(nibbles.typed::<i8>()), Rule::ViewDtype);
}

/// What an author keeps in a class, or sends to a thread.
#[test]
fn views_go_to_other_threads() {
    fn everywhere<T: Send + Sync + std::fmt::Debug>() {}
    everywhere::<CaiView>();
    everywhere::<View<'_, f32>>();
    everywhere::<ViewMut<'_, f32>>();
    everywhere::<Owner>();
    everywhere::<ConsumeGuard>();
    everywhere::<Error>();
    let view = array(counted(3), &[3]);
    let clone = view.clone();
    let sum: i32 = std::thread::scope(|scope| {
        let typed = view.typed::<i32>().expect("int32");
        let sums = [0; 4].map(|_| {
            let typed = typed.clone();
            scope.spawn(move || typed.copy_to_vec().expect("a copy"))
        });
        sums.into_iter()
            .flat_map(|sum| sum.join().expect("a thread"))
            .sum()
    });
    assert_eq!(sum, 12);
    drop(view);
    let kept = std::thread::spawn(move || clone.typed::<i32>().map(|typed| typed.copy_to_vec()));
    let kept = kept.join().expect("a thread").expect("int32");
    assert_eq!(kept.expect("a copy"), counted(3));
}

#[test]
fn true_is_true_whatever_the_byte() {
    assert_eq!(Bool(1), Bool(2));
    assert_ne!(Bool(0), Bool(2));
    assert_eq!((Bool::from(true), bool::from(Bool(7))), (Bool(1), true));
    let hashed = |value: Bool| BuildHasherDefault::<DefaultHasher>::new().hash_one(value);
    assert_eq!(hashed(Bool(1)), hashed(Bool(2)));
    assert_ne!(hashed(Bool(0)), hashed(Bool(2)));
}

#[cfg(feature = "half")]
#[test]
fn half_and_bfloat_are_apart() {
    let half = array(vec![half::f16::from_f32(1.5)], &[1]);
    assert_eq!(rule(half.typed::<half::bf16>()), Rule::ViewDtype);
    let copied = half.typed::<half::f16>().expect("float16").copy_to_vec();
    assert_eq!(copied.expect("a copy")[0].to_f32(), 1.5);
    let bfloat = array(vec![half::bf16::from_f32(1.5)], &[1]);
    assert_eq!(rule(bfloat.typed::<half::f16>()), Rule::ViewDtype);
    assert!(bfloat.typed::<half::bf16>().is_ok());
}

#[cfg(feature = "num-complex")]
#[test]
fn complex_numbers_are_real_and_imaginary_parts() {
    use num_complex::{Complex32, Complex64};
    let view = array(vec![Complex32::new(1.0, -2.0)], &[1]);
    let pairs = view.typed::<[f32; 2]>().expect("complex64").copy_to_vec();
    assert_eq!(pairs.expect("a copy"), [[1.0, -2.0]]);
    let numbers = view.typed::<Complex32>().expect("complex64");
    assert_eq!(
        numbers.get(&[0]).expect("a copy"),
        Complex32::new(1.0, -2.0)
    );
    assert_eq!(rule(view.typed::<Complex64>()), Rule::ViewDtype);
    assert!(array(vec![[0.0_f64; 2]], &[1]).typed::<Complex64>().is_ok());
}

#[test]
fn an_address_must_suit_the_element() {
    let odd = Array {
        byte_offset: 1,
        ..Array::of_shape(&[2])
    };
    assert_eq!(
        rule(odd.over(counted(3)).typed::<i32>()),
        Rule::DataAlignment
    );
}

#[test]
fn read_only_data_is_not_lent_mutably() {
    let read_only = Array {
        read_only: true,
        ..Array::of_shape(&[3])
    };
    let mut view = read_only.over(counted(3));
    assert_eq!(rule(view.typed_mut::<i32>()), Rule::ReadOnlyWriter);
    assert!(view.typed::<i32>().is_ok());
}

#[rstest]
#[case::broadcast(&[3], &[0], true)]
#[case::windows(&[3, 2], &[1, 1], true)]
#[case::transposed(&[3, 2], &[1, 3], false)]
#[case::every_second(&[3], &[2], false)]
#[case::one_row(&[1, 3], &[3, 1], false)]
fn elements_with_two_indices_are_not_lent_mutably(
    #[case] shape: &[i64],
    #[case] strides: &[i64],
    #[case] overlaps: bool,
) {
    let array = Array {
        elem_strides: Some(strides),
        ..Array::of_shape(shape)
    };
    let mut view = array.over(counted(6));
    match view.typed_mut::<i32>().map(drop) {
        Ok(()) => assert!(!overlaps),
        Err(error) => {
            assert!(overlaps);
            assert_eq!(rule::<()>(Err(error)), Rule::Overlap);
        }
    }
    assert!(view.typed::<i32>().is_ok());
}

/// Makes the demand of that name.
fn demand<'a>(view: View<'a, i32>, name: &str) -> Result<View<'a, i32>, Violation> {
    match name {
        "C" => view.c_order(),
        "F" => view.f_order(),
        "contiguous" => view.contiguous(),
        "host" => view.host(),
        "cuda" => view.cuda(),
        "cpu:0" => view.on_device(Device::HOST),
        "cuda:0" => view.on_device(Device::cuda(0)),
        "(2, any)" => view.of_shape(&[Some(2), None]),
        "(any, 2)" => view.of_shape(&[None, Some(2)]),
        "(any)" => view.of_shape(&[None]),
        _ => panic!("no such demand"),
    }
}

#[rstest]
#[case::c_of_c("C", &[2, 3], None, None)]
#[case::f_of_c("F", &[2, 3], None, Some(Rule::ViewContiguous))]
#[case::c_of_f("C", &[2, 3], Some(&[1, 2][..]), Some(Rule::ViewContiguous))]
#[case::f_of_f("F", &[2, 3], Some(&[1, 2][..]), None)]
#[case::any_of_f("contiguous", &[2, 3], Some(&[1, 2][..]), None)]
#[case::any_of_strided("contiguous", &[3], Some(&[2][..]), Some(Rule::ViewContiguous))]
#[case::both_of_one_axis("F", &[6], None, None)]
#[case::host("host", &[6], None, None)]
#[case::cuda("cuda", &[6], None, Some(Rule::ViewDevice))]
#[case::this_device("cpu:0", &[6], None, None)]
#[case::that_device("cuda:0", &[6], None, Some(Rule::ViewDevice))]
#[case::shape("(2, any)", &[2, 3], None, None)]
#[case::another_shape("(any, 2)", &[2, 3], None, Some(Rule::ViewShape))]
#[case::another_rank("(any)", &[2, 3], None, Some(Rule::ViewShape))]
fn demands(
    #[case] name: &str,
    #[case] shape: &[i64],
    #[case] elem_strides: Option<&[i64]>,
    #[case] refused: Option<Rule>,
) {
    let array = Array {
        elem_strides,
        ..Array::of_shape(shape)
    };
    let view = array.over(counted(6));
    let answer = demand(view.typed::<i32>().expect("int32"), name);
    match refused {
        None => assert_eq!(answer.expect("met").cai().descriptor().shape(), shape),
        Some(expected) => assert_eq!(rule(answer), expected),
    }
}

#[rstest]
#[case::whole(&[2, 3], None, 0, &[0, 1, 2, 3, 4, 5])]
#[case::transposed(&[3, 2], Some(&[1, 3][..]), 0, &[0, 3, 1, 4, 2, 5])]
#[case::every_second(&[3], Some(&[2][..]), 0, &[0, 2, 4])]
#[case::backwards(&[6], Some(&[-1][..]), 20, &[5, 4, 3, 2, 1, 0])]
#[case::both_ways(&[2, 3], Some(&[-3, 1][..]), 12, &[3, 4, 5, 0, 1, 2])]
#[case::broadcast(&[2, 2], Some(&[0, 1][..]), 4, &[1, 2, 1, 2])]
#[case::scalar(&[], None, 8, &[2])]
#[case::one_of_any_stride(&[1, 2], Some(&[i64::MAX, 1][..]), 0, &[0, 1])]
#[case::nothing(&[2, 0], None, 0, &[])]
fn copies_are_in_c_order(
    #[case] shape: &[i64],
    #[case] elem_strides: Option<&[i64]>,
    #[case] byte_offset: u64,
    #[case] expected: &[i32],
) {
    let array = Array {
        elem_strides,
        byte_offset,
        ..Array::of_shape(shape)
    };
    let view = array.over(counted(6));
    let typed = view.typed::<i32>().expect("int32");
    assert_eq!(typed.copy_to_vec().expect("a copy"), expected);
    assert_eq!(typed.len(), expected.len());
    assert_eq!(typed.is_empty(), expected.is_empty());
}

#[test]
fn a_copy_that_fits_no_memory_is_refused() {
    let endless = Array {
        elem_strides: Some(&[0]),
        ..Array::of_shape(&[1 << 60])
    };
    let view = endless.over(vec![1_u8]);
    let copied = view.typed::<u8>().expect("bytes").copy_to_vec();
    assert!(matches!(copied, Err(Error::OutOfMemory)), "{copied:?}");
}

#[test]
fn slices_are_the_memory_itself() {
    let mut view = array(counted(6), &[6]);
    let address = view.descriptor().data();
    let mut typed = view.typed_mut::<i32>().expect("int32");
    assert_eq!(typed.as_mut_ptr().addr() as u64, address);
    // SAFETY: the test owns the values, and nobody else knows of them.
    unsafe { typed.host_slice_mut() }.expect("a slice")[1] = 10;
    assert_eq!(typed.copy_to_vec().expect("a copy")[1], 10);
    assert_eq!(typed.reborrow().as_view().len(), 6);
    let typed = view.typed::<i32>().expect("int32");
    // SAFETY: as above.
    let slice = unsafe { typed.host_slice() };
    assert_eq!(slice.expect("a slice"), [0, 10, 2, 3, 4, 5]);
}

#[test]
fn a_slice_has_no_strides() {
    let strided = Array {
        elem_strides: Some(&[2]),
        ..Array::of_shape(&[3])
    };
    let mut view = strided.over(counted(6));
    let mut typed = view.typed_mut::<i32>().expect("int32");
    // SAFETY: the test owns the values.
    let slice = unsafe { typed.host_slice_mut() };
    assert_eq!(rule(slice), Rule::ViewContiguous);
    // SAFETY: as above.
    let slice = unsafe { typed.as_view().host_slice() };
    assert_eq!(rule(slice), Rule::ViewContiguous);
}

#[test]
fn nothing_is_a_slice_too() {
    let view = array(Vec::<f64>::new(), &[0, 3]);
    let typed = view.typed::<f64>().expect("float64");
    // SAFETY: there are no elements.
    assert!(unsafe { typed.host_slice() }.expect("a slice").is_empty());
    assert_eq!(typed.as_ptr().addr() % align_of::<f64>(), 0);
}

/// A view's name is that of what is derived from it, in the refusals of the array as such and in no other.
#[test]
fn a_refusal_names_the_view() {
    let mut view = array(counted(6), &[2, 3]);
    let typed = view.typed_mut::<i32>().expect("int32").named("out");
    let name = |refused: Result<View<'_, i32>, Violation>| refused.expect_err("refused").field();
    let out = Field::Argument("out");
    assert_eq!(name(typed.as_view().f_order()), out);
    assert_eq!(name(typed.as_view().cuda()), out);
    let unnamed = view.typed::<i32>().expect("int32");
    assert_eq!(name(unnamed.f_order()), Field::Object);
}

/// Memory of a device is none that the host may read.
#[test]
fn the_host_is_refused_memory_of_a_device() {
    let on_device = Array {
        device: Device::cuda(0),
        ..Array::of_shape(&[0]) // of which no driver is asked
    };
    let view = on_device.over(counted(3));
    let typed = view.typed::<i32>().expect("int32");
    assert_eq!(rule(typed.host()), Rule::ViewDevice);
}

/// Three numbers, of which the flags tell.
fn flagged(flags: Flags) -> CaiView {
    let values = counted(3);
    let data = values.as_ptr().expose_provenance() as u64;
    let mut raw = RawTensor::new(data, Device::HOST, DType::I32, &[3]);
    raw.flags = flags;
    let descriptor = Descriptor::new(&raw).expect("a tensor");
    // SAFETY: the owner keeps the values.
    unsafe { CaiView::new(descriptor, Stream::None, Owner::new(values)) }
}

/// Who may not write is told how to say that it may, if nothing has said that it may not.
#[rstest]
#[case(Flags::LEGACY, true)]
#[case(Flags::READ_ONLY, false)]
fn a_writer_is_refused_by_what_is_known(#[case] flags: Flags, #[case] may_be_asserted: bool) {
    let mut view = flagged(flags);
    let refused = view.typed_mut::<i32>().expect_err("refused").to_string();
    let asserts = refused.contains("read_only=False asserts that this one may be");
    assert_eq!(asserts, may_be_asserted, "{refused}");
}

/// A legacy tensor has no flag that would tell a consumer.
#[rstest]
#[case(Flags::NONE, None)]
#[case(Flags::LEGACY, None)]
#[case(Flags::READ_ONLY, Some(Rule::ReadOnlyLegacy))]
fn read_only_data_goes_in_no_legacy_tensor(#[case] flags: Flags, #[case] refused: Option<Rule>) {
    let answer = flagged(flags).to_dlpack_legacy(LiveStream::NONE);
    assert_eq!(answer.is_err(), refused.is_some());
    if let Some(wanted) = refused {
        assert_eq!(rule(answer), wanted);
    }
}

#[test]
fn a_view_shows_its_array() {
    let mut view = array(counted(6), &[2, 3]);
    let shown = format!("{view:?}");
    let typed = format!("{:?}", view.typed::<i32>().expect("int32"));
    assert_eq!(typed, format!("View({shown})"));
    let typed = format!("{:?}", view.typed_mut::<i32>().expect("int32"));
    assert_eq!(typed, format!("ViewMut({shown})"));
}
