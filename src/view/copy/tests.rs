//! What a copy waits for and allocates, on the scripted driver: every kind of memory, ready stream and request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::*;
use crate::driver::script::{self, Script};
use crate::protocol::descriptor::RawTensor;
use crate::view::{LiveStream, Owner};

const ARRAY: u64 = 0x7000;
/// Each script has a context of its own: what one copy leaves to be freed is taken over by no other.
static CONTEXTS: AtomicU64 = AtomicU64::new(0xc0_0000);
const READY: Stream = Stream::from_raw(0xa1);
const OTHER: Stream = Stream::from_raw(0xa2);

/// What managed memory is called, and whether the device wants it to itself.
fn script(is_managed: bool, is_exclusive: bool) -> &'static Script {
    let (script, context) = (Script::leak(), CONTEXTS.fetch_add(1, Relaxed));
    script
        .stream(READY.raw(), context)
        .stream(OTHER.raw(), context)
        .primary(0, context)
        .current(context)
        .device_memory(ARRAY, 256, 0, context);
    if is_managed {
        script.managed(ARRAY);
    }
    if is_exclusive {
        script.exclusive_managed(0);
    }
    script
}

fn view(device_type: DeviceType, ready: Stream) -> CaiView {
    let descriptor = Descriptor::new(&RawTensor {
        data: ARRAY,
        device: Device::new(device_type, 0),
        shape: &[4],
        ..RawTensor::EXAMPLE
    });
    let descriptor = descriptor.expect("a valid tensor");
    // SAFETY: nothing reads the memory; the scripted driver follows no stream.
    unsafe { CaiView::new(descriptor, ready, Owner::new(())) }.on_producer(ready)
}

/// Returns the place of the first call that begins so.
fn place(calls: &[String], start: &str) -> Option<usize> {
    calls.iter().position(|call| call.starts_with(start))
}

/// A copy that is finished reads data that is ready, and is waited for. Only a host that is to read managed memory waits
/// for all work of a device that must not run beside it.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn a_finished_copy_waits_for_the_data_and_for_itself() {
    let requests = [Request::Host, Request::NoSync];
    for (device_type, is_exclusive) in [
        (DeviceType::CUDA, false),
        (DeviceType::CUDA_MANAGED, false),
        (DeviceType::CUDA_MANAGED, true),
    ] {
        for (ready, request) in [Stream::None, READY]
            .into_iter()
            .flat_map(|ready| requests.map(|to| (ready, to)))
        {
            let what = format!("{device_type} {is_exclusive} {ready:?} {request:?}");
            let script = script(device_type == DeviceType::CUDA_MANAGED, is_exclusive);
            let _installed = script::install(script);
            let source = view(device_type, ready);
            script.take_calls();
            let copy = Transfer::Alike.make(&source, request, SyncPolicy::Event);
            let calls = script.calls();
            let copy = copy.unwrap_or_else(|error| panic!("{what}: {error} after {calls:?}"));
            assert_eq!(
                (copy.device(), copy.ready_number()),
                (source.device(), Stream::None),
                "{what}"
            );

            let copied = place(&calls, "cuMemcpyAsync").expect("a copy");
            let waited = place(&calls, &format!("cuStreamSynchronize {:#x}", READY.raw()));
            let for_all = place(&calls, "cuCtxSynchronize");
            if ready == READY {
                let first = waited.into_iter().chain(for_all).min();
                assert!(first.is_some_and(|at| at < copied), "{what}: {calls:?}");
            }
            let own = calls[copied].rsplit(' ').next().expect("a stream");
            let ended = place(&calls, &format!("cuStreamSynchronize {own}"));
            assert!(ended.is_some_and(|at| copied < at), "{what}: {calls:?}");
            let is_alone = is_exclusive && request == Request::Host;
            assert_eq!(for_all.is_some(), is_alone, "{what}: {calls:?}");
            let allocated = ["cuMemAlloc 16", "cuMemAllocManaged 16"];
            for (at, call) in allocated.into_iter().enumerate() {
                let is_its = (device_type == DeviceType::CUDA_MANAGED) == (at == 1);
                assert_eq!(place(&calls, call).is_some(), is_its, "{what}: {calls:?}");
            }
        }
    }
}

