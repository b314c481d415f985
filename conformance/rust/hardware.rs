//! A GPU's driver under this process, as far as a test can steer it: what the simulator does by a function of its own,
//! work of a stream does here.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUfunction, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaStream};

/// How many gates a process can make, each of which has a word of its own.
const GATES: usize = 1 << 16;
/// The bytes that enqueued writes are read from. They are used anew from the start, by which time the first are done.
const STORES: usize = 64 << 20;
/// How long a gate may be closed: a call that waits for it would wait for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pinned memory, and a stream that no test uses. It keeps the primary context of device 0.
pub(crate) struct Hardware {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    words: usize,
    stores: usize,
    gates: AtomicUsize,
    stored: AtomicUsize,
}

fn handle(stream: u64) -> CUstream {
    ptr::with_exposed_provenance_mut(stream as usize)
}

/// Makes the context that was current so again.
struct Before(Option<sys::CUcontext>);

impl Drop for Before {
    fn drop(&mut self) {
        // SAFETY: the context was current when this value was made; null is none.
        let _ = unsafe { result::ctx::set_current(self.0.unwrap_or(ptr::null_mut())) };
    }
}

/// Fills and copies once in a context: a driver may load kernels of its own for that, which waits for all work there.
pub(crate) fn warm(stream: &Arc<CudaStream>) {
    let mut one = stream.clone_htod(&[1.0_f32; 64]).expect("memory");
    let mut two = stream.alloc_zeros::<f32>(64).expect("memory");
    stream.memcpy_dtod(&one, &mut two).expect("a copy");
    stream.memset_zeros(&mut one).expect("a fill");
    let copied = stream.clone_dtoh(&two).expect("a copy");
    assert_eq!(copied, [1.0; 64]);
}

impl Hardware {
    /// Returns the steering of this process's driver, on device 0.
    pub(crate) fn get() -> &'static Self {
        static FOUND: OnceLock<Hardware> = OnceLock::new();
        FOUND.get_or_init(|| {
            let context = CudaContext::new(0).expect("device 0");
            let stream = context.new_stream().expect("a stream");
            let pinned = |bytes| {
                // SAFETY: the context is current; the memory is written before it is read, and never freed.
                let start = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
                start.expect("pinned memory").expose_provenance()
            };
            let words = pinned(GATES * size_of::<u32>());
            let start: *mut u32 = ptr::with_exposed_provenance_mut(words);
            // SAFETY: pinned memory of so many words, which nothing else uses yet.
            unsafe { start.write_bytes(0, GATES) };
            warm(&stream);
            Self {
                stores: pinned(STORES),
                context,
                stream,
                words,
                gates: AtomicUsize::new(0),
                stored: AtomicUsize::new(0),
            }
        })
    }

    fn entered(&self) -> Before {
        let before = Before(result::ctx::get_current().ok().flatten());
        self.context.bind_to_thread().expect("current");
        before
    }

    /// Stops a stream of the current context here until the gate is opened.
    pub(crate) fn gate(&self, stream: u64) -> Result<Gate, DriverError> {
        let index = self.gates.fetch_add(1, Ordering::Relaxed);
        assert!(index < GATES, "{GATES} gates");
        let word = self.words + index * size_of::<u32>();
        let pointer = ptr::with_exposed_provenance_mut(word);
        // SAFETY: an aligned word of pinned memory that is never freed, and that is used as an atomic one alone from here.
        let word: &'static AtomicU32 = unsafe { AtomicU32::from_ptr(pointer) };
        let (opened, waits) = mpsc::channel();
        let gate = Gate {
            word,
            is_late: Arc::default(),
            _opened: opened,
        };
        let is_late = Arc::clone(&gate.is_late);
        std::thread::spawn(move || {
            if waits.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                is_late.store(true, Ordering::SeqCst);
                word.store(1, Ordering::SeqCst);
            }
        });
        let flag = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the caller's stream, and a word of pinned memory, which the device reads at the same address.
        let code =
            unsafe { sys::cuStreamWaitValue32_v2(handle(stream), pointer.addr() as u64, 1, flag) };
        if code != CUresult::CUDA_SUCCESS {
            // A device without waits for words, and the simulator: a host function waits.
            let word = pointer.cast::<c_void>();
            // SAFETY: the caller's stream; the function looks at the word, which stays.
            unsafe { result::stream::launch_host_function(handle(stream), wait_for, word) }?;
        }
        Ok(gate)
    }

    /// Enqueues a write of these bytes.
    pub(crate) fn store(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        assert!(bytes.len() <= STORES / 8);
        let size = bytes.len().next_multiple_of(64);
        let take = |at: usize| Some(if at + size > STORES { size } else { at + size });
        let taken = self
            .stored
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = taken.unwrap_or_else(|at| at);
        let at = if before + size > STORES { 0 } else { before };
        let start: *mut u8 = ptr::with_exposed_provenance_mut(self.stores + at);
        // SAFETY: a part of the pinned memory, which is never freed; the work that has read this part is done.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: the bytes that were written right now, which nothing writes before the copy is done.
        let staged: &'static [u8] = unsafe { std::slice::from_raw_parts(start, bytes.len()) };
        // SAFETY: the caller's stream and memory.
        unsafe { result::memcpy_htod_async(address, staged, handle(stream)) }
    }

    /// Writes memory now, past all streams.
    pub(crate) fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        let _before = self.entered();
        self.store(
            self.stream.cu_stream().expose_provenance() as u64,
            address,
            bytes,
        )?;
        self.stream.synchronize()
    }

    /// Reads memory as it is now, past all streams.
    pub(crate) fn peek(&self, address: u64, count: usize) -> Result<Vec<u8>, DriverError> {
        let _before = self.entered();
        let mut found = vec![0_u8; count];
        // SAFETY: so many bytes at both ends, which stay to the end of the wait below.
        unsafe { result::memcpy_dtoh_async(&mut found, address, self.stream.cu_stream()) }?;
        self.stream.synchronize()?;
        Ok(found)
    }
}

