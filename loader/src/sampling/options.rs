//! Settings of sampled epochs, and how many draws they make.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::allocate::{largest_without_repeats, nothing_to_draw, too_many};
use crate::error::{Error, Result};

/// How an epoch draws its rows, where it is not every row once.
// Fields stand in byte order of their names, since the JSON is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Sampling {
    /// Each class has its share of an epoch, whatever its rows.
    Balanced {
        /// The class, a column of integers.
        column: String,
        /// What happens when a class has fewer rows than draws.
        #[serde(default)]
        repeats: Repeats,
        /// Samples of an epoch; by default as many as the split has rows, with [`Repeats::Never`] as many as possible.
        #[serde(default)]
        samples: Option<u64>,
        /// Relative share of each class, by its value as a decimal integer; 0 leaves a class out. All classes of the
        /// split are listed. By default all are equal.
        #[serde(default)]
        shares: Option<BTreeMap<String, Share>>,
    },
    /// Rows in proportion to a weight of each.
    Weighted {
        /// The weight, a column of numbers, 0 or larger.
        column: String,
        /// Whether a row can be drawn again in the same epoch.
        replacement: bool,
        /// Samples of an epoch; by default as many as the split has rows, without replacement as many as have a positive
        /// weight.
        #[serde(default)]
        samples: Option<u64>,
    },
}

/// What happens when a class has fewer rows than draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repeats {
    /// No row twice in an epoch: an epoch is as long as the scarcest class allows, and more is refused.
    Never,
    /// A class that runs out begins another pass over its rows in a fresh order.
    #[default]
    Passes,
    /// Each draw is one of the class's rows, all equally likely, whatever was drawn before.
    Independent,
}

/// A relative share, an exact decimal from 0 to below 10^9 with at most nine decimals. Written as an integer or, with
/// decimals, as a string; a number with decimals is read by its shortest digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u64);

const BILLION: u64 = 1_000_000_000;

impl Share {
    /// Reads a decimal such as `3`, `0.25` or `.5`; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !digits(whole) || !digits(fraction) {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
        Some(Self(whole * BILLION + fraction))
    }

    /// The share in billionths, below 10^18.
    #[must_use]
    pub fn billionths(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / BILLION, self.0 % BILLION);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{fraction:09}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(BILLION) {
            serializer.serialize_u64(self.0 / BILLION)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(ShareVisitor)
    }
}

struct ShareVisitor;

impl de::Visitor<'_> for ShareVisitor {
    type Value = Share;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a share: a number from 0 to below 10^9 with at most nine decimals")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> std::result::Result<Share, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> std::result::Result<Share, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> std::result::Result<Share, E> {
        // The shortest digits that give this number again, never with an exponent.
        self.visit_str(&value.to_string())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> std::result::Result<Share, E> {
        Share::parse(value).ok_or_else(|| E::invalid_value(de::Unexpected::Str(value), &self))
    }
}

impl Sampling {
    /// The column it needs.
    #[must_use]
    pub fn column(&self) -> &str {
        match self {
            Self::Balanced { column, .. } | Self::Weighted { column, .. } => column,
        }
    }

    /// Checks what can be checked without the data.
    ///
    /// # Errors
    /// [`Error::Usage`] for an empty column name, 0 samples, a share of something that is no integer, shares all 0.
    pub fn validate(&self) -> Result<()> {
        if self.column().is_empty() {
            return Err(Error::usage("sampling names no column", "give the column of classes or weights"));
        }
        let (Self::Balanced { samples, .. } | Self::Weighted { samples, .. }) = self;
        if *samples == Some(0) {
            return Err(Error::usage(
                "samples is 0",
                "give the number of samples of an epoch, 1 or more, or leave it out",
            ));
        }
        let Self::Balanced { shares: Some(shares), .. } = self else { return Ok(()) };
        for value in shares.keys() {
            if value.parse::<i64>().ok().is_none_or(|parsed| parsed.to_string() != *value) {
                return Err(Error::usage(
                    format!("shares: \"{value}\" is not a class"),
                    "name a class by its value as a decimal integer, without leading zeros or a plus sign",
                ));
            }
        }
        if shares.values().all(|share| *share == Share(0)) {
            return Err(Error::usage("shares: all are 0", "give at least one class a positive share"));
        }
        Ok(())
    }
}

