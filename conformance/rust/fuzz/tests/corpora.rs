//! The targets on stable: every input that is kept, and random changes of them from a fixed seed.
//!
//! `FUZZ_INPUTS` is how many inputs each target gets; a failure prints the target and the input as hex.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use cai_dlpack_fuzz::TARGETS;

/// Xorshift: the same inputs in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }

    /// Changes, adds or removes some bytes.
    fn mutate(&mut self, input: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(input.len() + 1);
            match self.below(3) {
                0 => input.insert(at, self.byte()),
                1 if at < input.len() => drop(input.remove(at)),
                _ if at < input.len() => input[at] = self.byte(),
                _ => input.extend((0..8).map(|_| self.byte())),
            }
        }
        input.truncate(512);
    }
}

/// The inputs that are kept, one a line, in hex.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpora/{name}.txt"));
    let lines =
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let byte = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).expect("ASCII");
        u8::from_str_radix(digits, 16).expect("two digits")
    };
    let input = |line: &str| line.as_bytes().chunks(2).map(byte).collect();
    lines.lines().map(input).collect()
}

#[test]
fn every_target_on_its_corpus_and_changes_of_it() {
    let count: usize =
        std::env::var("FUZZ_INPUTS").map_or(20_000, |text| text.parse().expect("a number"));
    for (name, target) in TARGETS {
        let kept = corpus(name);
        assert!(!kept.is_empty(), "{name}: a target without a corpus");
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut input = Vec::new();
        for at in 0..kept.len() + count {
            match kept.get(at) {
                Some(kept) => input.clone_from(kept),
                None if random.below(8) == 0 => input.clone_from(&kept[random.below(kept.len())]),
                None => random.mutate(&mut input),
            }
            let ended = catch_unwind(AssertUnwindSafe(|| target(&input)));
            assert!(ended.is_ok(), "{name}: {input:02x?}");
        }
    }
}
