//! The thread that asks all events together.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::block::{Block, Home, Mark, Memory, Site, StreamMark, Use};
use super::free;
use super::held::{Held, Owned};
use super::mark::{Markers, PATIENCE};
#[cfg(feature = "cudarc")]
use super::readers;
use super::room;
use crate::driver::{Context, ContextGuard, Driver, DriverError, OwnThread, Relaxed, unless_ended};
use crate::process::signals;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::stream::{Capture, Stream};
use crate::view::{Kept, Owner, stats};

/// The pause between two rounds of questions: short after news, doubled up to the long one while there are none.
const SHORT: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_millis(5);
/// The pause before a stream is asked again that could not be marked.
const RETRY: Duration = Duration::from_millis(1);

/// How many marks a stream has at most that this thread has asked for: one that is busy for long holds no more work for it,
/// and no event for each copy.
const MARKS: usize = 4;

static KEEPER: OnceLock<Sender<News>> = OnceLock::new();

enum News {
    /// What hangs on an event.
    Marked(Arc<StreamMark>, Vec<Held>),
    /// What is to end after what its stream holds, which has no mark yet.
    Unmarked(Held),
    /// The mark of a stream.
    Mark(Use, Mark),
    /// What a graph has kept, which is gone.
    Ended(Owner),
    /// Left by callers before the thread was started.
    Left(Keeper),
    /// A thread waits for memory.
    Hurry,
    /// A thread that asks for memory that has come.
    Take(Wanted, Sender<Answer>),
}

/// Memory for a thread that has asked for it; it ends as before if that no longer waits.
struct Answer(Option<Held>);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(unmarked);
    }
}

/// Memory that is asked for, of a context, for a stream whose work so far may still use it.
struct Wanted {
    memory: Memory,
    nbytes: u64,
    home: Home,
    used: Use,
}

impl Wanted {
    /// Whether this would do.
    fn is(&self, held: &Held) -> bool {
        held.block().is_some_and(|block| {
            let is_alike = (block.memory, block.home) == (self.memory, self.home);
            is_alike && block.used == self.used && block.nbytes >= self.nbytes
        })
    }
}

/// Starts the thread, if it could be started, so that a deleter finds it.
pub(super) fn start(driver: &'static dyn Driver) {
    sender(driver);
}

/// Starts the threads that a block may end by.
pub(crate) fn start_for(block: &Block) {
    free::start(block.driver, block.ordinal);
    if block.used.has_handle() {
        start(block.driver);
    }
}

fn sender(driver: &'static dyn Driver) -> Option<&'static Sender<News>> {
    /// Held while the thread is started: one at a time tries, and the next one again if that could not be done.
    static STARTING: Mutex<()> = Mutex::new(());
    if KEEPER.get().is_none() {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = channel();
        if KEEPER.get().is_none() && spawn(driver, receiver) {
            let _ = KEEPER.set(sender);
            hand_over();
        }
    }
    KEEPER.get()
}

/// Starts the thread; returns whether that could be done.
#[cfg(not(miri))]
fn spawn(driver: &'static dyn Driver, receiver: Receiver<News>) -> bool {
    let thread = thread::Builder::new().name("cai-dlpack-keep".into());
    thread.spawn(move || Keeper::run(driver, &receiver)).is_ok()
}

/// What the thread has, under Miri: there every thread has to end before the process does, so that its rounds are made by
/// [`round`].
#[cfg(miri)]
static BY_HAND: std::sync::Mutex<Option<(Keeper, Receiver<News>)>> = std::sync::Mutex::new(None);

#[cfg(miri)]
fn spawn(_: &'static dyn Driver, receiver: Receiver<News>) -> bool {
    let mut thread = BY_HAND.lock().expect("no panic under the lock");
    *thread = Some((Keeper::default(), receiver));
    true
}

/// Makes a round of the thread's, on this one; nothing if the thread makes them itself.
#[cfg(test)]
pub(crate) fn round() {
    #[cfg(miri)]
    if let Some((keeper, receiver)) = &mut *BY_HAND.lock().expect("no panic under the lock") {
        keeper.round(receiver.try_iter());
    }
}

/// Where the work began that an owner is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// On the stream, as far as is known.
    OnStream,
    /// In this capture of the stream. If that goes on, all of the work is the graph's.
    #[cfg(feature = "cudarc")]
    InCapture(u64),
    /// Anywhere: the producer's stream waits for it.
    #[cfg(feature = "cudarc")]
    Ordered,
}

