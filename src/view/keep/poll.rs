//! The thread that asks all events together.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::block::{Block, Mark, Memory};
use super::free;
use crate::driver::{ContextGuard, Driver, Lease, RELAXED, Relaxed};
use crate::process::signals;
use crate::view::Owner;

/// The pause between two rounds of questions: short after news, doubled up to the long one while there are none.
const SHORT: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_millis(5);

static KEEPER: OnceLock<Option<Sender<News>>> = OnceLock::new();

enum News {
    /// What hangs on an event.
    Owner(Lease<'static>, Owner),
    /// Memory whose consumer is gone.
    Block(Block),
    /// What a graph has kept, which is gone.
    Ended(Owner),
    /// A thread that waits until no stream uses what has come, of memory of a device.
    Drain(Drain),
}

/// Ends the wait of a thread when it is dropped.
struct Drain {
    ordinal: i32,
    _waits: Sender<()>,
}

/// Starts the thread, if it could be started, so that a deleter finds it.
pub(crate) fn start(driver: &'static dyn Driver) {
    sender(driver);
}

fn sender(driver: &'static dyn Driver) -> Option<&'static Sender<News>> {
    let start = || {
        let (sender, receiver) = channel();
        let thread = thread::Builder::new().name("cai-dlpack-keep".into());
        let started = thread.spawn(move || Keeper::run(driver, &receiver));
        started.is_ok().then_some(sender)
    };
    KEEPER.get_or_init(start).as_ref()
}

/// Drops `owner` once the event has been reached. Without a thread, the caller waits.
pub(crate) fn until_reached(driver: &'static dyn Driver, event: Lease<'static>, owner: Owner) {
    if let Some(news) = tell(driver, News::Owner(event, owner)) {
        Keeper::default().take_alone(driver, news);
    }
}

/// Drops `owner` on the thread, which [`start`] has started; without one it stays for ever, as the caller may neither wait
/// nor drop it.
pub(super) fn drop_later(owner: Owner) {
    if let Some(Some(keeper)) = KEEPER.get()
        && let Err(error) = keeper.send(News::Ended(owner))
    {
        std::mem::forget(error.0);
    }
}

/// Ends a block once the stream that it is for is done with it. Without a thread, the caller waits.
pub(crate) fn end(block: Block) {
    let driver = block.driver;
    if let Some(news) = tell(driver, News::Block(block)) {
        Keeper::default().take_alone(driver, news);
    }
}

/// Blocks until no stream uses memory of a device that has ended by now.
pub(super) fn drain(driver: &'static dyn Driver, ordinal: i32) {
    let (waits, receiver) = channel();
    let drain = Drain {
        ordinal,
        _waits: waits,
    };
    if tell(driver, News::Drain(drain)).is_none() {
        // The sender is dropped, unused, if the thread is gone.
        let _ = receiver.recv();
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
    /// Blocks whose stream has no mark for them yet.
    unmarked: Vec<Block>,
    waiting: Vec<Waiting>,
    drains: Vec<Drain>,
}

/// What hangs on one event.
struct Waiting {
    event: Lease<'static>,
    /// With the device of its event.
    owner: Option<(Owner, i32)>,
    blocks: Vec<Block>,
}

impl Keeper {
    fn run(driver: &'static dyn Driver, receiver: &Receiver<News>) {
        signals::block();
        // What this thread asks is no call that a capture elsewhere forbids.
        let _ = driver.exchange_capture_mode(RELAXED);
        let (mut keeper, mut pause) = (Self::default(), SHORT);
        loop {
            let news = if keeper.is_idle() {
                receiver.recv().map_err(RecvTimeoutError::from)
            } else {
                receiver.recv_timeout(pause)
            };
            let is_new = news.is_ok();
            if matches!(news, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            for news in news.into_iter().chain(receiver.try_iter()) {
                keeper.take(news);
            }
            keeper.mark();
            keeper.ask();
            pause = if is_new { SHORT } else { LONG.min(pause * 2) };
        }
    }

    /// As the thread does, on the caller's: until it has ended.
    fn take_alone(mut self, driver: &dyn Driver, news: News) {
        let _before = ContextGuard::around(driver);
        let _relaxed = Relaxed::new(driver);
        self.take(news);
        while !self.is_idle() {
            self.mark();
            self.ask();
            thread::sleep(SHORT);
        }
    }

    fn is_idle(&self) -> bool {
        self.unmarked.is_empty() && self.waiting.is_empty()
    }

    fn take(&mut self, news: News) {
        match news {
            News::Owner(event, owner) => {
                // A context that is gone has no device, and no allocation waits for its memory.
                let ordinal = event.device().unwrap_or(-1);
                self.waiting.push(Waiting {
                    event,
                    owner: Some((owner, ordinal)),
                    blocks: Vec::new(),
                });
            }
            News::Block(block) => self.unmarked.push(block),
            News::Ended(owner) => drop(owner),
            News::Drain(drain) => self.drains.push(drain),
        }
    }

    /// Marks the streams of the blocks that came, each stream once.
    fn mark(&mut self) {
        let mut left = std::mem::take(&mut self.unmarked);
        while let Some((driver, used)) = left.last().map(|block| (block.driver, block.used)) {
            let (of_it, others): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|block| block.used == used);
            left = others;
            self.mark_one(used.mark(driver), of_it);
        }
    }

    fn mark_one(&mut self, mark: Mark, blocks: Vec<Block>) {
        match mark {
            Mark::Event(event) => self.waiting.push(Waiting {
                event,
                owner: None,
                blocks,
            }),
            Mark::Captured => self.unmarked.extend(blocks),
            Mark::Unnamed => blocks
                .into_iter()
                .for_each(|block| free::later(block, true)),
            Mark::Over => blocks.into_iter().for_each(unused),
        }
    }

    /// Ends what hangs on events that have been reached, and the drains that nothing is left for. What waits for a
    /// capture to end is not waited for: the capture may be the waiting thread's.
    fn ask(&mut self) {
        let (reached, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.event.is_reached());
        self.waiting = waiting;
        reached.into_iter().for_each(Waiting::end);
        let waiting = &self.waiting;
        self.drains
            .retain(|drain| waiting.iter().any(|waiting| waiting.is_of(drain.ordinal)));
    }
}

impl Waiting {
    /// Whether memory of a device may hang on it.
    fn is_of(&self, ordinal: i32) -> bool {
        self.owner
            .as_ref()
            .is_some_and(|(_, device)| *device == ordinal)
            || self.blocks.iter().any(|block| block.ordinal == ordinal)
    }

    fn end(self) {
        let Self {
            event,
            owner,
            blocks,
        } = self;
        drop(event);
        blocks.into_iter().for_each(unused);
        drop(owner);
    }
}

/// Gives a block back that nothing uses.
fn unused(block: Block) {
    if block.memory == Memory::Pool {
        // SAFETY: the stream that it was made for has got past its last use, or its context is gone.
        unsafe { block.free() };
    } else {
        free::later(block, false);
    }
}
