//! Each way in which the host reads or writes elements waits for them first, and for a device that needs managed memory for
//! itself, on the scripted driver.

use super::*;
use crate::driver::script::{self, Script};
use crate::protocol::descriptor::RawTensor;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::dtype::DType;
use crate::protocol::stream::Stream;
use crate::view::Owner;

const CONTEXT: u64 = 0xa;
const READY: Stream = Stream::from_raw(0xa1);
const VALUES: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
const TURNED: [f32; 6] = [0.0, 3.0, 1.0, 4.0, 2.0, 5.0];

/// A way to the elements, which returns those that it has reached, in C order.
struct Accessor {
    name: &'static str,
    takes_strides: bool,
    read: fn(&mut ViewMut<'_, f32>) -> Result<Vec<f32>, Error>,
}

const fn accessor(
    name: &'static str,
    takes_strides: bool,
    read: fn(&mut ViewMut<'_, f32>) -> Result<Vec<f32>, Error>,
) -> Accessor {
    Accessor {
        name,
        takes_strides,
        read,
    }
}

const ACCESSORS: &[Accessor] = &[
    accessor("View::copy_to_vec", true, |of| of.as_view().copy_to_vec()),
    accessor("ViewMut::copy_to_vec", true, |of| of.copy_to_vec()),
    accessor("View::copy_to_slice", true, |of| {
        let mut values = vec![0.0; of.len()];
        of.as_view().copy_to_slice(&mut values)?;
        Ok(values)
    }),
    accessor("View::get", true, |of| {
        // The others are read past the driver.
        let mut values = match of.shape()[0] == 2 {
            true => VALUES.to_vec(),
            false => TURNED.to_vec(),
        };
        let last = [of.shape()[0] - 1, of.shape()[1] - 1];
        values[5] = of.as_view().get(&last)?;
        Ok(values)
    }),
    accessor("View::host_slice", false, |of| {
        // SAFETY: the array is there, and nothing else reads or writes it.
        unsafe { of.as_view().host_slice() }.map(<[f32]>::to_vec)
    }),
    accessor("ViewMut::host_slice_mut", false, |of| {
        // SAFETY: as for `host_slice`.
        unsafe { of.host_slice_mut() }.map(|slice| slice.to_vec())
    }),
    #[cfg(feature = "ndarray")]
    accessor("View::host_array", true, |of| {
        // SAFETY: as for `host_slice`.
        unsafe { of.as_view().host_array() }.map(|array| array.iter().copied().collect())
    }),
    #[cfg(feature = "ndarray")]
    accessor("ViewMut::host_array_mut", true, |of| {
        // SAFETY: as for `host_slice`.
        unsafe { of.host_array_mut() }.map(|array| array.iter().copied().collect())
    }),
];

/// Six floats of managed memory in C order, ready on `ready`.
fn managed(ready: Stream) -> (CaiView, &'static Script) {
    // No box, of which each move would end what has a pointer into it, by stacked borrows.
    let mut values = VALUES.to_vec();
    let data = values.as_mut_ptr().expose_provenance() as u64;
    let script = Script::leak();
    script.device_memory(data, 24, 0, CONTEXT).managed(data);
    script.primary(0, CONTEXT).stream(READY.raw(), CONTEXT);
    script.current(CONTEXT);
    let device = Device::new(DeviceType::CUDA_MANAGED, 0);
    let raw = RawTensor::new(data, device, DType::F32, &[2, 3]);
    let descriptor = Descriptor::new(&raw).expect("a valid tensor");
    // SAFETY: the elements lie in the vector, which the owner keeps; the scripted driver follows no stream.
    let view = unsafe { CaiView::new(descriptor, ready, Owner::new(values)) };
    (view, script)
}

/// Which wait of the host each state of the data asks for.
const WAITS: [(Stream, bool, &str); 2] = [
    (READY, false, "cuStreamSynchronize 0xa1"),
    // Ready, but another kernel may have the device.
    (Stream::None, true, "cuCtxSynchronize"),
];

#[test]
fn each_accessor_waits_for_the_data() {
    for (ready, is_exclusive, wait) in WAITS {
        for Accessor {
            name,
            takes_strides,
            read,
        } in ACCESSORS
        {
            let (mut view, script) = managed(ready);
            if is_exclusive {
                script.exclusive_managed(0);
            }
            let _installed = script::install(script);
            let mut typed = view.typed_mut::<f32>().expect("writable floats");
            script.take_calls();
            assert_eq!(read(&mut typed).expect("elements"), VALUES, "{name}");
            let is_waited = |calls: &[String]| calls.iter().any(|call| call.trim() == wait);
            let calls = script.take_calls();
            assert!(is_waited(&calls), "{name}: {wait} is not in {calls:?}");

            let mut turned = typed.transpose().expect("a part");
            let read = read(&mut turned);
            let calls = script.take_calls();
            if *takes_strides {
                assert_eq!(read.expect("elements"), TURNED, "{name}, transposed");
                assert!(
                    is_waited(&calls),
                    "{name}, transposed: {wait} is not in {calls:?}"
                );
            } else {
                let Err(Error::Violation(refused)) = read else {
                    panic!("{name}, transposed: a slice of what is not contiguous");
                };
                assert_eq!(refused.rule(), Rule::ViewContiguous, "{name}");
            }
        }
    }
}
