//! A valid dict, one defect per case; `dtype=`; struct fields.

use rstest::rstest;

use super::*;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Access, Device, Flags};
use crate::protocol::dtype::DType;
use crate::protocol::rule::Class;

const DATA: u64 = 0x7000_0000;

/// The entries as a test writes them; `made` checks each by itself, then all together.
#[derive(Clone, Copy)]
struct Dict<'a> {
    version: i64,
    typestr: &'a str,
    shape: &'a [i64],
    strides: Option<&'a [i64]>,
    data: u64,
}

const VALID: Dict<'static> = Dict {
    version: 3,
    typestr: "<f4",
    shape: &[2, 3],
    strides: None,
    data: DATA,
};

impl Dict<'_> {
    fn parts(&self, descr: Descr) -> Result<Parts, Violation> {
        let axes = Axes::from_slices(Source::Cai, self.shape, self.strides)?;
        Ok(Parts {
            version: Version::from_int(self.version)?,
            typestr: TypeStr::parse(self.typestr)?,
            descr,
            axes,
            data: self.data,
            read_only: false,
            stream: Stream::None,
        })
    }

    fn made(&self) -> Result<CaiInterface, Violation> {
        CaiInterface::new(self.parts(Descr::None)?)
    }
}

/// Axes that were pushed one by one are those of a slice; a stride that is told is another fact than none.
#[test]
fn equal_dicts_are_equal() {
    let mut pushed = Axes::new(Source::Cai);
    pushed.push_extent(2).unwrap();
    pushed.push_extent(3).unwrap();
    let axes = VALID.parts(Descr::None).unwrap().axes;
    assert_eq!(pushed, axes);
    assert_ne!(
        pushed,
        Axes::from_slices(Source::Cai, &[3, 2], None).unwrap()
    );
    assert_ne!(
        pushed,
        Axes::from_slices(Source::Tensor, &[2, 3], None).unwrap()
    );
    let strides = Axes::from_slices(Source::Cai, &[2, 3], Some(&[12, 4])).unwrap();
    assert_ne!(pushed, strides);
    let parts = VALID.parts(Descr::None).unwrap();
    assert_eq!(
        parts,
        Parts {
            axes: pushed,
            ..parts.clone()
        }
    );
    assert_eq!(VALID.made(), VALID.made());
    let other = Dict {
        data: DATA + 4,
        ..VALID
    };
    assert_ne!(VALID.made(), other.made());
}

#[test]
fn valid_dict() {
    let made = VALID.made().unwrap();
    assert_eq!(
        (made.shape(), made.data(), made.nbytes()),
        (&[2, 3][..], DATA, 24)
    );
    assert_eq!(
        (made.version(), made.stream(), made.read_only()),
        (Version::V3, Stream::None, false)
    );
    assert_eq!(made.byte_span(), Some((DATA, DATA + 24)));
    assert_eq!(*made.descr(), Descr::None);
    let tensor = made.into_descriptor(None, Device::cuda(1)).unwrap();
    assert_eq!(
        (tensor.dtype(), tensor.device()),
        (DType::F32, Device::cuda(1))
    );
    assert_eq!(
        (tensor.shape(), tensor.elem_strides()),
        (&[2, 3][..], &[3, 1][..])
    );
    assert_eq!((tensor.data(), tensor.flags()), (DATA, Flags::NONE));
}

#[rstest]
#[case::version(Dict { version: -1, ..VALID }, Rule::VersionRange, "version")]
#[case::typestr(Dict { typestr: "<f3", ..VALID }, Rule::TypestrSize, "typestr")]
#[case::extent(Dict { shape: &[-1], ..VALID }, Rule::ShapeExtent, "shape")]
#[case::axes(Dict { shape: &[1; 65], ..VALID }, Rule::NdimLimit, "shape")]
#[case::count(Dict { shape: &[1 << 40, 1 << 40], ..VALID }, Rule::CountOverflow, "shape")]
#[case::size(Dict { shape: &[1 << 62], ..VALID }, Rule::SizeOverflow, "shape")]
#[case::strides_few(Dict { strides: Some(&[4]), ..VALID }, Rule::StridesLength, "strides")]
#[case::pointer_null(Dict { data: 0, ..VALID }, Rule::DataPointerNull, "data")]
#[case::pointer_last(Dict { data: u64::MAX - 3, ..VALID }, Rule::AddressRange, "data")]
#[case::pointer_first(Dict { data: 4, strides: Some(&[-12, 4]), ..VALID }, Rule::AddressRange, "data")]
fn dict_malformed(#[case] dict: Dict<'_>, #[case] rule: Rule, #[case] key: &str) {
    let violation = dict.made().unwrap_err();
    assert_eq!(violation.rule(), rule, "{violation}");
    let shown = format!("__cuda_array_interface__['{key}'] = ");
    assert!(violation.to_string().starts_with(&shown), "{violation}");
}

