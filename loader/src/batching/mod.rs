//! Batches by length: a token budget, packing into bins, and which rank takes what.

pub mod budget;
pub mod deal;
mod longest_first;
pub mod options;
pub mod packing;
pub mod windows;

/// Log-normal lengths like those of documents (median 367 tokens, mean 537), the same for a seed.
#[cfg(test)]
fn lognormal_lengths(seed: u64, rows: usize) -> Vec<u32> {
    use gristmill_shard::keys::{Domain, Key};
    let mut rng = Key::derive(Domain::Draw, seed, &[]).rng();
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut length = || {
        // Box and Muller's normal deviate.
        let (u, v) = (1.0 - uniform(), uniform());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        (367_f64.ln() + 0.871 * normal).exp().round().clamp(45.0, 15_164.0) as u32
    };
    (0..rows).map(|_| length()).collect()
}
