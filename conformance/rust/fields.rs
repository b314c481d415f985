//! Records and other items that DLPack lacks, masks and borrows of memory, in Rust.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::axes::{Axes, Source};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::{DType, TypeStr};
use cai_dlpack::protocol::interface::{CaiInterface, Descr, DescrBuilder, Parts};
use cai_dlpack::protocol::mask::MaskForm;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::view::{LiveStream, Owner};

use crate::arrays::array;

fn interface(typestr: &str, descr: Descr, shape: &[i64], data: u64) -> CaiInterface {
    let axes = Axes::from_slices(Source::Cai, shape, None).expect("axes");
    let typestr = TypeStr::parse(typestr).expect("a typestr");
    CaiInterface::new(Parts::new(data, typestr, axes).with_descr(descr)).expect("a dict")
}

fn fields(typestr: &str, fields: &[(&str, &str)]) -> Descr {
    let mut builder = DescrBuilder::new();
    for (name, typestr) in fields {
        builder.push(name, typestr, &[]).expect("a field");
    }
    let typestr = TypeStr::parse(typestr).expect("a typestr");
    builder.finish(typestr).expect("fields of the item's size")
}

/// Two items of two floats.
fn points() -> CaiView {
    let values = vec![[1.0_f32, 2.0], [3.0, 4.0]];
    let descr = fields("|V8", &[("x", "<f4"), ("y", "<f4")]);
    let data = values.as_ptr().expose_provenance() as u64;
    let records = interface("|V8", descr, &[2], data);
    let descriptor = records.describe(Device::HOST).expect("records");
    // SAFETY: the items lie in the vector, which the owner keeps.
    unsafe { CaiView::new(descriptor, Stream::None, Owner::new(values)) }
}

#[test]
fn a_field_is_a_strided_view_of_the_same_memory() {
    let y = points().field("y", None).expect("a field");
    assert_eq!(y.descriptor().elem_strides(), [2]);
    assert!(y.descriptor().cai_only().is_none());
    let y = y.typed::<f32>().expect("floats");
    assert_eq!(y.copy_to_vec().expect("readable"), [2.0, 4.0]);
}

#[test]
fn a_name_that_no_field_has_is_refused() {
    let refused = points().field("z", None).unwrap_err();
    assert_eq!(refused.rule(), Rule::FieldUnknown);
}

/// The rule of an error.
fn rule<T>(refused: Result<T, impl Into<cai_dlpack::Error>>) -> Option<Rule> {
    match refused.err()?.into() {
        cai_dlpack::Error::Violation(violation) => Some(violation.rule()),
        _ => None,
    }
}

/// A part is refused by the same rule as the whole, also if the strides are no whole number of items.
#[test]
fn items_that_dlpack_lacks_have_no_parts() {
    let axes = Axes::from_slices(Source::Cai, &[2, 3], Some(&[36, 12])).expect("axes");
    let typestr = TypeStr::parse("|V8").expect("a typestr");
    let descr = fields("|V8", &[("x", "<f4"), ("y", "<f4")]);
    let values = vec![0.0_f32; 18];
    let data = values.as_ptr().expose_provenance() as u64;
    let records = CaiInterface::new(Parts::new(data, typestr, axes).with_descr(descr));
    let described = records.and_then(|records| records.describe(Device::HOST));
    // SAFETY: the items lie in the vector, which the owner keeps.
    let apart = unsafe {
        CaiView::new(
            described.expect("records"),
            Stream::None,
            Owner::new(values),
        )
    };
    let wanted = Some(Rule::DescrFields);
    for view in [apart, points()] {
        let axes: Vec<_> = (0..view.descriptor().ndim()).collect();
        assert_eq!(rule(view.permute(&axes)), wanted);
        assert_eq!(rule(view.transpose()), wanted);
        assert_eq!(rule(view.slice(0, 1..)), wanted);
        assert_eq!(rule(view.index(0, 1)), wanted);
        assert_eq!(rule(view.split(0, 1)), wanted);
        assert_eq!(rule(view.broadcast(&[2, 2, 3])), wanted);
        assert_eq!(rule(view.reshape(&[2])), wanted);
    }
}

