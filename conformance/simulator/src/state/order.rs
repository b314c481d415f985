//! The enumeration of orders: chooses which of several runnable heads the lazy schedule runs.
//!
//! A run of a program is a sequence of choices. The enumeration replays a prefix, takes the
//! first option from there on, and notes how many options there were; the caller advances the
//! last choice that has an option left and runs the program again, until none is left.

/// The choices of one run.
pub(crate) struct Order {
    prefix: Option<Vec<u32>>,
    host_points: bool,
    /// The option taken and the number of options, for each choice of this run.
    taken: Vec<(u32, u32)>,
}

impl Order {
    pub(crate) const fn new() -> Order {
        Order {
            prefix: None,
            host_points: false,
            taken: Vec::new(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.prefix.is_some()
    }

    /// Returns whether work may also run before any call of the API, not only when a call waits.
    pub(crate) fn has_host_points(&self) -> bool {
        self.is_active() && self.host_points
    }

    /// Begins a run that replays a prefix of choices.
    pub(crate) fn begin(&mut self, prefix: Vec<u32>, host_points: bool) {
        *self = Order {
            prefix: Some(prefix),
            host_points,
            taken: Vec::new(),
        };
    }

    /// Ends the run: the usual rule of the lazy schedule holds again. The choices stay readable.
    pub(crate) fn end(&mut self) {
        self.prefix = None;
    }

    pub(crate) fn taken(&self) -> &[(u32, u32)] {
        &self.taken
    }

    /// Chooses one of `options` (at least 1). A single option is no choice and is not noted.
    pub(crate) fn choose(&mut self, options: usize) -> usize {
        if options < 2 {
            return 0;
        }
        let replayed = self
            .prefix
            .as_ref()
            .and_then(|prefix| prefix.get(self.taken.len()));
        let choice = replayed.copied().unwrap_or(0).min(options as u32 - 1);
        self.taken.push((choice, options as u32));
        choice as usize
    }
}
