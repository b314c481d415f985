//! Opens a device without a panic if there is no driver.

use std::sync::Arc;

use cudarc::driver::CudaContext;

use crate::driver;
use crate::error::Error;
use crate::view::detach;

/// Opens the primary context of a device, like [`CudaContext::new`], and returns an error if there is no driver.
///
/// cudarc panics in its first call if it finds no driver library; in Python that is a `PanicException`, which no
/// `except Exception` catches. It looks for each name of the library that this function looks for.
///
/// # Errors
/// [`DriverError::ABSENT`](driver::DriverError::ABSENT), or the driver's own refusal, such as
/// `CUDA_ERROR_INVALID_DEVICE`.
///
/// ```
/// use cai_dlpack::Error;
/// use cai_dlpack::interop::cudarc::context;
///
/// match context(0) {
///     Ok(context) => println!("device {} is open", context.ordinal()),
///     Err(Error::Driver(error)) => println!("{error}"),
///     Err(other) => panic!("{other}"),
/// }
/// ```
pub fn context(ordinal: usize) -> Result<Arc<CudaContext>, Error> {
    driver::driver()?;
    Ok(detach(|| CudaContext::new(ordinal))?)
}
