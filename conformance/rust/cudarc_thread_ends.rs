//! Views and guards that a C library's thread-specific data holds end after Rust's own thread-locals: nothing panics there.
//!
//! The simulator's own are gone by then, too, so that its calls are refused.

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use cai_dlpack::CaiView;
use cai_dlpack::view::LiveStream;
use cudarc::driver::CudaContext;
use rstest::rstest;

use crate::simulator::machine;

unsafe extern "C" {
    fn pthread_key_create(
        key: *mut c_uint,
        end: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> c_int;
    fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
}

/// Where the end of a thread is told.
static ENDED: Mutex<Option<Sender<bool>>> = Mutex::new(None);

unsafe extern "C" fn end(held: *mut c_void) {
    // SAFETY: what `leave` has set, once.
    let held = unsafe { Box::from_raw(held.cast::<Box<dyn Any>>()) };
    let is_right = catch_unwind(AssertUnwindSafe(|| drop(held))).is_ok();
    if let Some(ended) = ENDED.lock().ok().and_then(|mut ended| ended.take()) {
        let _ = ended.send(is_right);
    }
}

/// Leaves it to the end of this thread.
fn leave(held: impl Any) {
    let mut key = 0;
    // SAFETY: memory for a key, and a function of this signature.
    assert_eq!(unsafe { pthread_key_create(&raw mut key, Some(end)) }, 0);
    let held: Box<Box<dyn Any>> = Box::new(Box::new(held));
    // SAFETY: the key was just made.
    let code = unsafe { pthread_setspecific(key, Box::into_raw(held).cast()) };
    assert_eq!(code, 0);
}

#[rstest]
fn what_ends_with_its_thread_ends_whole(
    #[values("view", "guard", "copy", "guard of a default stream")] what: &str,
) {
    let _machine = machine();
    let context = CudaContext::new(0).expect("device 0");
    let (sender, ended) = channel();
    *ENDED.lock().expect("no panic under the lock") = Some(sender);
    let (what, of) = (what.to_owned(), Arc::clone(&context));
    let thread = std::thread::spawn(move || {
        of.bind_to_thread().expect("current");
        let stream = of.per_thread_stream();
        let memory = stream.clone_htod(&[1.0_f32; 4]).expect("memory");
        let view = CaiView::from_cudarc(memory, [4]).expect("a view");
        match what.as_str() {
            "view" => leave(view),
            "guard" => leave(view.consume(&stream).expect("a guard")),
            "copy" => leave(view.copy_on(&stream).expect("a copy")),
            _ => {
                let there = view.on(&of.new_stream().expect("a stream")).expect("ready");
                let stream = LiveStream::PER_THREAD_DEFAULT;
                leave(there.consume(stream).expect("a guard"));
            }
        }
    });
    thread.join().expect("no panic before the end");
    assert!(ended.recv().expect("told"), "a panic");
}
