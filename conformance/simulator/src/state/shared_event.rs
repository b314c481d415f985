//! Events of several processes: who has recorded one last, and whether that is done.
//!
//! The file of an event has words that its processes change atomically, so that one that is killed
//! leaves nothing locked. Each record has a number and a slot; the slot tells who made the record,
//! whether it is done, and whether somebody waits for it. The one who waits rings the recorder, which
//! then does the work before the record (`run::service`); the one who is done rings those who wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::codes::Code;
use crate::process::doorbell::{self, Neighbour};
use crate::process::peer::Identity;
use crate::process::shared::{SharedFile, Words};
use crate::process::token::{Names, Token};
use crate::state::queue::{CaptureId, Mark};

const BYTES: usize = 4 * 4096;

/// Words: the last record that is published, the last number given out, members, the end.
const LAST: usize = 0;
const NUMBERS: usize = 1;
const MEMBERS: usize = 2;
const DESTROYED: usize = 3;
/// Processes that use the event: eight words each, a token of the doorbell and, last, that it is complete.
const FIRST_MEMBER: usize = 8;
const MEMBER_WORDS: usize = 8;
const MEMBER_LIMIT: usize = 96;
const COMPLETE: usize = 7;
/// A slot for each of the last records.
const FIRST_SLOT: usize = FIRST_MEMBER + MEMBER_LIMIT * MEMBER_WORDS;
const SLOTS: u64 = 1024;

/// A slot: the record's number, its maker, and two bits.
const DONE: u64 = 1;
const WANTED: u64 = 2;
const MAKER_SHIFT: u32 = 8;
const NUMBER_SHIFT: u32 = 16;

/// The creator is the first member.
const CREATOR: usize = 0;

/// The last record of an event.
#[derive(Clone)]
pub(crate) enum Last {
    Never,
    Recorded(Mark),
    /// Recorded by a stream that was capturing: a node, usable inside that capture only.
    Captured(CaptureId, usize),
    /// Recorded by another process.
    Elsewhere(Awaited),
}

/// How far a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Pending,
    Done,
    /// Its process has ended before.
    Lost,
}

/// Returns the member that made the record of a slot.
fn maker(slot: u64) -> usize {
    (slot >> MAKER_SHIFT & 0xFF) as usize
}

