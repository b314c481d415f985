use std::collections::HashSet;
use std::sync::{Barrier, Mutex};
use std::thread;

use super::*;

/// The one lock of all who say that they exclude one another.
static EXCLUDING: Mutex<()> = Mutex::new(());

#[test]
fn a_ticket_is_valid_until_its_slot_is_given_back() {
    let ticket = Ticket::take(false);
    assert_ne!(ticket.number(), 0);
    assert!(ticket.is_valid());
    Ticket::end(ticket.number(), false);
    assert!(!ticket.is_valid());
}

#[test]
fn a_slot_comes_again_by_another_ticket() {
    let first = Ticket::take(false);
    Ticket::end(first.number(), false);
    // Other tests take slots too: this one comes again soon.
    let taken: Vec<_> = (0..if cfg!(miri) { 30 } else { 1000 })
        .map(|_| Ticket::take(false))
        .collect();
    let again = taken
        .iter()
        .find(|ticket| ticket.number() == first.number());
    assert!(again.is_none_or(|again| again.is_valid() && *again != first));
    assert!(!first.is_valid());
    taken
        .iter()
        .for_each(|ticket| Ticket::end(ticket.number(), false));
}

#[test]
#[cfg_attr(miri, ignore = "takes every slot there is")]
fn slots_come_back_without_end() {
    let _lock = EXCLUDING.lock();
    for exclusive in [false, true] {
        for _ in 0..=SLOTS {
            let ticket = Ticket::take(exclusive);
            assert_ne!(ticket.number(), 0);
            Ticket::end(ticket.number(), exclusive);
        }
    }
}

/// By the changes a thread notices that the list has been changed, and is as it was before.
#[test]
fn each_change_of_the_list_is_counted() {
    let mut free = with_first(0, 3);
    for change in 1..200_u64 {
        assert_eq!((free >> u16::BITS, free as u16), (change, 3));
        free = with_first(free, 3);
    }
    assert_eq!(with_first(u64::MAX, 7), 7, "the count begins anew");
}

#[test]
fn a_tensor_without_a_slot_is_never_known_to_have_ended() {
    let none = Ticket(0);
    Ticket::end(none.number(), false);
    assert!(none.is_valid());
}

/// Threads that exclude one another, beside others that exclude nobody.
#[test]
fn no_slot_has_two_holders() {
    const THREADS: usize = 4;
    const ROUNDS: usize = if cfg!(miri) { 8 } else { 20_000 };
    let (held, start) = (Mutex::new(HashSet::new()), Barrier::new(THREADS));
    let (held, start) = (&held, &start);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let exclusive = thread % 2 == 0;
            let locked = move || exclusive.then(|| EXCLUDING.lock().unwrap());
            scope.spawn(move || {
                start.wait();
                for _ in 0..ROUNDS {
                    let ticket = {
                        let _lock = locked();
                        Ticket::take(exclusive)
                    };
                    assert!(held.lock().unwrap().insert(ticket.number()), "{ticket:?}");
                    assert!(ticket.is_valid());
                    assert!(held.lock().unwrap().remove(&ticket.number()));
                    // What was taken in one way may be given back in the other.
                    let _lock = locked();
                    Ticket::end(ticket.number(), exclusive);
                    assert!(!ticket.is_valid());
                }
            });
        }
    });
}