/// The share of each of `classes`, the values of the classes that have rows in the split, in units common to all.
///
/// # Errors
/// [`Error::Usage`] for a class without a share, and for a positive share of a class without rows.
pub fn class_shares(classes: &[i64], shares: Option<&BTreeMap<String, Share>>) -> Result<Vec<u64>> {
    let Some(shares) = shares else { return Ok(vec![1; classes.len()]) };
    let mut listed: BTreeMap<&str, Share> = shares.iter().map(|(value, share)| (value.as_str(), *share)).collect();
    let mut units = Vec::with_capacity(classes.len());
    for class in classes {
        let share = listed.remove(class.to_string().as_str()).ok_or_else(|| {
            Error::usage(
                format!("shares: class {class} has rows and no share"),
                "list every class of the split; a share of 0 leaves a class out",
            )
        })?;
        units.push(share.billionths());
    }
    if let Some((value, share)) = listed.into_iter().find(|(_, share)| *share > Share(0)) {
        return Err(Error::usage(
            format!("shares: class {value} is to have the share {share} and has no rows in the split"),
            "leave the class out, or correct its value",
        ));
    }
    Ok(units)
}

/// Draws of an epoch of [`Sampling::Balanced`] over classes of `rows` rows and these shares ([`class_shares`]).
///
/// # Errors
/// [`Error::Usage`] when no class with a share has a row, and with [`Repeats::Never`] for more samples than the scarcest
/// class allows, said with the largest possible number.
pub fn balanced_samples(samples: Option<u64>, repeats: Repeats, rows: &[u64], shares: &[u64]) -> Result<u64> {
    let all = rows.iter().fold(0_u64, |sum, rows| sum.saturating_add(*rows));
    if rows.iter().zip(shares).all(|(rows, share)| *rows == 0 || *share == 0) {
        return Err(Error::usage("no class has both rows and a share", "give a class of the split a positive share"));
    }
    if repeats != Repeats::Never {
        return Ok(samples.unwrap_or(all));
    }
    let largest = largest_without_repeats(rows, shares);
    match samples {
        Some(samples) if samples > largest => Err(too_many(samples, u128::from(largest))),
        Some(samples) => Ok(samples),
        None if largest == 0 => Err(too_many(1, 0)),
        None => Ok(largest),
    }
}