/// What both sides of the interface can say, and DLPack cannot.
#[rstest]
#[case::strides_odd(Dict { strides: Some(&[12, 6]), ..VALID }, Rule::StridesMultiple, "strides")]
#[case::strides_odd_back(Dict { strides: Some(&[-13, 4]), ..VALID }, Rule::StridesMultiple, "strides")]
#[case::pointer_odd(Dict { data: DATA + 2, ..VALID }, Rule::DataAlignment, "data")]
#[case::pointer_odd_int(Dict { data: DATA + 4, typestr: "<i8", ..VALID }, Rule::DataAlignment, "data")]
#[case::pointer_odd_complex(Dict { data: DATA + 2, typestr: "<c8", ..VALID }, Rule::DataAlignment, "data")]
#[case::bytes(Dict { typestr: "|V16", ..VALID }, Rule::TypestrVoid, "typestr")]
#[case::text(Dict { typestr: "<U3", ..VALID }, Rule::TypestrUnicode, "typestr")]
#[case::no_text(Dict { typestr: "|S0", strides: Some(&[3, 1]), ..VALID }, Rule::TypestrBytes, "typestr")]
#[case::dates(Dict { typestr: "<M8[ns]", ..VALID }, Rule::TypestrDatetime, "typestr")]
#[case::bits(Dict { typestr: "|t1", ..VALID }, Rule::TypestrBit, "typestr")]
#[case::axes(Dict { typestr: "|V3", shape: &[2; 5], ..VALID }, Rule::TypestrVoid, "typestr")]
fn dict_of_cai_alone(#[case] dict: Dict<'_>, #[case] rule: Rule, #[case] key: &str) {
    let made = dict.made().unwrap();
    let refused = made
        .clone()
        .into_descriptor(None, Device::cuda(0))
        .unwrap_err();
    assert_eq!((refused.rule(), refused.field().name()), (rule, key));
    assert!(
        refused.hint().is_some() || rule == Rule::DataAlignment,
        "{refused}"
    );

    let array = made.clone().describe(Device::cuda(1)).unwrap();
    let only = array.cai_only().unwrap();
    assert_eq!(only.refusal(), &refused);
    assert_eq!(array.check_dlpack().unwrap_err(), refused);
    assert!(array.dtype().is_cai_only() && DType::ALL.iter().all(|dtype| array.dtype() != *dtype));
    assert_eq!(array.itemsize(), Some(made.typestr().itemsize()));
    assert_eq!(
        (array.nbytes(), array.byte_span()),
        (made.nbytes(), made.byte_span())
    );

    let back = array.to_interface(made.stream()).unwrap();
    assert_eq!(
        (back.typestr(), back.descr()),
        (made.typestr(), made.descr())
    );
    assert_eq!((back.shape(), back.data()), (made.shape(), made.data()));
    assert!(
        match (back.strides_for_export(), made.strides_for_export()) {
            (Some(back), Some(made)) => back.eq(made),
            (back, made) => back.is_none() && made.is_none(),
        }
    );
    let again = back.into_descriptor(None, Device::cuda(0)).unwrap_err();
    assert_eq!(again, refused);
}

/// The span of uneven strides counts whole items at both ends.
#[rstest]
#[case(&[3], &[-6], Some((DATA - 12, DATA + 4)))]
#[case(&[3], &[6], Some((DATA, DATA + 16)))]
#[case(&[3, 2], &[6, -1], Some((DATA - 1, DATA + 16)))]
fn span_of_uneven_strides(
    #[case] shape: &[i64],
    #[case] strides: &[i64],
    #[case] span: Option<(u64, u64)>,
) {
    let dict = Dict {
        shape,
        strides: Some(strides),
        ..VALID
    };
    let made = dict.made().unwrap();
    assert_eq!(made.byte_span(), span);
    let array = made.describe(Device::cuda(0)).unwrap();
    assert_eq!((array.byte_span(), array.elem_strides()), (span, &[][..]));
    assert!(array.byte_strides().unwrap().eq(strides.iter().copied()));
    let layout = array.layout();
    assert!(!layout.is_c_contiguous() && !layout.is_f_contiguous() && layout.is_self_overlapping());
    // The layout of such an array is no layout of a tensor.
    let flags = Flags::NONE;
    let taken = Descriptor::from_layout(DATA, Device::cuda(0), DType::F32, flags, layout.clone());
    assert_eq!(taken.unwrap_err().rule(), Rule::StridesMultiple);
    let (dtype, layout) = (array.dtype(), VALID.made().unwrap().layout().clone());
    let taken = Descriptor::from_layout(DATA, Device::cuda(0), dtype, flags, layout);
    assert_eq!(taken.unwrap_err().rule(), Rule::DtypeCode);
}

