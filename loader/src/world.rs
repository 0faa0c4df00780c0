//! Who is asking: rank, world size, and the place of a rank on its machine.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The most ranks of a world: far above any that exists, and few enough that a number for each fits in memory.
pub const MAX_WORLD_SIZE: u32 = 1 << 20;

/// A rank's place, in torch's words. Machines are numbered by `rank / local_world_size`: every machine runs the same
/// number of ranks, and `rank = machine · local_world_size + local_rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct World {
    rank: u32,
    world_size: u32,
    local_rank: u32,
    local_world_size: u32,
}

impl World {
    /// One process that reads everything.
    #[must_use]
    pub fn single() -> Self {
        Self { rank: 0, world_size: 1, local_rank: 0, local_world_size: 1 }
    }

    /// Rank `rank` of `world_size`, with `local_world_size` ranks on every machine.
    ///
    /// # Errors
    /// [`Error::Usage`] when `rank` is not below `world_size`, machines would have different numbers of ranks, or
    /// `world_size` is above [`MAX_WORLD_SIZE`].
    pub fn new(rank: u32, world_size: u32, local_world_size: u32) -> Result<Self> {
        check_world_size(world_size)?;
        if rank >= world_size {
            return Err(Error::usage(
                format!("rank {rank} of a world of {world_size}"),
                "ranks are numbered from 0 and lie below the world size",
            ));
        }
        if local_world_size == 0 || !world_size.is_multiple_of(local_world_size) {
            return Err(Error::usage(
                format!("{world_size} ranks can't be {local_world_size} on every machine"),
                "run the same number of ranks on every machine",
            ));
        }
        Ok(Self { rank, world_size, local_rank: rank % local_world_size, local_world_size })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks in all, W.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// This rank among those of its machine.
    #[must_use]
    pub fn local_rank(&self) -> u32 {
        self.local_rank
    }

    /// Ranks on each machine.
    #[must_use]
    pub fn local_world_size(&self) -> u32 {
        self.local_world_size
    }

    /// The machine of this rank.
    #[must_use]
    pub fn machine(&self) -> u32 {
        self.rank / self.local_world_size
    }

    /// Machines in all.
    #[must_use]
    pub fn machines(&self) -> u32 {
        self.world_size / self.local_world_size
    }
}

/// Refuses a world without ranks, or with more than [`MAX_WORLD_SIZE`].
pub(crate) fn check_world_size(world_size: u32) -> Result<()> {
    if (1..=MAX_WORLD_SIZE).contains(&world_size) {
        return Ok(());
    }
    Err(Error::usage(format!("a world of {world_size} ranks"), "give a world size from 1 to 1,048,576"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_checked() {
        let world = World::new(5, 6, 3).unwrap();
        assert_eq!((world.machine(), world.local_rank(), world.machines()), (1, 2, 2));
        assert!(World::new(6, 6, 3).is_err());
        assert!(World::new(0, 0, 1).is_err());
        assert!(World::new(0, 6, 4).is_err());
        assert!(World::new(0, 6, 0).is_err());
    }

    #[test]
    fn a_world_is_bounded() {
        assert!(World::new(MAX_WORLD_SIZE - 1, MAX_WORLD_SIZE, MAX_WORLD_SIZE).is_ok());
        for size in [MAX_WORLD_SIZE + 1, u32::MAX] {
            let error = World::new(0, size, size).unwrap_err().to_string();
            assert!(error.contains(&size.to_string()) && error.contains("1,048,576"), "{error}");
        }
    }
}
