//! cuInit and cuDriverGetVersion.

use crate::abi::arguments::Out;
use crate::abi::codes::{Code, Status};
use crate::entry::enter::{Call, exports};
use crate::process::life;
use crate::state::world::lock;

exports! {
    Always 2000 cuInit(flags: u32) = init;
    Always 2020 cuDriverGetVersion(version: Out<i32>) = driver_version;
}

/// Initialises the driver; flags must be 0.
fn init(_: &Call, flags: u32) -> Status {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if lock().devices.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    life::initialise();
    Ok(())
}

fn driver_version(_: &Call, version: Out<i32>) -> Status {
    version.put(lock().settings.driver_version as i32)
}
