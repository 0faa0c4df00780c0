//! Columns kept beside the lanes: a value for each position, by which a plan filters, orders, draws and measures without
//! reading the shards.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use gristmill_shard::{ShardSet, sidecar::Sidecar};

use crate::{
    error::{Error, Result},
    lane_table::LaneTable,
};

/// Name of the order of `name` among a set's sidecars.
pub(crate) fn order_name(name: &str) -> String {
    format!("order_{name}")
}

/// A value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Of an integer column; truth values are 0 and 1, times are in their units.
    Integer(i64),
    /// Of a float column.
    Float(f64),
}

impl Number {
    /// Which is larger, exactly, also between an integer and a float; `None` with NaN.
    #[must_use]
    pub fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a.cmp(&b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(&b),
            (Self::Integer(a), Self::Float(b)) => compare(a, b),
            (Self::Float(a), Self::Integer(b)) => compare(b, a).map(Ordering::reverse),
        }
    }

    /// The nearest f64.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
        }
    }
}

fn compare(a: i64, b: f64) -> Option<Ordering> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if b.is_nan() {
        None
    } else if b >= END {
        Some(Ordering::Less)
    } else if b < -END {
        Some(Ordering::Greater)
    } else {
        let whole = b.trunc();
        Some(a.cmp(&(whole as i64)).then_with(|| whole.partial_cmp(&b).unwrap_or(Ordering::Equal)))
    }
}

/// The values of one column in every lane of a split. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Column {
    lanes: Arc<[Sidecar]>,
}

impl Column {
    /// A column of these values by lane and position.
    #[must_use]
    pub fn new(lanes: Vec<Sidecar>) -> Self {
        Self { lanes: lanes.into() }
    }

    /// An integer column, by lane and position.
    #[must_use]
    pub fn integers(lanes: Vec<Vec<i64>>) -> Self {
        Self::new(lanes.into_iter().map(|values| Sidecar::Integers(values.into())).collect())
    }

    /// A float column, by lane and position.
    #[must_use]
    pub fn floats(lanes: Vec<Vec<f64>>) -> Self {
        Self::new(lanes.into_iter().map(|values| Sidecar::Floats(values.into())).collect())
    }

    /// The values of `lane`; `None` for a lane that is not there.
    #[must_use]
    pub fn lane(&self, lane: u32) -> Option<&Sidecar> {
        self.lanes.get(lane as usize)
    }

    /// The value at `position` of `lane`; `None` where there is none.
    #[must_use]
    pub fn value(&self, lane: u32, position: u64) -> Option<Number> {
        let position = usize::try_from(position).ok()?;
        match self.lane(lane)? {
            Sidecar::Integers(values) => values.get(position).copied().map(Number::Integer),
            Sidecar::Floats(values) => values.get(position).copied().map(Number::Float),
            Sidecar::Order(_) => None,
        }
    }

    pub(crate) fn has_floats(&self) -> bool {
        self.lanes.iter().any(|lane| matches!(lane, Sidecar::Floats(values) if !values.is_empty()))
    }

    /// All values, lane by lane.
    pub fn values(&self) -> impl Iterator<Item = Number> + '_ {
        self.lanes.iter().flat_map(|lane| {
            let (integers, floats): (&[i64], &[f64]) = match lane {
                Sidecar::Integers(values) => (values, &[]),
                Sidecar::Floats(values) => (&[], values),
                Sidecar::Order(_) => (&[], &[]),
            };
            integers.iter().map(|v| Number::Integer(*v)).chain(floats.iter().map(|v| Number::Float(*v)))
        })
    }

    /// Positions of `lane` from the smallest value to the largest (NaN last), equal values by position.
    pub(crate) fn order(&self, lane: u32) -> Vec<u32> {
        let Some(values) = self.lane(lane) else { return Vec::new() };
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        match values {
            Sidecar::Integers(values) => order.sort_by_key(|at| values.get(*at as usize).copied()),
            Sidecar::Floats(values) => order.sort_by(|a, b| {
                let value = |at: &u32| values.get(*at as usize).copied().unwrap_or(f64::NAN);
                value(a).total_cmp(&value(b))
            }),
            Sidecar::Order(positions) => order.copy_from_slice(positions),
        }
        order
    }

    /// Whether the lanes have as many values as rows.
    fn fits(&self, table: &LaneTable) -> bool {
        self.lanes.len() == table.lanes() as usize
            && (0..).zip(self.lanes.iter()).all(|(lane, values)| values.len() as u64 == table.stored_rows(lane))
    }
}