/// The calls on a stream: pool memory where there is a pool, and the edge back to the producer; if the producer is
/// not told, or the host can write the source, it is kept by an event.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn a_copy_on_a_stream_is_enqueued_between_its_edges() {
    for (device_type, has_pools, policy) in [
        (DeviceType::CUDA, true, SyncPolicy::Event),
        (DeviceType::CUDA, false, SyncPolicy::Event),
        (DeviceType::CUDA, true, SyncPolicy::None),
        (DeviceType::CUDA_MANAGED, true, SyncPolicy::Event),
    ] {
        for stream in [READY, OTHER] {
            let what = format!("{device_type} {has_pools} {policy:?} {stream:?}");
            let script = script(device_type == DeviceType::CUDA_MANAGED, false);
            let _installed = script::install(script);
            let source = view(device_type, READY);
            script.take_calls();
            if !has_pools {
                script.fault("cuMemAllocAsync", 0, 801);
            }
            let copy = Transfer::Alike.make(&source, Request::Stream(stream), policy);
            let calls = script.calls();
            let copy = copy.unwrap_or_else(|error| panic!("{what}: {error} after {calls:?}"));
            assert_eq!(
                (copy.device(), copy.ready_number()),
                (source.device(), stream),
                "{what}"
            );
            let copied = place(&calls, "cuMemcpyAsync").expect("a copy");
            assert!(
                calls[copied].ends_with(&format!("{:#x}", stream.raw())),
                "{what}"
            );
            let name = match (device_type, has_pools) {
                (DeviceType::CUDA, true) => "cuMemAllocAsync 16 ",
                (DeviceType::CUDA, false) => "cuMemAlloc 16",
                _ => "cuMemAllocManaged 16",
            };
            assert!(
                place(&calls, name).is_some_and(|at| at < copied),
                "{what}: {calls:?}"
            );
            let there = place(&calls, &format!("cuStreamWaitEvent {:#x}", OTHER.raw()));
            let back = place(&calls, &format!("cuStreamWaitEvent {:#x}", READY.raw()));
            let has_edges = stream == OTHER && policy == SyncPolicy::Event;
            assert_eq!(
                there.is_some_and(|at| at < copied),
                has_edges,
                "{what}: {calls:?}"
            );
            assert_eq!(
                back.is_some_and(|at| copied < at),
                has_edges,
                "{what}: {calls:?}"
            );
            // The mark that the source is kept by, if no edge orders its end; always if the host can write it.
            let after = calls[copied..].iter();
            let own = format!(" {:#x}", stream.raw());
            let marks =
                after.filter(|call| call.starts_with("cuEventRecord") && call.ends_with(&own));
            let is_kept = match device_type {
                DeviceType::CUDA_MANAGED => true,
                _ => stream == OTHER && policy == SyncPolicy::None,
            };
            assert_eq!(
                marks.count(),
                usize::from(is_kept) + usize::from(has_edges),
                "{what}: {calls:?}"
            );
            assert_eq!(script.count("cuStreamSynchronize"), 0, "{what}");
        }
    }
}

/// A pool's memory belongs to no context: for a default stream it is taken only if that is the primary context's.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn a_pool_serves_the_default_stream_of_an_active_primary_context_alone() {
    for (has_primary, is_current) in [(false, false), (true, false), (true, true)] {
        let (script, context) = (Script::leak(), CONTEXTS.fetch_add(2, Relaxed));
        script.device_memory(ARRAY, 16, 0, context).current(context);
        if has_primary {
            script.primary(0, context + u64::from(!is_current));
        }
        let _installed = script::install(script);
        let source = view(DeviceType::CUDA, Stream::None);
        let copy = source.copy_on(LiveStream::LEGACY_DEFAULT);
        // Its end allocates, too.
        let _kept = copy.unwrap_or_else(|error| panic!("{error} after {:?}", script.calls()));
        assert_eq!(script.count("cuMemAllocAsync") > 0, is_current);
        assert_eq!(script.count("cuMemAlloc") > 0, !is_current);
    }
}

