//! The stream that this module works on: one for each device, made on first use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cai_dlpack::Error;
use cai_dlpack::interop::cudarc::context;
use cai_dlpack::protocol::device::{Device, DeviceType};
use cudarc::driver::CudaStream;

/// Our stream on a device. Pinned and managed memory (whose ids say nothing) is taken to device 0.
pub(crate) fn stream_of(device: Device) -> Result<Arc<CudaStream>, Error> {
    static STREAMS: Mutex<BTreeMap<i32, Arc<CudaStream>>> = Mutex::new(BTreeMap::new());
    let ordinal = if device.device_type == DeviceType::CUDA {
        device.id
    } else {
        0
    };
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(stream) = streams.get(&ordinal) {
        return Ok(Arc::clone(stream));
    }
    let stream = context(ordinal as usize)?.new_stream()?;
    streams.insert(ordinal, Arc::clone(&stream));
    Ok(stream)
}
