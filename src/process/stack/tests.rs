#[cfg(all(target_os = "linux", not(miri)))]
use super::*;

/// Runs a test on a thread that has so large a stack.
pub(crate) fn on_stack_of<R: Send>(bytes: usize, run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes);
        let thread = thread.spawn_scoped(scope, run).expect("a thread");
        thread.join().expect("no panic")
    })
}

/// Whether there is room `bytes` below `begun`, or a little more, for what began `since` bytes above that.
#[cfg(all(target_os = "linux", not(miri)))]
fn below(begun: usize, bytes: usize, since: usize) -> bool {
    let room = std::hint::black_box([0_u8; 4 << 10]);
    match begun - room.as_ptr().addr() < bytes {
        true => below(begun, bytes, since) && room[0] == 0,
        false => has_room(here() + since, 128 << 10),
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn there_is_room_in_the_first_half_of_a_large_stack_for_what_uses_little() {
    let room = |bytes, since| on_stack_of(8 << 20, move || below(here(), bytes, since));
    assert!(room(1 << 20, 0));
    assert!(room(3 << 20, 64 << 10));
    assert!(!room(3 << 20, 256 << 10));
    assert!(!room(5 << 20, 0));
    assert!(!on_stack_of(256 << 10, || has_room(here(), 128 << 10)));
    assert!(!has_room(0, usize::MAX));
}