/// Memory that only its own library reads is for that to copy.
#[test]
fn a_copy_that_is_refused_says_what_else_would_do() {
    for (device_type, is_advised) in [
        (DeviceType::ROCM_HOST, false),
        (DeviceType::CPU, false),
        (DeviceType::ROCM, true),
    ] {
        let own = Device::new(device_type, 1);
        let refused = Transfer::decide(own, own, Some(true)).expect_err("refused");
        assert_eq!(refused.rule(), Rule::CopyRefused, "{own}");
        let said = refused.to_string();
        let found = said.contains("copy it with the library that owns it");
        assert_eq!(found, is_advised, "{said}");
    }
}

/// Before a capsule is taken, it is known whether its elements can be copied.
#[test]
fn packed_elements_are_refused_before_anything_is_taken() {
    let of = |bits: u8| {
        Descriptor::new(&RawTensor {
            data: ARRAY,
            device: Device::HOST,
            code: 0,
            bits,
            shape: &[4],
            ..RawTensor::EXAMPLE
        })
        .expect("a valid tensor")
    };
    assert!(Transfer::check(&of(32)).is_ok());
    let refused = Transfer::check(&of(4));
    assert!(matches!(refused, Err(Error::Violation(of)) if of.rule() == Rule::CopyRefused));
}

/// An array without rectangles is fetched by one copy of the span that it lies in, unless that is mostly gaps, and sorted
/// out on the host; else row by row.
#[test]
fn many_rows_are_fetched_by_one_copy_unless_they_lie_far_apart() {
    let cases: [(&[i64], &[i64], usize); 7] = [
        (&[16, 16], &[-16, -1], 256),
        (&[257], &[-1], 1),
        (&[257], &[-16], 1),
        (&[257], &[-17], 257),
        (&[20, 20], &[-1, -20], 1),
        (&[300, 2], &[-7, 3], 1),
        (&[300, 2], &[-70, 3], 300),
    ];
    for (shape, strides, copies) in cases {
        let (script, context) = (Script::leak(), CONTEXTS.fetch_add(1, Relaxed));
        let reach = shape
            .iter()
            .zip(strides)
            .map(|(n, stride)| (n - 1) * stride);
        let before = -reach.clone().filter(|at| *at < 0).sum::<i64>();
        let after = reach.filter(|at| *at > 0).sum::<i64>() + 1;
        let mut values: Vec<f32> = (0..before + after).map(|at| at as f32).collect();
        let base = values.as_mut_ptr().expose_provenance() as u64;
        script
            .with_memory()
            .device_memory(base, values.len() as u64 * 4, 0, context)
            .primary(0, context)
            .current(context);
        let _installed = script::install(script);
        let descriptor = Descriptor::new(&RawTensor {
            data: base,
            byte_offset: before as u64 * 4,
            shape,
            strides: Some(strides),
            ..RawTensor::EXAMPLE
        });
        let descriptor = descriptor.expect("a valid tensor");
        // SAFETY: the elements lie in the vector, which stays to the end of the loop.
        let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
        let copy = view.copy_to_host().expect("a copy");
        let copied = copy.typed::<f32>().expect("floats").copy_to_vec();
        let second = shape.get(1).copied().unwrap_or(1);
        let place =
            |at: i64| (at / second) * strides[0] + (at % second) * strides.get(1).unwrap_or(&0);
        let expected = (0..shape.iter().product()).map(|at| (before + place(at)) as f32);
        assert_eq!(
            copied.ok(),
            Some(expected.collect()),
            "{shape:?} {strides:?}"
        );
        let calls = ["cuMemcpyAsync", "cuMemcpy2DAsync"].map(|call| script.count(call));
        assert_eq!(calls.iter().sum::<usize>(), copies, "{shape:?} {strides:?}");
        drop(values);
    }
}