/// Draws of an epoch of [`Sampling::Weighted`] over `rows` rows of which `positive` have a positive weight.
///
/// # Errors
/// [`Error::Usage`] when no weight is positive, and without replacement for more samples than rows of positive weight,
/// said with their number.
pub fn weighted_samples(samples: Option<u64>, replacement: bool, rows: u64, positive: u64) -> Result<u64> {
    if positive == 0 {
        return Err(nothing_to_draw());
    }
    match samples {
        Some(samples) if !replacement && samples > positive => Err(too_many(samples, u128::from(positive))),
        Some(samples) => Ok(samples),
        None if replacement => Ok(rows),
        None => Ok(positive),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(json: &str) -> std::result::Result<Sampling, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    fn shares(list: &[(&str, &str)]) -> BTreeMap<String, Share> {
        list.iter().map(|(value, share)| ((*value).to_owned(), Share::parse(share).unwrap())).collect()
    }

    #[test]
    fn json_is_canonical() {
        let weighted = Sampling::Weighted { column: "w".into(), replacement: true, samples: Some(7) };
        let json = r#"{"kind":"weighted","column":"w","replacement":true,"samples":7}"#;
        assert_eq!(serde_json::to_string(&weighted).unwrap(), json);
        assert_eq!(read(json).unwrap(), weighted);
        let balanced = read(r#"{"kind":"balanced","column":"y","shares":{"-3":0.250,"7":2,"8":"1.50"}}"#).unwrap();
        let json = r#"{"kind":"balanced","column":"y","repeats":"passes","samples":null,"shares":{"-3":"0.25","7":2,"8":"1.5"}}"#;
        assert_eq!(serde_json::to_string(&balanced).unwrap(), json);
        assert_eq!(read(json).unwrap(), balanced);
        assert_eq!(balanced.column(), "y");
        balanced.validate().unwrap();
        // Hashed as written: names in byte order.
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let names: Vec<&String> = value.as_object().unwrap().keys().filter(|name| *name != "kind").collect();
        assert!(names.is_sorted());
    }

    #[test]
    fn unknown_words_are_refused() {
        assert!(
            read(r#"{"kind":"weighted","column":"w","replacement":true,"sample":7}"#).unwrap_err().contains("sample")
        );
        assert!(read(r#"{"kind":"weighted","column":"w"}"#).unwrap_err().contains("replacement"));
        assert!(read(r#"{"kind":"balanced","column":"y","repeats":"often"}"#).unwrap_err().contains("often"));
        for share in
            ["-1", "-0.5", "1e30", "1000000000", "\"0.1234567891\"", "\"\"", "\".\"", "\"1e3\"", "\"+1\"", "null", "[]"]
        {
            let text = format!(r#"{{"kind":"balanced","column":"y","shares":{{"1":{share}}}}}"#);
            assert!(read(&text).unwrap_err().contains("a share: a number from 0"), "{share}");
        }
    }

    proptest! {
        #[test]
        fn shares_are_exact(billionths in 0..BILLION * BILLION) {
            let share = Share(billionths);
            prop_assert_eq!(Share::parse(&share.to_string()), Some(share));
            let json = serde_json::to_string(&share).unwrap();
            prop_assert_eq!(serde_json::from_str::<Share>(&json).unwrap(), share);
            // Up to 15 digits, a number says the same as its text.
            let short = Share(billionths % 1_000_000_000_000_000);
            prop_assert_eq!(serde_json::from_str::<Share>(&short.to_string()).unwrap(), short);
        }
    }

    #[test]
    fn bad_values_are_refused() {
        let text = |s: Sampling| s.validate().unwrap_err().to_string();
        let weighted =
            |column: &str, samples| Sampling::Weighted { column: column.into(), replacement: false, samples };
        assert!(text(weighted("", None)).contains("no column"));
        assert!(text(weighted("w", Some(0))).contains("samples is 0"));
        weighted("w", Some(1)).validate().unwrap();
        let balanced = |list: &[(&str, &str)]| Sampling::Balanced {
            column: "y".into(),
            repeats: Repeats::Never,
            samples: None,
            shares: Some(shares(list)),
        };
        for value in ["cat", "", "01", "+1", "-0", "1.0", " 1", "9223372036854775808"] {
            assert!(text(balanced(&[(value, "1")])).contains("is not a class"), "{value}");
        }
        assert!(text(balanced(&[("1", "0")])).contains("all are 0"));
        assert!(text(balanced(&[])).contains("all are 0"));
        balanced(&[("-9223372036854775808", "0"), ("0", "0.5")]).validate().unwrap();
    }

    #[test]
    fn every_class_has_a_share() {
        assert_eq!(class_shares(&[3, 9], None).unwrap(), [1, 1]);
        let some = shares(&[("10", "0"), ("3", "0.5"), ("9", "2")]);
        assert_eq!(class_shares(&[3, 9], Some(&some)).unwrap(), [BILLION / 2, 2 * BILLION]);
        let text = |classes: &[i64]| class_shares(classes, Some(&some)).unwrap_err().to_string();
        assert!(text(&[3, 9, 11]).contains("class 11 has rows and no share"));
        assert!(text(&[3]).contains("class 9 is to have the share 2 and has no rows"));
    }

    #[test]
    fn lengths_of_epochs() {
        use Repeats::{Independent, Never, Passes};
        let rows = [100, 7, 40];
        for repeats in [Passes, Independent] {
            assert_eq!(balanced_samples(None, repeats, &rows, &[1; 3]).unwrap(), 147);
            assert_eq!(balanced_samples(Some(1000), repeats, &rows, &[1; 3]).unwrap(), 1000);
        }
        assert_eq!(balanced_samples(None, Never, &rows, &[1; 3]).unwrap(), 21);
        assert_eq!(balanced_samples(Some(20), Never, &rows, &[1; 3]).unwrap(), 20);
        let text = balanced_samples(Some(22), Never, &rows, &[1; 3]).unwrap_err().to_string();
        assert!(text.contains("samples is 22") && text.contains("at most 21"));
        // 40 rows of two parts in three: 60 draws.
        assert_eq!(balanced_samples(None, Never, &rows, &[1, 0, 2]).unwrap(), 60);
        assert!(balanced_samples(None, Passes, &[0, 5], &[1, 0]).is_err());
        assert!(balanced_samples(None, Never, &[0, 5], &[1, 1]).is_err());

        assert_eq!(weighted_samples(None, true, 10, 4).unwrap(), 10);
        assert_eq!(weighted_samples(None, false, 10, 4).unwrap(), 4);
        assert_eq!(weighted_samples(Some(99), true, 10, 4).unwrap(), 99);
        assert_eq!(weighted_samples(Some(3), false, 10, 4).unwrap(), 3);
        assert!(weighted_samples(Some(5), false, 10, 4).unwrap_err().to_string().contains("at most 4"));
        assert!(weighted_samples(None, true, 10, 0).is_err());
    }
}
