//! The call log, as values.

/// One call of the driver API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function as exported, such as `cuMemAlloc_v2`.
    pub symbol: String,
    /// Arguments in order, by name; pointers and handles as numbers.
    pub arguments: Vec<(String, u64)>,
    /// The CUresult; None while the call runs.
    pub result: Option<u32>,
}

impl Call {
    /// Returns the function without the suffix of its variant, such as `cuMemAlloc`.
    #[must_use]
    pub fn name(&self) -> &str {
        let base = self
            .symbol
            .strip_suffix("_ptsz")
            .or_else(|| self.symbol.strip_suffix("_ptds"));
        let base = base.unwrap_or(&self.symbol);
        match base.rsplit_once("_v") {
            Some((name, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => base,
        }
    }

    /// Returns an argument by name.
    #[must_use]
    pub fn argument(&self, name: &str) -> Option<u64> {
        self.arguments
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| *value)
    }

    /// Parses one line of the log: `cuEventRecord(event=0x10, stream=0x20) = 0`.
    pub(crate) fn parse(line: &str) -> Option<Call> {
        let (symbol, rest) = line.split_once('(')?;
        let (arguments, result) = rest.rsplit_once(") = ")?;
        let pairs = arguments.split(", ").filter(|pair| !pair.is_empty());
        let parsed: Option<Vec<_>> = pairs.map(Call::parse_argument).collect();
        Some(Call {
            symbol: symbol.to_owned(),
            arguments: parsed?,
            result: result.parse().ok(),
        })
    }

    fn parse_argument(pair: &str) -> Option<(String, u64)> {
        let (name, value) = pair.split_once("=0x")?;
        Some((name.to_owned(), u64::from_str_radix(value, 16).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::Call;

    #[test]
    fn a_line_of_the_log() {
        let call = Call::parse("cuEventRecord_ptsz(event=0x10, stream=0x20) = 0").expect("a call");
        assert_eq!(
            (call.name(), call.argument("stream"), call.result),
            ("cuEventRecord", Some(0x20), Some(0))
        );
        let running = Call::parse("cuCtxSynchronize() = …").expect("a call");
        assert_eq!(
            (running.name(), running.arguments.len(), running.result),
            ("cuCtxSynchronize", 0, None)
        );
    }
}
