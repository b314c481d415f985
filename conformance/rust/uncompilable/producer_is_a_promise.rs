//! Where the producer works decides how long the memory is kept: to say it is a promise.

use cai_dlpack::CaiView;
use cai_dlpack::protocol::stream::Stream;

fn told(view: CaiView) -> CaiView {
    view.with_producer(Stream::LegacyDefault)
}

fn main() {
    let _ = told;
}
