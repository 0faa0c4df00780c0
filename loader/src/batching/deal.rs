//! Which micro-batches of a step a rank takes.
//!
//! The D micro-batches of a step are sorted, heaviest first, and dealt to the W ranks back and forth (0, 1, …, W − 1,
//! W − 1, …, 1, 0, 0, …), so that whoever had the heaviest of one round has the lightest of the next. Seats rotate with
//! the step, so that no rank has the first seat always. D belongs to the plan and W does not: every rank gets ⌊D / W⌋
//! or ⌈D / W⌉ of them for any W, and a rank that has fewer than [`micro_steps`] takes part in the others with nothing.

/// Micro-batches that every rank runs a step, ⌈D / W⌉, those without rows counted.
#[must_use]
pub fn micro_steps(micro_batches: u32, world_size: u32) -> u32 {
    micro_batches.div_ceil(world_size.max(1))
}

/// The micro-batches of `rank` in a step of `micro_batches` that are numbered heaviest first, in ascending order.
///
/// `rotation` is the number of the step. A rank outside the world takes none.
pub fn rank_micro_batches(
    micro_batches: u32,
    world_size: u32,
    rank: u32,
    rotation: u64,
) -> impl Iterator<Item = u32> + Clone {
    let ranks = u64::from(world_size.max(1));
    let seat = (u64::from(rank) + ranks - rotation % ranks) % ranks;
    let rounds = if rank < world_size { micro_steps(micro_batches, world_size) } else { 0 };
    (0..u64::from(rounds))
        .map(move |round| round * ranks + if round.is_multiple_of(2) { seat } else { ranks - 1 - seat })
        .filter_map(move |number| u32::try_from(number).ok().filter(|number| *number < micro_batches))
}

/// A step of `groups` times `per_group` micro-batches, `group · per_group + i` the i-th heaviest of a group, whose
/// groups are each stored on one node.
///
/// Machine m takes the groups ≡ m modulo the number of machines, which are its own node's when there are as many
/// machines as groups, and deals their micro-batches to its ranks. Where the machines don't divide the groups no such
/// share is even, and all ranks are dealt the whole step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalDeal {
    per_group: u32,
    /// Teams of ranks; team m has the groups ≡ m.
    teams: u32,
    ranks_of_team: u32,
    groups_of_team: u32,
    is_local: bool,
}

impl LocalDeal {
    /// The dealing of such a step to `machines` of `local_world_size` ranks, rank = machine · `local_world_size` +
    /// local rank. `None` when the step has more than 2^32 − 1 micro-batches, or the world as many ranks.
    #[must_use]
    pub fn new(groups: u32, per_group: u32, machines: u32, local_world_size: u32) -> Option<Self> {
        let world_size = machines.checked_mul(local_world_size)?;
        groups.checked_mul(per_group)?;
        let is_local = groups.is_multiple_of(machines.max(1));
        let (teams, ranks_of_team) = if is_local { (machines, local_world_size) } else { (1, world_size) };
        Some(Self { per_group, teams, ranks_of_team, groups_of_team: groups / teams.max(1), is_local })
    }

    /// Whether every machine takes micro-batches of its own groups only.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Micro-batches that every rank runs a step, those without rows counted.
    #[must_use]
    pub fn micro_steps(&self) -> u32 {
        micro_steps(self.groups_of_team * self.per_group, self.ranks_of_team)
    }

    /// The micro-batches of `rank`, from the heaviest on. `rotation` is the number of the step. A rank outside the
    /// world takes none.
    pub fn micro_batches(&self, rank: u32, rotation: u64) -> impl Iterator<Item = u32> + Clone {
        let Self { per_group, teams, ranks_of_team, groups_of_team, .. } = *self;
        let ranks = ranks_of_team.max(1);
        let team = rank / ranks;
        let dealt = if team < teams { groups_of_team * per_group } else { 0 };
        // Groups are of like weights, so their heaviest come first, then their second heaviest, and so on.
        rank_micro_batches(dealt, ranks_of_team, rank % ranks, rotation).map(move |place| {
            let (i, group) = (place / groups_of_team, place % groups_of_team * teams + team);
            group * per_group + i
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(total: u32, micro_steps: u32, floor: u32, taken: &[Vec<u32>]) -> Result<(), TestCaseError> {
        let mut all: Vec<u32> = taken.iter().flatten().copied().collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..total).collect::<Vec<_>>());
        prop_assert!(taken.iter().all(|t| t.len() == floor as usize || t.len() == micro_steps as usize));
        Ok(())
    }

    proptest! {
        #[test]
        fn a_step_is_dealt_whole_and_even(
            micro_batches in 0_u32..200, world_size in 1_u32..70, rotation in any::<u64>(),
        ) {
            let taken: Vec<Vec<u32>> = (0..world_size)
                .map(|rank| rank_micro_batches(micro_batches, world_size, rank, rotation).collect())
                .collect();
            check(micro_batches, micro_steps(micro_batches, world_size), micro_batches / world_size, &taken)?;
            prop_assert!(taken.iter().all(|t| t.is_sorted()));
            prop_assert_eq!(rank_micro_batches(micro_batches, world_size, world_size, rotation).count(), 0);
        }

        #[test]
        fn weights_that_fall_evenly_are_balanced_in_pairs_of_rounds(
            rounds in 1_u32..5, world_size in 1_u32..20, rotation in any::<u64>(),
        ) {
            let micro_batches = 2 * rounds * world_size;
            for rank in 0..world_size {
                let taken = rank_micro_batches(micro_batches, world_size, rank, rotation);
                let weight: u32 = taken.map(|number| micro_batches - number).sum();
                prop_assert_eq!(weight, rounds * (micro_batches + 1));
            }
        }

        #[test]
        fn over_a_turn_of_steps_every_rank_has_every_micro_batch_once(
            micro_batches in 0_u32..60, world_size in 1_u32..30, first in 0_u64..u64::MAX - 30,
        ) {
            for rank in 0..world_size {
                let taken = |step| rank_micro_batches(micro_batches, world_size, rank, first + step);
                let mut all: Vec<u32> = (0..u64::from(world_size)).flat_map(taken).collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..micro_batches).collect::<Vec<_>>());
            }
        }