/// A stride of an odd number of bytes is bounded as any other.
#[rstest]
#[case(&[1 << 40, 3], &[3, 1 << 62], Rule::SpanOverflow)]
#[case(&[1 << 40, 1 << 22], &[1, 0], Rule::SizeOverflow)]
#[case(&[3], &[i64::MAX - 2], Rule::SpanOverflow)]
#[case(&[3], &[-(DATA as i64) + 1], Rule::AddressRange)]
fn uneven_strides_out_of_range(#[case] shape: &[i64], #[case] strides: &[i64], #[case] rule: Rule) {
    let dict = Dict {
        shape,
        strides: Some(strides),
        ..VALID
    };
    assert_eq!(dict.made().unwrap_err().rule(), rule);
}

/// References to objects are no data.
#[test]
fn objects_are_refused_by_both_sides() {
    let made = Dict {
        typestr: "|O8",
        ..VALID
    }
    .made()
    .unwrap();
    let refused = made.describe(Device::cuda(0)).unwrap_err();
    assert_eq!(refused.rule(), Rule::TypestrObject);
}

/// What looks odd and is legal.
#[rstest]
#[case::version_0(Dict { version: 0, ..VALID })]
#[case::version_2(Dict { version: 2, ..VALID })]
#[case::strides_of_single_axis(Dict { shape: &[1, 6], strides: Some(&[7, 4]), ..VALID })]
#[case::strides_explicit(Dict { strides: Some(&[12, 4]), ..VALID })]
#[case::complex_at_half(Dict { data: DATA + 4, typestr: "<c8", ..VALID })]
#[case::complex128_at_half(Dict { data: DATA + 8, typestr: "<c16", ..VALID })]
#[case::scalar(Dict { shape: &[], strides: Some(&[]), ..VALID })]
#[case::pointer_end(Dict { data: u64::MAX - 27, ..VALID })]
fn dict_taken(#[case] dict: Dict<'_>) {
    let made = dict.made().unwrap();
    assert_eq!(made.shape(), dict.shape);
    let tensor = made.into_descriptor(None, Device::cuda(0)).unwrap();
    assert_eq!(tensor.data(), dict.data);
}

/// Size 0: any pointer, any strides; out come pointer 0 and no strides.
#[rstest]
#[case::null(0, None)]
#[case::stray(DATA + 1, None)]
#[case::last(u64::MAX, None)]
#[case::odd_strides(0, Some(&[7, i64::MIN][..]))]
fn dict_without_items(#[case] data: u64, #[case] strides: Option<&[i64]>) {
    for shape in [&[0, 3][..], &[3, 0], &[0, 1 << 62]] {
        let made = Dict {
            shape,
            strides,
            data,
            ..VALID
        }
        .made()
        .unwrap();
        assert_eq!((made.data(), made.nbytes(), made.byte_span()), (0, 0, None));
        assert!(made.strides_for_export().is_none());
        let tensor = made.into_descriptor(None, Device::cuda(0)).unwrap();
        assert_eq!((tensor.data(), tensor.shape()), (0, shape));
    }
}

/// The versions say the same thing: absent strides and given ones make one tensor.
#[test]
fn versions_agree() {
    let explicit = [12, 4];
    let wanted = VALID
        .made()
        .unwrap()
        .into_descriptor(None, Device::cuda(0))
        .unwrap();
    for version in 0..=5 {
        for strides in [None, Some(&explicit[..])] {
            let dict = Dict {
                version,
                strides,
                ..VALID
            };
            let made = dict.made().unwrap();
            assert_eq!(made.version().number(), version);
            assert_eq!(made.into_descriptor(None, Device::cuda(0)).unwrap(), wanted);
        }
    }
    assert_eq!(Version::from_int(4).unwrap(), Version::Newer(4));
    assert_eq!(Version::MISSING, Version::V0);
}

#[test]
fn read_only_is_carried() {
    for read_only in [false, true] {
        let parts = Parts {
            read_only,
            ..VALID.parts(Descr::None).unwrap()
        };
        let tensor = CaiInterface::new(parts)
            .unwrap()
            .into_descriptor(None, Device::cuda(0))
            .unwrap();
        assert_eq!(tensor.access(), Access::of_flag(read_only));
        let back = tensor.to_interface(Stream::None).unwrap();
        assert_eq!(back.read_only(), read_only);
    }
}