/// Drops a share of `owner` once `stream`, whose context is current, has done what it holds now. The host does not
/// wait. If the stream is being captured, or is the legacy one beside a capture, the share is dropped once its context has
/// done the work that it has. What the capture holds is no work of the stream's: its graph keeps the
/// owner ([`by_graph`](super::by_graph)).
///
/// A thread that finds no memory on `device`, of which the owner's is, waits for the owner; if it is no CUDA device's, one
/// that finds none on the stream's. `kept` keeps the stream as long.
///
/// # Errors
/// The driver's refusal of a mark. Nothing waits for the stream then.
pub(crate) fn until_done(
    driver: &'static dyn Driver,
    (stream, kept): (Stream, Option<Kept>),
    owner: &Owner,
    device: Device,
    #[cfg_attr(
        not(feature = "cudarc"),
        expect(unused_variables, reason = "for writers of that feature")
    )]
    begun: Begun,
) -> Result<(), DriverError> {
    #[cfg(feature = "cudarc")]
    let before_mark = readers::Moment::next();
    let (used, event) = Use::marked(driver, stream)?;
    let ordinal = driver.current_device()?;
    let event = event.map(|event| Arc::new(StreamMark::new(event, kept.clone())));
    let owner = owner.share();
    let held = Held::owner(Owned {
        driver,
        ordinal,
        memory_ordinal: match device.device_type {
            DeviceType::CUDA => device.id,
            _ => ordinal,
        },
        used,
        after: None,
        #[cfg(feature = "cudarc")]
        reader: match (&event, begun) {
            (_, Begun::Ordered) => Arc::default(),
            (None, Begun::InCapture(begun)) if driver.capture_id(stream) == Ok(begun) => {
                Arc::default()
            }
            (event, _) => readers::note(&owner, used, event.as_ref(), before_mark),
        },
        owner,
        stream: kept,
    });
    match event {
        Some(event) => ends(driver, News::Marked(event, vec![held])),
        None => unmarked(held),
    }
    Ok(())
}

/// Like [`until_done`]; if the driver refuses that, the host waits for the stream. If it cannot, the mark is tried once more,
/// and then the share stays for ever, unless nothing runs there any more.
pub(crate) fn by_stream(
    driver: &'static dyn Driver,
    stream: Stream,
    owner: &Owner,
    device: Device,
    begun: Begun,
) {
    by_stream_of(driver, None, (stream, None), owner, device, begun);
}

/// Like [`by_stream`], for a stream of a context that the caller knows, and need not ask for, and with what keeps the stream.
/// Returns whether the work of the stream is over.
pub(crate) fn by_stream_of(
    driver: &'static dyn Driver,
    context: Option<Context>,
    (stream, kept): (Stream, Option<Kept>),
    owner: &Owner,
    device: Device,
    begun: Begun,
) -> bool {
    let mark = || until_done(driver, (stream, kept.clone()), owner, device, begun);
    let Err(first) = mark() else {
        return false;
    };
    let is_alive = match has_waited(driver, stream) {
        Ok(true) => return true,
        // It is being captured.
        Ok(false) => true,
        Err(_) => false,
    };
    let Err(second) = mark() else {
        return false;
    };
    // In a context that has failed, or is gone, nothing runs any more.
    let is_over = !is_alive && first.is_end_of_context() && second.is_end_of_context();
    if !is_over {
        keep_for_ever(owner, context);
        // A writer asks about its context.
        if !is_in_primary(driver).unwrap_or(false) {
            std::mem::forget(kept);
        }
    }
    is_over
}

/// Whether the current context is a primary one, which stays where it is.
fn is_in_primary(driver: &dyn Driver) -> Result<bool, DriverError> {
    Use::anywhere(driver, None)?.is_in_primary(driver, driver.current_device()?)
}

/// Keeps a share of `owner` for ever, as the driver tells nothing of the work that uses it: in the current context, or in this
/// one.
pub(crate) fn keep_for_ever(
    owner: &Owner,
    #[cfg_attr(
        not(feature = "cudarc"),
        expect(unused_variables, reason = "for writers of that feature")
    )]
    context: Option<Context>,
) {
    let kept = owner.share();
    #[cfg(feature = "cudarc")]
    readers::note_lost(&kept, context);
    std::mem::forget(kept);
}

