//! The choices of a program.

use crate::protocol::stream::Stream;

/// Of this test alone: what is freed is taken over by no other test.
pub(super) const CONTEXT: u64 = 0x5afe;
pub(super) const HANDLES: [Stream; 4] = [
    Stream::from_raw(0xa1),
    Stream::from_raw(0xa2),
    Stream::LegacyDefault,
    Stream::PerThreadDefault,
];

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 8) as usize % end.max(1)
    }

    pub(super) fn stream(&mut self) -> Stream {
        HANDLES[self.below(HANDLES.len())]
    }

    /// Rarely none.
    pub(super) fn extent(&mut self) -> i64 {
        [0, 1, 1, 2, 2, 3, 3, 4, 2, 3][self.below(10)]
    }
}
