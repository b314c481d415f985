//! The table's own order, and plans for doubles of a few arrays.

use std::collections::HashSet;

use rstest::rstest;

use super::{Call, Drops, Order, PARTNERS, Reads, Refuses, find, of_module};
use crate::protocol::axes::{Axes, Source};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::device::{Device, DeviceType, Flags};
use crate::protocol::dtype::DType;
use crate::protocol::layout::Layout;
use crate::protocol::stream::Stream;

/// An array of float32.
fn array(device: Device, shape: &[i64], strides: Option<&[i64]>, flags: Flags) -> Descriptor {
    let axes = Axes::from_slices(Source::Tensor, shape, strides).expect("axes");
    let layout = Layout::from_elem_axes(axes, 4).expect("a layout");
    Descriptor::from_layout(0x10000, device, DType::F32, flags, layout).expect("an array")
}

fn matrix(strides: &[i64]) -> Descriptor {
    array(Device::cuda(0), &[3, 4], Some(strides), Flags::NONE)
}

#[rstest]
#[case(&[0], &[-1], false)]
#[case(&[0, 3], &[-3, 1], false)]
#[case(&[0, 3], &[3, -1], true)]
#[case(&[2, 0], &[-1, 1], true)]
#[case(&[1, 4], &[-4, 1], true)]
#[case(&[3, 4], &[-4, 1], true)]
#[case(&[3, 4], &[4, 1], false)]
fn pyarrow_takes_negative_strides_of_empty_axes(
    #[case] shape: &[i64],
    #[case] strides: &[i64],
    #[case] is_refused: bool,
) {
    let array = array(Device::HOST, shape, Some(strides), Flags::NONE);
    let partner = find("pyarrow").expect("a partner");
    let plan = partner.plan(&array, Stream::None, None);
    assert_eq!(plan.refused.is_some(), is_refused, "{plan:?}");
}

#[test]
fn no_name_means_two_libraries() {
    let mut seen = HashSet::new();
    for partner in PARTNERS {
        for name in partner.aliases.iter().chain([&partner.name]) {
            assert!(seen.insert(name.to_lowercase()), "{name} is given twice");
            let found = find(name).expect("a partner");
            assert_eq!(found.name, partner.name, "{name} is another partner's");
        }
        for module in partner.modules {
            let found = of_module(module).expect("a partner");
            assert_eq!(found.name, partner.name, "{module} is another partner's");
        }
    }
}

#[test]
fn every_row_says_how_its_call_is_made() {
    for partner in PARTNERS {
        for call in partner.calls() {
            let has_view = call.code.contains("(v") || call.code.contains("(v,");
            assert!(has_view, "{}: `v` is passed in {}", partner.name, call.code);
            assert!(call.import.contains("import "), "{}", partner.name);
        }
    }
}

#[rstest]
#[case("PyTorch", "torch")]
#[case("tf", "tensorflow")]
#[case("np", "numpy")]
#[case("TVM-FFI", "tvm_ffi")]
#[case("cuda_core", "cuda.core")]
#[case("warp-lang", "warp")]
#[case("CV-CUDA", "cvcuda")]
#[case("cupy-cuda12x", "cupy")]
#[case("cupy-cuda110", "cupy")]
#[case("onnxruntime-gpu", "onnxruntime")]
#[case("cudf-cu12", "cudf")]
#[case("rmm-cu12", "rmm")]
#[case("nvidia-dali-cuda120", "nvidia.dali")]
#[case("cvcuda_cu12", "cvcuda")]
#[case("tensorflow-gpu", "tensorflow")]
fn a_library_is_found_by_what_people_type(#[case] typed: &str, #[case] name: &str) {
    assert_eq!(find(typed).map(|partner| partner.name), Some(name));
}

#[rstest]
#[case("cupy-cuda")]
#[case("cupy-cuda12y")]
#[case("cudf-cu12-nightly")]
#[case("cudf-cu*")]
#[case("")]
fn a_pattern_takes_digits_alone(#[case] typed: &str) {
    assert!(find(typed).is_none(), "{typed}");
}