/// What a copy is offered for, as far as the description tells.
#[cfg(feature = "pyo3")]
#[test]
fn whole_bytes_that_are_reached_can_be_copied() {
    let of = |device_type: DeviceType, bits: u8| {
        let raw = RawTensor {
            device: Device::new(device_type, 0),
            code: 0,
            bits,
            ..RawTensor::EXAMPLE
        };
        Descriptor::new(&raw).expect("a valid tensor")
    };
    for (device_type, alike, to_host) in [
        (DeviceType::CUDA, true, true),
        (DeviceType::CUDA_MANAGED, true, true),
        (DeviceType::CUDA_HOST, true, true),
        (DeviceType::CPU, true, true),
        (DeviceType::ROCM_HOST, false, true),
        (DeviceType::ROCM, false, false),
    ] {
        let whole = of(device_type, 32);
        let found = (
            Transfer::can_copy(&whole),
            Transfer::can_copy_to_host(&whole),
        );
        assert_eq!(found, (alike, to_host), "{device_type}");
        let packed = of(device_type, 4);
        assert!(!Transfer::can_copy(&packed) && !Transfer::can_copy_to_host(&packed));
    }
}

/// Memory for a result: zeros on the host, the device's for a stream, and none without elements.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn an_empty_array_is_allocated_if_it_has_elements() {
    for (device_type, extent) in [
        (DeviceType::CPU, 0),
        (DeviceType::CPU, 4),
        (DeviceType::CUDA, 0),
        (DeviceType::CUDA, 4),
    ] {
        let script = script(false, false);
        let _installed = script::install(script);
        let shape = [extent];
        let raw = RawTensor {
            device: Device::new(device_type, 0),
            shape: &shape,
            ..RawTensor::EXAMPLE
        };
        let prototype = Descriptor::new(&raw).expect("a valid tensor");
        let made = CaiView::allocated_like(&prototype, READY).expect("memory");
        let described = made.descriptor();
        assert_eq!(
            (described.shape(), made.device()),
            (&shape[..], prototype.device())
        );
        assert_eq!(described.data() == 0, extent == 0);
        let is_allocated = device_type == DeviceType::CUDA && extent > 0;
        assert_eq!(script.count("cuMemAllocAsync") == 1, is_allocated);
        let ready = if is_allocated { READY } else { Stream::None };
        assert_eq!(made.ready_number(), ready);
        if device_type == DeviceType::CPU {
            let zeros = vec![0.0_f32; extent as usize];
            assert_eq!(
                made.typed::<f32>().expect("floats").copy_to_vec().ok(),
                Some(zeros)
            );
        }
    }
}

/// A copy is made if it is asked for, or if the data cannot be reached without one and nothing forbids it.
#[test]
fn a_copy_is_chosen_only_if_it_is_asked_for_or_needed() {
    use Transfer::{Alike, ToHost};
    let device = Device::cuda(0);
    let pinned = Device::new(DeviceType::CUDA_HOST, 0);
    for (own, wanted, [unasked, refused, asked]) in [
        (device, device, [Some(None), Some(None), Some(Some(Alike))]),
        (
            device,
            Device::HOST,
            [Some(Some(ToHost)), None, Some(Some(ToHost))],
        ),
        (
            pinned,
            Device::HOST,
            [Some(None), Some(None), Some(Some(ToHost))],
        ),
        (
            Device::HOST,
            Device::HOST,
            [Some(None), Some(None), Some(Some(ToHost))],
        ),
    ] {
        for (copy, expected) in [(None, unasked), (Some(false), refused), (Some(true), asked)] {
            let found = Transfer::decide(own, wanted, copy);
            if let Err(refused) = &found {
                assert_eq!(refused.rule(), Rule::CopyNeeded);
            }
            assert_eq!(found.ok(), expected, "{own} to {wanted}, {copy:?}");
        }
    }
}

