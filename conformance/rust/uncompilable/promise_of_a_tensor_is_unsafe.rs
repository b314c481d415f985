//! What it describes is there by a promise: nothing is, at the address of this one.

use std::ptr;

use cai_dlpack::CaiView;
use cai_dlpack::view::{DLManagedTensor, DlpackTensor, LiveStream, Managed};
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};

fn take(tensor: Managed<DLManagedTensor>) -> CaiView {
    CaiView::from_dlpack(DlpackTensor::new(tensor), LiveStream::NONE).unwrap()
}

fn main() {
    let tensor = Box::leak(Box::new(DLManagedTensor {
        dl_tensor: DLTensor {
            data: ptr::without_provenance_mut(0x1000),
            device: DLDevice {
                device_type: DLDeviceType::CPU,
                device_id: 0,
            },
            ndim: 1,
            dtype: DLDataType {
                code: DLDataTypeCode::FLOAT,
                bits: 32,
                lanes: 1,
            },
            shape: Box::leak(Box::new(1)),
            strides: ptr::null_mut(),
            byte_offset: 0,
        },
        manager_ctx: ptr::null_mut(),
        deleter: None,
    }));
    // SAFETY: initialised and given away; its metadata may be read, and there is no deleter.
    let tensor = unsafe { Managed::from_raw(tensor) }.unwrap();
    println!("{:?}", take(tensor).typed::<f32>().unwrap().copy_to_vec());
}
