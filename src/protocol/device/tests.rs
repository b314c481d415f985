//! Devices and flags, against dlpark's transcription of the header.

use dlpark::ffi::DLDeviceType as Header;
use rstest::rstest;

use super::*;

#[rstest]
#[case(Device::CPU, Header::CPU)]
#[case(Device::CUDA, Header::CUDA)]
#[case(Device::CUDA_HOST, Header::CUDAHOST)]
#[case(Device::OPENCL, Header::OPENCL)]
#[case(Device::VULKAN, Header::VULKAN)]
#[case(Device::METAL, Header::METAL)]
#[case(Device::VPI, Header::VPI)]
#[case(Device::ROCM, Header::ROCM)]
#[case(Device::ROCM_HOST, Header::ROCMHOST)]
#[case(Device::EXT_DEV, Header::EXTDEV)]
#[case(Device::CUDA_MANAGED, Header::CUDAMANAGED)]
#[case(Device::ONE_API, Header::ONEAPI)]
#[case(Device::WEBGPU, Header::WEBGPU)]
#[case(Device::HEXAGON, Header::HEXAGON)]
#[case(Device::MAIA, Header::MAIA)]
#[case(Device::TRN, Header::TRN)]
fn device_types_are_the_headers(#[case] ours: i32, #[case] header: Header) {
    assert_eq!(i64::from(ours), i64::from(header.0));
    assert_ne!(Device::check(ours, 0).unwrap().type_name(), "unknown");
}

#[test]
fn device_types_no_others() {
    let known = (-5..=25).filter(|number| Device::check(*number, 0).is_ok());
    assert_eq!(known.count(), 19);
    let violation = Device::check(99, 0).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "__dlpack_device__ = (99, 0): the device type must be one that DLPack has; it may be newer than DLPack 1.3: \
         this library knows the device types up to 21 [device-unknown]"
    );
}

#[test]
fn flags_are_the_headers() {
    assert_eq!(
        Flags::READ_ONLY.bits(),
        u64::from(dlpark::ffi::DLPACK_FLAG_BITMASK_READ_ONLY)
    );
    assert_eq!(
        Flags::IS_COPIED.bits(),
        u64::from(dlpark::ffi::DLPACK_FLAG_BITMASK_IS_COPIED)
    );
    assert_eq!(
        Flags::SUBBYTE_PADDED.bits(),
        u64::from(dlpark::ffi::DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
    );
}

#[test]
fn unknown_access_is_read_only_to_a_reader_of_flags() {
    for bits in 0..8 {
        let stated = Flags::from_bits(bits);
        let unknown = stated.with_access(Access::Unknown);
        assert_eq!(unknown.access(), Access::Unknown);
        assert_eq!(unknown.bits(), bits | Flags::READ_ONLY.bits());
        assert_eq!(unknown.with_access(stated.access()), stated);
        // Setting or clearing the flag states it; the other flags say nothing about it.
        for set in [false, true] {
            let flag = unknown.with(Flags::READ_ONLY, set);
            assert_eq!(flag.access(), Access::of_flag(set));
            assert_eq!(
                unknown.with(Flags::IS_COPIED, set).access(),
                Access::Unknown
            );
        }
    }
    // No tensor can send the mark.
    for bits in 0..64 {
        assert_ne!(Flags::from_bits(bits).access(), Access::Unknown);
    }
}

#[test]
fn one_read_only_statement_is_enough() {
    use Access::{ReadOnly, Unknown, Writable};
    let all = [Writable, ReadOnly, Unknown];
    for (one, other) in all.iter().flat_map(|one| all.map(|other| (*one, other))) {
        let merged = match (one == ReadOnly || other == ReadOnly, one == other) {
            (true, _) => ReadOnly,
            (_, true) => one,
            _ => Writable,
        };
        assert_eq!(one.merge(other), merged, "{one:?}, {other:?}");
    }
}

/// An export is of the same device, of managed memory whatever its id, or a copy in host memory or on a CUDA device.
#[cfg(feature = "pyo3")]
#[test]
fn an_export_stays_or_goes_to_the_host_or_a_device() {
    let devices = (1..=18).flat_map(|device_type| [0, 1].map(|id| Device { device_type, id }));
    let devices: Vec<_> = devices.collect();
    for (own, wanted) in devices
        .iter()
        .flat_map(|own| devices.iter().map(move |wanted| (*own, *wanted)))
    {
        let is_managed = [own, wanted].map(|device| device.device_type == Device::CUDA_MANAGED);
        let copied = [
            Device::CPU,
            Device::CUDA,
            Device::CUDA_HOST,
            Device::CUDA_MANAGED,
            Device::ROCM_HOST,
        ];
        let expected = match () {
            () if own == wanted || is_managed == [true; 2] => Some(own),
            () if wanted == Device::HOST && copied.contains(&own.device_type) => Some(wanted),
            () if wanted.device_type == Device::CUDA && copied[..4].contains(&own.device_type) => {
                Some(wanted)
            }
            () => None,
        };
        assert_eq!(own.exported_on(wanted), expected, "{own:?} {wanted:?}");
    }
}

/// docs/mapping.md has each device type, by number and name, and no other.
#[test]
fn the_page_has_the_devices_of_the_table() {
    let page = include_str!("../../../docs/mapping.md");
    let (_, section) = page.split_once("\n## Devices\n").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let mut listed = Vec::new();
    for row in section.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = row.split('|').skip(1);
        let (numbers, names) = (cells.next().expect("numbers"), cells.next().expect("names"));
        let mut known = Vec::new();
        for part in numbers.split(',').map(str::trim) {
            let (first, last) = part.split_once(" to ").unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                known.extend(first..=last);
            }
        }
        let names: Vec<_> = names.split('`').skip(1).step_by(2).collect();
        if known.is_empty() {
            continue; // the head
        }
        assert_eq!(known.len(), names.len(), "{row}");
        listed.extend(known.into_iter().zip(names));
    }
    listed.sort_unstable();
    let table = (0..Device::BEYOND).filter_map(|number| Device::check(number, 0).ok());
    let table: Vec<_> = table
        .map(|device| (device.device_type, device.type_name()))
        .collect();
    assert_eq!(listed, table);
}