#[rstest]
#[case("torch", Some("torch"))]
#[case("cupy._core.core", Some("cupy"))]
#[case("cuda.core._memoryview", Some("cuda.core"))]
#[case("cuda.corel", None)]
#[case("cuda", None)]
#[case("mytorch", None)]
#[case("", None)]
fn a_type_is_its_packages(#[case] module: &str, #[case] name: Option<&str>) {
    assert_eq!(of_module(module).map(|partner| partner.name), name);
}

#[rstest]
#[case(Refuses::NegativeStrides, &[4, -1], &[4, 1])]
#[case(Refuses::Gaps, &[8, 2], &[1, 3])]
#[case(Refuses::Gaps, &[0, 1], &[4, 1])]
#[case(Refuses::NotContiguous, &[8, 2], &[1, 3])]
#[case(Refuses::NotCOrder, &[1, 3], &[4, 1])]
#[case(Refuses::AxesAbove(1), &[4, 1], &[])]
#[case(Refuses::DType("float"), &[4, 1], &[])]
fn what_is_refused(#[case] refuses: Refuses, #[case] bad: &[i64], #[case] good: &[i64]) {
    assert!(refuses.applies_to(&matrix(bad), Reads::Dlpack));
    if !good.is_empty() {
        assert!(!refuses.applies_to(&matrix(good), Reads::Dlpack));
    }
}

#[test]
fn arrays_without_axes_or_elements() {
    let scalar = array(Device::cuda(0), &[], None, Flags::NONE);
    let empty = array(Device::cuda(0), &[0, 4], None, Flags::NONE);
    assert!(
        Refuses::NoAxes.applies_to(&scalar, Reads::Dlpack)
            && !Refuses::NoAxes.applies_to(&empty, Reads::Dlpack)
    );
    assert!(
        Refuses::Empty.applies_to(&empty, Reads::Dlpack)
            && !Refuses::Empty.applies_to(&scalar, Reads::Dlpack)
    );
    let layouts = [Refuses::Gaps, Refuses::NotContiguous, Refuses::NotCOrder];
    assert!(
        !layouts
            .iter()
            .any(|refuses| refuses.applies_to(&empty, Reads::Dlpack))
    );
}

#[test]
fn extents_of_one_have_no_stride() {
    let column = array(Device::cuda(0), &[4, 1], Some(&[1, 77]), Flags::NONE);
    assert!(!Refuses::Gaps.applies_to(&column, Reads::Dlpack));
}

fn plan(name: &str, array: &Descriptor, ready: Stream, stream: Option<Stream>) -> super::HandOver {
    find(name).expect("a partner").plan(array, ready, stream)
}

#[test]
fn the_stream_that_the_caller_names_waits() {
    let (ready, wait) = (Stream::from_raw(0x5000), Stream::from_raw(0x6000));
    let order = plan("torch", &matrix(&[4, 1]), ready, Some(wait)).order;
    let Order::Event {
        record,
        wait: waits,
        ..
    } = order
    else {
        panic!("{order}");
    };
    assert_eq!((record, waits), (ready, wait));
}

#[rstest]
#[case("tensorflow", "the host waits for stream 0x5000")]
#[case(
    "tvm_ffi",
    "the legacy default stream (1) waits for an event on stream 0x5000"
)]
#[case("mpi4py", "nobody waits: the order is yours")]
#[case("cuda.tile", "nobody waits: the order is yours")]
#[case("numba", "the host waits for stream 0x5000")]
#[case("pycuda", "nobody waits: stream 0x5000 is passed on in the dict")]
#[case(
    "torch",
    "the consumer's stream waits for an event on stream 0x5000, unless the consumer works there"
)]
fn without_a_stream_the_call_decides(#[case] name: &str, #[case] order: &str) {
    let found = plan(name, &matrix(&[4, 1]), Stream::from_raw(0x5000), None);
    let found = found.order.to_string();
    assert!(found.starts_with(order), "{found}");
}

