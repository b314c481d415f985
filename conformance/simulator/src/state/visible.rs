//! CUDA_VISIBLE_DEVICES: which of the machine's devices a process sees, and in which order.

/// Returns the UUID of a device of the machine: "cusim simulated" and its number.
pub(crate) fn uuid(physical: usize) -> [u8; 16] {
    let mut bytes = *b"cusim simulated\0";
    bytes[15] = physical as u8;
    bytes
}

/// Returns the machine's numbers of the visible devices. Without the variable all are visible.
pub(crate) fn devices(count: usize) -> impl Iterator<Item = usize> {
    let chosen = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    chosen
        .map_or_else(|| (0..count).collect(), |text| parse(&text, count))
        .into_iter()
}

/// Reads ordinals and the beginnings of UUIDs (`GPU-…`). The first one that names no device, or one
/// that was named before, ends the list, as the programming guide says of invalid ones.
fn parse(text: &str, count: usize) -> Vec<usize> {
    let mut chosen = Vec::new();
    for item in text.split(',') {
        match find(item.trim(), count) {
            Some(device) if !chosen.contains(&device) => chosen.push(device),
            _ => break,
        }
    }
    chosen
}

fn find(item: &str, count: usize) -> Option<usize> {
    if item.starts_with("GPU-") {
        let mut named = (0..count).filter(|device| name(*device).starts_with(item));
        return named.next().filter(|_| named.next().is_none());
    }
    item.parse().ok().filter(|device| *device < count)
}

/// Returns a device's UUID as `nvidia-smi -L` would print it.
fn name(device: usize) -> String {
    let hex: String = uuid(device)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::{name, parse};

    #[test]
    fn ordinals_and_uuids_choose_and_order_devices() {
        assert_eq!(parse("1,0", 2), [1, 0]);
        assert_eq!(parse(&format!("{}, 0", name(2)), 3), [2, 0]);
        assert_eq!(parse("", 2), []);
    }

    #[test]
    fn what_names_no_device_or_the_same_one_ends_the_list() {
        assert_eq!(parse("1,7,0", 2), [1]);
        assert_eq!(parse("0,0,1", 2), [0]);
        assert_eq!(parse("-1", 2), []);
        assert_eq!(parse("GPU-63757369", 2), [], "both begin so");
    }
}