#[rstest]
#[case::datetime("<M8[ns]", Rule::TypestrDatetime)]
#[case::object("|O8", Rule::TypestrObject)]
#[case::void("<V2", Rule::TypestrVoid)]
#[case::bits("|t1", Rule::TypestrBit)]
#[case::float16_bytes("<f16", Rule::TypestrLongDouble)]
fn no_counterpart(#[case] typestr: &str, #[case] rule: Rule) {
    let made = Dict { typestr, ..VALID }.made().unwrap();
    assert_eq!(made.typestr().as_str(), None);
    let violation = made.into_descriptor(None, Device::cuda(0)).unwrap_err();
    assert_eq!(
        (violation.rule(), violation.rule().class()),
        (rule, Class::Buffer)
    );
}

#[rstest]
#[case::bf16_of_torch("<V2", DType::BF16)]
#[case::bf16_of_paddle("<f2", DType::BF16)]
#[case::bf16_of_warp("<u2", DType::BF16)]
#[case::ticks("<M8[ns]", DType::I64)]
fn dtype_argument(#[case] typestr: &str, #[case] dtype: DType) {
    let made = Dict { typestr, ..VALID }.made().unwrap();
    let tensor = made.into_descriptor(Some(dtype), Device::cuda(0)).unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (dtype, VALID.shape));
}

#[test]
fn dtype_argument_is_aligned_too() {
    let dict = Dict {
        typestr: "|V4",
        data: DATA + 2,
        ..VALID
    };
    let violation = dict
        .made()
        .unwrap()
        .into_descriptor(Some(DType::F32), Device::cuda(0));
    assert_eq!(violation.unwrap_err().rule(), Rule::DataAlignment);
    let empty = Dict {
        typestr: "|V4",
        data: DATA + 2,
        shape: &[0],
        ..VALID
    };
    assert!(
        empty
            .made()
            .unwrap()
            .into_descriptor(Some(DType::F32), Device::cuda(0))
            .is_ok()
    );
}

/// Bits are counted as bits: nine of them are two bytes.
#[test]
fn bits_of_a_mask() {
    let made = Dict {
        typestr: "|t1",
        shape: &[9],
        ..VALID
    }
    .made()
    .unwrap();
    assert!(made.is_bits());
    assert_eq!(
        (made.nbytes(), made.byte_span()),
        (2, Some((DATA, DATA + 2)))
    );
}

/// `[("x", "<f4"), ("y", "<i2"), ("", "|V2"), ("v", "<f8", (2,)), ("n", [("a", "|u1")], (4,)), ("b", ">i4")]`
fn structured() -> Descr {
    let mut fields = DescrBuilder::new();
    fields.push("x", "<f4", &[]).unwrap();
    fields.push("y", "<i2", &[]).unwrap();
    fields.push("", "|V2", &[]).unwrap();
    fields.push("v", "<f8", &[2]).unwrap();
    let mut inner = fields.nested().unwrap();
    inner.push("a", "|u1", &[]).unwrap();
    fields.push_nested("n", inner, &[4]).unwrap();
    fields.push("b", ">i4", &[]).unwrap();
    fields.finish(TypeStr::parse("|V32").unwrap()).unwrap()
}

fn struct_of(shape: &[i64], strides: Option<&[i64]>) -> CaiInterface {
    let dict = Dict {
        typestr: "|V32",
        shape,
        strides,
        ..VALID
    };
    CaiInterface::new(dict.parts(structured()).unwrap()).unwrap()
}

#[test]
fn struct_is_refused_as_a_whole() {
    let violation = struct_of(&[5], None)
        .into_descriptor(None, Device::cuda(0))
        .unwrap_err();
    assert_eq!(violation.rule(), Rule::DescrFields);
    assert_eq!(violation.found(), "fields 'x', 'y', 'v', 'n', 'b'");
}

#[rstest]
#[case::x("x", DType::F32, 0, &[5], &[8])]
#[case::y("y", DType::I16, 4, &[5], &[16])]
#[case::v("v", DType::F64, 8, &[5, 2], &[4, 1])]
fn struct_field(
    #[case] name: &str,
    #[case] dtype: DType,
    #[case] offset: u64,
    #[case] shape: &[i64],
    #[case] elem_strides: &[i64],
) {
    let field = struct_of(&[5], None).field(name).unwrap();
    let tensor = field.into_descriptor(None, Device::cuda(0)).unwrap();
    assert_eq!((tensor.dtype(), tensor.data()), (dtype, DATA + offset));
    assert_eq!(
        (tensor.shape(), tensor.elem_strides()),
        (shape, elem_strides)
    );
}

