//! Processes: who one is, and whether it lives.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Identifies a process of this machine. The number alone is used again; not at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// When it started, in clock ticks since the machine did.
    pub(crate) start: u64,
}

impl Identity {
    /// Returns this process. Its first use follows cuInit: a child forked later cannot use the driver.
    pub(crate) fn own() -> Option<Identity> {
        static OWN: OnceLock<Option<Identity>> = OnceLock::new();
        *OWN.get_or_init(|| Identity::of(std::process::id()))
    }

    /// Returns the process that has a number now.
    fn of(pid: u32) -> Option<Identity> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name, in parentheses, may hold any bytes; the start is field 22.
        let (_, rest) = text.rsplit_once(')')?;
        let start = rest.split_whitespace().nth(19)?.parse().ok()?;
        Some(Identity { pid, start })
    }
}

/// A number that differs from one start of the machine to the next, and between machines.
pub(crate) fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text
            .chars()
            .filter(char::is_ascii_hexdigit)
            .take(16)
            .collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0)
    })
}

/// Another process, which can be asked whether it lives.
pub(crate) struct Peer {
    pub(crate) identity: Identity,
    process: OwnedFd,
}

impl Peer {
    /// Finds a process; None if it has ended.
    pub(crate) fn find(identity: Identity) -> Option<Peer> {
        // SAFETY: pidfd_open takes a number and flags, and returns a descriptor or -1.
        let number = unsafe { libc::syscall(libc::SYS_pidfd_open, identity.pid, 0) };
        let number = i32::try_from(number).ok().filter(|number| *number >= 0)?;
        // SAFETY: the descriptor was opened just now and nothing else has it.
        let process = unsafe { OwnedFd::from_raw_fd(number) };
        let peer = Peer { identity, process };
        // Asked after opening: the number may have gone over to another process before.
        (Identity::of(identity.pid) == Some(identity) && peer.is_alive()).then_some(peer)
    }

    /// Returns whether the process runs; false once it has exited or was killed.
    pub(crate) fn is_alive(&self) -> bool {
        let mut asked = libc::pollfd {
            fd: self.process.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable pollfd, and a timeout of 0 returns at once.
        let ready = unsafe { libc::poll(&raw mut asked, 1, 0) };
        // A signal interrupts the question (EINTR), and tells nothing.
        ready <= 0
    }
}
