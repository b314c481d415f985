//! The element types, against docs/mapping.md and dlpark's constants.

use dlpark::ffi::DLDataTypeCode as Header;
use rstest::rstest;

use super::typestr::is_order;
use super::*;
use crate::protocol::rule::{Class, Field, Rule};

const PAGE: &str = include_str!("../../../docs/mapping.md");

/// A row of the page's table of element types.
struct PageRow {
    /// In little-endian order.
    typestr: Option<&'static str>,
    code: u8,
    bits: u8,
    name: &'static str,
}

impl PageRow {
    /// The typestr in this machine's order.
    fn native(&self) -> Option<String> {
        let order = if cfg!(target_endian = "little") {
            "<"
        } else {
            ">"
        };
        self.typestr.map(|text| text.replace('<', order))
    }

    fn dtype(&self) -> DType {
        let found = DType::from_name(self.name);
        found.unwrap_or_else(|| panic!("dtype/table.rs has no row for `{}`", self.name))
    }
}

/// The rows of the page.
fn page() -> Vec<PageRow> {
    let table = PAGE.split("\n| typestr | DLPack code |").nth(1);
    let lines = table.expect("the table of element types").lines().skip(2);
    lines
        .take_while(|line| line.starts_with('|'))
        .map(page_row)
        .collect()
}

fn page_row(line: &'static str) -> PageRow {
    let cells: Vec<_> = line
        .split(" | ")
        .map(|cell| cell.trim_matches(['|', ' ', '`']))
        .collect();
    let [typestr, code, bits, name, _] = cells[..] else {
        panic!("five cells: {line}");
    };
    PageRow {
        typestr: match typestr {
            "none" => None,
            // The page writes a bar as `\\|`.
            text => Some(text.trim_start_matches('\\')),
        },
        code: code
            .split(' ')
            .next()
            .expect("a number")
            .parse()
            .expect("a number"),
        bits: bits.parse().expect("a number"),
        name,
    }
}

/// Each type has its row on the page, and each row its type.
#[test]
fn page_has_the_rows_of_the_table() {
    let page = page();
    for dtype in DType::ALL {
        let row = page.iter().find(|row| row.name == dtype.name());
        let typestr = dtype.typestr().ok().map(|text| text.replace('>', "<"));
        let row = row.unwrap_or_else(|| {
            let (code, bits) = (dtype.code(), dtype.bits());
            let typestr = typestr.as_ref().map_or("none".to_owned(), |text| format!("`{text}`"));
            panic!("docs/mapping.md has no row for `{dtype}`: | {typestr} | {code} NAME | {bits} | `{dtype}` |")
        });
        assert_eq!(
            (row.code, row.bits),
            (dtype.code(), dtype.bits()),
            "{dtype}"
        );
        assert_eq!(
            row.typestr.map(str::to_owned),
            typestr,
            "the typestr of {dtype}"
        );
    }
    for row in &page {
        assert_eq!(row.dtype().name(), row.name);
    }
}

#[test]
fn typestr_both_ways() {
    for row in page() {
        let (dtype, Some(text)) = (row.dtype(), row.native()) else {
            continue;
        };
        let typestr = TypeStr::parse(&text).unwrap();
        assert_eq!(typestr.to_dtype(), Ok(dtype));
        assert_eq!(dtype.typestr(), Ok(&*text));
        assert_eq!(typestr.to_string(), text);
        assert_eq!(typestr.as_str(), Some(&*text));
        assert_eq!(DType::from_typestr_fast(text.as_bytes()), Some(dtype));
        assert_eq!(dtype.to_typestr(), Ok(typestr));
        assert_eq!(Some(typestr.itemsize()), dtype.itemsize());
        assert_eq!(typestr.align(), dtype.align());
        assert_eq!(DType::from_name(&text), Some(dtype));
        assert_eq!(
            DType::from_name(&text[1..]),
            Some(dtype),
            "without byte order"
        );
    }
}

