//! Doorbells: a word of each process, on which it sleeps and which other processes ring.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::process::peer::{Identity, Peer};
use crate::process::shared::{SharedFile, Words};
use crate::process::token::Token;

const BYTES: usize = 4096;

/// A doorbell, of this process or another one.
pub(crate) struct Doorbell {
    words: Words,
}

impl Doorbell {
    /// Returns this process's doorbell.
    pub(crate) fn own() -> Option<&'static Doorbell> {
        own().map(|(_, bell)| bell)
    }

    /// Counts how often it was rung.
    pub(crate) fn rings(&self) -> u32 {
        self.words.half(0).load(Ordering::Acquire)
    }

    /// Wakes the process.
    pub(crate) fn ring(&self) {
        let word = self.words.half(0);
        word.fetch_add(1, Ordering::Release);
        // SAFETY: the address of a mapped word; FUTEX_WAKE reads no further argument than the count.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Sleeps until it is rung again after `seen` rings, or for `limit`.
    pub(crate) fn sleep(&self, seen: u32, limit: Option<Duration>) {
        let word = self.words.half(0);
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos() as libc::c_long,
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the address of a mapped word, and null or a timespec that outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                seen,
                limit,
            )
        };
    }
}

/// Returns this process's doorbell and what names it to others. Made on first use, for good.
fn own() -> Option<(Token, &'static Doorbell)> {
    static OWN: OnceLock<Option<(SharedFile, Token, Doorbell)>> = OnceLock::new();
    let made = OWN.get_or_init(|| {
        let file = SharedFile::create(BYTES)?;
        let words = Words::map(&file, 0, BYTES)?;
        let token = Token::own(file.number(), file.inode(), 0)?;
        Some((file, token, Doorbell { words }))
    });
    made.as_ref().map(|(_, token, bell)| (*token, bell))
}

/// Returns what names this process's doorbell to others.
pub(crate) fn own_token() -> Option<Token> {
    own().map(|(token, _)| token)
}

/// Another process and its doorbell.
pub(crate) struct Neighbour {
    pub(crate) peer: Peer,
    pub(crate) bell: Doorbell,
}

static NEIGHBOURS: Mutex<BTreeMap<Identity, Arc<Neighbour>>> = Mutex::new(BTreeMap::new());

/// Finds the process whose doorbell a token names; None if it has ended.
pub(crate) fn neighbour(token: &Token) -> Option<Arc<Neighbour>> {
    let mut known = NEIGHBOURS.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|_, neighbour| neighbour.peer.is_alive());
    if let Some(neighbour) = known.get(&token.owner) {
        return Some(neighbour.clone());
    }
    let peer = Peer::find(token.owner)?;
    let words = Words::map(&token.open()?, 0, BYTES)?;
    let bell = Doorbell { words };
    let neighbour = Arc::new(Neighbour { peer, bell });
    known.insert(token.owner, neighbour.clone());
    Some(neighbour)
}