        #[test]
        fn groups_are_dealt_whole_even_and_local(
            groups in 1_u32..13, per_group in 0_u32..20, machines in 1_u32..13, local in 1_u32..9,
            rotation in any::<u64>(),
        ) {
            let deal = LocalDeal::new(groups, per_group, machines, local).unwrap();
            let taken: Vec<Vec<u32>> =
                (0..machines * local).map(|rank| deal.micro_batches(rank, rotation).collect()).collect();
            let total = groups * per_group;
            check(total, deal.micro_steps(), total / (machines * local), &taken)?;
            prop_assert_eq!(deal.is_local(), groups % machines == 0);
            if deal.is_local() {
                for (rank, numbers) in (0..).zip(&taken) {
                    prop_assert!(numbers.iter().all(|number| number / per_group % machines == rank / local));
                }
            }
            for numbers in &taken {
                prop_assert!(numbers.is_sorted_by_key(|number| number % per_group));
            }
            prop_assert_eq!(deal.micro_batches(machines * local, rotation).count(), 0);
        }

        #[test]
        fn one_group_on_one_machine_is_the_plain_deal(
            per_group in 0_u32..40, local in 1_u32..9, rotation in any::<u64>(),
        ) {
            let deal = LocalDeal::new(1, per_group, 1, local).unwrap();
            for rank in 0..local {
                let plain = rank_micro_batches(per_group, local, rank, rotation);
                prop_assert!(deal.micro_batches(rank, rotation).eq(plain));
            }
        }
    }

    #[test]
    fn reference_values() {
        let taken = |rank, rotation| rank_micro_batches(10, 4, rank, rotation).collect::<Vec<_>>();
        assert_eq!(
            [taken(0, 0), taken(1, 0), taken(2, 0), taken(3, 0)],
            [vec![0, 7, 8], vec![1, 6, 9], vec![2, 5], vec![3, 4]]
        );
        // A step later every seat has moved on by a rank.
        assert_eq!([taken(1, 1), taken(0, 1), taken(0, u64::MAX)], [vec![0, 7, 8], vec![3, 4], vec![1, 6, 9]]);
        // Four groups of three, two machines of two: machine 1 has groups 1 and 3.
        let deal = LocalDeal::new(4, 3, 2, 2).unwrap();
        let taken = |rank| deal.micro_batches(rank, 0).collect::<Vec<_>>();
        assert_eq!(
            [taken(0), taken(1), taken(2), taken(3)],
            [vec![0, 7, 2], vec![6, 1, 8], vec![3, 10, 5], vec![9, 4, 11]]
        );
        assert_eq!(deal.micro_steps(), 3);
    }

    #[test]
    fn extremes() {
        assert_eq!((micro_steps(0, 8), micro_steps(1, 8), micro_steps(9, 8), micro_steps(5, 0)), (0, 1, 2, 5));
        assert_eq!(rank_micro_batches(5, 0, 0, 3).count(), 0);
        assert_eq!(rank_micro_batches(u32::MAX, u32::MAX, u32::MAX - 1, 0).collect::<Vec<_>>(), [u32::MAX - 1]);
        assert_eq!(rank_micro_batches(u32::MAX, u32::MAX - 1, 0, u64::MAX).count(), 1);
        assert_eq!(LocalDeal::new(u32::MAX, 2, 1, 1), None);
        assert_eq!(LocalDeal::new(1, 1, u32::MAX, 2), None);
        assert_eq!(LocalDeal::new(0, 5, 0, 3).unwrap().micro_batches(0, 0).count(), 0);
        assert_eq!(LocalDeal::new(0, 5, 2, 3).unwrap().micro_batches(4, 1).count(), 0);
    }
}
