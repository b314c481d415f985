//! Any values of a CAI dict, with nested fields, as an interface and a descriptor.

use cai_dlpack::protocol::axes::{Axes, Source};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::{DType, TypeStr};
use cai_dlpack::protocol::interface::{CaiInterface, Descr, DescrBuilder, Parts, Version};
use cai_dlpack::protocol::mask::MaskForm;
use cai_dlpack::protocol::stream::Stream;

use crate::bytes::Bytes;

const TYPESTRS: [&str; 10] = [
    "<f4", "|u1", "|b1", "<c16", "|V8", "|V12", "|V16", "<i2", "|t3", ">f8",
];

fn typestr(bytes: &mut Bytes<'_>) -> String {
    match bytes.byte() % 6 {
        0 => bytes.text(),
        _ => bytes.one_of(&TYPESTRS).to_owned(),
    }
}

/// Adds fields as the bytes say; stops at the first that is refused.
fn fields(bytes: &mut Bytes<'_>, mut builder: DescrBuilder, depth: u8) -> DescrBuilder {
    for _ in 0..bytes.byte() % 5 {
        let (name, shape) = (bytes.text(), bytes.numbers(2));
        let added = match bytes.byte() % 4 {
            0 if depth < 40 => builder.nested().and_then(|inner| {
                let inner = fields(bytes, inner, depth + 1);
                builder.push_nested(&name, inner, &shape)
            }),
            _ => {
                let typestr = typestr(bytes);
                builder.push(&name, &typestr, &shape)
            }
        };
        if added.is_err() {
            break;
        }
    }
    builder
}

fn axes(bytes: &mut Bytes<'_>) -> Option<Axes> {
    let mut axes = Axes::new(Source::Cai);
    let shape = bytes.numbers(6);
    shape
        .iter()
        .try_for_each(|extent| axes.push_extent(*extent))
        .ok()?;
    if bytes.flag() {
        let strides = match bytes.flag() {
            true => shape.iter().map(|_| bytes.number()).collect(),
            false => bytes.numbers(6),
        };
        axes.expect_strides(strides.len()).ok()?;
        strides
            .iter()
            .try_for_each(|stride| axes.push_stride(*stride))
            .ok()?;
    }
    Some(axes)
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let bytes = &mut bytes;
    let Ok(typestr) = TypeStr::parse(&typestr(bytes)) else {
        return;
    };
    let descr = match bytes.flag() {
        true => match fields(bytes, DescrBuilder::new(), 0).finish(typestr) {
            Ok(descr) => descr,
            Err(_) => return,
        },
        false => DescrBuilder::new().finish(typestr).unwrap_or(Descr::None),
    };
    let Ok(version) = Version::from_int(i64::from(bytes.byte() % 6)) else {
        return;
    };
    let Some(axes) = axes(bytes) else {
        return;
    };
    let parts = Parts::new(bytes.number().cast_unsigned(), typestr, axes)
        .with_version(version)
        .with_descr(descr)
        .with_read_only(bytes.flag())
        .with_stream(bytes.one_of(&[
            Stream::None,
            Stream::LegacyDefault,
            Stream::PerThreadDefault,
        ]));
    let Ok(interface) = CaiInterface::new(parts) else {
        return;
    };
    let shape = interface.shape().to_vec();
    let _ = (
        interface.nbytes(),
        interface.byte_span(),
        interface.is_bits(),
    );
    let name = bytes.text();
    let _ = interface.field(&name);
    if let Ok(form) = MaskForm::of(&interface, &shape, None) {
        let _ = form.describe(&interface, Device::cuda(0));
    }
    let dtype = bytes.flag().then(|| bytes.one_of(DType::ALL));
    if let Ok(descriptor) = interface.clone().describe(Device::cuda(0)) {
        assert_eq!(descriptor.shape(), shape);
    }
    if let Ok(descriptor) = interface.into_descriptor(dtype, Device::cuda(0)) {
        crate::descriptor::check(&descriptor, &shape);
    }
}