/// Every way out by DLPack, and every way to the elements, refuses by the rule that the description has kept; nothing
/// is shared then.
#[test]
fn items_that_dlpack_lacks_leave_by_no_other_way() {
    let mut view = points();
    let wanted = Some(Rule::DescrFields);
    assert_eq!(rule(view.to_dlpack(LiveStream::NONE)), wanted);
    assert_eq!(rule(view.to_dlpack_legacy(LiveStream::NONE)), wanted);
    assert_eq!(rule(view.typed::<f32>()), wanted);
    assert_eq!(rule(view.typed_mut::<f32>()), wanted);
    assert_eq!(rule(view.copy_to_host()), wanted);
    assert_eq!(rule(view.copy_on(LiveStream::LEGACY_DEFAULT)), wanted);
    assert_eq!(rule(view.interface()), Some(Rule::CaiDevice)); // memory of the host
    // Memory, owner and order are as any other's.
    assert!(view.borrow_memory_mut().is_ok());
    assert!(view.synchronize().is_ok());
}

/// A field whose stride is no multiple of its size.
#[test]
fn an_uneven_field_keeps_its_own_refusal() {
    let values = vec![[0_u32; 3]; 2];
    let descr = fields("|V12", &[("a", "<f8"), ("b", ">u4")]);
    let data = values.as_ptr().expose_provenance() as u64;
    let records = interface("|V12", descr, &[2], data);
    let descriptor = records.describe(Device::cuda(0)).expect("records");
    // SAFETY: nothing reads the elements; the vector lives.
    let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(values)) };
    let a = view.field("a", None).expect("a field");
    assert_eq!(rule(a.to_dlpack(LiveStream::NONE)), Some(Rule::FieldStride));
    let dict = a.interface().expect("a dict says it");
    assert_eq!(dict.typestr().to_string(), "<f8");
    assert!(dict.strides_for_export().expect("strides").eq([12]));
    assert_eq!(
        rule(view.field("a", Some(DType::F64))),
        Some(Rule::FieldStride)
    );

    let b = view.field("b", None).expect("a field");
    let refused = b
        .to_dlpack(LiveStream::NONE)
        .err()
        .map(|refused| refused.to_string());
    assert!(
        refused
            .expect("another order")
            .contains("'>u4' of field 'b'")
    );
    assert_eq!(b.interface().expect("a dict").typestr().to_string(), ">u4");
}

#[test]
fn a_mask_is_described_by_its_form() {
    let describe = |typestr, shape: &[i64], values: &[i64], asked| {
        let mask = interface(typestr, Descr::None, shape, 0x1000);
        let form = MaskForm::of(&mask, values, asked)?;
        let descriptor = form.describe(&mask, Device::cuda(0))?;
        Ok::<_, cai_dlpack::protocol::rule::Violation>((
            form,
            descriptor.dtype(),
            descriptor.shape().to_vec(),
        ))
    };
    let (bits, bytes) = (MaskForm::Bits, MaskForm::Bytes);
    let cases = [
        (
            "|b1",
            &[3][..],
            &[2, 3][..],
            None,
            (bytes, DType::BOOL, vec![3]),
        ),
        (
            "|i1",
            &[3],
            &[3],
            Some(bytes),
            (bytes, DType::BOOL, vec![3]),
        ),
        ("|u1", &[2], &[10], None, (bits, DType::U8, vec![2])),
        ("|u1", &[64], &[10], None, (bits, DType::U8, vec![64])),
        ("|t1", &[10], &[10], None, (bits, DType::U8, vec![2])),
    ];
    for (typestr, mask, values, asked, expected) in cases {
        let made = describe(typestr, mask, values, asked);
        assert_eq!(made.expect("a mask"), expected, "{typestr} of {mask:?}");
    }
    let rule = |typestr, mask: &[i64], values: &[i64]| {
        let refused = describe(typestr, mask, values, None);
        refused.expect_err("no mask").rule()
    };
    assert_eq!(rule("|u1", &[1], &[1]), Rule::MaskAmbiguous);
    assert_eq!(rule("|u1", &[3], &[10]), Rule::MaskShape);
    assert_eq!(rule("<f4", &[3], &[3]), Rule::MaskDtype);
}

#[test]
fn memory_is_borrowed_by_many_or_by_one() {
    let (view, other) = (array(vec![0_f32; 4], &[4]), array(vec![0_f32; 4], &[4]));
    let (first, second) = (view.borrow_memory(), view.borrow_memory());
    assert!(first.is_ok() && second.is_ok());
    let refused = view.borrow_memory_mut().unwrap_err();
    assert_eq!(refused.rule(), Rule::ViewInUse);
    let _elsewhere = other.borrow_memory_mut().expect("other memory");
    drop((first, second));
    let written = view.borrow_memory_mut().expect("nobody else's");
    assert_eq!(view.borrow_memory().unwrap_err().rule(), Rule::ViewInUse);
    drop(written);
    assert!(view.borrow_memory().is_ok());
}