/// The formats of the buffer protocol, as the `struct` module and NumPy write them.
#[test]
fn format_is_that_of_the_typestr() {
    for dtype in DType::ALL {
        let format = dtype.typestr().ok().map(|typestr| match &typestr[1..] {
            "b1" => c"?",
            "i1" => c"b",
            "i2" => c"h",
            "i4" => c"i",
            "i8" => c"q",
            "u1" => c"B",
            "u2" => c"H",
            "u4" => c"I",
            "u8" => c"Q",
            "f2" => c"e",
            "f4" => c"f",
            "f8" => c"d",
            "f16" => c"g",
            "c8" => c"Zf",
            "c16" => c"Zd",
            "c32" => c"Zg",
            _ => panic!("which format has '{typestr}' of {dtype}?"),
        });
        assert_eq!(dtype.format(), format, "{dtype}");
    }
    let pair = DType {
        lanes: 2,
        ..DType::F32
    };
    assert_eq!(pair.format(), None);
}

/// Spellings of the same type: native, `|`, and the foreign order where it means nothing.
#[rstest]
#[case("=f4", DType::F32)]
#[case("|f4", DType::F32)]
#[case("=c16", DType::C128)]
#[case("|i4", DType::I32)]
#[case("<i1", DType::I8)]
#[case(">i1", DType::I8)]
#[case(">u1", DType::U8)]
#[case("<b1", DType::BOOL)]
#[case(">b1", DType::BOOL)]
#[case("<f04", DType::F32)]
#[case("<f004", DType::F32)]
#[case("<c016", DType::C128)]
fn typestr_spelling(#[case] text: &str, #[case] dtype: DType) {
    assert_eq!(TypeStr::parse(text).unwrap().to_dtype().unwrap(), dtype);
}

#[rstest]
#[case::empty("", Rule::TypestrSyntax)]
#[case::order_alone("<", Rule::TypestrSyntax)]
#[case::no_size("|i", Rule::TypestrSyntax)]
#[case::bare_char("f", Rule::TypestrSyntax)]
#[case::bare_numpy("f4", Rule::TypestrSyntax)]
#[case::bare_numpy_long("c16", Rule::TypestrSyntax)]
#[case::name("float32", Rule::TypestrSyntax)]
#[case::odd_order("#f4", Rule::TypestrSyntax)]
#[case::at_order("@f4", Rule::TypestrSyntax)]
#[case::odd_kind("<x4", Rule::TypestrSyntax)]
#[case::negative("<f-4", Rule::TypestrSyntax)]
#[case::plus("<f+4", Rule::TypestrSyntax)]
#[case::space("<f 4", Rule::TypestrSyntax)]
#[case::trailing("<f4x", Rule::TypestrSyntax)]
#[case::trailing_long("<f16 ", Rule::TypestrSyntax)]
#[case::twice("<f4<f4", Rule::TypestrSyntax)]
#[case::unit_of_float("<f8[ns]", Rule::TypestrSyntax)]
#[case::unit_open("<M8[ns", Rule::TypestrSyntax)]
#[case::unit_empty("<M8[]", Rule::TypestrSyntax)]
#[case::not_ascii("<f\u{664}", Rule::TypestrSyntax)]
#[case::below_digits("<f/", Rule::TypestrSyntax)]
#[case::above_digits("<f:", Rule::TypestrSyntax)]
#[case::above_digits_long("<f1:", Rule::TypestrSyntax)]
#[case::nul("<f4\0", Rule::TypestrSyntax)]
#[case::float3("<f3", Rule::TypestrSize)]
#[case::float0("<f0", Rule::TypestrSize)]
#[case::float_huge("<f99999999999", Rule::TypestrSize)]
#[case::int16_bytes("<i16", Rule::TypestrSize)]
#[case::uint3("<u3", Rule::TypestrSize)]
#[case::bool8("|b8", Rule::TypestrSize)]
#[case::complex2("<c2", Rule::TypestrSize)]
#[case::date4("<M4", Rule::TypestrSize)]
#[case::void0("|V0", Rule::TypestrSize)]
#[case::void_huge("|V4294967296", Rule::TypestrSize)]
#[case::unicode_huge("<U1073741824", Rule::TypestrSize)]
#[case::foreign_float(">f4", Rule::TypestrByteOrder)]
#[case::foreign_complex(">c16", Rule::TypestrByteOrder)]
#[case::foreign_int(">i2", Rule::TypestrByteOrder)]
#[case::foreign_date(">M8[us]", Rule::TypestrByteOrder)]
#[case::foreign_unicode(">U4", Rule::TypestrByteOrder)]
#[case::foreign_bfloat16(">V2", Rule::TypestrByteOrder)]
#[cfg(target_endian = "little")]
fn typestr_malformed(#[case] text: &str, #[case] rule: Rule) {
    let violation = TypeStr::parse(text).unwrap_err();
    assert_eq!(violation.rule(), rule);
    assert_eq!(violation.field(), Field::CaiTypestr);
    assert_eq!(violation.found(), format!("'{text}'"));
}

