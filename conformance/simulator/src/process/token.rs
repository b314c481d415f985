//! The 64 bytes that name a file of a process to other processes: what an IPC handle is.

use crate::process::peer::{Identity, boot};
use crate::process::shared::SharedFile;

/// What a handle names. A handle of one kind is no handle of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Memory,
    Event,
    PoolMemory,
}

impl Names {
    fn mark(self) -> &'static [u8; 8] {
        match self {
            Names::Memory => b"cusimMEM",
            Names::Event => b"cusimEVT",
            Names::PoolMemory => b"cusimPTR",
        }
    }
}

/// A handle, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) owner: Identity,
    pub(crate) number: i32,
    pub(crate) inode: u64,
    /// Of another file that this one belongs to: a pool.
    pub(crate) part_of: u64,
}

impl Token {
    /// Names a file of this process.
    pub(crate) fn own(number: i32, inode: u64, part_of: u64) -> Option<Token> {
        let owner = Identity::own()?;
        Some(Token {
            owner,
            number,
            inode,
            part_of,
        })
    }

    pub(crate) fn bytes(&self, names: Names) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(names.mark());
        bytes[8..16].copy_from_slice(&boot().to_ne_bytes());
        for (at, word) in self.words().into_iter().enumerate() {
            bytes[16 + at * 8..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Reads a handle; None for bytes that are none of this kind, or one of another start of the machine.
    pub(crate) fn read(bytes: &[u8; 64], names: Names) -> Option<Token> {
        if bytes[..8] != *names.mark() || word(bytes, 8) != boot() || bytes[48..] != [0; 16] {
            return None;
        }
        Some(Token::from_words(
            [16, 24, 32, 40].map(|at| word(bytes, at)),
        ))
    }

    /// Returns the token as words, for a page that processes share.
    pub(crate) fn words(&self) -> [u64; 4] {
        let number = u64::from(self.number.cast_unsigned());
        let place = number << 32 | u64::from(self.owner.pid);
        [place, self.owner.start, self.inode, self.part_of]
    }

    /// Reads what [`Token::words`] wrote.
    pub(crate) fn from_words([place, start, inode, part_of]: [u64; 4]) -> Token {
        let pid = place as u32;
        Token {
            owner: Identity { pid, start },
            number: ((place >> 32) as u32).cast_signed(),
            inode,
            part_of,
        }
    }

    /// Opens the file; None if it or its process is gone, or belongs to another user.
    pub(crate) fn open(&self) -> Option<SharedFile> {
        SharedFile::open(self.owner, self.number, self.inode)
    }
}

fn word(bytes: &[u8; 64], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::{Names, Token};

    #[test]
    fn a_handle_is_read_as_it_was_written_and_as_no_other_kind() {
        let token = Token::own(7, 1 << 40, 3).expect("a process");
        let bytes = token.bytes(Names::Memory);
        assert_eq!(Token::read(&bytes, Names::Memory), Some(token));
        assert_eq!(Token::read(&bytes, Names::Event), None);
        let mut elsewhere = bytes;
        elsewhere[9] ^= 1;
        assert_eq!(
            Token::read(&elsewhere, Names::Memory),
            None,
            "another machine's"
        );
    }
}
