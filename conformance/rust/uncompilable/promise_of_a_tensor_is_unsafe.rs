//! What it describes is there by a promise.

use cai_dlpack::CaiView;
use cai_dlpack::view::{DLManagedTensor, DlpackTensor, LiveStream, Managed};

fn take(tensor: Managed<DLManagedTensor>) -> CaiView {
    CaiView::from_dlpack(DlpackTensor::new(tensor), LiveStream::NONE).unwrap()
}

fn main() {
    let _ = take;
}