/// An event that other processes can open, or have created.
pub(crate) struct SharedEvent {
    file: SharedFile,
    words: Words,
    /// This process's place among the members.
    me: usize,
    /// Records of this process that are not done: number and position.
    own: Mutex<Vec<(u64, Mark)>>,
    /// Members that were looked for; None for those that have ended.
    found: Mutex<BTreeMap<usize, Option<Arc<Neighbour>>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedEvent {
    pub(crate) fn create() -> Result<Arc<SharedEvent>, Code> {
        let file = SharedFile::create(BYTES).ok_or(Code::OUT_OF_MEMORY)?;
        SharedEvent::join(file)
    }

    /// Opens an event of another process.
    pub(crate) fn open(token: &Token) -> Result<Arc<SharedEvent>, Code> {
        let file = token.open().ok_or(Code::MAP_FAILED)?;
        if file.bytes() != BYTES {
            return Err(Code::INVALID_HANDLE);
        }
        let event = SharedEvent::join(file)?;
        event.check().map_err(|_| Code::MAP_FAILED)?;
        Ok(event)
    }

    /// Maps the file, and makes this process a member.
    fn join(file: SharedFile) -> Result<Arc<SharedEvent>, Code> {
        let words = Words::map(&file, 0, BYTES).ok_or(Code::MAP_FAILED)?;
        let mut event = SharedEvent {
            file,
            words,
            me: 0,
            own: Mutex::default(),
            found: Mutex::default(),
        };
        let token = doorbell::own_token().ok_or(Code::OPERATING_SYSTEM)?;
        let mut members = 0..event.members();
        event.me = match members.find(|index| event.member(*index) == Some(token)) {
            Some(index) => index,
            None => event.add_member(&token).ok_or(Code::OUT_OF_MEMORY)?,
        };
        Ok(Arc::new(event))
    }

    fn members(&self) -> usize {
        let claimed = self.words.word(MEMBERS).load(Ordering::Acquire) as usize;
        claimed.min(MEMBER_LIMIT)
    }

    fn member_word(&self, member: usize, index: usize) -> &AtomicU64 {
        self.words
            .word(FIRST_MEMBER + member * MEMBER_WORDS + index)
    }

    fn add_member(&self, token: &Token) -> Option<usize> {
        let index = self.words.word(MEMBERS).fetch_add(1, Ordering::AcqRel) as usize;
        if index >= MEMBER_LIMIT {
            return None;
        }
        for (at, word) in token.words().into_iter().enumerate() {
            self.member_word(index, at).store(word, Ordering::Relaxed);
        }
        self.member_word(index, COMPLETE)
            .store(1, Ordering::Release);
        Some(index)
    }

    /// Returns a member's doorbell; None while it is not complete, or if its process died meanwhile.
    fn member(&self, index: usize) -> Option<Token> {
        let complete = self.member_word(index, COMPLETE).load(Ordering::Acquire) != 0;
        let word = |at| self.member_word(index, at).load(Ordering::Relaxed);
        complete.then(|| Token::from_words([0, 1, 2, 3].map(word)))
    }

    /// Returns a member that is another process and lives.
    fn neighbour(&self, index: usize) -> Option<Arc<Neighbour>> {
        let token = self.member(index)?;
        let mut found = locked(&self.found);
        let neighbour = found
            .entry(index)
            .or_insert_with(|| doorbell::neighbour(&token));
        if neighbour
            .as_ref()
            .is_some_and(|other| !other.peer.is_alive())
        {
            *neighbour = None;
        }
        neighbour.clone()
    }

    /// Names the event to other processes; None if another one has created it.
    pub(crate) fn token(&self) -> Option<[u8; 64]> {
        let own = (self.me == CREATOR)
            .then(|| Token::own(self.file.number(), self.file.inode(), 0))
            .flatten();
        own.map(|token| token.bytes(Names::Event))
    }

    pub(crate) fn inode(&self) -> u64 {
        self.file.inode()
    }

    /// Fails with INVALID_HANDLE if the process that created the event has destroyed it or has ended:
    /// operations on it are then "undefined behavior" by the documentation.
    pub(crate) fn check(&self) -> Result<(), Code> {
        let destroyed = self.words.word(DESTROYED).load(Ordering::Acquire) != 0;
        let gone = self.me != CREATOR && self.neighbour(CREATOR).is_none();
        if destroyed || gone {
            Err(Code::INVALID_HANDLE)
        } else {
            Ok(())
        }
    }

    /// Notes that a handle of this process to the event is destroyed.
    fn destroy(&self) {
        if self.me == CREATOR {
            self.words.word(DESTROYED).store(1, Ordering::Release);
        }
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        self.words.word(FIRST_SLOT + (number % SLOTS) as usize)
    }

    /// Begins a record, which nobody sees before [`Published::publish`].
    pub(crate) fn begin(self: &Arc<SharedEvent>) -> Arc<Published> {
        let number = self.words.word(NUMBERS).fetch_add(1, Ordering::AcqRel) + 1;
        let fresh = number << NUMBER_SHIFT | (self.me as u64) << MAKER_SHIFT;
        self.slot(number).store(fresh, Ordering::Release);
        Arc::new(Published {
            event: self.clone(),
            number,
        })
    }

    fn publish(&self, number: u64, mark: Mark) {
        let mut own = locked(&self.own);
        own.retain(|(number, _)| self.is_pending(*number));
        if self.is_pending(number) {
            own.push((number, mark));
        }
        self.words.word(LAST).fetch_max(number, Ordering::AcqRel);
    }

    /// Returns whether a record is not done. If 1024 later ones were made it counts as the last of
    /// those with its slot.
    fn is_pending(&self, number: u64) -> bool {
        self.slot(number).load(Ordering::Acquire) & DONE == 0
    }

    fn finish(&self, number: u64) {
        let slot = self.slot(number);
        let still = |value: u64| (value >> NUMBER_SHIFT == number).then_some(value | DONE);
        let before = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, still);
        if before.is_ok_and(|value| value & WANTED != 0) {
            for other in (0..self.members()).filter(|index| *index != self.me) {
                if let Some(neighbour) = self.neighbour(other) {
                    neighbour.bell.ring();
                }
            }
        }
    }