#[rstest]
#[case("<M8[ns]", Rule::TypestrDatetime, "dtype='int64'")]
#[case("<m8[25s]", Rule::TypestrDatetime, "dtype='int64'")]
#[case("<M8", Rule::TypestrDatetime, "dtype='int64'")]
#[case("|O8", Rule::TypestrObject, "numbers")]
#[case("<U4", Rule::TypestrUnicode, "<u4")]
#[case("|S4", Rule::TypestrBytes, "|u1")]
#[case("|S0", Rule::TypestrBytes, "|u1")]
#[case("<V2", Rule::TypestrVoid, "bfloat16")]
#[case("|V2", Rule::TypestrVoid, "bfloat16")]
#[case(">V1", Rule::TypestrVoid, "float8")]
#[case("|V1", Rule::TypestrVoid, "float8")]
#[case("|V16", Rule::TypestrVoid, "dtype=")]
#[case("|t1", Rule::TypestrBit, "|u1")]
#[case("<f1", Rule::TypestrFloat8, "float8_e5m2")]
#[case("<f10", Rule::TypestrLongDouble, "float64")]
#[case("<f12", Rule::TypestrLongDouble, "float64")]
#[case("<f16", Rule::TypestrLongDouble, "float64")]
#[case("<c32", Rule::TypestrLongDouble, "complex128")]
#[case("<c4", Rule::TypestrHalfComplex, "<f2")]
fn typestr_without_dlpack(#[case] text: &str, #[case] rule: Rule, #[case] hint: &str) {
    let violation = TypeStr::parse(text).unwrap().to_dtype().unwrap_err();
    assert_eq!(violation.rule(), rule);
    assert_eq!(rule.class(), Class::Buffer);
    assert!(violation.hint().unwrap().contains(hint), "{violation}");
}

#[rstest]
#[case("f4", "'<f4'")]
#[case("d", "'<f8'")]
#[case("?", "'|b1'")]
#[case("complex64", "'<c8'")]
#[cfg(target_endian = "little")]
fn typestr_of_another_notation_says_what_was_meant(#[case] text: &str, #[case] meant: &str) {
    let violation = TypeStr::parse(text).unwrap_err();
    assert!(violation.hint().unwrap().contains(meant), "{violation}");
}

#[rstest]
#[case("<U3", Kind::Unicode, 12, 4, 96)]
#[case("|V12", Kind::Void, 12, 1, 96)]
#[case("|t1", Kind::Bit, 1, 1, 1)]
#[case("|t12", Kind::Bit, 2, 1, 12)]
#[case("<f12", Kind::Float, 12, 4, 96)]
#[case("<c20", Kind::Complex, 20, 2, 160)]
#[case("<M8[D]", Kind::DateTime, 8, 8, 64)]
#[case("|O8", Kind::Object, 8, 1, 64)]
fn typestr_sizes(
    #[case] text: &str,
    #[case] kind: Kind,
    #[case] itemsize: u32,
    #[case] align: u32,
    #[case] bits: u64,
) {
    let typestr = TypeStr::parse(text).unwrap();
    assert_eq!(
        (
            typestr.kind(),
            typestr.itemsize(),
            typestr.align(),
            typestr.bits()
        ),
        (kind, itemsize, align, bits)
    );
}

