//! Who still uses memory that a process shares: a lock of a file, which the kernel gives up for a process that dies.
//!
//! ```text
//!   exporter                                        importer
//!     memfd: state 0, nonce                           opens /proc/PID/fd/N: a description of its own
//!     ... the block ends ...                          takes the shared lock (flock), without a wait
//!     writes state 1                                  reads the state: 1 is refused
//!     tries the exclusive lock ------ until --------- closes its mapping, gives up the lock
//!     releases the memory
//! ```
//! **No importer uses what has been released.** An importer goes on only if it has read 0 while it had the lock. The
//! exporter releases only after it has written 1 and has had the exclusive lock after that. If the importer's lock came
//! first, the exporter's try comes later and fails until that lock is given up. If the exporter's came first, the importer
//! reads after it what was written before it: 1. The kernel orders the two by the lock itself.
//!
//! The lock is of the open file description. A forked child would keep it: there the file is closed ([`Own`]), and who
//! gives a lock up does so by name, before the file is closed. A record lock (`F_SETLK`) belongs to the process instead, but
//! is lost as soon as anybody in the process closes the file, such as another extension module's copy of this library.
//!
//! Numbers of processes and files come back. So the process's start is compared, then the name of the file, then a nonce.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::ended;
use super::handle::{Nonce, Place};
use crate::error::Error;
use crate::process::inherited::Own;
use crate::protocol::rule::{Field, Rule, Violation};

/// The file's name, as `/proc` shows it.
const NAME: &std::ffi::CStr = c"cai-dlpack-share";
const SHOWN: &str = "/memfd:cai-dlpack-share";

/// The first byte of the file once the share has ended.
const ENDED: u8 = 1;

impl Place {
    /// # Errors
    /// The operating system's refusal.
    fn here(file: u32, nonce: Nonce) -> Result<Self, Error> {
        let process = std::process::id();
        let started = started(process)?
            .ok_or_else(|| io::Error::other(format!("/proc/{process}/stat cannot be read")))?;
        Ok(Self {
            boot: uuid("/proc/sys/kernel/random/boot_id")?,
            pid_namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
            user: user(),
            process,
            started,
            file,
            nonce,
        })
    }

    /// Checks that a process of this machine, and of this user, has made the handle; returns whether it is this one.
    ///
    /// # Errors
    /// `share-host`, `share-user`; the operating system's refusal.
    pub(super) fn check(&self) -> Result<bool, Error> {
        let here = Self::here(self.file, self.nonce)?;
        let field = Field::Argument("handle");
        if here.boot != self.boot {
            let found = "a handle of another machine, or of before this one was started";
            return Err(Violation::new(Rule::ShareHost, field, found).into());
        }
        if here.pid_namespace != self.pid_namespace {
            let found = "a handle of another container";
            let hint = "start both containers with one pid and ipc namespace";
            return Err(Violation::new(Rule::ShareHost, field, found)
                .with_hint(hint)
                .into());
        }
        if here.user != self.user {
            let found = format_args!("a handle of user {}, and this is {}", self.user, here.user);
            return Err(Violation::new(Rule::ShareUser, field, found).into());
        }
        Ok((here.process, here.started) == (self.process, self.started))
    }
}

/// Reads when a process was started; `None` if there is none.
///
/// # Errors
/// The operating system's refusal.
fn started(process: u32) -> io::Result<Option<u64>> {
    // The program's name, which need not be UTF-8.
    let stat = match fs::read(format!("/proc/{process}/stat")) {
        // Of a process that ends meanwhile the file is there, and cannot be read.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        stat => stat?,
    };
    let stat = String::from_utf8_lossy(&stat);
    // The second field is the program's name in parentheses, which may hold any. The start is the 22nd (proc(5)).
    let start = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.split(' ').nth(19));
    Ok(start.and_then(|start| start.parse().ok()))
}

/// Reads a file that holds a UUID.
fn uuid(path: &str) -> io::Result<[u8; 16]> {
    let text = fs::read_to_string(path)?;
    let digits = text.trim_end().replace('-', "");
    let number = u128::from_str_radix(&digits, 16);
    let number = number.map_err(|_| io::Error::other(format!("{path} holds no UUID")))?;
    Ok(number.to_be_bytes())
}