/// `cd.to` makes the preferred call, of whatever memory.
#[test]
fn a_call_that_reads_memory_in_two_ways_is_made_by_the_caller() {
    let mut seen = Vec::new();
    for partner in PARTNERS {
        let is_same = |call: &&Call| call.code == partner.call.code;
        if partner.more.iter().any(|call| is_same(&call)) {
            assert!(partner.call.needs().is_some(), "{}", partner.name);
            seen.push(partner.name);
        }
    }
    assert_eq!(seen, ["kvikio", "ucxx"]);
}

#[rstest]
fn memory_of_the_host_is_read_by_its_buffer(#[values("kvikio", "ucxx")] name: &str) {
    let ready = Stream::from_raw(0x5000);
    let of_device = plan(name, &matrix(&[4, 1]), ready, None);
    assert!(of_device.refused.is_none() && of_device.call.reads == Reads::Interface);
    assert!(matches!(of_device.order, Order::PassedOn { .. }));
    for (shape, strides, is_refused) in [(&[3, 4], &[4, 1], false), (&[3, 4], &[8, 2], true)] {
        let host = array(Device::HOST, shape, Some(strides), Flags::READ_ONLY);
        let found = plan(name, &host, Stream::None, None);
        assert_eq!(found.refused.is_some(), is_refused, "{found:?}");
        assert_eq!(found.call.reads, Reads::Buffer);
        assert!(matches!(found.order, Order::Nothing { .. }));
        let copy = found
            .remedies
            .first()
            .map(|remedy| remedy.code.contains("copy=True"));
        assert_eq!(copy, is_refused.then_some(true), "{found:?}");
    }
}

#[rstest]
#[case(
    "torch",
    DeviceType::CUDA_MANAGED,
    "torch.from_dlpack(v.present_as(\"cuda\")) names it device memory"
)]
#[case(
    "numpy",
    DeviceType::CUDA,
    "np.from_dlpack(v, device=\"cpu\") copies it"
)]
#[case(
    "cupy",
    DeviceType::CUDA_HOST,
    "cupy.from_dlpack(v.present_as(\"cuda\")) names it device memory"
)]
fn memory_of_another_kind_has_a_remedy(
    #[case] name: &str,
    #[case] device_type: DeviceType,
    #[case] remedy: &str,
) {
    let device = Device::new(device_type, 0);
    let found = plan(
        name,
        &array(device, &[3], None, Flags::NONE),
        Stream::None,
        None,
    );
    assert!(found.refused.is_some());
    let refusal = found.refusal().expect("a refusal");
    assert!(refusal.ends_with(remedy), "{refusal}");
}

#[test]
fn another_call_is_the_remedy_of_a_device() {
    let pinned = Device::new(DeviceType::CUDA_HOST, 0);
    let pinned = array(pinned, &[3], None, Flags::NONE);
    let found = plan("pyarrow", &pinned, Stream::None, None);
    let refusal = found.refusal().expect("a refusal");
    assert!(
        refusal.ends_with("; pa.py_buffer(v) takes its bytes"),
        "{refusal}"
    );
}

#[test]
fn read_only_data_is_refused_by_consumers_of_legacy_tensors() {
    let constant = array(Device::HOST, &[3], None, Flags::READ_ONLY);
    for (name, refuses) in [
        ("jax", true),
        ("warp", true),
        ("torch", false),
        ("tvm_ffi", false),
    ] {
        let found = plan(name, &constant, Stream::None, None);
        assert_eq!(found.refused.is_some(), refuses, "{name}");
    }
}

#[rstest]
#[case("jax", DeviceType::CUDA, true)]
#[case("jax", DeviceType::CPU, false)]
#[case("onnxruntime", DeviceType::CUDA, false)]
#[case::by_the_remedy("tensorflow", DeviceType::CUDA_HOST, true)]
#[case::refused_anyway("pyarrow", DeviceType::CUDA, false)]
fn builds_without_device_memory_are_not_told_apart(
    #[case] name: &str,
    #[case] device_type: DeviceType,
    #[case] is_unknown: bool,
) {
    let device = Device::new(device_type, 0);
    let array = array(device, &[3], None, Flags::NONE);
    let found = plan(name, &array, Stream::None, None).unknown;
    assert_eq!(found.is_some(), is_unknown, "{found:?}");
}

