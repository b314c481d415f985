//! Reads values from a fuzzer's bytes; after the last byte all are 0.

/// A fuzzer's bytes that are left.
#[derive(Debug)]
pub struct Bytes<'a>(&'a [u8]);

/// Values at which arithmetic goes wrong.
const EDGES: [i64; 12] = [
    0,
    1,
    -1,
    2,
    4,
    7,
    i64::MAX,
    i64::MIN,
    i64::MAX / 4,
    1 << 32,
    1 << 62,
    -8,
];

impl<'a> Bytes<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Reads a bit of one byte.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Reads a number: small, one of the edges, one near an edge, or any.
    pub fn number(&mut self) -> i64 {
        let edge = |byte: u8| EDGES[usize::from(byte) % EDGES.len()];
        match self.byte() % 4 {
            0 => i64::from(self.byte() % 8),
            1 => edge(self.byte()),
            2 => edge(self.byte()).wrapping_add(i64::from(self.byte().cast_signed())),
            _ => i64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Reads up to `most` numbers.
    pub fn numbers(&mut self, most: u8) -> Vec<i64> {
        let count = self.byte() % (most + 1);
        (0..count).map(|_| self.number()).collect()
    }

    /// Reads text of up to 12 bytes of ASCII.
    pub fn text(&mut self) -> String {
        let count = self.byte() % 12;
        (0..count).map(|_| char::from(self.byte() & 127)).collect()
    }

    /// Chooses one of some values.
    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.byte()) % values.len()]
    }
}
