//! Dropout that depends on (seed, step, row) alone.
//!
//! libtorch draws its masks from one stream, so what a row gets depends on how many rows the rank had before it. Here
//! each row has a key of its own: the same row in the same step loses the same units on one rank or on many, after a
//! resume or not.

use gristmill_shard::keys::{Domain, Key};
use tch::{Kind, Tensor};

use crate::error::{During, Error, Result};

/// Draws the masks of one forward pass.
#[derive(Debug)]
pub struct DropoutMasks {
    seed: u64,
    step: u64,
    rows: Vec<i64>,
    /// A unit is kept when its 16 random bits are at least this.
    threshold: u16,
}

impl DropoutMasks {
    /// Masks for the rows `row_ids` ([rows], i64) that drop each unit with probability `p`, at least 0 and below 1,
    /// taken to the nearest 1/65536.
    ///
    /// # Errors
    /// [`Error::Torch`] when the ids can't be read; [`Error::Internal`] for a p out of range.
    pub fn new(seed: u64, step: u64, row_ids: &Tensor, p: f64) -> Result<Self> {
        let threshold = (p * 65536.0).round();
        if !(0.0..65536.0).contains(&threshold) {
            return Err(Error::internal(format!("dropout with probability {p}")));
        }
        let rows = Vec::<i64>::try_from(row_ids).during("reading the row ids")?;
        Ok(Self { seed, step, rows, threshold: threshold as u16 })
    }

    /// The mask of layer `layer`: [rows, width] of `kind`, 0 for a dropped unit, else 1 / (share that is kept), so that
    /// the expected activation is unchanged.
    ///
    /// # Errors
    /// [`Error::Torch`].
    pub fn layer(&self, layer: u64, width: i64, kind: Kind) -> Result<Tensor> {
        let scale = 65536.0 / (65536.0 - f64::from(self.threshold));
        let units = usize::try_from(width).map_err(|_| Error::internal(format!("a layer of width {width}")))?;
        let shape = [self.rows.len() as i64, width];
        let kept = if kind == Kind::Double {
            let values = self.draw(layer, units, scale);
            Tensor::f_from_slice(&values)
        } else {
            let values = self.draw(layer, units, scale as f32);
            Tensor::f_from_slice(&values)
        };
        kept.and_then(|t| t.f_reshape(shape)).and_then(|t| t.f_to_kind(kind)).during("making a dropout mask")
    }

    fn draw<T: Copy + Default>(&self, layer: u64, units: usize, scale: T) -> Vec<T> {
        let mut out = Vec::with_capacity(self.rows.len() * units);
        for row in &self.rows {
            let mut rng = Key::derive(Domain::Dropout, self.seed, &[self.step, row.cast_unsigned(), layer]).rng();
            let mut left = units;
            while left > 0 {
                let bits = rng.next_u64();
                for i in 0..left.min(4) {
                    let drawn = (bits >> (16 * i)) as u16;
                    out.push(if drawn >= self.threshold { scale } else { T::default() });
                }
                left -= left.min(4);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(step: u64, rows: &[i64], p: f64) -> Vec<f64> {
        let masks = DropoutMasks::new(7, step, &Tensor::from_slice(rows), p).unwrap();
        Vec::<f64>::try_from(masks.layer(1, 9, Kind::Double).unwrap().flatten(0, -1)).unwrap()
    }

    #[test]
    fn a_row_loses_the_same_units_in_any_company() {
        let together = mask(3, &[10, 11, 12], 0.5);
        assert_eq!(together[9..18], mask(3, &[11], 0.5));
        assert_eq!(together[..9], mask(3, &[12, 10], 0.5)[9..]);
        assert_ne!(together, mask(4, &[10, 11, 12], 0.5));
        assert_ne!(together[..9], together[9..18]);
    }

    #[test]
    fn the_share_and_the_scale_are_right() {
        let rows: Vec<i64> = (0..2000).collect();
        for p in [0.0, 0.1, 0.75] {
            let m = mask(0, &rows, p);
            let dropped = m.iter().filter(|x| **x == 0.0).count() as f64 / m.len() as f64;
            assert!((dropped - p).abs() < 0.02, "{dropped}");
            let mean = m.iter().sum::<f64>() / m.len() as f64;
            assert!((mean - 1.0).abs() < 0.05, "{mean}");
        }
        assert!(DropoutMasks::new(0, 0, &Tensor::from_slice(&[1_i64]), 1.0).is_err());
    }
}
