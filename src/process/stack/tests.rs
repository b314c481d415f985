use super::*;

/// What is told `bytes` below `from`, or a little more.
fn below(from: usize, bytes: usize) -> bool {
    let room = std::hint::black_box([0_u8; 4 << 10]);
    match from - room.as_ptr().addr() < bytes {
        true => below(from, bytes) && room[0] == 0,
        false => has_half_left(),
    }
}

fn told_below(bytes: usize) -> bool {
    let here = 0_u8;
    below((&raw const here).addr(), bytes)
}

fn on_stack_of<R: Send>(bytes: usize, run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes);
        let thread = thread.spawn_scoped(scope, run).expect("a thread");
        thread.join().expect("no panic")
    })
}

#[test]
fn a_half_of_a_stack_is_left_or_not() {
    assert!(on_stack_of(8 << 20, || told_below(3 << 20)));
    assert!(!on_stack_of(8 << 20, || told_below(5 << 20)));
    assert!(!on_stack_of(256 << 10, has_half_left));
}