/// Every text of up to five letters out of those that matter, against a grammar read off NumPy's
/// page and written another way.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn typestr_small_space() {
    const LETTERS: &[u8] = b"<>|=#tbiufcmMOSUVx0123468-[";
    let mut texts = vec![String::new()];
    let mut from = 0;
    for _ in 0..4 {
        let to = texts.len();
        for i in from..to {
            for letter in LETTERS {
                let mut text = texts[i].clone();
                text.push(char::from(*letter));
                texts.push(text);
            }
        }
        from = to;
    }
    let mut accepted = 0;
    for text in &texts {
        let found = TypeStr::parse_any_order(text).map(|t| (t.kind().letter(), t.itemsize()));
        let wanted = grammar(text);
        assert_eq!(found.as_ref().ok(), wanted.as_ref().ok(), "{text:?}");
        if let (Err(found), Err(rule)) = (&found, &wanted) {
            assert_eq!(found.rule(), *rule, "{text:?}");
        }
        if let Ok(typestr) = TypeStr::parse_any_order(text) {
            assert_eq!(
                TypeStr::parse_any_order(&typestr.to_string()).unwrap(),
                typestr
            );
        }
        accepted += usize::from(found.is_ok());
    }
    assert!(
        accepted > 1000,
        "the space must hold typestrs, not only junk"
    );
}

fn grammar(text: &str) -> Result<(char, u32), Rule> {
    let mut letters = text.chars();
    let order = letters.next().is_some_and(|c| "<>|=".contains(c));
    let kind = letters.next().filter(|c| "tbiufcmMOSUV".contains(*c));
    let size = letters.as_str();
    let digits = !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit());
    let (true, Some(kind), true) = (order, kind, digits) else {
        return Err(Rule::TypestrSyntax);
    };
    let size: u32 = size.parse().unwrap();
    let sizes: &[u32] = match kind {
        'b' => &[1],
        'i' | 'u' => &[1, 2, 4, 8],
        'f' => &[1, 2, 4, 8, 10, 12, 16],
        'c' => &[4, 8, 16, 20, 24, 32],
        'm' | 'M' => &[8],
        'S' => return Ok((kind, size)),
        'U' => return Ok((kind, size * 4)),
        _ if size == 0 => return Err(Rule::TypestrSize),
        't' => return Ok((kind, size.div_ceil(8))),
        _ => return Ok((kind, size)),
    };
    if sizes.contains(&size) {
        Ok((kind, size))
    } else {
        Err(Rule::TypestrSize)
    }
}

/// The header's codes, by dlpark's transcription of it.
#[rstest]
#[case(code::INT, Header::INT)]
#[case(code::UINT, Header::UINT)]
#[case(code::FLOAT, Header::FLOAT)]
#[case(code::OPAQUE_HANDLE, Header::OPAQUEHANDLE)]
#[case(code::BFLOAT, Header::BFLOAT)]
#[case(code::COMPLEX, Header::COMPLEX)]
#[case(code::BOOL, Header::BOOL)]
#[case(code::FLOAT8_E3M4, Header::FLOAT8_E3M4)]
#[case(code::FLOAT8_E4M3, Header::FLOAT8_E4M3)]
#[case(code::FLOAT8_E4M3B11FNUZ, Header::FLOAT8_E4M3B11FNUZ)]
#[case(code::FLOAT8_E4M3FN, Header::FLOAT8_E4M3FN)]
#[case(code::FLOAT8_E4M3FNUZ, Header::FLOAT8_E4M3FNUZ)]
#[case(code::FLOAT8_E5M2, Header::FLOAT8_E5M2)]
#[case(code::FLOAT8_E5M2FNUZ, Header::FLOAT8_E5M2FNUZ)]
#[case(code::FLOAT8_E8M0FNU, Header::FLOAT8_E8M0FNU)]
#[case(code::FLOAT6_E2M3FN, Header::FLOAT6_E2M3FN)]
#[case(code::FLOAT6_E3M2FN, Header::FLOAT6_E3M2FN)]
#[case(code::FLOAT4_E2M1FN, Header::FLOAT4_E2M1FN)]
fn codes_are_the_headers(#[case] ours: u8, #[case] header: Header) {
    assert_eq!(u32::from(ours), u32::from(header.0));
}

