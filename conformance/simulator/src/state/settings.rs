//! The settings: read from the environment at load time, changed by `sim_set` and `sim_attribute` afterwards.

use std::collections::BTreeMap;

/// When work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// A worker thread for each stream: work runs as soon as it may.
    Threaded,
    /// No workers: work runs only when a call waits, on that call's thread.
    Lazy,
}

/// All settings, with their defaults.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `CUSIM_DEVICES`, read once; default 2.
    pub(crate) devices: usize,
    /// `CUSIM_SCHEDULE`: `threaded` (default) or `lazy`.
    pub(crate) schedule: Schedule,
    /// `CUSIM_PROTECT=1`: device memory cannot be touched through its address.
    pub(crate) protect: bool,
    /// `CUSIM_REUSE=1`: destroyed handles and addresses are handed out again at once.
    pub(crate) reuse: bool,
    /// `CUSIM_QUEUE`: how many pieces of work a stream holds before an enqueue blocks.
    pub(crate) queue_capacity: usize,
    /// `CUSIM_DRIVER_VERSION`: returned by cuDriverGetVersion, and the limit of cuGetProcAddress.
    pub(crate) driver_version: u32,
    /// `CUSIM_MEMORY`: bytes of each device; default 4 GiB.
    pub(crate) device_memory: u64,
    /// `CUSIM_ATTRIBUTES`: attributes of one device (`0:89=0`) or of all (`89=0`), separated by commas.
    pub(crate) attributes: Attributes,
}

/// Values of device attributes that differ from the model's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes(BTreeMap<(Option<i32>, i32), i32>);

impl Attributes {
    /// Sets an attribute of one device, or of all that have no value of their own.
    pub(crate) fn set(&mut self, device: Option<i32>, attribute: i32, value: i32) {
        self.0.insert((device, attribute), value);
    }

    /// Returns the value that was set, if one was.
    pub(crate) fn get(&self, device: i32, attribute: i32) -> Option<i32> {
        let own = self.0.get(&(Some(device), attribute));
        own.or_else(|| self.0.get(&(None, attribute))).copied()
    }

    fn from_environment() -> Attributes {
        let mut found = Attributes::default();
        let text = std::env::var("CUSIM_ATTRIBUTES").unwrap_or_default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            match parse(item) {
                Some((device, attribute, value)) => found.set(device, attribute, value),
                None => eprintln!(
                    "cusim: CUSIM_ATTRIBUTES: {item}: not [DEVICE:]NUMBER=VALUE; it is left out"
                ),
            }
        }
        found
    }
}

/// Reads `[DEVICE:]NUMBER=VALUE`.
fn parse(item: &str) -> Option<(Option<i32>, i32, i32)> {
    let (name, value) = item.split_once('=')?;
    let (device, attribute) = match name.split_once(':') {
        Some((device, attribute)) => (Some(device.parse().ok()?), attribute),
        None => (None, name),
    };
    Some((device, attribute.parse().ok()?, value.parse().ok()?))
}

impl Settings {
    /// Reads the variables; one that is not valid is reported on stderr and has its default.
    pub(crate) fn from_environment() -> Settings {
        let schedule = match std::env::var("CUSIM_SCHEDULE").as_deref() {
            Ok("lazy") => Schedule::Lazy,
            Ok("threaded") | Err(_) => Schedule::Threaded,
            Ok(other) => {
                eprintln!(
                    "cusim: CUSIM_SCHEDULE={other}: not 'threaded' or 'lazy'; threaded is used"
                );
                Schedule::Threaded
            }
        };
        Settings {
            devices: number("CUSIM_DEVICES", 2) as usize,
            schedule,
            protect: number("CUSIM_PROTECT", 0) != 0,
            reuse: number("CUSIM_REUSE", 0) != 0,
            queue_capacity: number("CUSIM_QUEUE", 1024).max(1) as usize,
            driver_version: number("CUSIM_DRIVER_VERSION", 13050) as u32,
            device_memory: number("CUSIM_MEMORY", 4 << 30),
            attributes: Attributes::from_environment(),
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| {
            eprintln!("cusim: {name}={text}: not a number; {default} is used");
            default
        }),
    }
}