/// Waits for a stream, and not for one that is being captured, which that would break; returns whether its work is over.
///
/// # Errors
/// The driver's refusal.
pub(crate) fn has_waited(driver: &dyn Driver, stream: Stream) -> Result<bool, DriverError> {
    match unless_ended(|| driver.capture(stream))? {
        Some(Capture::Idle) => unless_ended(|| driver.stream_synchronize(stream)).map(|_| true),
        Some(_) => Ok(false),
        None => Ok(true),
    }
}

/// Waits for all work of the current context. No capture is broken, as by `cuCtxSynchronize`.
///
/// # Errors
/// The driver's refusal: the work may go on.
pub(crate) fn wait_for_context(driver: &dyn Driver) -> Result<(), DriverError> {
    match unless_ended(|| Relaxed::new(driver))? {
        Some(_relaxed) => unless_ended(|| Site::here(driver)?.wait(driver)).map(drop),
        None => Ok(()),
    }
}

/// Drops `owner` on the thread, which [`start`] has started; without one it stays for ever, as the caller may neither wait
/// nor drop it.
pub(super) fn drop_later(owner: Owner) {
    let news = News::Ended(owner);
    // A thread that finds no memory waits for it.
    stats::QUEUED.add();
    let unsent = match KEEPER.get() {
        Some(keeper) => keeper.send(news).err().map(|error| error.0),
        None => Some(news),
    };
    if unsent.is_some() {
        stats::DRAINED.add();
    }
    std::mem::forget(unsent);
}

/// Lets go of what keeps the stream that a block was for, which may run any code: on the thread, and not in the context that the
/// caller has made current.
pub(super) fn let_go(block: &mut Block) {
    block.is_stream_kept = false;
    if let Some(kept) = block.stream.take() {
        start(block.driver);
        drop_later(Owner::new(kept));
    }
}

/// Ends a block once the stream that it is for is done with it.
pub(crate) fn end(block: Block) {
    unmarked(Held::memory(block));
}

/// Ends a block once `stream`, whose context is current and kept by `kept`, has done what it holds now: no copy for the stream
/// that the block was for takes it over before. If the stream is being captured by now, no mark is made, as for an owner
/// ([`until_done`]). If the driver refuses the mark, the host waits for the stream, and if it cannot, the memory is the
/// driver's for good.
pub(crate) fn end_after(driver: &'static dyn Driver, stream: Stream, kept: Kept, mut block: Block) {
    match Use::marked(driver, stream) {
        Ok((used, event)) => {
            // The keeper of the consumer's stream does not keep this one.
            (block.used, block.is_stream_kept) = (used, false);
            block.stream = Some(match block.stream.take() {
                Some(consumers) => Kept::by((consumers, kept.clone())),
                None => kept.clone(),
            });
            match event {
                Some(event) => {
                    let event = Arc::new(StreamMark::new(event, Some(kept)));
                    ends(driver, News::Marked(event, vec![Held::memory(block)]));
                }
                None => end(block),
            }
        }
        Err(_) if driver.stream_synchronize(stream).is_ok() => end(block),
        Err(_) => std::mem::forget(block),
    }
}

/// Hands over what has no mark yet to the thread that can tell when its use is over.
fn unmarked(held: Held) {
    match held.keeps_its_stream() {
        true => ends(held.driver(), News::Unmarked(held)),
        false => free::later(held, true),
    }
}

/// Hands over what is to end. Without a thread, the caller waits, but not [for ever](Keeper::patience).
fn ends(driver: &'static dyn Driver, news: News) {
    if let Some(news) = tell(driver, news) {
        alone(driver, Some(news));
    }
}

/// Left by callers who have waited long enough, while no thread can be started.
static LEFT: Mutex<Option<Keeper>> = Mutex::new(None);

fn left() -> MutexGuard<'static, Option<Keeper>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does on the caller's thread what the thread would, and looks once whether what was left before is over, for which this caller
/// does not wait. Leaves the rest to the thread once that has been started, or else to the next caller.
fn alone(driver: &'static dyn Driver, news: Option<News>) {
    let before = left().take();
    let mut keeper = Keeper::default();
    keeper.take_alone(driver, news);
    if let Some(before) = before {
        keeper.add(before);
        keeper.look_alone(driver);
    }
    if !keeper.is_idle() {
        let mut left = left();
        let mut all = left.take().unwrap_or_default();
        all.add(keeper);
        *left = Some(all);
        drop(left);
        hand_over();
    }
}

