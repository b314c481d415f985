//! The `sim_*` functions as Rust sees them; `cusim.h` has the same in C.

use std::ffi::{CStr, c_char, c_void};

macro_rules! prototypes {
    ($($name:ident($($ty:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, all found. They are safe to call: the pointers that this crate passes
        /// are its own buffers and strings, alive for the call and of the length passed with them.
        #[derive(Clone, Copy)]
        pub(crate) struct Prototypes {
            $(pub(crate) $name: extern "C" fn($($ty),*) $(-> $result)?,)*
        }

        impl Prototypes {
            /// Looks all functions up; fails with the name of the first one that is missing.
            pub(crate) fn find(symbol: impl Fn(&CStr) -> *mut c_void) -> Result<Prototypes, &'static str> {
                Ok(Prototypes {
                    $($name: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name ends with its NUL"),
                        };
                        let address = symbol(NAME);
                        if address.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: not null, and the library that has `sim_abi` with our version
                        // defines this name with this prototype (cusim.h).
                        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn($($ty),*) $(-> $result)?>(address) }
                    },)*
                })
            }
        }
    };
}

prototypes! {
    sim_count(*const c_char) -> u64;
    sim_log_clear();
    sim_log_text(*mut c_char, u64) -> u64;
    sim_fault_by(*const c_char, u64, u32, u32) -> u32;
    sim_fault_clear();
    sim_fault_pending() -> u64;
    sim_gate(u64) -> u64;
    sim_open(u64) -> u32;
    sim_store(u64, u64, *const u8, u64) -> u32;
    sim_sum(u64, u64, u64, u64, *const c_char) -> u32;
    sim_peek(u64, *mut u8, u64) -> u32;
    sim_poke(u64, *const u8, u64) -> u32;
    sim_live_allocations() -> u64;
    sim_live_streams() -> u64;
    sim_live_events() -> u64;
    sim_live_contexts() -> u64;
    sim_pending_work() -> u64;
    sim_set(*const c_char, u64) -> u32;
    sim_get(*const c_char) -> u64;
    sim_order_begin(*const u32, u64, u32) -> u32;
    sim_order_end(*mut u32, *mut u32, u64) -> u64;
}