/// All 256 codes by all 256 widths by three lane counts, against the page.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn dlpack_types_exhaustive() {
    let page = page();
    for code in 0..=255_u8 {
        let of_code: Vec<_> = page.iter().filter(|row| row.code == code).collect();
        let is_packed = of_code.iter().all(|row| row.bits < 8);
        for bits in 0..=255_u8 {
            let row = of_code.iter().find(|row| row.bits == bits);
            for lanes in [0_u16, 1, 4] {
                let found = DType::from_dlpack(code, bits, lanes);
                if let (Some(row), 1..) = (row, lanes) {
                    let dtype = found.unwrap_or_else(|refusal| panic!("{}: {refusal}", row.name));
                    assert_eq!(
                        (dtype.code(), dtype.bits(), dtype.lanes()),
                        (code, bits, lanes)
                    );
                    assert_eq!(dtype.name(), row.name);
                    continue;
                }
                let rule = match code {
                    code::OPAQUE_HANDLE => Rule::DtypeOpaque,
                    _ if of_code.is_empty() => Rule::DtypeCode,
                    _ if lanes == 0 => Rule::DtypeLanes,
                    code::BOOL => Rule::DtypeBool,
                    _ if is_packed => Rule::DtypeSubByte,
                    _ => Rule::DtypeBits,
                };
                match found {
                    Ok(dtype) => panic!("docs/mapping.md has no row for `{dtype}`"),
                    Err(refused) => {
                        assert_eq!(refused.rule(), rule, "({code}, {bits}, {lanes})");
                    }
                }
            }
        }
    }
}

/// Each type has a place of its own in a table of all types.
#[test]
fn index_is_the_place_in_all() {
    for (place, dtype) in DType::ALL.iter().enumerate() {
        assert_eq!(dtype.index(), Some(place), "{dtype}");
    }
}

#[test]
fn names_are_distinct_and_found_again() {
    for dtype in DType::ALL {
        let row = dtype.row().unwrap();
        for name in row.aliases.iter().chain([&row.name]) {
            assert_eq!(DType::from_name(name), Some(*dtype), "{name}");
        }
        assert_eq!(dtype.to_string(), row.name);
        let pair = DType { lanes: 2, ..*dtype };
        assert_eq!(DType::from_name(&pair.to_string()), Some(pair));
    }
}

#[rstest]
#[case("half", Some(DType::F16))]
#[case("double", Some(DType::F64))]
#[case("bool_", Some(DType::BOOL))]
#[case("?", Some(DType::BOOL))]
#[case("e", Some(DType::F16))]
#[case("bfloat16", Some(DType::BF16))]
#[case("float8_e4m3fn", Some(DType::F8_E4M3FN))]
#[case("c16", Some(DType::C128))]
#[case("float", None)]
#[case("int", None)]
#[case("", None)]
#[case(">f4", None)]
#[case("V2", None)]
#[case("f16", None)]
#[case("float32 ", None)]
#[case("longlong", Some(DType::I64))]
#[case("float32x4", Some(DType { lanes: 4, ..DType::F32 }))]
#[case("int4x65535", Some(DType { lanes: 65535, ..DType::I4 }))]
#[case::of_torch("float4_e2m1fn_x2", Some(DType { lanes: 2, ..DType::F4_E2M1FN }))]
#[case("float32x1", None)]
#[case("float32x04", None)]
#[case("float32x65536", None)]
#[case("float32x+2", None)]
#[case("float32x", None)]
#[case("float32x2x2", None)]
#[case(">f4x2", None)]
#[case("x2", None)]
fn dtype_name(#[case] name: &str, #[case] dtype: Option<DType>) {
    assert_eq!(DType::from_name(name), dtype);
}

