//! The exporter's side: what a share keeps, and until when.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::handle::{Array, Handle, Nonce, check_span};
use super::holders::Holders;
use crate::driver::ipc::{EventHandle, MemoryHandle, Sharing, Uuid};
use crate::driver::{
    self, Context, ContextGuard, ContextId, Driver, DriverError, Event, MemoryKind, OwnThread,
    Place, Relaxed, twice,
};
use crate::error::Error;
use crate::process::{fork, signals};
use crate::protocol::device::DeviceType;
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::{Capture, Request, Stream, SyncPolicy};
use crate::view::{CaiView, detach, is_elsewhere, with_driver};

/// A view that other processes of this machine may open, until this is dropped. Those that have opened it by then keep
/// the memory: it is released once the last of them has closed it, or has died.
///
/// ```no_run
/// # fn main() -> Result<(), cai_dlpack::Error> {
/// # let view = cai_dlpack::CaiView::empty::<f32>(cai_dlpack::protocol::device::Device::cuda(0), [0])?;
/// let shared = view.share()?;
/// let bytes = shared.handle().to_bytes(b"a key that both processes have")?;
/// // ... send the bytes, and wait for the answer that the view has been opened ...
/// drop(shared); // does not block
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it ends the share"]
pub struct Shared {
    handle: Handle,
    kept: Option<Arc<Kept>>,
    generation: u32,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

/// What stays until the last importer is gone.
pub(super) struct Kept {
    /// Before the view, with which the event's context may go.
    pub(super) ready: Option<Mark>,
    pub(super) view: CaiView,
    holders: Holders,
}

/// The event after which the data is ready, and its context.
pub(super) struct Mark {
    driver: &'static dyn Driver,
    pub(super) event: Event,
    home: (Context, ContextId),
}

impl Mark {
    /// Marks what `ready`, of which the context is current, holds now.
    ///
    /// # Errors
    /// The rules of captures; the driver's refusal.
    fn new(driver: &'static dyn Driver, ready: Stream) -> Result<(Self, EventHandle), Error> {
        check_capture(driver, ready, Role::Ready)?;
        let call = "cuCtxGetCurrent";
        let context = driver.current_context()?;
        let context = context.ok_or(DriverError::new(call, 201))?;
        let mark = Self {
            home: (context, driver.context_id(context)?),
            event: driver.shared_event_create()?,
            driver,
        };
        driver.event_record(mark.event, ready)?;
        // A capture may have begun meanwhile, on another thread: what is recorded in one is never reached.
        check_capture(driver, ready, Role::Ready)?;
        let named = driver.event_handle(mark.event)?;
        Ok((mark, named))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let (driver, event, (context, id)) = (self.driver, self.event, self.home);
        detach(|| {
            // Of a context that is gone the event is gone, too.
            if twice(|| driver.context_id(context)) == Ok(id)
                && let Ok(_there) = twice(|| ContextGuard::above(driver, context))
            {
                // A failure leaves one event too many.
                let _ = driver.event_destroy(event);
            }
        });
    }
}

/// What a stream is to a share.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    /// The data is ready there: an event is recorded.
    Ready,
    /// It waits for the event.
    Waits,
}

/// Refuses a stream that no event of another process may be ordered with. Its context is current.
///
/// # Errors
/// `capture-producer` or `capture-consumer`, `capture-invalid`, `capture-legacy`; the driver's refusal.
pub(super) fn check_capture(driver: &dyn Driver, stream: Stream, role: Role) -> Result<(), Error> {
    let (rule, hint) = match (driver.capture(stream)?, role) {
        (Capture::Idle, _) => return Ok(()),
        (Capture::Active, Role::Ready) => (
            Rule::CaptureProducer,
            "share the view once the capture has ended",
        ),
        (Capture::Active, Role::Waits) => (
            Rule::CaptureConsumer,
            "open the handle before the capture begins",
        ),
        (Capture::Invalidated, _) => (Rule::CaptureInvalid, "end the capture"),
        (Capture::BlocksLegacy, _) => (Rule::CaptureLegacy, "name another stream"),
    };
    let violation = Violation::new(rule, Field::Argument("stream"), stream);
    Err(violation.with_hint(hint).into())
}