/// The columns of a split that a plan uses, by name.
#[derive(Debug, Clone, Default)]
pub struct Columns(BTreeMap<String, Column>);

impl Columns {
    /// Columns by name.
    #[must_use]
    pub fn new(columns: impl IntoIterator<Item = (String, Column)>) -> Self {
        Self(columns.into_iter().collect())
    }

    /// Reads the sidecars `names` of `split`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a column that the set keeps no sidecar of, with those it keeps; storage errors; a sidecar
    /// that is not what was written is corrupt.
    pub async fn read(shards: &ShardSet, split: &str, names: impl IntoIterator<Item = &str>) -> Result<Self> {
        let mut columns = BTreeMap::new();
        let kept = shards.sidecar_names(split).await?;
        for name in names {
            if columns.contains_key(name) {
                continue;
            }
            let empty = shards.layout().split(split)?.1.rows == 0;
            // An empty split has no sidecars: then the name must be that of a column or a role.
            let known =
                ["weight", "difficulty"].contains(&name) || shards.manifest().schema.column(name, "plan").is_ok();
            if !(kept.iter().any(|k| k == name) || empty && known) {
                return Err(missing(name, split, &kept));
            }
            let mut lanes = Vec::with_capacity(shards.layout().lanes as usize);
            for lane in 0..shards.layout().lanes {
                let values = shards.sidecar(split, lane, name).await?;
                lanes.push(values.unwrap_or_else(|| Sidecar::Integers(Vec::new().into())));
            }
            columns.insert(name.to_owned(), Column::new(lanes));
        }
        Ok(Self(columns))
    }

    /// Refuses columns that are of other lanes.
    pub(crate) fn check(&self, table: &LaneTable) -> Result<()> {
        match self.0.iter().find(|(_, column)| !column.fits(table)) {
            None => Ok(()),
            Some((name, _)) => Err(Error::usage(
                format!("column \"{name}\" has not one value for each row of each lane"),
                "give the columns of the lanes of the same split",
            )),
        }
    }

    /// The column `name`.
    ///
    /// # Errors
    /// [`Error::Usage`] when it is not there.
    pub fn get(&self, name: &str) -> Result<&Column> {
        self.0.get(name).ok_or_else(|| {
            let kept: Vec<String> = self.0.keys().cloned().collect();
            missing(name, "", &kept)
        })
    }
}

fn missing(name: &str, split: &str, kept: &[String]) -> Error {
    let kept: Vec<&str> = kept.iter().map(String::as_str).filter(|k| !k.starts_with("order_")).collect();
    let of = if split.is_empty() { String::new() } else { format!(" of split \"{split}\"") };
    Error::usage(
        format!("column \"{name}\"{of} has no sidecar, which the plan would read instead of the shards"),
        match kept.as_slice() {
            [] => "make the shards with --sidecar COLUMN (or --difficulty, --balance) for it".to_owned(),
            kept => format!("make the shards with --sidecar {name}; the set keeps {}", kept.join(", ")),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ordering::{Equal, Greater, Less};

    #[test]
    fn integers_and_floats_are_compared_exactly() {
        let large = (1_i64 << 53) + 1;
        for (a, b, want) in [
            (1, 1.0, Some(Equal)),
            (1, 1.5, Some(Less)),
            (2, 1.5, Some(Greater)),
            (-1, -1.5, Some(Greater)),
            (-2, -1.5, Some(Less)),
            (0, -0.0, Some(Equal)),
            (large, 9_007_199_254_740_992.0, Some(Greater)),
            (i64::MAX, 9_223_372_036_854_775_808.0, Some(Less)),
            (i64::MIN, -9_223_372_036_854_775_808.0, Some(Equal)),
            (i64::MIN, f64::NEG_INFINITY, Some(Greater)),
            (5, f64::NAN, None),
        ] {
            assert_eq!(Number::Integer(a).compare(Number::Float(b)), want, "{a} {b}");
            assert_eq!(Number::Float(b).compare(Number::Integer(a)), want.map(Ordering::reverse), "{b} {a}");
        }
    }

    #[test]
    fn orders_are_ascending_and_stable() {
        let column = Column::floats(vec![vec![0.5, f64::NAN, -1.0, 0.5]]);
        assert_eq!(column.order(0), [2, 0, 3, 1]);
        assert_eq!(Column::integers(vec![vec![3, 1, 2, 1]]).order(0), [1, 3, 2, 0]);
        assert_eq!(column.order(1), [0_u32; 0]);
        assert_eq!(column.value(0, 2), Some(Number::Float(-1.0)));
        assert_eq!(column.value(0, 4), None);
        assert_eq!(column.values().count(), 4);
    }
}
