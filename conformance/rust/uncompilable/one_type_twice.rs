//! An enum of element types has each type of DLPack once.

cai_dlpack::elements! {
    enum Complex {
        Pair([f32; 2]),
        Number(cai_dlpack::num_complex::Complex<f32>),
    }
}

fn main() {
    let _ = Complex::<(), ()>::Pair(());
}