impl CaiView {
    /// Lets other processes of this machine, of the same user, open the same memory by CUDA IPC.
    ///
    /// The handle names the allocation and an event that is recorded on the ready stream now: an importer's stream waits for
    /// it. The memory is kept until the [`Shared`] is dropped and the last importer has gone.
    ///
    /// # Errors
    /// `share-memory` for memory that CUDA IPC does not name; why DLPack cannot describe the array; `stream-thread`,
    /// `capture-producer`, `capture-legacy` if no event can be recorded; `share-host` on another platform than Linux; the
    /// refusals of the driver and of the operating system.
    ///
    /// ```
    /// use cai_dlpack::protocol::rule::Rule;
    /// # use cai_dlpack::{CaiView, Error, protocol::device::Device};
    ///
    /// # let of_the_host = CaiView::empty::<f32>(Device::HOST, [0])?;
    /// let Err(Error::Violation(refused)) = of_the_host.share() else { panic!("of the host") };
    /// assert_eq!(refused.rule(), Rule::ShareMemory);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn share(&self) -> Result<Shared, Error> {
        self.share_with(SyncPolicy::Event)
    }

    pub(crate) fn share_with(&self, policy: SyncPolicy) -> Result<Shared, Error> {
        self.share_named(policy, None)
    }

    /// Like [`share`](Self::share), of memory of a pool that a library of Python's has pickled, if that is given.
    pub(crate) fn share_named(
        &self,
        policy: SyncPolicy,
        pickled: Option<Pickled>,
    ) -> Result<Shared, Error> {
        self.descriptor().check_dlpack()?;
        check_device(self)?;
        fork::watch();
        let mut shared = with_driver(|driver| {
            let holders = Holders::new()?;
            let mut view = self.clone();
            let span = self.descriptor().byte_span();
            let (device, memory, pickled) = match (span, pickled) {
                (Some(span), Some(pickled)) => {
                    let (device, offset) = pickled.place(driver, self, span)?;
                    (device, None, Some((pickled.bytes, offset)))
                }
                (Some(span), None) => {
                    let (device, memory) = name_memory(driver, self, span)?;
                    (device, memory, None)
                }
                (None, _) => (driver.device_uuid(self.device().id)?, None, None),
            };
            if policy == SyncPolicy::Host && span.is_some() {
                self.order(Request::Host, policy)?;
                view = self.ready_on(Stream::None);
            }
            let is_ordered = policy != SyncPolicy::None && span.is_some();
            let marked = match view.ready_number() {
                ready if is_ordered && ready != Stream::None => {
                    Some(mark(driver, ready, view.place())?)
                }
                _ => None,
            };
            let (ready, named) = marked.unzip();
            let handle = Handle {
                place: holders.place.clone(),
                device,
                array: Array::of(self.descriptor()),
                memory,
                ready: named,
                pickled,
            };
            let kept = Kept {
                ready,
                view,
                holders,
            };
            Ok::<_, Error>(Shared {
                handle,
                kept: Some(Arc::new(kept)),
                generation: fork::generation(),
            })
        })?;
        if let Some(kept) = &mut shared.kept {
            OPEN.list().push(Arc::clone(kept));
        }
        Ok(shared)
    }
}

/// A buffer of a pool, as its own library pickles it.
pub(crate) struct Pickled {
    pub(crate) bytes: Vec<u8>,
    /// Where the buffer lies: start and size.
    pub(crate) range: (u64, u64),
}

impl Pickled {
    /// Returns the device of the view's memory, and how far from the buffer's start the element of index 0 lies.
    ///
    /// # Errors
    /// `share-memory` for memory that is not of such a pool; `out-of-bounds`; the driver's refusal.
    fn place(
        &self,
        driver: &'static dyn Driver,
        view: &CaiView,
        span: (u64, u64),
    ) -> Result<(Uuid, u64), Error> {
        let info = driver.sharing(span.0)?;
        if !(info.is_of_pool && info.handle_types != 0) {
            check_memory(&info, span.0)?;
        }
        check_span(self.range, span)?;
        let offset = view.descriptor().data().wrapping_sub(self.range.0);
        Ok((driver.device_uuid(info.ordinal)?, offset))
    }
}

/// # Errors
/// `share-memory`.
fn check_device(view: &CaiView) -> Result<(), Violation> {
    let device = view.device();
    match device.device_type {
        DeviceType::CUDA | DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED => Ok(()),
        DeviceType::CPU => Err(refused("memory of the host").with_hint(OF_THE_HOST)),
        _ => Err(refused(format_args!("memory on {device}"))),
    }
}

/// The ways that work for memory of the host.
const OF_THE_HOST: &str =
    "cai_dlpack.pickling.register() lets pickle copy it, multiprocessing.shared_memory shares it";

fn refused(found: impl fmt::Display) -> Violation {
    Violation::new(Rule::ShareMemory, Field::TensorData, found)
}

/// Names the allocation that these bytes lie in, and how far from its start the element of index 0 does.
///
/// # Errors
/// `share-memory`, `pointer-unknown`, `out-of-bounds`; the driver's refusal.
fn name_memory(
    driver: &'static dyn Driver,
    view: &CaiView,
    span: (u64, u64),
) -> Result<(Uuid, Option<(MemoryHandle, u64)>), Error> {
    let info = driver.sharing(span.0)?;
    check_memory(&info, span.0)?;
    check_span(info.range, span)?;
    let base = info.range.0;
    let place = Place::cuda(info.ordinal, span.0);
    let named = ContextGuard::of_memory(driver, &place)?.around_call(|| {
        // A capture elsewhere forbids no question.
        let _relaxed = Relaxed::new(driver)?;
        driver.memory_handle(base)
    })?;
    // The element of index 0 lies within the span.
    let offset = view.descriptor().data().wrapping_sub(base);
    Ok((driver.device_uuid(info.ordinal)?, Some((named, offset))))
}