#[rstest]
#[case(DType::F32, 4, 4)]
#[case(DType::C64, 8, 4)]
#[case(DType::C128, 16, 8)]
#[case(DType::BOOL, 1, 1)]
#[case(DType::F8_E8M0FNU, 1, 1)]
fn dtype_sizes(#[case] dtype: DType, #[case] itemsize: u32, #[case] align: u32) {
    assert_eq!((dtype.itemsize(), dtype.align()), (Some(itemsize), align));
}

#[rstest]
#[case(code::FLOAT, 32, 4, Some(16), "float32x4")]
#[case(code::FLOAT4_E2M1FN, 4, 1, None, "float4_e2m1fn")]
#[case(code::FLOAT4_E2M1FN, 4, 2, Some(1), "float4_e2m1fnx2")]
#[case(code::FLOAT6_E2M3FN, 6, 4, Some(3), "float6_e2m3fnx4")]
#[case(code::COMPLEX, 128, 65535, Some(1_048_560), "complex128x65535")]
fn dtype_lanes(
    #[case] code: u8,
    #[case] bits: u8,
    #[case] lanes: u16,
    #[case] itemsize: Option<u32>,
    #[case] shown: &str,
) {
    let dtype = DType::from_dlpack(code, bits, lanes).unwrap();
    assert_eq!(dtype.itemsize(), itemsize);
    assert_eq!(dtype.to_string(), shown);
}

#[rstest]
#[case::bf16(DType::BF16, Rule::CaiDtype, "uint16")]
#[case::fp8(DType::F8_E5M2, Rule::CaiDtype, "uint8")]
#[case::complex32(DType::C32, Rule::CaiDtype, "uint32")]
#[case::fp4(DType::F4_E2M1FN, Rule::CaiSubByte, "DLPack")]
#[case::fp6(DType::F6_E3M2FN, Rule::CaiSubByte, "DLPack")]
#[case::int4(DType::I4, Rule::CaiSubByte, "DLPack")]
#[case::lanes(DType { lanes: 2, ..DType::F32 }, Rule::CaiLanes, "DLPack")]
fn dtype_without_typestr(#[case] dtype: DType, #[case] rule: Rule, #[case] hint: &str) {
    let violation = dtype.typestr().unwrap_err();
    assert_eq!(violation.rule(), rule);
    assert!(violation.hint().unwrap().contains(hint), "{violation}");
}

#[rstest]
#[case("<V2", DType::BF16)]
#[case("<f2", DType::BF16)]
#[case("<u2", DType::BF16)]
#[case("|V1", DType::F8_E4M3FN)]
#[case("|u1", DType::F8_E5M2)]
#[case("<f1", DType::F8_E5M2)]
#[case("|u1", DType::BOOL)]
#[case("<u4", DType::F32)]
#[case("|V16", DType::C128)]
#[case("<M8[ns]", DType::I64)]
#[case("<m8", DType::I64)]
#[case("<f4", DType::F32)]
#[case("<V4", DType::C32)]
#[case("<c4", DType::C32)]
#[case("|V8", DType { lanes: 2, ..DType::F32 })]
#[case("|u1", DType { lanes: 2, ..DType::F4_E2M1FN })]
#[case("|V1", DType { lanes: 4, ..DType::I2 })]
fn override_taken(#[case] from: &str, #[case] to: DType) {
    let from = TypeStr::parse(from).unwrap();
    assert_eq!(reinterpret_typestr(from, to).unwrap(), to);
}

#[rstest]
#[case::size("<V2", DType::F32)]
#[case::size_of_uint("<u2", DType::U8)]
#[case::cast("<f4", DType::I32)]
#[case::sign("<i4", DType::U32)]
#[case::float8_of_another_kind("<f1", DType::F8_E4M3)]
#[case::bf16_of_int("<i2", DType::BF16)]
#[case::date_as_float("<M8[ns]", DType::F64)]
#[case::text("|S4", DType::U32)]
#[case::object("|O8", DType::U64)]
#[case::bits("|t8", DType::U8)]
#[case::fp4("|V1", DType::F4_E2M1FN)]
#[case::fp4_pair_of_two_bytes("<V2", DType { lanes: 2, ..DType::F4_E2M1FN })]
#[case::complex64_of_c4("<c4", DType::F32)]
fn override_refused(#[case] from: &str, #[case] to: DType) {
    let from = TypeStr::parse(from).unwrap();
    let violation = reinterpret_typestr(from, to).unwrap_err();
    assert_eq!(violation.rule(), Rule::DtypeOverride);
    assert!(violation.hint().is_some());
}

