//! A slice of cudarc as a DLPack tensor, and back onto another stream:
//! `cargo run --example cudarc --features cudarc`, on a GPU or, without one, on the simulated driver.

use cai_dlpack::interop::cudarc::context;
use cai_dlpack::view::{DlpackTensor, IntoLiveStream};
use cai_dlpack::{CaiView, Error};
use cusim_control::{NotSimulated, Sim};

fn main() -> Result<(), Error> {
    match Sim::load_built() {
        Ok(_) => println!("on the simulated driver"),
        Err(NotSimulated::RealDriver(_)) => println!("on a GPU"),
        Err(why) => println!("{why}"),
    }
    let context = context(0)?;
    let (producer, consumer) = (context.new_stream()?, context.new_stream()?);

    // The producer's stream writes; nothing waits for it yet.
    let slice = producer.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let view = CaiView::from_cudarc(slice, [2, 3])?;

    // A library that works on `consumer` is handed a tensor: that stream waits for the data, the host does not.
    let tensor: DlpackTensor = view.to_dlpack(&consumer)?;
    drop(view);

    // The same as that library would do it: the tensor is ready on `consumer`.
    let taken = CaiView::from_dlpack(tensor, &consumer)?;
    let mut elements = taken.typed::<f32>()?.c_order()?.on(&consumer)?;
    let values = consumer.clone_dtoh(&elements.as_slice()?)?;
    elements.finish()?;
    consumer.synchronize()?;
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(taken.ready(), (&consumer).into_live_stream());
    println!("{values:?} of shape {:?}", taken.descriptor().shape());
    Ok(())
}
