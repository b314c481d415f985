//! The stream of a view lives as long as the view: the driver would be handed a stream that is destroyed.

use cai_dlpack::CaiView;
use cudarc::driver::CudaContext;

fn wait(view: CaiView, other: &CaiView) {
    let ready = view.ready();
    drop(view);
    other.on(ready).unwrap();
}

fn main() {
    let context = CudaContext::new(0).unwrap();
    let array = || {
        let stream = context.new_stream().unwrap();
        CaiView::from_cudarc(stream.clone_htod(&[1.0_f32]).unwrap(), [1]).unwrap()
    };
    wait(array(), &array());
}
