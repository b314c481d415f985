//! The GIL, taken and let go of, in an interpreter of the test's own process.

use super::*;

/// A call lets go of the GIL that it has taken, also if it panics: the code around it goes on without.
#[test]
fn a_panic_lets_go_of_the_gil() {
    Python::initialize();
    let taken = attach(|py| {
        learn(py).expect("the first interpreter");
        py.detach(|| {
            assert!(!is_held());
            assert_eq!(with(|py| (is_held(), py.version_info().major)), (true, 3));
            let panicked = std::panic::catch_unwind(|| with(|_| panic!("in the midst of it")));
            assert!(panicked.is_err());
            assert!(!is_held());
        });
        assert!(is_held());
    });
    assert_eq!(taken, Some(()));
    assert!(!is_held());
}
