//! Devices: count, names, attributes. All are alike but for the attributes that are set, and named as simulated.

use std::ffi::c_char;

use crate::abi::arguments::{Out, put_text};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::state::visible;
use crate::state::world::lock;

exports! {
    Query 2000 cuDeviceGetCount(count: Out<i32>) = count;
    Query 2000 cuDeviceGet(device: Out<i32>, ordinal: i32) = get;
    Query 2000 cuDeviceGetName(name: Out<c_char>, capacity: i32, device: i32) = name;
    Query 9020 cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) = uuid;
    Query 11040 cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) = uuid;
    Query 2000 cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) = attribute;
    Query 2000 cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) = capability;
    Query 3020 cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) = total_memory;
    Query 4010 cuDeviceGetPCIBusId(name: Out<c_char>, capacity: i32, device: i32) = pci_bus_id;
    Query 4000 cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) = can_access_peer;
}

/// The attributes that are not 0: number and value. The model has no hardware; these are the ones
/// that interchange code reads (memory, addressing, capability), and the rest is plausible.
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024),       // threads per block
    (2, 1024),       // block x
    (3, 1024),       // block y
    (4, 64),         // block z
    (5, i32::MAX),   // grid x
    (6, 65535),      // grid y
    (7, 65535),      // grid z
    (8, 49152),      // shared memory per block
    (9, 65536),      // constant memory
    (10, 32),        // warp size
    (11, i32::MAX),  // pitch
    (12, 65536),     // registers per block
    (13, 1_000_000), // clock rate, kHz
    (14, 512),       // texture alignment
    (15, 1),         // copies overlap with work
    (16, 1),         // multiprocessors
    (19, 1),         // can map host memory
    (31, 1),         // concurrent kernels
    (36, 1_000_000), // memory clock, kHz
    (37, 256),       // memory bus width
    (38, 1 << 20),   // L2 cache
    (39, 1024),      // threads per multiprocessor
    (40, 2),         // copy engines
    (41, 1),         // unified addressing
    (75, 9),         // compute capability, major
    (76, 0),         // compute capability, minor
    (78, 1),         // stream priorities
    (81, 65536),     // shared memory per multiprocessor
    (82, 65536),     // registers per multiprocessor
    (83, 1),         // managed memory
    (89, 1),         // concurrent managed access
    (91, 1),         // the host pointer of registered memory works on the device
    (99, 1),         // host registration
    (106, 16),       // blocks per multiprocessor
    (113, 1),        // read-only host registration
    (115, 1),        // memory pools
    (119, 1),        // handles of memory pools: POSIX file descriptors
    (125, 1),        // events of several processes
];
const PCI_BUS_ID: i32 = 33;

fn count(_: &Call, count: Out<i32>) -> Status {
    count.put(lock().devices.len() as i32)
}

fn get(_: &Call, device: Out<i32>, ordinal: i32) -> Status {
    device.check()?;
    lock().device(ordinal)?;
    device.put(ordinal)
}

fn name(_: &Call, name: Out<c_char>, capacity: i32, device: i32) -> Status {
    name.check()?;
    lock().device(device)?;
    put_text(
        name,
        usize::try_from(capacity).unwrap_or(0),
        "cusim simulated device",
    );
    Ok(())
}

/// Gives the UUID, which is the same in every process and whichever devices are visible.
fn uuid(_: &Call, uuid: Out<[u8; 16]>, device: i32) -> Status {
    uuid.check()?;
    let physical = lock().device(device)?.physical;
    uuid.put(visible::uuid(physical))
}

fn attribute(_: &Call, value: Out<i32>, attribute: i32, device: i32) -> Status {
    value.check()?;
    let world = lock();
    let physical = world.device(device)?.physical as i32;
    if attribute <= 0 {
        return Err(Code::INVALID_VALUE);
    }
    if let Some(set) = world.settings.attributes.get(physical, attribute) {
        return value.put(set);
    }
    if attribute == PCI_BUS_ID {
        return value.put(physical + 1);
    }
    let row = ATTRIBUTES.iter().find(|(number, _)| *number == attribute);
    value.put(row.map_or(0, |(_, value)| *value))
}

fn capability(_: &Call, major: Out<i32>, minor: Out<i32>, device: i32) -> Status {
    lock().device(device)?;
    major.put(9)?;
    minor.put(0)
}

fn total_memory(_: &Call, bytes: Out<usize>, device: i32) -> Status {
    let world = lock();
    world.device(device)?;
    bytes.put(world.settings.device_memory as usize)
}

fn pci_bus_id(_: &Call, name: Out<c_char>, capacity: i32, device: i32) -> Status {
    name.check()?;
    let physical = lock().device(device)?.physical;
    put_text(
        name,
        usize::try_from(capacity).unwrap_or(0),
        &format!("0000:{:02x}:00.0", physical + 1),
    );
    Ok(())
}

/// Gives 1 for any two devices: every one can reach every other.
fn can_access_peer(_: &Call, can: Out<i32>, device: i32, peer: i32) -> Status {
    let world = lock();
    world.device(device)?;
    world.device(peer)?;
    can.put(i32::from(device != peer))
}