/// Bytes may become anything, by their shape; nothing else is told so.
#[rstest]
#[case(DType::U8, DType::F32, true)]
#[case(DType::U16, DType::F32, false)]
fn override_that_is_refused_names_the_way_for_bytes(
    #[case] from: DType,
    #[case] to: DType,
    #[case] is_told: bool,
) {
    let refused = reinterpret(from, to).unwrap_err();
    let hint = refused.hint().expect("a hint");
    assert_eq!(hint.contains("with shape="), is_told, "{hint}");
}

#[rstest]
#[case("int", true)]
#[case("L", true)]
#[case("complex", true)]
#[case("int64", false)]
#[case("double", false)]
#[case("", false)]
fn a_name_is_disputed_that_is_not_one_type(#[case] name: &str, #[case] is_disputed: bool) {
    assert_eq!(DType::is_disputed(name), is_disputed);
}

#[test]
fn override_of_foreign_order_is_refused() {
    let from = if cfg!(target_endian = "little") {
        ">u2"
    } else {
        "<u2"
    };
    let from = TypeStr::parse_any_order(from).unwrap();
    let violation = reinterpret_typestr(from, DType::BF16).unwrap_err();
    assert_eq!(violation.rule(), Rule::TypestrByteOrder);
}

#[rstest]
#[case(DType::BF16, DType::U16, true)]
#[case(DType::F8_E4M3FN, DType::U8, true)]
#[case(DType::F16, DType::BF16, true)]
#[case(DType::BF16, DType::F16, false)]
#[case(DType::F16, DType::I16, false)]
#[case(DType::F16, DType::U16, false)]
#[case(DType::BF16, DType::I16, false)]
#[case(DType::F32, DType::U32, false)]
#[case(DType::F4_E2M1FN, DType::U8, false)]
#[case(DType::F4_E2M1FN, DType::F4_E2M1FN, true)]
#[case(DType::I8, DType::U8, false)]
fn override_of_a_dlpack_type(#[case] from: DType, #[case] to: DType, #[case] taken: bool) {
    assert_eq!(reinterpret(from, to).is_ok(), taken);
}

/// The links of docs/mapping.md lead to rules that exist.
#[test]
fn mapping_page_links_to_rules() {
    let links = PAGE
        .split("rules.md#")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let mut followed = 0;
    for link in links {
        assert!(Rule::ALL.iter().any(|rule| rule.id() == link), "{link}");
        followed += 1;
    }
    assert!(followed > 20);
}

/// Only canonical typestrs are accepted: every text of up to four ASCII letters.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, over safe code alone")]
fn from_typestr_fast_agrees_with_the_parser() {
    let letters: Vec<u8> = (b' '..=b'~').chain([0]).collect();
    let mut texts: Vec<Vec<u8>> = vec![vec![]];
    for length in 0..4 {
        let longer: Vec<_> = texts
            .iter()
            .filter(|text| text.len() == length)
            // The first letter and the kind decide early; all digits are tried after them.
            .filter(|text| text.first().is_none_or(|order| is_order(*order)))
            .filter(|text| text.get(2).is_none_or(u8::is_ascii_digit))
            .flat_map(|text| {
                letters
                    .iter()
                    .map(|letter| [text.as_slice(), &[*letter]].concat())
            })
            .collect();
        texts.extend(longer);
    }
    for text in texts {
        let canonical = std::str::from_utf8(&text)
            .ok()
            .and_then(|text| {
                TypeStr::parse(text)
                    .ok()
                    .filter(|found| found.as_str() == Some(text))
            })
            .and_then(|typestr| typestr.to_dtype().ok());
        assert_eq!(DType::from_typestr_fast(&text), canonical, "{text:?}");
    }
}