#[test]
fn struct_field_of_field() {
    let inner = struct_of(&[5], Some(&[-64])).field("n").unwrap();
    assert_eq!(inner.shape(), [5, 4]);
    let tensor = inner
        .field("a")
        .unwrap()
        .into_descriptor(None, Device::cuda(0))
        .unwrap();
    assert_eq!((tensor.dtype(), tensor.data()), (DType::U8, DATA + 24));
    assert_eq!(tensor.elem_strides(), [-64, 1]);
}

#[test]
fn struct_field_of_nothing() {
    let field = struct_of(&[0], None).field("v").unwrap();
    assert_eq!((field.shape(), field.data()), (&[0, 2][..], 0));
}

#[rstest]
#[case::unknown("z", Rule::FieldUnknown)]
#[case::padding("", Rule::FieldUnknown)]
fn struct_field_refused(#[case] name: &str, #[case] rule: Rule) {
    assert_eq!(struct_of(&[5], None).field(name).unwrap_err().rule(), rule);
}

#[test]
fn struct_field_of_a_packed_struct() {
    let mut fields = DescrBuilder::new();
    fields.push("x", "<f8", &[]).unwrap();
    fields.push("y", "<f4", &[]).unwrap();
    let typestr = TypeStr::parse("|V12").unwrap();
    let dict = Dict {
        typestr: "|V12",
        ..VALID
    };
    let made = CaiInterface::new(dict.parts(fields.finish(typestr).unwrap()).unwrap()).unwrap();
    let x = made
        .field("x")
        .unwrap()
        .into_descriptor(None, Device::cuda(0));
    assert_eq!(x.unwrap_err().rule(), Rule::StridesMultiple);
    let y = made.field("y").unwrap();
    assert_eq!(y.layout().elem_strides(), [9, 3]);
}

#[test]
fn field_of_a_plain_array() {
    assert_eq!(
        VALID.made().unwrap().field("x").unwrap_err().rule(),
        Rule::FieldNone
    );
}

#[rstest]
#[case::repeated("<f4", "<f4", Ok(Descr::Trivial))]
#[case::void_named("|V2", "<V2", Ok(Descr::Trivial))]
#[case::other_size("<f4", "<f8", Err(Rule::DescrSize))]
#[case::other_kind("<f4", "<i4", Err(Rule::DescrTypestr))]
#[case::other_order("<f4", ">f4", Err(Rule::DescrTypestr))]
#[cfg(target_endian = "little")]
fn descr_of_one(#[case] typestr: &str, #[case] field: &str, #[case] wanted: Result<Descr, Rule>) {
    let mut fields = DescrBuilder::new();
    fields.push("", field, &[]).unwrap();
    let found = fields.finish(TypeStr::parse(typestr).unwrap());
    assert_eq!(found.map_err(|violation| violation.rule()), wanted);
}

/// As NumPy names them: by their place, which padding counts in too.
#[test]
fn unnamed_fields_are_named() {
    let mut fields = DescrBuilder::new();
    fields.push("", "<f4", &[]).unwrap();
    fields.push("", "|V2", &[]).unwrap();
    fields.push("", "<i2", &[2]).unwrap();
    let mut inner = fields.nested().unwrap();
    inner.push("", "|u1", &[]).unwrap();
    fields.push_nested("", inner, &[]).unwrap();
    let Descr::Fields(fields) = fields.finish(TypeStr::parse("|V11").unwrap()).unwrap() else {
        panic!("fields");
    };
    let names: Vec<_> = fields.iter().map(DescrField::name).collect();
    assert_eq!(names, ["f0", "", "f2", "f3"]);
    assert_eq!(fields[3].nested().unwrap()[0].name(), "f0");

    let mut one = DescrBuilder::new();
    one.push("", "<f4", &[]).unwrap();
    let one = one.finish(TypeStr::parse("|V4").unwrap()).unwrap();
    assert_eq!(one.names().collect::<Vec<_>>(), ["f0"]);
}

#[cfg(feature = "pyo3")]
#[test]
fn padding_is_found_on_every_level() {
    let of = |inner: &[(&str, &str)], size: &str| {
        let (mut fields, mut nested) = (DescrBuilder::new(), DescrBuilder::new());
        for (name, typestr) in inner {
            nested.push(name, typestr, &[]).unwrap();
        }
        fields.push("x", "<f4", &[]).unwrap();
        fields.push_nested("n", nested, &[]).unwrap();
        fields.finish(TypeStr::parse(size).unwrap()).unwrap()
    };
    assert!(!of(&[("y", "<f4")], "|V8").has_padding());
    assert!(of(&[("y", "<f4"), ("", "|V2")], "|V10").has_padding());
    assert!(!Descr::None.has_padding() && !Descr::Trivial.has_padding());
}