/// Gives the thread what was left, if it has been started.
fn hand_over() {
    if let Some(keeper) = KEEPER.get()
        && let Some(left) = left().take()
        && let Err(unsent) = keeper.send(News::Left(left))
    {
        std::mem::forget(unsent);
    }
}

/// Marks the stream that a call is for, whose context is current, for all that has ended and that it uses, and that no
/// thread of ours may mark: until then that waits for the whole context. Returns false if the stream cannot be marked now.
pub(crate) fn mark_own(driver: &'static dyn Driver, used: Use) -> bool {
    if !used.is_of_one_stream() {
        return true;
    }
    let held = free::take_used(used);
    if held.is_empty() {
        return true;
    }
    match used.mark_own(driver) {
        Some(event) => {
            ends(driver, News::Marked(Arc::new(event), held));
            true
        }
        None => {
            held.into_iter().for_each(|held| free::later(held, true));
            false
        }
    }
}

/// Has the threads end soon what they can.
pub(super) fn hurry(driver: &'static dyn Driver) {
    free::hurry();
    if tell(driver, News::Hurry).is_some() {
        alone(driver, None);
    }
}

/// Takes over the smallest block with room for `nbytes` that `used` alone still uses: what is enqueued from now on comes
/// after that, in the order of the same stream.
pub(super) fn take(
    driver: &'static dyn Driver,
    memory: Memory,
    nbytes: u64,
    home: Home,
    used: Use,
) -> Option<Block> {
    if !used.is_of_one_stream() {
        return None;
    }
    let wanted = Wanted {
        memory,
        nbytes,
        home,
        used,
    };
    let (answers, receiver) = channel();
    if tell(driver, News::Take(wanted, answers)).is_some() {
        return None;
    }
    loop {
        match receiver.recv_timeout(room::LIMIT) {
            Ok(mut answer) => return answer.0.take()?.into_block(),
            Err(RecvTimeoutError::Timeout) if !room::is_blocked() => {}
            Err(_) => return None,
        }
    }
}

/// Hands it to the thread; back if there is none.
fn tell(driver: &'static dyn Driver, news: News) -> Option<News> {
    match sender(driver) {
        Some(keeper) => keeper.send(news).err().map(|error| error.0),
        None => Some(news),
    }
}

/// What waits for streams.
#[derive(Default)]
struct Keeper {
    /// What its stream has no mark for yet.
    unmarked: Vec<Held>,
    /// Could not be marked: tried again after a pause.
    later: Later,
    /// Being marked by [`Markers`].
    marking: Vec<Marking>,
    waiting: Vec<Waiting>,
    /// `None` if this thread makes the marks itself.
    markers: Option<Markers>,
}

/// Waits for a capture to end, or until the driver tells of a context.
struct Later {
    held: Vec<Held>,
    tried: Instant,
}

impl Default for Later {
    fn default() -> Self {
        let (held, tried) = (Vec::new(), Instant::now());
        Self { held, tried }
    }
}

/// Hangs on a mark that has no answer yet.
struct Marking {
    used: Use,
    held: Vec<Held>,
    /// The keepers of the stream, for blocks that were taken out of `held`.
    kept: Vec<Kept>,
    since: Instant,
    /// Whether the stream could not be marked before: it may be captured still.
    is_again: bool,
}

/// What hangs on one event.
struct Waiting {
    event: Arc<StreamMark>,
    held: Vec<Held>,
    /// The stream that was marked with it for this thread.
    marked: Option<Use>,
    /// The keepers of that stream, for blocks that were taken out of `held`. They go after the event.
    kept: Vec<Kept>,
}

