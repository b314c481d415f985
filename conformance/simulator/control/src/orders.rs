//! Enumerates the orders of a program: replays a prefix of choices, then advances the last one
//! that has an option left.

use crate::{Schedule, Sim};

pub(crate) fn run(sim: &Sim, host_points: bool, mut program: impl FnMut()) -> u64 {
    let before = sim.schedule();
    sim.set_schedule(Schedule::Lazy);
    let mut runs = 0;
    let mut prefix = Some(Vec::new());
    while let Some(choices) = prefix {
        sim.order_begin(&choices, host_points);
        program();
        runs += 1;
        prefix = next_prefix(&sim.order_end());
    }
    sim.set_schedule(before);
    runs
}

fn next_prefix(taken: &[(u32, u32)]) -> Option<Vec<u32>> {
    let last = taken
        .iter()
        .rposition(|(choice, options)| choice + 1 < *options)?;
    let mut prefix: Vec<u32> = taken[..last].iter().map(|(choice, _)| *choice).collect();
    prefix.push(taken[last].0 + 1);
    Some(prefix)
}

#[cfg(test)]
mod tests {
    use super::next_prefix;

    #[test]
    fn the_last_choice_with_an_option_left_advances() {
        assert_eq!(next_prefix(&[(0, 2), (0, 3), (1, 2)]), Some(vec![0, 1]));
        assert_eq!(next_prefix(&[(0, 2), (2, 3), (1, 2)]), Some(vec![1]));
        assert_eq!(next_prefix(&[(1, 2), (2, 3)]), None);
    }
}