fn user() -> u32 {
    // SAFETY: takes nothing, and cannot fail.
    unsafe { libc::geteuid() }
}

/// The exporter's end.
#[derive(Debug)]
pub(super) struct Holders {
    file: Own,
    pub(super) place: Place,
}

impl Holders {
    /// Begins a share that nobody holds yet.
    ///
    /// # Errors
    /// The operating system's refusal.
    pub(super) fn new() -> Result<Self, Error> {
        let file = Own::open(|| {
            // The system call itself: wheels are for C libraries that are older than their function (glibc 2.27).
            // SAFETY: memfd_create(2) takes these two, and reads a string with a final NUL.
            let made =
                unsafe { libc::syscall(libc::SYS_memfd_create, NAME.as_ptr(), libc::MFD_CLOEXEC) };
            // The number of a file, or -1.
            let made = made as i32;
            if made < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: just made, open, and nobody else's.
            Ok(File::from(unsafe { OwnedFd::from_raw_fd(made) }))
        })?;
        // 122 random bits of the kernel's.
        let nonce = uuid("/proc/sys/kernel/random/uuid")?;
        file.write_all_at(&[0], 0)?;
        file.write_all_at(&nonce, 1)?;
        let place = Place::here(file.as_raw_fd().unsigned_abs(), nonce)?;
        Ok(Self { file, place })
    }

    /// Has every later importer refused.
    ///
    /// # Errors
    /// The operating system's refusal: nothing may be released then.
    pub(super) fn end(&self) -> io::Result<()> {
        self.file.write_all_at(&[ENDED], 0)
    }

    /// Whether no importer is left; call it after [`end`](Self::end). Does not wait.
    pub(super) fn are_gone(&self) -> bool {
        let is_locked = self.file.try_lock().is_ok();
        if is_locked {
            // A later importer then reads that the share has ended.
            let _ = self.file.unlock();
        }
        is_locked
    }
}

/// An importer's end: while it is there, the exporter keeps the memory.
#[derive(Debug)]
pub(super) struct Hold(Own);

impl Hold {
    /// # Errors
    /// `share-ended`; `share-user` if the process may not be looked at; the operating system's refusal.
    pub(super) fn take(place: &Place) -> Result<Self, Error> {
        if started(place.process)? != Some(place.started) {
            return Err(ended("a process that has ended"));
        }
        let path = format!("/proc/{}/fd/{}", place.process, place.file);
        let path = Path::new(&path);
        let is_ours = |link: &Path| link.to_str().is_some_and(|link| link.starts_with(SHOWN));
        match fs::read_link(path) {
            Ok(link) if is_ours(&link) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let found = format_args!("a handle of process {}: {error}", place.process);
                let field = Field::Argument("handle");
                let hint =
                    "its files are hidden: it runs as root for this user, or was made undumpable";
                let violation = Violation::new(Rule::ShareUser, field, found);
                return Err(violation.with_hint(hint).into());
            }
            _ => return Err(ended("a handle whose block has been left")),
        }
        // What has come in its place by now is not waited for, whatever it is.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = Own::open(|| File::options().read(true).custom_flags(flags).open(path));
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ended("a handle whose block has been left"));
            }
            file => file?,
        };
        let hold = Self(file);
        let mut state = [ENDED; 1 + size_of::<Nonce>()];
        let is_it = |state: &[u8]| {
            state
                .split_first()
                .is_some_and(|(_, nonce)| *nonce == place.nonce)
        };
        if hold.0.read_exact_at(&mut state, 0).is_err() || !is_it(&state) {
            return Err(ended("a handle whose block has been left"));
        }
        match hold.0.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ended("a handle whose block has been left"));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let mut state = [ENDED];
        hold.0.read_exact_at(&mut state, 0)?;
        match state {
            [ENDED] => Err(ended("a handle whose block has been left")),
            _ => Ok(hold),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Whatever else refers to the description; a lock that is not held is no error.
        let _ = self.0.unlock();
    }
}