unsafe extern "C" fn wait_for(word: *mut c_void) {
    // SAFETY: the word of a gate, in memory that is never freed.
    let word = unsafe { AtomicU32::from_ptr(word.cast()) };
    while word.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A place in a stream that work does not pass until the gate is opened; dropping opens it.
pub(crate) struct Gate {
    word: &'static AtomicU32,
    is_late: Arc<AtomicBool>,
    /// Its end tells the thread that waits for it.
    _opened: mpsc::Sender<()>,
}

impl Gate {
    /// Lets the stream go on. Fails where a call has waited for it, which the gate's end ended.
    pub(crate) fn open(&self) {
        self.word.store(1, Ordering::SeqCst);
        let is_late = self.is_late.load(Ordering::SeqCst);
        assert!(!is_late, "a call has waited for the work on a stream");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.word.store(1, Ordering::SeqCst);
    }
}

/// A byte from each thread, once so many nanoseconds have passed (as `cai_conformance.slow` has it). The driver compiles it
/// for the device that is there.
const SLOW_FILL: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry slow_fill(.param .u64 address, .param .u64 bytes, .param .u32 value, .param .u64 nanoseconds)
{
    .reg .pred %early, %beyond;
    .reg .b32 %at, %block, %size, %byte;
    .reg .b64 %now, %end, %to, %offset, %count;
    mov.u64 %now, %globaltimer;
    ld.param.u64 %end, [nanoseconds];
    add.u64 %end, %end, %now;
wait:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra wait;
    ld.param.u64 %to, [address];
    ld.param.u64 %count, [bytes];
    mov.u32 %at, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mad.lo.u32 %at, %block, %size, %at;
    cvt.u64.u32 %offset, %at;
    setp.ge.u64 %beyond, %offset, %count;
    @%beyond bra done;
    cvta.to.global.u64 %to, %to;
    add.u64 %to, %to, %offset;
    ld.param.u32 %byte, [value];
    st.global.u8 [%to], %byte;
done:
    ret;
}
";

/// The kernel, in a context.
pub(crate) struct SlowFill(CUfunction);

impl SlowFill {
    /// Loads it in the current context; fails where the driver compiles none, as the simulator.
    pub(crate) fn load() -> Result<Self, DriverError> {
        let text = CString::new(SLOW_FILL).expect("no NUL");
        // SAFETY: a text that ends with a NUL.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        let name = c"slow_fill".to_owned();
        // SAFETY: the module is loaded, and stays so.
        unsafe { result::module::get_function(module, name) }.map(Self)
    }

    /// Enqueues a fill that takes this long before it writes.
    pub(crate) fn fill(
        &self,
        stream: &CudaStream,
        address: u64,
        (bytes, value): (usize, u8),
        time: Duration,
    ) -> Result<(), DriverError> {
        let (mut address, mut count) = (address, bytes as u64);
        let (mut value, mut nanoseconds) = (u32::from(value), time.as_nanos() as u64);
        let mut parameters = [
            (&raw mut address).cast::<c_void>(),
            (&raw mut count).cast(),
            (&raw mut value).cast(),
            (&raw mut nanoseconds).cast(),
        ];
        let blocks = u32::try_from(bytes.div_ceil(256)).expect("a grid");
        let (grid, block) = ((blocks, 1, 1), (256, 1, 1));
        // SAFETY: the kernel's four parameters, which the call copies; it writes so many bytes of the caller's memory.
        unsafe {
            result::launch_kernel(self.0, grid, block, 0, stream.cu_stream(), &mut parameters)
        }
    }
}