impl Keeper {
    #[cfg_attr(miri, expect(dead_code, reason = "no thread: `round`"))]
    fn run(driver: &'static dyn Driver, receiver: &Receiver<News>) {
        signals::block();
        room::enter();
        let (mut keeper, mut pause, mut own) = (Self::default(), SHORT, OwnThread::default());
        keeper.markers = Some(Markers::new(|driver, used, mark| {
            // Without the thread nothing hangs on it.
            drop(tell(driver, News::Mark(used, mark)));
        }));
        loop {
            let news = if keeper.is_idle() {
                receiver.recv().map_err(RecvTimeoutError::from)
            } else {
                receiver.recv_timeout(pause)
            };
            // A mark is the answer to a round.
            let is_new = matches!(news, Ok(ref news) if !matches!(news, News::Mark(..)));
            if matches!(news, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            own.relax(driver);
            keeper.round(news.into_iter().chain(receiver.try_iter()));
            pause = if is_new { SHORT } else { LONG.min(pause * 2) };
        }
    }

    /// As the thread does, on the caller's: until it has ended, or for so long as the caller may wait.
    fn take_alone(&mut self, driver: &dyn Driver, news: Option<News>) {
        let _before = ContextGuard::around(driver);
        let _relaxed = Relaxed::new(driver);
        let begun = Instant::now();
        self.round(news.into_iter());
        while !self.is_idle() && begun.elapsed() < self.patience() {
            thread::sleep(SHORT);
            self.round(std::iter::empty());
        }
    }

    /// Makes one round on the caller's thread.
    fn look_alone(&mut self, driver: &dyn Driver) {
        let _before = ContextGuard::around(driver);
        let _relaxed = Relaxed::new(driver);
        self.round(std::iter::empty());
    }

    /// How long a caller waits: it may have to end the capture itself, or open the way for the work.
    fn patience(&self) -> Duration {
        match self.unmarked.is_empty() && self.marking.is_empty() && self.waiting.is_empty() {
            true => PATIENCE,
            false => room::LIMIT,
        }
    }

    /// Takes what another one has left.
    fn add(&mut self, mut left: Self) {
        self.unmarked.append(&mut left.unmarked);
        self.later.held.append(&mut left.later.held);
        // A caller that has just begun has tried none of it.
        self.later.tried = self.later.tried.min(left.later.tried);
        self.marking.append(&mut left.marking);
        self.waiting.append(&mut left.waiting);
    }

    /// Takes what has come, and ends what is over.
    fn round(&mut self, news: impl Iterator<Item = News>) {
        news.for_each(|news| self.take(news));
        self.mark();
        self.ask();
    }

    fn is_idle(&self) -> bool {
        let is_marked = self.unmarked.is_empty() && self.later.held.is_empty();
        is_marked && self.marking.is_empty() && self.waiting.is_empty()
    }

    fn take(&mut self, news: News) {
        match news {
            News::Marked(event, held) => self.waiting.push(Waiting {
                event,
                held,
                marked: None,
                kept: Vec::new(),
            }),
            News::Unmarked(held) => self.unmarked.push(held),
            News::Mark(used, mark) => {
                let begun = self.marking.iter().position(|at| at.used == used);
                let begun = begun.map(|at| self.marking.remove(at));
                let (held, kept) = begun.map(|at| (at.held, at.kept)).unwrap_or_default();
                self.marked(used, mark, held, kept);
            }
            News::Ended(owner) => {
                room::end_owner(owner);
                stats::DRAINED.add();
            }
            News::Left(left) => self.add(left),
            News::Hurry => {}
            News::Take(wanted, answers) => {
                if let Some(held) = self.find(&wanted)
                    && let Err(mut back) = answers.send(Answer(Some(held)))
                {
                    self.mark_again(back.0.0.take());
                }
            }
        }
    }

    /// Takes out the smallest block that would do. What keeps its stream stays with the event that is asked about.
    fn find(&mut self, wanted: &Wanted) -> Option<Held> {
        let waiting = self.waiting.iter_mut();
        let waiting = waiting.map(|at| (&mut at.held, Some(&mut at.kept)));
        let marking = self.marking.iter_mut();
        let marking = marking.map(|at| (&mut at.held, Some(&mut at.kept)));
        let unmarked = [(&mut self.unmarked, None), (&mut self.later.held, None)];
        let lists = waiting.chain(marking).chain(unmarked);
        let fits = lists.filter_map(|(list, kept)| {
            let blocks = list.iter().enumerate().filter(|(_, held)| wanted.is(held));
            let sizes = blocks.filter_map(|(at, held)| Some((held.block()?.nbytes, at)));
            let (size, at) = sizes.min()?;
            Some((size, at, list, kept))
        });
        let (_, at, list, kept) = fits.min_by_key(|(size, ..)| *size)?;
        let held = list.swap_remove(at);
        if let (Some(kept), Some(block)) = (kept, held.block()) {
            kept.extend(block.stream.clone());
        }
        Some(held)
    }

    /// Has the streams of what came marked, each stream once, unless it has as many [marks](MARKS) as it may have.
    fn mark(&mut self) {
        let mut left = std::mem::take(&mut self.unmarked);
        if self.later.tried.elapsed() > RETRY {
            left.append(&mut self.later.held);
        }
        while let Some((driver, used)) = left.last().map(|held| (held.driver(), held.used())) {
            let (of_it, others): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|held| held.used() == used);
            left = others;
            let marks = self.waiting.iter().filter(|at| at.marked == Some(used));
            let is_begun = self.marking.iter().any(|at| at.used == used);
            match is_begun || marks.count() >= MARKS {
                true => self.unmarked.extend(of_it),
                false => self.mark_one(driver, used, of_it),
            }
        }
        if let Some(markers) = &mut self.markers {
            let oldest = self.marking.iter().map(|marking| marking.since).min();
            let waited = oldest.map_or(Duration::ZERO, |since| since.elapsed());
            markers.grow(self.marking.len(), waited);
        }
        // A mark that blocks is not asked about captures any more, as the threads take the oldest. One that no thread has
        // taken may be of a capture, that of a waiting thread; so may one that is slow on a stream that was captured.
        let threads = self.markers.as_ref().map_or(0, Markers::threads);
        for (at, marking) in self.marking.iter_mut().enumerate() {
            if marking.since.elapsed() > PATIENCE {
                set_stuck(&mut marking.held, at >= threads || marking.is_again);
            }
        }
    }