#[rstest]
#[case::same(&["x", "x"])]
#[case::by_place(&["f1", ""])]
fn names_occur_once(#[case] names: &[&str]) {
    let whole = |names: &[&str]| {
        let mut fields = DescrBuilder::new();
        for name in names {
            fields.push(name, "<f4", &[]).unwrap();
        }
        fields
    };
    let refused = whole(names)
        .finish(TypeStr::parse("|V8").unwrap())
        .unwrap_err();
    assert_eq!(
        (refused.rule(), refused.field()),
        (Rule::DescrNames, Field::CaiDescr)
    );
    let mut outer = DescrBuilder::new();
    let refused = outer.push_nested("n", whole(names), &[]).unwrap_err();
    assert_eq!(refused.rule(), Rule::DescrNames);
    // On different levels a name may occur again.
    assert!(outer.push_nested("x", whole(&["x", "y"]), &[]).is_ok());
}

#[test]
fn descr_size_differs() {
    let mut fields = DescrBuilder::new();
    fields.push("x", "<f4", &[]).unwrap();
    fields.push("y", "<f4", &[2]).unwrap();
    let violation = fields.finish(TypeStr::parse("|V8").unwrap()).unwrap_err();
    assert_eq!(violation.rule(), Rule::DescrSize);
    assert_eq!(violation.found(), "12 bytes where typestr '|V8' has 8");
    let empty = DescrBuilder::new().finish(TypeStr::parse("|V8").unwrap());
    assert_eq!(empty.unwrap_err().rule(), Rule::DescrSize);
    // A descr that was checked against another typestr does not get past the whole.
    let dict = Dict {
        typestr: "|V16",
        ..VALID
    };
    let violation = CaiInterface::new(dict.parts(structured()).unwrap()).unwrap_err();
    assert_eq!(violation.rule(), Rule::DescrSize);
}

#[rstest]
#[case::syntax("f4", &[], Rule::TypestrSyntax)]
#[case::size("<f3", &[], Rule::TypestrSize)]
#[case::extent("<f4", &[-1], Rule::ShapeExtent)]
#[case::huge("<f4", &[1 << 30], Rule::DescrSize)]
#[case::overflow("<f4", &[i64::MAX, i64::MAX], Rule::DescrSize)]
fn descr_field_malformed(#[case] typestr: &str, #[case] shape: &[i64], #[case] rule: Rule) {
    let violation = DescrBuilder::new().push("x", typestr, shape).unwrap_err();
    assert_eq!(violation.rule(), rule);
    assert_eq!(violation.field(), Field::CaiDescr);
}

#[test]
fn descr_depth() {
    let mut builder = DescrBuilder::new();
    for _ in 0..8 {
        builder = builder.nested().unwrap();
    }
    assert_eq!(builder.nested().unwrap_err().rule(), Rule::DescrDepth);
}

/// A list of lists of lists must not grow without bound, however it is nested.
#[test]
fn descr_fields_are_counted_on_all_levels() {
    let mut outer = DescrBuilder::new();
    let mut fields = 0;
    let violation = loop {
        let mut inner = outer.nested().unwrap();
        if let Err(violation) = inner.push("x", "|u1", &[]) {
            break violation;
        }
        if let Err(violation) = outer.push_nested("n", inner, &[]) {
            break violation;
        }
        fields += 2;
        assert!(fields <= 1024, "no limit");
    };
    assert_eq!(violation.rule(), Rule::DescrDepth);
    assert_eq!(fields, 1024);
}

#[test]
fn descr_of_an_empty_struct() {
    let mut outer = DescrBuilder::new();
    let inner = outer.nested().unwrap();
    assert_eq!(
        outer.push_nested("n", inner, &[]).unwrap_err().rule(),
        Rule::DescrSyntax
    );
}

/// One field with a name is a struct all the same: it must be chosen.
#[test]
fn descr_of_one_named_field() {
    let mut fields = DescrBuilder::new();
    fields.push("x", "<f4", &[]).unwrap();
    let typestr = TypeStr::parse("|V4").unwrap();
    let descr = fields.finish(typestr).unwrap();
    assert!(matches!(descr, Descr::Fields(_)));
}

/// A field of two axes is in C order within its item.
#[test]
fn struct_field_of_two_axes() {
    let mut fields = DescrBuilder::new();
    fields.push("m", "<f4", &[2, 3]).unwrap();
    let descr = fields.finish(TypeStr::parse("|V24").unwrap()).unwrap();
    let dict = Dict {
        typestr: "|V24",
        shape: &[5],
        strides: Some(&[48]),
        ..VALID
    };
    let made = CaiInterface::new(dict.parts(descr).unwrap()).unwrap();
    let field = made.field("m").unwrap();
    assert_eq!(field.shape(), [5, 2, 3]);
    assert_eq!(field.layout().elem_strides(), [12, 3, 1]);
}