/// Refuses memory that CUDA IPC does not name, by what it is.
///
/// # Errors
/// `share-memory`, `pointer-unknown`.
fn check_memory(info: &Sharing, pointer: u64) -> Result<(), Violation> {
    const COPY: &str = "copy it to memory of cuMemAlloc (cudaMalloc)";
    let (found, hint) = match info.kind {
        MemoryKind::Unknown => {
            let found = format_args!("{pointer:#x}");
            return Err(Violation::new(
                Rule::PointerUnknown,
                Field::TensorData,
                found,
            ));
        }
        MemoryKind::Device if info.has_handle => return Ok(()),
        MemoryKind::Managed => ("managed memory", COPY),
        MemoryKind::Pinned => (
            "page-locked memory of the host (pinned or registered)",
            OF_THE_HOST,
        ),
        MemoryKind::Device => match (info.is_of_pool, info.handle_types) {
            (true, 0) => (
                "memory of a pool that cannot be exported",
                "copy it to memory of cuMemAlloc (cudaMalloc), or make the pool with a handle type",
            ),
            (true, _) => (
                "memory of a pool that is exported as a whole",
                "its library shares it: share cuda.core's Buffer itself, or a view with owner=buffer",
            ),
            (false, 0) => (
                "memory without a handle: another process's, or mapped (cuMemCreate) without a handle type",
                "what was opened is shared by the process that has made it; torch makes no mapped memory without expandable_segments",
            ),
            (false, _) => (
                "mapped memory (cuMemCreate), which is exported by its own handles",
                "copy it to memory of cuMemAlloc (cudaMalloc); torch.multiprocessing sends torch's tensors of expandable_segments",
            ),
        },
    };
    Err(refused(found).with_hint(hint))
}

/// Marks the stream that the data is ready on.
///
/// # Errors
/// `stream-thread`; the rules of captures; the driver's refusal.
fn mark(
    driver: &'static dyn Driver,
    ready: Stream,
    place: Place,
) -> Result<(Mark, EventHandle), Error> {
    if is_elsewhere(place.thread) {
        let hint =
            "v.on(stream), called where the data is written, moves it to a stream with a handle";
        let violation = Violation::new(Rule::StreamThread, Field::CaiStream, ready);
        return Err(violation.with_hint(hint).into());
    }
    let place = Place {
        requested: place.ready,
        ..place
    };
    ContextGuard::of_stream(driver, ready, &place)?.around_call(|| Mark::new(driver, ready))
}

impl Shared {
    /// Returns what another process needs to open the view.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Shared {
    /// Refuses later importers, and releases the memory once there is none. Does not block.
    fn drop(&mut self) {
        let Some(kept) = self.kept.take() else {
            return;
        };
        if self.generation != fork::generation() {
            // The parent's, in a forked child: locks, file and memory are none of this process's.
            std::mem::forget(kept);
            return;
        }
        OPEN.list().retain(|other| !Arc::ptr_eq(other, &kept));
        if kept.holders.end().is_err() {
            // Importers may still come: the memory stays.
            std::mem::forget(kept);
        } else if !kept.holders.are_gone() {
            later(kept);
        }
    }
}

/// Returns an open share of this process's.
pub(super) fn of_this_process(nonce: &Nonce) -> Option<Arc<Kept>> {
    let open = OPEN.list();
    let found = open.iter().find(|kept| kept.holders.place.nonce == *nonce);
    found.map(Arc::clone)
}

/// Shares of this process's.
struct Shares(Mutex<Vec<Arc<Kept>>>);

/// Those whose block is open.
static OPEN: Shares = Shares(Mutex::new(Vec::new()));
/// Those whose block has been left, and that importers still hold.
static LEFT: Shares = Shares(Mutex::new(Vec::new()));

impl Shares {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Kept>>> {
        // Nothing panics under the lock; a poisoned one still holds a sound list.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause between two looks at the importers: short after news, doubled up to the long one while there are none.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(64);

/// Whether there is a thread that looks after [`LEFT`], whose lock is held while this changes.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Releases a share once its importers are gone, on a thread that is there as long as there is such a share. A process
/// that cannot start one keeps the memory until it can: with the next share that is left.
fn later(kept: Arc<Kept>) {
    let mut left = LEFT.list();
    left.push(kept);
    if !WATCHED.load(Ordering::Relaxed) {
        let thread = thread::Builder::new().name("cai-dlpack-share".into());
        WATCHED.store(thread.spawn(run).is_ok(), Ordering::Relaxed);
    }
}

fn run() {
    signals::block();
    let (mut pause, mut own) = (SHORT, OwnThread::default());
    loop {
        thread::sleep(pause);
        if let Ok(driver) = driver::driver() {
            own.relax(driver);
        }
        let mut left = LEFT.list();
        let gone: Vec<_> = left
            .extract_if(.., |kept| kept.holders.are_gone())
            .collect();
        let is_over = left.is_empty();
        if is_over {
            WATCHED.store(false, Ordering::Relaxed);
        }
        // What is released may run any code.
        drop(left);
        pause = match gone.is_empty() {
            true => (pause * 2).min(LONG),
            false => SHORT,
        };
        drop(gone);
        if is_over {
            return;
        }
    }
}