    fn mark_one(&mut self, driver: &'static dyn Driver, used: Use, held: Vec<Held>) {
        let markers = self.markers.as_mut();
        if markers.is_some_and(|markers| markers.begin(driver, used)) {
            self.marking.push(Marking {
                used,
                since: Instant::now(),
                is_again: held.iter().any(Held::is_stuck),
                held,
                kept: Vec::new(),
            });
        } else {
            self.marked(used, used.mark(driver), held, Vec::new());
        }
    }

    fn marked(&mut self, used: Use, mark: Mark, mut held: Vec<Held>, kept: Vec<Kept>) {
        // The capture may be that of a thread that waits for memory.
        set_stuck(&mut held, matches!(mark, Mark::Later));
        match mark {
            Mark::Event(event) => {
                return self.waiting.push(Waiting {
                    event: Arc::new(event.into()),
                    held,
                    marked: Some(used),
                    kept,
                });
            }
            Mark::Later => {
                self.later.held.extend(held);
                self.later.tried = Instant::now();
            }
            Mark::Unnamed => held.into_iter().for_each(|held| free::later(held, true)),
            Mark::Over => held.into_iter().for_each(unused),
        }
        room::end_owner(kept);
    }

    /// Takes what has lost its mark.
    fn mark_again(&mut self, held: impl IntoIterator<Item = Held>) {
        for held in held {
            match held.keeps_its_stream() {
                true => self.unmarked.push(held),
                false => free::later(held, true),
            }
        }
    }

    /// Ends what hangs on events that have been reached.
    fn ask(&mut self) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.event.is_reached() {
                Ok(true) => waiting.end(),
                // A capture has begun and ended since the stream was asked.
                Err(error) if error.is_of_capture() => {
                    #[cfg(feature = "cudarc")]
                    readers::forget(&waiting.event);
                    // A writer may wait for it just now, and puts it back.
                    let event = Arc::into_inner(waiting.event);
                    let kept = event.and_then(StreamMark::destroy);
                    self.mark_again(waiting.held);
                    room::end_owner((kept, waiting.kept));
                }
                told => {
                    set_stuck(&mut waiting.held, told.is_err());
                    self.waiting.push(waiting);
                }
            }
        }
    }
}

fn set_stuck(held: &mut [Held], is_stuck: bool) {
    held.iter_mut().for_each(|held| held.set_stuck(is_stuck));
}

impl Waiting {
    fn end(self) {
        // The stream may go with it.
        room::end_owner(self.event);
        self.held.into_iter().for_each(unused);
        room::end_owner(self.kept);
    }
}

/// Ends what nothing uses.
fn unused(held: Held) {
    if held.waits_for_its_context() {
        free::later(held, false);
    } else {
        // SAFETY: the stream that it was for has got past its last use, or its context is gone.
        let left = unsafe { held.end() };
        left.into_iter().for_each(|left| free::later(left, false));
    }
}

#[cfg(test)]
mod tests;
