//! `sim_set` and `sim_get`: the settings by name; the devices' attributes; and the enumeration of orders.

use crate::abi::arguments::{In, Out, Text};
use crate::abi::codes::{Code, Status, to_c};
use crate::entry::log;
use crate::run::worker;
use crate::state::settings::Schedule;
use crate::state::world::{announce, lock};

/// Changes a setting: `schedule` (0 threaded, 1 lazy), `protect`, `reuse`, `queue`, `driver_version`,
/// `memory`, `log` (0 none, 1 every thread's calls, 2 the calling thread's). It holds for objects made afterwards; the schedule also for pending work.
#[unsafe(no_mangle)]
extern "C" fn sim_set(name: Text, value: u64) -> u32 {
    to_c(set(name, value))
}

fn set(name: Text, value: u64) -> Status {
    let mut world = lock();
    match name.text()? {
        "schedule" => {
            let wanted = if value == 0 {
                Schedule::Threaded
            } else {
                Schedule::Lazy
            };
            worker::switch(&mut world, wanted)?;
        }
        "protect" => world.settings.protect = value != 0,
        "reuse" => world.settings.reuse = value != 0,
        "queue" => {
            world.settings.queue_capacity = usize::try_from(value).unwrap_or(usize::MAX).max(1)
        }
        "log" => log::set_logging(value),
        "driver_version" => world.settings.driver_version = value as u32,
        "memory" => world.settings.device_memory = value,
        _ => return Err(Code::INVALID_VALUE),
    }
    announce();
    Ok(())
}

/// Returns the value of a setting, also of `devices`; all ones for a name that does not exist.
#[unsafe(no_mangle)]
extern "C" fn sim_get(name: Text) -> u64 {
    let world = lock();
    let settings = &world.settings;
    match name.text() {
        Ok("devices") => settings.devices as u64,
        Ok("schedule") => u64::from(settings.schedule == Schedule::Lazy),
        Ok("protect") => u64::from(settings.protect),
        Ok("reuse") => u64::from(settings.reuse),
        Ok("log") => log::logging(),
        Ok("queue") => settings.queue_capacity as u64,
        Ok("driver_version") => u64::from(settings.driver_version),
        Ok("memory") => settings.device_memory,
        Ok("optimized") => u64::from(!cfg!(debug_assertions)),
        _ => u64::MAX,
    }
}

/// Sets an attribute of a device, of every device for -1: what cuDeviceGetAttribute returns from now on.
#[unsafe(no_mangle)]
extern "C" fn sim_attribute(device: i32, attribute: i32, value: i32) -> u32 {
    to_c(set_attribute(device, attribute, value))
}

fn set_attribute(device: i32, attribute: i32, value: i32) -> Status {
    let mut world = lock();
    let device = match device {
        -1 => None,
        device => Some(world.device(device)?.physical as i32),
    };
    if attribute <= 0 {
        return Err(Code::INVALID_VALUE);
    }
    world.settings.attributes.set(device, attribute, value);
    Ok(())
}

/// Begins a run: the lazy schedule takes these choices, then always the first option. With
/// `host_points` work may also run before any call of the API.
#[unsafe(no_mangle)]
extern "C" fn sim_order_begin(choices: In<u32>, count: u64, host_points: u32) -> u32 {
    let taken: Result<Vec<u32>, Code> = (0..count as usize)
        .map(|index| choices.get_at(index))
        .collect();
    match taken {
        Ok(prefix) => {
            lock().order.begin(prefix, host_points != 0);
            0
        }
        Err(code) => code.0,
    }
}

/// Ends the run; writes the choices taken and the options of each, and returns how many there were.
#[unsafe(no_mangle)]
extern "C" fn sim_order_end(choices: Out<u32>, options: Out<u32>, capacity: u64) -> u64 {
    let mut world = lock();
    world.order.end();
    let taken = world.order.taken();
    for (index, (choice, out_of)) in taken.iter().take(capacity as usize).enumerate() {
        choices.put_at(index, *choice);
        options.put_at(index, *out_of);
    }
    taken.len() as u64
}
