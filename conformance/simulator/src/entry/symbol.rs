//! Exported functions as data: symbol, class, version.

/// The kind of a call, for the rules that hold for many calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Works before cuInit, in host functions and in forked processes too.
    Always,
    /// Reads state.
    Query,
    /// Changes which context is current, or a setting.
    Context,
    /// Makes an object or memory.
    Create,
    /// Ends an object or memory.
    Destroy,
    /// Puts work on a stream.
    Enqueue,
    /// May block the host until work is done.
    Wait,
}

/// One exported function: a row of the table that cuGetProcAddress reads.
pub(crate) struct Row {
    /// The exported symbol, such as `cuMemAlloc_v2`.
    pub(crate) symbol: &'static str,
    /// The CUDA version that introduced this variant.
    pub(crate) since: u32,
    pub(crate) address: fn() -> usize,
    /// The variant whose stream 0 is the per-thread default stream, and its version.
    pub(crate) per_thread: Option<(fn() -> usize, u32)>,
}

/// Returns whether a symbol is a variant of a function: its name, or that and a suffix such as `_v2`.
pub(crate) fn is_variant(symbol: &str, name: &str) -> bool {
    symbol
        .strip_prefix(name)
        .is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::is_variant;

    #[test]
    fn a_name_stands_for_every_suffix_and_no_other_name() {
        assert!(is_variant("cuMemAlloc_v2", "cuMemAlloc"));
        assert!(is_variant("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD"));
        assert!(!is_variant("cuMemAllocAsync", "cuMemAlloc"));
    }
}