#[rstest]
#[case::one_in_a_byte("int4", "|V1", true)]
#[case::a_pair_fills_the_byte("int4x2", "|V1", false)]
#[case::a_byte_of_its_own("float8_e4m3fn", "|V1", false)]
fn a_named_type_smaller_than_a_byte_is_padded(
    #[case] name: &str,
    #[case] typestr: &str,
    #[case] is_padded: bool,
) {
    let dtype = DType::from_name(name).unwrap();
    let dict = Dict { typestr, ..VALID };
    let named = dict.made().unwrap().into_named(dtype, Device::cuda(0));
    let described = named.unwrap();
    assert_eq!(described.dtype(), dtype);
    assert_eq!(described.flags().contains(Flags::SUBBYTE_PADDED), is_padded);
}

/// As in NumPy, a field of no items takes no bytes.
/// On whatever level, and nowhere else.
#[test]
fn a_field_of_a_kind_is_found_where_it_is() {
    const TYPES: [&str; 3] = ["<f4", "<i4", "|V4"];
    let flat = |typestr: &str| {
        let mut fields = DescrBuilder::new();
        fields.push("x", typestr, &[]).unwrap();
        fields
    };
    for (first, inner, innermost) in TYPES
        .iter()
        .flat_map(|a| TYPES.iter().flat_map(|b| TYPES.map(|c| (*a, *b, c))))
    {
        let mut nested = flat(inner);
        nested.push_nested("z", flat(innermost), &[]).unwrap();
        let mut fields = flat(first);
        fields.push_nested("y", nested, &[]).unwrap();
        let descr = fields.finish(TypeStr::void(12)).unwrap();
        for typestr in TYPES {
            let wanted = TypeStr::parse(typestr).unwrap();
            let is_there = [first, inner, innermost].contains(&typestr);
            assert_eq!(
                descr.has_field(|found| found == wanted),
                is_there,
                "{descr:?}"
            );
        }
        assert!(!descr.has_objects());
    }
    assert!(!Descr::None.has_field(|_| true));
}

#[test]
fn a_field_may_have_no_items() {
    let mut fields = DescrBuilder::new();
    fields.push("x", "<f4", &[]).unwrap();
    fields.push("none", "<i8", &[2, 0]).unwrap();
    fields.push("y", "<f4", &[]).unwrap();
    let Descr::Fields(fields) = fields.finish(TypeStr::void(8)).unwrap() else {
        panic!("fields");
    };
    let found: Vec<_> = fields
        .iter()
        .map(|field| (field.name(), field.shape(), field.offset()))
        .collect();
    let expected: [(&str, &[i64], u32); 3] = [("x", &[], 0), ("none", &[2, 0], 4), ("y", &[], 4)];
    assert_eq!(found, expected);
}

/// Each entry that is set is the one that the dict has.
#[test]
fn entries_that_are_set_one_by_one() {
    let plain = VALID.parts(Descr::None).unwrap();
    let parts = Parts::new(DATA, TypeStr::parse("<f4").unwrap(), plain.axes.clone());
    let stream = Stream::from_raw(0x5500_1230);
    let made = parts
        .with_version(Version::from_int(1).unwrap())
        .with_stream(stream)
        .with_read_only(true)
        .with_descr(Descr::Trivial);
    assert_eq!(made.version, Version::from_int(1).unwrap());
    assert_eq!((made.stream, made.read_only), (stream, true));
    assert_eq!(made.descr, Descr::Trivial);
    let mut made = CaiInterface::new(made).unwrap();
    assert_eq!(made.descr(), &Descr::Trivial);
    made.set_descr(Descr::None);
    assert_eq!(made.descr(), &Descr::None);
}

/// A field that refers to an object is refused with its name, on every level, and no other one is.
#[test]
fn a_field_that_refers_to_an_object_is_named() {
    let of = |is_inner: bool| {
        let mut fields = DescrBuilder::new();
        fields.push("x", "<f4", &[]).unwrap();
        let mut inner = fields.nested().unwrap();
        inner.push("y", "<f4", &[]).unwrap();
        if is_inner {
            inner.push("o", "|O8", &[]).unwrap();
            fields.push_nested("n", inner, &[]).unwrap();
            fields.finish(TypeStr::parse("|V16").unwrap()).unwrap()
        } else {
            fields.push_nested("n", inner, &[]).unwrap();
            fields.push("o", "|O8", &[]).unwrap();
            fields.finish(TypeStr::parse("|V16").unwrap()).unwrap()
        }
    };
    for descr in [of(true), of(false)] {
        assert!(descr.has_objects());
        let refused = descr.refuse_objects().unwrap();
        assert_eq!(refused.rule(), Rule::TypestrObject);
        assert_eq!(refused.found(), "'|O8' of field 'o'");
    }
    let structured = structured();
    assert!(!structured.has_objects() && structured.refuse_objects().is_none());
}

