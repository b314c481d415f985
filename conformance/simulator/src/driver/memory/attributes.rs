//! Pointer attributes.
//!
//! One attribute (cuPointerGetAttribute) of an address in no range is INVALID_VALUE. Several (cuPointerGetAttributes)
//! always succeed: "the attributes are assigned default NULL values"; the device ordinal is -2 then
//! (CU_DEVICE_INVALID). Driver 580.159.04 departs from that twice: the host pointer is the address itself, and the
//! start and the size of the range are left as they were.
//! Neither needs a current context: addresses are unified.

use crate::abi::arguments::{DeviceAddress, In, Out};
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::memory::ranges::{Allocation, Kind};
use crate::state::objects::Pool;
use crate::state::world::{World, lock};

exports! {
    Query 4000 cuPointerGetAttribute(value: Out<u8>, attribute: u32, address: DeviceAddress) = get;
    Query 7000 cuPointerGetAttributes(count: u32, attributes: In<u32>, values: In<usize>, address: DeviceAddress) = get_many;
    Context 6000 cuPointerSetAttribute(value: In<u32>, attribute: u32, address: DeviceAddress) = set;
}

const SYNC_MEMOPS: u32 = 6;
const HOST_POINTER: u32 = 4;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
const CU_DEVICE_INVALID: i32 = -2;

/// CUmemorytype.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// A value with the width that the driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Word(u32),
    Ordinal(i32),
    Long(u64),
}

impl Value {
    fn put(self, out: Out<u8>) -> Status {
        match self {
            Value::Word(value) => out.cast::<u32>().put(value),
            Value::Ordinal(value) => out.cast::<i32>().put(value),
            Value::Long(value) => out.cast::<u64>().put(value),
        }
    }
}

/// Returns the value for an address in a range; None if the attribute has none for this kind of
/// memory. Truth values are 32 bits wide.
fn of_range(
    world: &World,
    attribute: u32,
    range: &Allocation,
    address: u64,
) -> Result<Option<Value>, Code> {
    let yes = |condition: bool| Some(Value::Word(u32::from(condition)));
    let host_readable = range.is_host() || range.kind == Kind::Managed;
    Ok(match attribute {
        // CONTEXT
        1 => Some(Value::Long(range.context.0 as u64)),
        // MEMORY_TYPE: DEVICE for managed memory too.
        2 => Some(Value::Word(if range.is_host() { HOST } else { DEVICE })),
        // DEVICE_POINTER: addresses are unified.
        3 => Some(Value::Long(address)),
        // HOST_POINTER
        4 => host_readable.then_some(Value::Long(address)),
        // SYNC_MEMOPS
        6 => yes(range.sync_memops),
        // BUFFER_ID
        7 => Some(Value::Long(range.buffer)),
        // IS_MANAGED
        8 => yes(range.kind == Kind::Managed),
        // DEVICE_ORDINAL
        9 => Some(Value::Ordinal(range.device as i32)),
        // IS_LEGACY_CUDA_IPC_CAPABLE
        10 => yes(range.kind == Kind::Device),
        // RANGE_START_ADDR
        11 => Some(Value::Long(range.base)),
        // RANGE_SIZE
        12 => Some(Value::Long(range.bytes as u64)),
        // MAPPED
        13 => yes(true),
        // ALLOWED_HANDLE_TYPES: those of the memory's pool.
        14 => Some(Value::Long(match range.kind {
            Kind::Pool(pool) => u64::from(world.pools.get(pool).map_or(0, Pool::handle_types)),
            _ => 0,
        })),
        // IS_GPU_DIRECT_RDMA_CAPABLE
        15 => yes(false),
        // ACCESS_FLAGS: read and write.
        16 => Some(Value::Word(3)),
        // MEMPOOL_HANDLE
        17 => Some(Value::Long(match range.kind {
            Kind::Pool(pool) => pool.0 as u64,
            _ => 0,
        })),
        // MAPPING_SIZE, MAPPING_BASE_ADDR, MEMORY_BLOCK_ID
        18 => Some(Value::Long(range.bytes as u64)),
        19 => Some(Value::Long(range.base)),
        20 => Some(Value::Long(range.buffer)),
        // IS_HW_DECOMPRESS_CAPABLE
        21 => yes(false),
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Returns the value of an attribute for an address in no range; None for what is left as it was.
fn of_no_range(attribute: u32, address: u64) -> Result<Option<Value>, Code> {
    match attribute {
        HOST_POINTER => Ok(Some(Value::Long(address))),
        RANGE_START | RANGE_SIZE => Ok(None),
        _ => default_value(attribute).map(Some),
    }
}

/// Returns the NULL value of an attribute.
fn default_value(attribute: u32) -> Result<Value, Code> {
    match attribute {
        9 => Ok(Value::Ordinal(CU_DEVICE_INVALID)),
        2 | 6 | 8 | 10 | 13 | 15 | 16 | 21 => Ok(Value::Word(0)),
        1 | 3 | HOST_POINTER | 7 | RANGE_START | RANGE_SIZE | 14 | 17..=20 => Ok(Value::Long(0)),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn get(_: &Call, value: Out<u8>, attribute: u32, address: u64) -> Status {
    value.check()?;
    let world = lock();
    let range = world.memory.find(address).ok_or(Code::INVALID_VALUE)?;
    of_range(&world, attribute, range, address)?
        .ok_or(Code::INVALID_VALUE)?
        .put(value)
}

fn get_many(_: &Call, count: u32, attributes: In<u32>, values: In<usize>, address: u64) -> Status {
    if count == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let world = lock();
    let range = world.memory.find(address);
    for index in 0..count as usize {
        let attribute = attributes.get_at(index)?;
        let value = match range {
            Some(range) => match of_range(&world, attribute, range, address)? {
                Some(value) => Some(value),
                None => Some(default_value(attribute)?),
            },
            None => of_no_range(attribute, address)?,
        };
        if let Some(value) = value {
            value.put(Out::from_lent(values.get_at(index)?))?;
        }
    }
    Ok(())
}

/// Sets SYNC_MEMOPS, which is kept and has no effect; no other attribute can be set.
fn set(_: &Call, value: In<u32>, attribute: u32, address: u64) -> Status {
    if attribute != SYNC_MEMOPS {
        return Err(Code::INVALID_VALUE);
    }
    let wanted = value.get()? != 0;
    let mut world = lock();
    let base = world.memory.find(address).ok_or(Code::INVALID_VALUE)?.base;
    let range = world.memory.at_base_mut(base).ok_or(Code::INVALID_VALUE)?;
    range.sync_memops = wanted;
    Ok(())
}