#[test]
fn a_build_that_is_told_takes_less_than_the_call() {
    for (partner, call) in
        (PARTNERS.iter()).flat_map(|row| row.calls().map(move |call| (row, call)))
    {
        let is_known = |device| call.devices.contains(device) && *device != DeviceType::CPU;
        assert!(call.by_build.iter().all(is_known), "{}", partner.name);
        assert!(
            call.build.is_empty() || !call.by_build.is_empty(),
            "{}",
            partner.name
        );
    }
}

/// What the calls need that no argument of `to` can be.
#[test]
fn calls_need_what_the_caller_has() {
    let needs = |partner: &super::Partner| partner.call.needs().map(|name| (partner.name, name));
    let found: Vec<_> = PARTNERS.iter().filter_map(needs).collect();
    let expected = [
        ("nanobind", "function"),
        ("pycuda", "kernel"),
        ("mpi4py", "comm"),
        ("rmm", "buffer"),
        ("cuda.compute", "algorithm"),
        ("cuda.tile", "kernel"),
        ("kvikio", "file"),
        ("ucxx", "endpoint"),
    ];
    assert_eq!(found, expected);
}

/// The rows whose expression is more than one function of the view.
#[cfg(feature = "pyo3")]
#[test]
fn a_call_is_a_function_unless_it_passes_more_than_the_view() {
    let calls = || PARTNERS.iter().map(|partner| (partner.name, &partner.call));
    for (name, call) in calls() {
        if let Some(function) = call.function() {
            assert_eq!(format!("{function}(v)"), call.code, "{name}");
            assert!(!call.passes_stream, "{name}");
        }
    }
    let others = calls().filter(|(_, call)| call.function().is_none() && call.needs().is_none());
    let others: Vec<_> = others.map(|(name, _)| name).collect();
    assert_eq!(others, ["cuda.core", "tensorflow"]);
}

/// A remedy that loses lanes is taken and reads other numbers, as Warp's view does.
#[test]
fn no_remedy_loses_lanes() {
    let lanes = DType::from_dlpack(2, 16, 4).expect("a type");
    let (mut losing, mut offered) = (0, 0);
    for partner in PARTNERS {
        for device_type in [
            DeviceType::CPU,
            DeviceType::CUDA,
            DeviceType::CUDA_HOST,
            DeviceType::CUDA_MANAGED,
        ] {
            for (flags, strides) in [
                (Flags::NONE, [1]),
                (Flags::READ_ONLY, [1]),
                (Flags::NONE, [2]),
            ] {
                let device = Device::new(device_type, 0);
                let axes = Axes::from_slices(Source::Tensor, &[3], Some(&strides)).expect("axes");
                let layout = Layout::from_elem_axes(axes, 8).expect("a layout");
                let array = Descriptor::from_layout(0x10000, device, lanes, flags, layout)
                    .expect("an array");
                let found = partner.plan(&array, Stream::None, None);
                for remedy in &found.remedies {
                    let of = |call: &&Call| remedy.argument.is_some() || call.code == remedy.code;
                    let call = std::iter::once(&partner.call)
                        .chain(partner.more)
                        .find(of)
                        .expect("its call");
                    assert!(
                        !call.drops.contains(&Drops::Lanes),
                        "{}: {remedy:?}",
                        partner.name
                    );
                    offered += 1;
                }
                losing += usize::from(
                    partner.call.drops.contains(&Drops::Lanes) && found.refused.is_some(),
                );
            }
        }
    }
    assert!(losing > 4 && offered > 4, "{losing} {offered}");
}

/// What ends the process in some versions is no array that a library takes.
#[test]
fn what_aborts_is_refused() {
    for call in PARTNERS.iter().flat_map(|partner| partner.calls()) {
        let is_refused = |aborts| call.refuses.contains(aborts);
        assert!(call.aborts.iter().all(is_refused), "{}", call.code);
    }
}