/// If a later call of a copy is refused, those before it read the source still: the owner is kept until the stream is done. If the
/// first one is refused nothing reads it, and the owner goes at once.
#[test]
#[cfg_attr(miri, ignore = "starts a thread that ends with the process")]
fn a_refused_copy_keeps_its_source_if_a_call_of_it_was_enqueued() {
    let (whole, rows, cubes) = ([4, 2, 1], [8, 4, 1], [16, 4, 1]);
    let (alike, between) = (Transfer::Alike, Transfer::ToDevice(1));
    let cases = [
        (alike, whole, "cuMemcpyAsync", 0, false),
        (alike, rows, "cuMemcpy2DAsync", 0, false),
        (alike, cubes, "cuMemcpy2DAsync", 1, true),
        (between, whole, "cuMemcpyPeerAsync", 0, false),
        (between, rows, "cuMemcpyPeerAsync", 0, true),
    ];
    for (transfer, strides, refused, after, is_kept) in cases {
        let what = format!("{transfer:?} {strides:?} {refused} {after}");
        let script = script(false, false);
        let other = CONTEXTS.fetch_add(1, Relaxed);
        let there = Stream::from_raw(0xa3);
        script.primary(1, other).stream(there.raw(), other);
        // Busy for a second or so.
        (0..300).for_each(|_| _ = script.fault("cuEventQuery", 0, 600));
        script.fault(refused, after, 999);
        let _installed = script::install(script);
        let descriptor = Descriptor::new(&RawTensor {
            data: ARRAY,
            shape: &[2, 2, 2],
            strides: Some(&strides),
            device: Device::cuda(0),
            ..RawTensor::EXAMPLE
        });
        let owned = Arc::new(());
        let owner = Owner::new(Arc::clone(&owned));
        // SAFETY: nothing reads the memory; the scripted driver follows no stream.
        let source = unsafe { CaiView::new(descriptor.expect("a valid tensor"), READY, owner) };
        let request = match transfer {
            Transfer::ToDevice(_) => Request::Stream(there),
            _ => Request::Stream(READY),
        };
        let told = transfer.make(&source, request, SyncPolicy::Event);
        assert!(matches!(told, Err(Error::Driver(_))), "{what}: {told:?}");
        drop(source);
        assert_eq!(Arc::strong_count(&owned) > 1, is_kept, "{what}");
        script.without_faults();
        let late = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&owned) > 1 {
            assert!(
                Instant::now() < late,
                "{what}: it goes when the stream is done"
            );
            std::thread::yield_now();
        }
    }
}

/// Memory of one device is copied to another by a copy to that, and a copy that stays is of the same kind.
#[test]
fn where_a_copy_goes_is_what_was_asked_for() {
    let [device, other] = [0, 1].map(|id| Device::new(DeviceType::CUDA, id));
    let [pinned, managed] =
        [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED].map(|kind| Device::new(kind, 0));
    for (own, wanted, expected) in [
        (device, other, Transfer::ToDevice(1)),
        (other, device, Transfer::ToDevice(0)),
        (pinned, device, Transfer::ToDevice(0)),
        (managed, other, Transfer::ToDevice(1)),
        (Device::HOST, other, Transfer::ToDevice(1)),
        (device, device, Transfer::Alike),
        (pinned, pinned, Transfer::Alike),
        (managed, managed, Transfer::Alike),
        (device, Device::HOST, Transfer::ToHost),
    ] {
        let copy = Transfer::decide(own, wanted, Some(true)).expect("a copy");
        assert_eq!(copy, Some(expected), "{own} to {wanted}");
    }
}
