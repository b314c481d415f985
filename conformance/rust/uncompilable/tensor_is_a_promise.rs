//! dlpark's `Managed` promises nothing of the data pointer.

use cai_dlpack::CaiView;
use cai_dlpack::view::{DLManagedTensorVersioned, LiveStream, Managed};

fn take(tensor: Managed<DLManagedTensorVersioned>) -> CaiView {
    CaiView::from_dlpack(tensor, LiveStream::NONE).unwrap()
}

fn main() {
    let _ = take;
}