/// A field is found by its title, too, which is no other field's.
#[test]
fn a_title_is_a_second_name() {
    let mut fields = DescrBuilder::new();
    fields.push("r", "|u1", &[]).unwrap();
    fields.set_title("red");
    fields.push("g", "|u1", &[]).unwrap();
    let descr = fields.finish(TypeStr::parse("|V2").unwrap()).unwrap();
    let found = |name| {
        descr
            .find(name)
            .map(|field| (field.name().to_owned(), field.offset()))
    };
    assert_eq!(found("red"), Ok(("r".to_owned(), 0)));
    assert_eq!(found("g"), Ok(("g".to_owned(), 1)));
    assert!(found("").is_err() && found("green").is_err());
    let Descr::Fields(fields) = descr else {
        panic!("fields");
    };
    assert_eq!((fields[0].title(), fields[1].title()), (Some("red"), None));
}

/// One field without a name is the whole item only if it is one element: with extents, or fields of its own, it is a field.
#[test]
fn one_unnamed_field_with_more_to_it_is_a_field() {
    let of = |shape: &[i64], is_nested: bool| {
        let mut fields = DescrBuilder::new();
        if is_nested {
            let mut inner = fields.nested().unwrap();
            inner.push("a", "|V2", &[]).unwrap();
            fields.push_nested("", inner, shape).unwrap();
        } else {
            fields.push("", "|V2", shape).unwrap();
        }
        let bytes = if shape.is_empty() { "|V2" } else { "|V4" };
        fields.finish(TypeStr::parse(bytes).unwrap()).unwrap()
    };
    assert_eq!(of(&[], false), Descr::Trivial);
    for descr in [of(&[2], false), of(&[], true), of(&[2], true)] {
        assert!(matches!(descr, Descr::Fields(_)), "{descr:?}");
    }
}

/// Raw bytes become elements of any size that fills them; items of another kind do not.
#[rstest]
#[case::raw("|V8", None, DType::F32, &[8], None)]
#[case::raw_in_rows("|V8", None, DType::F64, &[2, 2], None)]
#[case::raw_of_the_same_size("|V4", None, DType::F32, &[2, 2], None)]
#[case::raw_with_gaps("|V4", Some(&[8][..]), DType::F32, &[4], Some(Rule::ShapeOverride))]
#[case::raw_with_other_gaps("|V8", Some(&[16][..]), DType::F32, &[8], Some(Rule::ShapeOverride))]
#[case::text("<U2", None, DType::F32, &[8], Some(Rule::DtypeOverride))]
#[case::dates("<M8[ns]", None, DType::F32, &[8], Some(Rule::DtypeOverride))]
fn items_take_a_shape(
    #[case] typestr: &str,
    #[case] strides: Option<&[i64]>,
    #[case] dtype: DType,
    #[case] shape: &[i64],
    #[case] refused: Option<Rule>,
) {
    let dict = Dict {
        typestr,
        shape: &[4],
        strides,
        ..VALID
    };
    let array = dict.made().unwrap().describe(Device::cuda(0)).unwrap();
    let made = array.with_shape(dtype, shape);
    assert_eq!(made.as_ref().err().map(Violation::rule), refused);
    if let Ok(made) = made {
        assert_eq!((made.dtype(), made.shape()), (dtype, shape));
    }
}

#[test]
fn records_take_a_shape_as_raw_bytes_do() {
    let array = struct_of(&[4], None).describe(Device::cuda(0)).unwrap();
    let made = array.with_shape(DType::F64, &[16]).unwrap();
    assert_eq!((made.dtype(), made.shape()), (DType::F64, &[16][..]));
}

/// What DLPack cannot describe by its strides or its address alone has the name of DLPack's type.
#[rstest]
#[case::odd_strides("<f4", &[6], Some(DType::F32), "float32")]
#[case::text("<U2", &[8], None, "<U2")]
fn an_array_of_cai_alone_is_named(
    #[case] typestr: &str,
    #[case] strides: &[i64],
    #[case] dtype: Option<DType>,
    #[case] name: &str,
) {
    let dict = Dict {
        typestr,
        shape: &[4],
        strides: Some(strides),
        ..VALID
    };
    let array = dict.made().unwrap().describe(Device::cuda(0)).unwrap();
    let only = array.cai_only().unwrap();
    assert_eq!((only.dtype(), only.to_string().as_str()), (dtype, name));
}
