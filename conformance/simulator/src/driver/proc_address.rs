//! cuGetProcAddress: from a name without suffix and a version to a function.
//!
//! It returns the newest variant that is not newer than the given version: a call of a newer one
//! would have the wrong arguments. A name that exists only in newer versions is
//! VERSION_NOT_SUFFICIENT.

use crate::abi::arguments::{Out, Text};
use crate::abi::codes::{Code, Status};
use crate::driver::memory::{alloc, attributes, copy, fill, host, pool};
use crate::driver::{
    absent, capture, context, device, errors, event, graph, init, ipc, primary, stream, user_object,
};
use crate::entry::enter::{Call, exports};
use crate::entry::log;
use crate::entry::symbol::Row;
use crate::state::world::lock;

exports! {
    Always 11030 cuGetProcAddress(symbol: Text, function: Out<usize>, version: i32, flags: u64) = get;
    Always 12000 cuGetProcAddress_v2(symbol: Text, function: Out<usize>, version: i32, flags: u64, status: Out<u32>) = get_v2;
    Query 3000 cuGetExportTable(table: Out<usize>, id: Out<u8>) = export_table;
}

/// CUdriverProcAddressQueryResult.
const SUCCESS: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

const PER_THREAD: u64 = 2;

const TABLES: &[&[Row]] = &[
    init::ROWS,
    errors::ROWS,
    device::ROWS,
    primary::ROWS,
    context::ROWS,
    alloc::ROWS,
    host::ROWS,
    copy::ROWS,
    fill::ROWS,
    pool::ROWS,
    attributes::ROWS,
    stream::ROWS,
    event::ROWS,
    ipc::ROWS,
    capture::ROWS,
    graph::ROWS,
    user_object::ROWS,
    ROWS,
    absent::ROWS,
];

/// Variants whose exported name does not begin with the name that is looked up.
const RENAMED: &[(&str, u32, &str)] =
    &[("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags")];

/// Returns an exported name without `_v2`, `_v3` and so on.
fn base_name(symbol: &str) -> &str {
    match symbol.rsplit_once("_v") {
        Some((base, digits))
            if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            base
        }
        _ => symbol,
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLES.iter().flat_map(|table| table.iter())
}

/// Returns the variants of a name: version and row.
fn variants(name: &str) -> Vec<(u32, &'static Row)> {
    let mut found: Vec<_> = rows()
        .filter(|row| base_name(row.symbol) == name)
        .map(|row| (row.since, row))
        .collect();
    for (_, since, symbol) in RENAMED.iter().filter(|(renamed, ..)| *renamed == name) {
        found.extend(
            rows()
                .filter(|row| row.symbol == *symbol)
                .map(|row| (*since, row)),
        );
    }
    found
}

/// Returns the address for a name at a version, or the query result that tells why there is none.
fn find(name: &str, version: u32, per_thread: bool) -> Result<usize, u32> {
    let known = variants(name);
    if known.is_empty() {
        return Err(SYMBOL_NOT_FOUND);
    }
    let old_enough = known.iter().filter(|(since, _)| *since <= version);
    let (_, row) = old_enough
        .max_by_key(|(since, _)| *since)
        .ok_or(VERSION_NOT_SUFFICIENT)?;
    match row.per_thread {
        Some((address, since)) if per_thread && since <= version => Ok(address()),
        _ => Ok((row.address)()),
    }
}

fn get(call: &Call, symbol: Text, function: Out<usize>, version: i32, flags: u64) -> Status {
    get_v2(call, symbol, function, version, flags, Out::NULL)
}

/// Gives the address for a name. Flags: 0 or LEGACY_STREAM (1) for the plain functions,
/// PER_THREAD_DEFAULT_STREAM (2) for the `_ptsz` and `_ptds` ones if they exist. A version beyond
/// the driver's own counts as that.
fn get_v2(
    _: &Call,
    symbol: Text,
    function: Out<usize>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> Status {
    let name = symbol.text()?;
    function.check()?;
    if flags > PER_THREAD {
        return Err(Code::INVALID_VALUE);
    }
    let version = u32::try_from(version).map_err(|_| Code::INVALID_VALUE)?;
    let known = version.min(lock().settings.driver_version);
    let found = find(name, known, flags == PER_THREAD);
    log::lookup(name, version, flags, found.is_ok());
    status.put_if_wanted(found.err().unwrap_or(SUCCESS));
    function.put(found.unwrap_or(0))?;
    found.map(drop).map_err(|_| Code::NOT_FOUND)
}

/// Refuses the undocumented tables that a static CUDA runtime looks up.
fn export_table(_: &Call, table: Out<usize>, _id: Out<u8>) -> Status {
    table.put(0)?;
    Err(Code::NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT, base_name, find, rows};

    fn symbol_at(name: &str, version: u32, per_thread: bool) -> usize {
        find(name, version, per_thread).expect("found")
    }

    #[test]
    fn the_asked_version_chooses_the_variant() {
        let created = [3020, 11040, 12050].map(|version| symbol_at("cuCtxCreate", version, false));
        assert_eq!(BTreeSet::from(created).len(), 3);
        assert_eq!(symbol_at("cuCtxCreate", 12040, false), created[1]);
        assert_ne!(
            symbol_at("cuStreamGetCtx", 9020, false),
            symbol_at("cuStreamGetCtx", 12050, false)
        );
    }

    #[test]
    fn too_old_and_unknown_are_told_apart() {
        assert_eq!(find("cuMemAlloc", 3010, false), Err(VERSION_NOT_SUFFICIENT));
        assert_eq!(find("cuNoSuchCall", 13000, false), Err(SYMBOL_NOT_FOUND));
    }

    #[test]
    fn per_thread_variants_exist_from_7_0_on() {
        let plain = symbol_at("cuMemcpyHtoD", 7000, false);
        assert_ne!(symbol_at("cuMemcpyHtoD", 7000, true), plain);
        assert_eq!(symbol_at("cuMemcpyHtoD", 6050, true), plain);
        assert_eq!(
            symbol_at("cuMemAlloc", 7000, true),
            symbol_at("cuMemAlloc", 7000, false)
        );
    }

    #[test]
    fn no_symbol_is_listed_twice() {
        let mut seen = BTreeSet::new();
        for row in rows() {
            assert!(seen.insert(row.symbol), "{} is listed twice", row.symbol);
            assert!(row.symbol.starts_with("cu") && !base_name(row.symbol).is_empty());
        }
    }
}
