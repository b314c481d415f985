//! Devices and flags, against dlpark's transcription of the header.

use dlpark::ffi::DLDeviceType as Header;
use rstest::rstest;

use super::*;

#[rstest]
#[case(DeviceType::CPU, Header::CPU)]
#[case(DeviceType::CUDA, Header::CUDA)]
#[case(DeviceType::CUDA_HOST, Header::CUDAHOST)]
#[case(DeviceType::OPENCL, Header::OPENCL)]
#[case(DeviceType::VULKAN, Header::VULKAN)]
#[case(DeviceType::METAL, Header::METAL)]
#[case(DeviceType::VPI, Header::VPI)]
#[case(DeviceType::ROCM, Header::ROCM)]
#[case(DeviceType::ROCM_HOST, Header::ROCMHOST)]
#[case(DeviceType::EXT_DEV, Header::EXTDEV)]
#[case(DeviceType::CUDA_MANAGED, Header::CUDAMANAGED)]
#[case(DeviceType::ONE_API, Header::ONEAPI)]
#[case(DeviceType::WEBGPU, Header::WEBGPU)]
#[case(DeviceType::HEXAGON, Header::HEXAGON)]
#[case(DeviceType::MAIA, Header::MAIA)]
#[case(DeviceType::TRN, Header::TRN)]
fn device_types_are_the_headers(#[case] ours: DeviceType, #[case] header: Header) {
    assert_eq!(i64::from(ours.to_dlpack()), i64::from(header.0));
    assert_eq!(Device::check(ours, 0), Ok(Device::new(ours, 0)));
}

/// Any integer makes a device type and comes back; those with a name print it, and pass a check.
#[test]
fn device_types_keep_any_number() {
    let mut numbers = vec![i32::MIN, -1, i32::MAX];
    numbers.extend(0..300);
    for number in numbers {
        let device_type = DeviceType::from_dlpack(number);
        assert_eq!(Device::new(device_type, 3).to_dlpack(), (number, 3));
        let shown = (device_type.to_string(), format!("{device_type:?}"));
        let expected = match device_type.name() {
            Some(name) => (
                name.to_owned(),
                name.to_uppercase().replace("ONEAPI", "ONE_API"),
            ),
            None => (number.to_string(), format!("DeviceType({number})")),
        };
        assert_eq!(shown, expected);
        let is_known = Device::check(device_type, 0).is_ok();
        assert_eq!(is_known, device_type.name().is_some(), "{number}");
    }
}

#[test]
fn device_types_no_others() {
    let known = (-5..=25).filter(|number| DeviceType::from_dlpack(*number).name().is_some());
    assert_eq!(known.count(), 19);
    let violation = Device::check(DeviceType::from_dlpack(99), 0).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "__dlpack_device__ = (99, 0): the device type must be one that DLPack has; it may be newer than DLPack 1.3: \
         this library knows the device types up to 21 [device-unknown]"
    );
}

/// The last type that has a name is known: only its number can be wrong.
#[test]
fn the_last_device_type_is_known() {
    let refused = |device_type, id| {
        let refused = Device::check(DeviceType::from_dlpack(device_type), id).unwrap_err();
        (refused.rule(), refused.hint().is_some())
    };
    assert_eq!(refused(DeviceType::LAST, -1), (Rule::DeviceId, false));
    let next = DeviceType::LAST + 1;
    assert_eq!(refused(next, 0), (Rule::DeviceUnknown, true));
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
    let devices = (1..=18).map(DeviceType::from_dlpack);
    let devices = devices.flat_map(|device_type| [0, 1].map(|id| Device::new(device_type, id)));
    let devices: Vec<_> = devices.collect();
    for (own, wanted) in devices
        .iter()
        .flat_map(|own| devices.iter().map(move |wanted| (*own, *wanted)))
    {
        let is_managed = [own, wanted].map(|device| device.device_type == DeviceType::CUDA_MANAGED);
        let copied = [
            DeviceType::CPU,
            DeviceType::CUDA,
            DeviceType::CUDA_HOST,
            DeviceType::CUDA_MANAGED,
            DeviceType::ROCM_HOST,
        ];
        let expected = match () {
            () if own == wanted || is_managed == [true; 2] => Some(own),
            () if wanted == Device::HOST && copied.contains(&own.device_type) => Some(wanted),
            () if wanted.device_type == DeviceType::CUDA
                && copied[..4].contains(&own.device_type) =>
            {
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
    let table = (0..=DeviceType::LAST).filter_map(|number| {
        let name = DeviceType::from_dlpack(number).name()?;
        Some((number, name))
    });
    assert_eq!(listed, table.collect::<Vec<_>>());
}

#[test]
fn names_are_padded_to_a_width() {
    let (device_type, device) = (DeviceType::CUDA, Device::cuda(1));
    let found = format!(
        "{device_type:>6}|{device:<8}|{:04}",
        DeviceType::from_dlpack(99)
    );
    assert_eq!(found, "  cuda|cuda:1  |0099");
}

/// A flag that is set already stays so.
#[test]
fn flags_are_set_and_not_turned_over() {
    for flag in [Flags::IS_COPIED, Flags::READ_ONLY, Flags::SUBBYTE_PADDED] {
        let twice = Flags::NONE.with(flag, true).with(flag, true);
        assert!(twice.contains(flag));
        assert!(!twice.with(flag, false).contains(flag));
    }
    for access in [Access::Writable, Access::ReadOnly, Access::Unknown] {
        let once = Flags::IS_COPIED.with_access(access);
        assert_eq!(once.with_access(access), once);
    }
}

/// What states the access is stated by no other bit than what is left.
#[test]
fn flags_are_cleared_with_what_is_unstated() {
    for flag in [Flags::READ_ONLY, Flags::LEGACY] {
        let cleared = Flags::LEGACY.with(flag, false);
        assert_eq!((cleared, cleared.access()), (Flags::NONE, Access::Writable));
    }
}

/// Of a newer DLPack are device types above the last one that is known.
#[test]
fn the_last_device_type_is_no_newer_one() {
    for (device_type, is_newer) in [(DeviceType::LAST, false), (DeviceType::LAST + 1, true)] {
        let refused = Device::check(DeviceType(device_type), -1)
            .expect_err("no device")
            .to_string();
        assert_eq!(refused.contains("device types"), is_newer, "{refused}");
    }
}
