//! The two events by which cudarc orders the uses of a slice: after the last read, and after the last write.
//!
//! They are waited for, and recorded, here, as cudarc does so only while its context has a stream of its making: the work of one that
//! has gone since may not be done, and one that a default stream forks later waits for the events alone. Nor does cudarc return what
//! the driver refuses: it notes that in the context, where the call of any thread takes it.

use std::mem::{ManuallyDrop, forget};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop,
};

/// Makes a slice's stream wait for all who have used it, and returns the address.
///
/// # Errors
/// cudarc's refusal, or an error that another thread has noted meanwhile.
pub(super) fn wait_for_all<T>(slice: &mut CudaSlice<T>) -> Result<CUdeviceptr, DriverError> {
    let stream = Arc::clone(slice.stream());
    let (data, written) = slice.device_ptr_mut(&stream);
    wait(&stream, event(written))?;
    let (_, read) = slice.device_ptr(&stream);
    wait(&stream, event(read))?;
    Ok(data)
}

/// Makes a slice's stream wait for the last write of it, and returns the address.
///
/// # Errors
/// As of [`wait_for_all`].
pub(super) fn wait_for_writes<T>(slice: &CudaSlice<T>) -> Result<CUdeviceptr, DriverError> {
    let stream = slice.stream();
    let context = stream.context();
    // A refusal of cudarc's wait may be taken by another thread: one that was refused once is made the second time.
    event(slice.device_ptr(stream).1);
    context.check_err()?;
    let (data, read) = slice.device_ptr(stream);
    event(read);
    context.check_err()?;
    // If the last stream went before, and another thread forked one since, cudarc has not waited, which is not seen here.
    if !context.is_in_multi_stream_mode() {
        // `device_ptr_mut` gives the event of writes, and waits for none without a stream.
        // SAFETY: handles and shares (`tests`), which the slice keeps while it is borrowed; the copy of them is not dropped, and
        // nothing of it is changed.
        let mut copy = ManuallyDrop::new(unsafe { std::ptr::read(slice) });
        wait(stream, event(copy.device_ptr_mut(stream).1))?;
    }
    Ok(data)
}

/// Notes that a slice's stream waits for those who have read it, for who writes it next. Returns false, and changes nothing, if it
/// cannot be made to wait for the read before, of which the event tells now: that of a capture which has ended is refused.
///
/// # Errors
/// As of [`wait_for_all`].
pub(super) fn note_readers<T>(slice: &CudaSlice<T>) -> Result<bool, DriverError> {
    let stream = slice.stream();
    let (_, read) = slice.device_ptr(stream);
    let read = event(read);
    stream.context().check_err()?;
    match read {
        Some(before) if stream.wait(before).is_err() => Ok(false),
        Some(read) => read.record(stream).map(|()| true),
        None => Ok(true),
    }
}

/// Notes that a slice has been written on its stream; or else waits for that, so that nothing has to.
pub(super) fn note_write<T>(slice: &mut CudaSlice<T>) {
    let stream = Arc::clone(slice.stream());
    let (_, written) = slice.device_ptr_mut(&stream);
    if let Some(written) = event(written) {
        let noted = written.record(&stream);
        let noted = noted.or_else(|_| written.record(&stream));
        let waited = noted.or_else(|_| stream.synchronize());
        stream.context().record_err(waited);
    }
}

fn wait(stream: &CudaStream, event: Option<&CudaEvent>) -> Result<(), DriverError> {
    stream.context().check_err()?;
    event.map_or(Ok(()), |event| stream.wait(event))
}

/// Returns the event that cudarc would record at the end of a use, if that is not left to the caller, and does not record it.
fn event<'a>(at_end: SyncOnDrop<'a>) -> Option<&'a CudaEvent> {
    let found = match &at_end {
        SyncOnDrop::Record(Some((event, stream))) => {
            stream.context().is_event_tracking().then_some(*event)
        }
        _ => None,
    };
    forget(at_end);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bitwise copy of a slice is read, whose fields are cudarc's own.
    #[test]
    fn a_slice_holds_handles_and_shares_alone() {
        type Events = [Option<CudaEvent>; 2];
        type Fields = (CUdeviceptr, usize, Events, Arc<CudaStream>);
        assert_eq!(size_of::<CudaSlice<[u64; 9]>>(), size_of::<Fields>());
    }
}