    /// Returns the last record, as this process has to wait for it.
    pub(crate) fn last(self: &Arc<SharedEvent>) -> Result<Last, Code> {
        self.check()?;
        let number = self.words.word(LAST).load(Ordering::Acquire);
        let mine = locked(&self.own)
            .iter()
            .find(|(own, _)| *own == number)
            .map(|(_, mark)| *mark);
        Ok(match (number, mine) {
            (0, _) => Last::Never,
            (_, Some(mark)) => Last::Recorded(mark),
            (number, None) => Last::Elsewhere(Awaited {
                event: self.clone(),
                number,
            }),
        })
    }

    /// Returns the positions before records of this process that others wait for.
    pub(crate) fn wanted(&self) -> Vec<Mark> {
        let mut own = locked(&self.own);
        own.retain(|(number, _)| self.is_pending(*number));
        let is_wanted = |number: u64| self.slot(number).load(Ordering::Acquire) & WANTED != 0;
        own.iter()
            .filter(|(number, _)| is_wanted(*number))
            .map(|(_, mark)| *mark)
            .collect()
    }
}

/// An event handle's part in a shared event: the creator's ends the event.
pub(crate) struct SharedHandle(pub(crate) Arc<SharedEvent>);

impl Drop for SharedHandle {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// A record of this process on a shared event: done when its work is, or when that is dropped.
pub(crate) struct Published {
    event: Arc<SharedEvent>,
    number: u64,
}

impl Published {
    /// Makes the record the event's last one.
    pub(crate) fn publish(&self, mark: Mark) {
        self.event.publish(self.number, mark);
    }

    /// Notes that the record is done.
    pub(crate) fn finish(&self) {
        self.event.finish(self.number);
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A record that another process has made, as something to wait for.
#[derive(Clone)]
pub(crate) struct Awaited {
    event: Arc<SharedEvent>,
    number: u64,
}

impl Awaited {
    pub(crate) fn standing(&self) -> Standing {
        let value = self.event.slot(self.number).load(Ordering::Acquire);
        if value & DONE != 0 {
            return Standing::Done;
        }
        let maker = maker(value);
        if maker == self.event.me || self.event.neighbour(maker).is_some() {
            return Standing::Pending;
        }
        // It may have been done just before its process ended.
        if self.event.is_pending(self.number) {
            Standing::Lost
        } else {
            Standing::Done
        }
    }

    /// Returns whether there is nothing to wait for any more.
    pub(crate) fn is_over(&self) -> bool {
        self.standing() != Standing::Pending
    }

    /// Asks the process that made the record to do the work before it. Asking again changes nothing.
    pub(crate) fn demand(&self) {
        let before = self
            .event
            .slot(self.number)
            .fetch_or(WANTED, Ordering::AcqRel);
        if before & (DONE | WANTED) == 0 {
            self.ring();
        }
    }

    /// Rings the process that made the record.
    pub(crate) fn ring(&self) {
        let value = self.event.slot(self.number).load(Ordering::Acquire);
        if let Some(neighbour) = self.event.neighbour(maker(value)) {
            neighbour.bell.ring();
        }
    }

    /// Fails if the record is lost with the event itself; that of a process that had only opened the
    /// event counts as done.
    pub(crate) fn outcome(&self) -> Result<(), Code> {
        match self.standing() {
            Standing::Lost => self.event.check(),
            _ => Ok(()),
        }
    }
}

/// Returns whether a token is of this process, which cannot open its own handles.
pub(crate) fn is_own(token: &Token) -> bool {
    Some(token.owner) == Identity::own()
}