/// The placeholder is no type of a producer or of `dtype=`, and has no size to compute with.
#[test]
fn placeholder_of_other_items() {
    let placeholder = DType::CAI_ONLY;
    assert_eq!((placeholder.itemsize(), placeholder.index()), (None, None));
    assert!(placeholder.is_cai_only() && !DType::ALL.iter().any(|dtype| dtype.is_cai_only()));
    assert!(placeholder.typestr().is_err() && placeholder.format().is_none());
    let sent = DType::from_dlpack(placeholder.code(), placeholder.bits(), placeholder.lanes());
    assert_eq!(sent.unwrap_err().rule(), Rule::DtypeCode);
    assert_eq!(placeholder.undescribed().rule(), Rule::DtypeCode);
    for dtype in DType::ALL {
        assert!(reinterpret(placeholder, *dtype).is_err(), "{dtype}");
    }
}

/// The unit of dates is part of the typestr.
#[rstest]
#[case("<M8[ns]")]
#[case("<m8[25s]")]
#[case("<M8[3D/2]")]
#[case("<M8")]
#[cfg(target_endian = "little")]
fn units_are_kept(#[case] text: &str) {
    assert_eq!(TypeStr::parse(text).unwrap().to_string(), text);
    let other = TypeStr::parse("<M8[us]").unwrap();
    assert_ne!(TypeStr::parse(text).unwrap(), other);
}

#[rstest]
#[case("<M8[]")]
#[case("<M8[a-b]")]
#[case("<f8[ns]")]
#[case("<M8[1234567890123ns]")]
fn units_malformed(#[case] text: &str) {
    let violation = TypeStr::parse(text).unwrap_err();
    assert_eq!(violation.rule(), Rule::TypestrSyntax);
}

/// NumPy has no bit fields, no floats of one byte, and the long double of the platform alone.
#[cfg(feature = "pyo3")]
#[test]
fn numpy_has_what_it_can_name() {
    for (text, has) in [
        ("<f4", true),
        ("|O8", true),
        ("<U3", true),
        ("|V5", true),
        ("<M8[s]", true),
        ("<f16", true),
        ("<c32", true),
        ("|f1", false),
        ("<f10", false),
        ("<f12", false),
        ("<c4", false),
        ("<c20", false),
        ("<c24", false),
        ("|t3", false),
    ] {
        let typestr = TypeStr::parse(text);
        let typestr = typestr.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(typestr.has_numpy(), has, "{text}");
    }
}

#[test]
fn a_lane_is_one_of_its_type() {
    for lanes in [1, 2, 4, 16] {
        let vector = DType::from_dlpack(code::FLOAT, 32, lanes).expect("a type");
        assert_eq!((vector.lanes(), vector.lane()), (lanes, DType::F32));
    }
}

/// A type of ml_dtypes has the machine's byte order, and NumPy has no type of this size.
#[cfg(feature = "pyo3")]
#[test]
fn what_a_typestr_outside_numpy_means() {
    for (order, kind) in "<>|="
        .chars()
        .flat_map(|order| "fciuV".chars().map(move |kind| (order, kind)))
    {
        for size in 1..20 {
            let Ok(typestr) = TypeStr::parse_any_order(&format!("{order}{kind}{size}")) else {
                continue;
            };
            let meant = match (kind, size, typestr.is_swapped()) {
                ('f', 1, _) => Some(DType::F8_E5M2),
                ('c', 4, false) => Some(DType::C32),
                _ => None,
            };
            assert_eq!(typestr.meant(), meant, "{typestr}");
        }
    }
    let swapped = if cfg!(target_endian = "little") {
        ">c4"
    } else {
        "<c4"
    };
    assert_eq!(
        TypeStr::parse_any_order(swapped).map(TypeStr::meant).ok(),
        Some(None)
    );
}

#[test]
fn a_type_is_shown_by_its_name() {
    assert_eq!(format!("{:?}", DType::F32), "DType(float32)");
}
