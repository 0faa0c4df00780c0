//! Weights of sources as exact rationals, and their ratio as coprime integers.
//!
//! A weight decides whose turn it is, so it is what its author wrote: 0.7 is 7/10 and not the binary number nearest to
//! it. A float that a configuration format has already read stands for its shortest decimal text.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::{Error, Result};

/// Largest sum of the coprime integers of a mixture: 2^20, so that one period of its turns is a table of 12 MiB.
pub const MAX_PERIOD: u64 = 1 << 20;

const HELP: &str = "write a number such as 7, 0.7, 1e-4 or 1/3";

/// A weight: an exact number, 0 or more, in lowest terms.
///
/// Read from text (`7`, `0.7`, `1e-4`, `1/3`) or from a number; written as a decimal where that is exact in at most 19
/// places, else as a fraction, so that equal weights have equal texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weight {
    numerator: u64,
    denominator: u64,
}

impl Weight {
    /// The weight `numerator / denominator`, in lowest terms; `None` when `denominator` is 0 or a term, reduced, is
    /// above 2^64 − 1.
    fn reduced(numerator: u128, denominator: u128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let divisor = gcd(numerator, denominator);
        Some(Self {
            numerator: u64::try_from(numerator / divisor).ok()?,
            denominator: u64::try_from(denominator / divisor).ok()?,
        })
    }

    /// The numerator in lowest terms.
    #[must_use]
    pub fn numerator(&self) -> u64 {
        self.numerator
    }

    /// The denominator in lowest terms, at least 1.
    #[must_use]
    pub fn denominator(&self) -> u64 {
        self.denominator
    }

    /// Whether it is 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.numerator == 0
    }
}

impl From<u64> for Weight {
    fn from(numerator: u64) -> Self {
        Self { numerator, denominator: 1 }
    }
}

impl TryFrom<f64> for Weight {
    type Error = Error;

    /// The weight that the shortest decimal text of `value` says.
    ///
    /// # Errors
    /// [`Error::Usage`] when `value` is negative, not finite, or above 2^64 − 1 or too fine in lowest terms.
    fn try_from(value: f64) -> Result<Self> {
        // The standard library prints the shortest text that reads back as the same float.
        format!("{value:e}").parse()
    }
}

impl FromStr for Weight {
    type Err = Error;

    /// # Errors
    /// [`Error::Usage`] when `text` is no number, is negative, or a term of its fraction is above 2^64 − 1.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let not_a_number = || Error::usage(format!("weight \"{text}\" is not a number"), HELP);
        let too_fine = || {
            Error::usage(
                format!("weight \"{text}\" is a fraction with a term above 2^64 - 1"),
                "round it to fewer digits; four decimals are plenty",
            )
        };
        let (negative, magnitude) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let weight = match magnitude.split_once('/') {
            Some((numerator, denominator)) => {
                if !is_digits(numerator) || !is_digits(denominator) {
                    return Err(not_a_number());
                }
                if denominator.bytes().all(|b| b == b'0') {
                    return Err(Error::usage(format!("weight \"{text}\" divides by 0"), HELP));
                }
                let (numerator, denominator) = (numerator.parse().ok(), denominator.parse().ok());
                numerator.zip(denominator).and_then(|(n, d)| Self::reduced(n, d))
            }
            None => Decimal::parse(magnitude).ok_or_else(not_a_number)?.weight(),
        };
        if negative {
            return Err(Error::usage(
                format!("weight \"{text}\" is negative"),
                "give a weight of 0 or more; a source of weight 0 has no turns",
            ));
        }
        weight.ok_or_else(too_fine)
    }
}

/// The parts of the text of a decimal number.
struct Decimal<'a> {
    whole: &'a str,
    /// Without zeros at its end.
    fraction: &'a str,
    exponent: i32,
}

impl<'a> Decimal<'a> {
    /// `None` when `text` is not `digits[.digits][e[±]digits]`, where one of the digits around the point may be
    /// missing.
    fn parse(text: &'a str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let well_formed = (is_digits(whole) && (fraction.is_empty() || is_digits(fraction)))
            || (whole.is_empty() && is_digits(fraction));
        well_formed.then(|| Self { whole, fraction: fraction.trim_end_matches('0'), exponent })
    }

    /// `None` when a term of the fraction is too large.
    fn weight(&self) -> Option<Weight> {
        let digits = format!("{}{}", self.whole, self.fraction);
        let significant = digits.trim_start_matches('0');
        if significant.is_empty() {
            return Some(Weight::from(0));
        }
        let numerator: u128 = significant.parse().ok()?;
        let scale = i64::from(self.exponent) - i64::try_from(self.fraction.len()).ok()?;
        let power = 10_u128.checked_pow(u32::try_from(scale.unsigned_abs()).ok()?)?;
        if scale >= 0 { Weight::reduced(numerator.checked_mul(power)?, 1) } else { Weight::reduced(numerator, power) }
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (numerator, denominator) = (u128::from(self.numerator), u128::from(self.denominator));
        // 10^19 is below 2^64, so that the product below is within 128 bits.
        let exact = (0..=19_u32).map(|places| (places, 10_u128.pow(places))).find(|(_, unit)| unit % denominator == 0);
        match exact {
            Some((0, _)) => write!(f, "{numerator}"),
            Some((places, unit)) => {
                let scaled = numerator * (unit / denominator);
                write!(f, "{}.{:0width$}", scaled / unit, scaled % unit, width = places as usize)
            }
            None => write!(f, "{numerator}/{denominator}"),
        }
    }
}

impl Serialize for Weight {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Weight;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a weight: a number such as 7, 0.7 or \"1/3\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Weight, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Weight, E> {
                Ok(Weight::from(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Weight, E> {
                // By its text, which has the sign that the error shows.
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Weight, E> {
                Weight::try_from(value).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// The ratio of `weights` as integers without a common factor, in the same order; a weight of 0 stays 0.
///
/// # Errors
/// [`Error::Usage`] when there is no weight above 0, or the integers sum to more than [`MAX_PERIOD`].
pub fn coprime(weights: &[Weight]) -> Result<Vec<u64>> {
    if weights.iter().all(Weight::is_zero) {
        let what = if weights.is_empty() { "there are no weights" } else { "all weights are 0" };
        return Err(Error::usage(what, "give each source a weight above 0"));
    }
    let help = "round the weights, say to four decimals that sum to 1";
    let integers = over_common_denominator(weights).ok_or_else(|| {
        Error::usage(format!("the weights {} have no common denominator below 2^128", listed(weights)), help)
    })?;
    let divisor = integers.iter().copied().fold(0, gcd).max(1);
    let sum = integers.iter().try_fold(0_u128, |sum, n| sum.checked_add(n / divisor));
    if sum.is_none_or(|sum| sum > u128::from(MAX_PERIOD)) {
        let sum = sum.map_or("more than 2^128".to_owned(), |sum| sum.to_string());
        return Err(Error::usage(
            format!(
                "the weights {} are, as integers without a common factor, {sum} in sum, and at most {MAX_PERIOD} is \
                 possible",
                listed(weights)
            ),
            help,
        ));
    }
    integers
        .iter()
        .map(|n| u64::try_from(n / divisor).map_err(|_| Error::internal("a weight is above the sum of all")))
        .collect()
}

/// The weights times the least common multiple of their denominators; `None` when that overflows.
fn over_common_denominator(weights: &[Weight]) -> Option<Vec<u128>> {
    let multiple = weights.iter().try_fold(1_u128, |multiple, weight| {
        let denominator = u128::from(weight.denominator);
        multiple.checked_mul(denominator / gcd(multiple, denominator))
    })?;
    weights
        .iter()
        .map(|weight| u128::from(weight.numerator).checked_mul(multiple / u128::from(weight.denominator)))
        .collect()
}

/// The first eight, for a message.
fn listed(weights: &[Weight]) -> String {
    let mut text = weights.iter().take(8).map(Weight::to_string).collect::<Vec<_>>().join(", ");
    if weights.len() > 8 {
        text.push_str(", …");
    }
    text
}

/// Greatest common divisor; that of 0 and b is b.
fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weight(text: &str) -> Weight {
        text.parse().unwrap()
    }

    fn terms(text: &str) -> (u64, u64) {
        (weight(text).numerator, weight(text).denominator)
    }

    #[test]
    fn texts_are_exact() {
        assert_eq!(terms("0.7"), (7, 10));
        assert_eq!(terms("7"), (7, 1));
        assert_eq!(terms(" 1/3 "), (1, 3));
        assert_eq!(terms("6/4"), (3, 2));
        assert_eq!(terms("1e-4"), (1, 10_000));
        assert_eq!(terms("2.5E+3"), (2500, 1));
        assert_eq!(terms(".5"), (1, 2));
        assert_eq!(terms("5."), (5, 1));
        assert_eq!(terms("0"), (0, 1));
        assert_eq!(terms("0.000e-2000"), (0, 1));
        assert_eq!(terms("0/5"), (0, 1));
        assert_eq!(terms(&format!("0.7{}", "0".repeat(100))), (7, 10));
        assert_eq!(terms(&format!("{}7", "0".repeat(100))), (7, 1));
        assert_eq!(terms("18446744073709551615"), (u64::MAX, 1));
        assert_eq!(terms("36893488147419103230/2"), (u64::MAX, 1));
    }

    #[test]
    fn other_texts_are_refused() {
        let error = |text: &str| text.parse::<Weight>().unwrap_err().to_string();
        for text in [
            "", "abc", "NaN", "nan", "inf", "+1", "1/2/3", "1/x", "0.5/2", ".", "e5", "1e", "1e2.5", "0x7", "1_0",
            "--1",
        ] {
            assert!(error(text).starts_with(&format!("weight \"{text}\" is not a number\n  help: write")), "{text}");
        }
        for text in ["-1", "-0.5", "-1/3", "-0"] {
            assert!(error(text).starts_with(&format!("weight \"{text}\" is negative\n")), "{text}");
        }
        assert!(error("1/0").contains("divides by 0"));
        for text in ["1e-30", "1e30", "18446744073709551616", "1e999999", "1/36893488147419103233", &"9".repeat(60)] {
            assert!(error(text).contains("a term above 2^64 - 1"), "{text}");
        }
    }

    #[test]
    fn equal_weights_have_one_text() {
        for (texts, canonical) in [
            (["0.70", "7/10", "70e-2", ".7"], "0.7"),
            (["7", "7.0", "14/2", "0.7e1"], "7"),
            (["1/3", "2/6", "3/9", "01/03"], "1/3"),
            (["0.0001", "1e-4", "1/10000", "0.1E-3"], "0.0001"),
            (["0", "0.0", "0/7", "0e9"], "0"),
            (["12.05", "241/20", "1205e-2", "1.205e1"], "12.05"),
        ] {
            assert!(texts.iter().all(|text| weight(text).to_string() == canonical), "{canonical}");
        }
    }

    #[test]
    fn configurations_say_numbers_or_texts() {
        let of = |json: &str| serde_json::from_str::<Weight>(json).map(|w| w.to_string());
        for (json, canonical) in [
            ("0.7", "0.7"),
            ("0.1", "0.1"),
            ("7", "7"),
            ("1e-4", "0.0001"),
            ("1e3", "1000"),
            ("\"1/3\"", "1/3"),
            ("0.3333333333333333", "0.3333333333333333"),
        ] {
            assert_eq!(of(json).unwrap(), canonical);
            assert_eq!(of(&serde_json::to_string(canonical).unwrap()).unwrap(), canonical);
        }
        for (json, message) in [
            ("-1", "weight \"-1\" is negative"),
            ("-0.5", "is negative"),
            ("1e22", "a term above 2^64 - 1"),
            ("true", "expected a weight: a number such as"),
            ("[1]", "expected a weight: a number such as"),
        ] {
            let error = of(json).unwrap_err().to_string();
            assert!(error.contains(message), "{json}: {error}");
        }
        for value in [f64::NAN, f64::INFINITY] {
            assert!(Weight::try_from(value).unwrap_err().to_string().contains("is not a number"));
        }
        assert_eq!(serde_json::to_string(&weight("7/10")).unwrap(), "\"0.7\"");
    }

    #[test]
    fn ratios_are_coprime() {
        let ratio = |texts: &[&str]| coprime(&texts.iter().map(|t| weight(t)).collect::<Vec<_>>());
        assert_eq!(ratio(&["0.7", "0.2", "0.1"]).unwrap(), [7, 2, 1]);
        assert_eq!(ratio(&["14", "4", "2"]).unwrap(), [7, 2, 1]);
        assert_eq!(ratio(&["1/3", "1/4", "0"]).unwrap(), [4, 3, 0]);
        assert_eq!(ratio(&["5"]).unwrap(), [1]);
        assert_eq!(ratio(&["0.9999", "1e-4"]).unwrap(), [9999, 1]);
        assert_eq!(ratio(&["1048575", "1"]).unwrap(), [1_048_575, 1]);
        let error = |texts: &[&str]| ratio(texts).unwrap_err().to_string();
        assert!(error(&[]).starts_with("there are no weights"));
        assert!(error(&["0", "0"]).starts_with("all weights are 0"));
        let too_many = error(&["1048576", "1"]);
        assert!(too_many.contains("1048576, 1 are") && too_many.contains("1048577 in sum"), "{too_many}");
        assert!(too_many.contains("help: round the weights"), "{too_many}");
        let primes = ["1/18446744073709551557", "1/18446744073709551533", "1/18446744073709551521"];
        assert!(error(&primes).contains("no common denominator below 2^128"));
        let large = ["18446744073709551615/18446744073709551557", "18446744073709551614/18446744073709551533"];
        assert!(error(&large).contains("more than 2^128 in sum"), "{}", error(&large));
    }

    proptest! {
        #[test]
        fn texts_read_back(
            numerator in any::<u64>(),
            denominator in prop_oneof![
                1_u64..2000,
                1..=u64::MAX,
                (0_u32..64).prop_map(|b| 1 << b),
                (0_u32..20).prop_map(|e| 10_u64.pow(e)),
            ],
        ) {
            let weight = Weight::reduced(numerator.into(), denominator.into()).unwrap();
            prop_assert_eq!(weight.to_string().parse::<Weight>().unwrap(), weight);
            let json = serde_json::to_string(&weight).unwrap();
            prop_assert_eq!(serde_json::from_str::<Weight>(&json).unwrap(), weight);
        }

        #[test]
        fn floats_are_the_decimals_they_were_written_as(thousandths in 0_u32..10_000_000) {
            let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
            let float: f64 = text.parse().unwrap();
            prop_assert_eq!(Weight::try_from(float).unwrap(), text.parse::<Weight>().unwrap());
        }

        #[test]
        fn ratios_are_the_weights(weights in proptest::collection::vec((0_u64..50, 1_u64..9), 1..9)) {
            let weights: Vec<Weight> =
                weights.iter().map(|(n, d)| Weight::reduced((*n).into(), (*d).into()).unwrap()).collect();
            prop_assume!(weights.iter().any(|w| !w.is_zero()));
            let parts = coprime(&weights).unwrap();
            prop_assert_eq!(parts.iter().fold(0, |g, p| gcd(g, (*p).into())), 1);
            for (a, p) in weights.iter().zip(&parts) {
                for (b, r) in weights.iter().zip(&parts) {
                    // a / b = p / r
                    let left = u128::from(a.numerator) * u128::from(b.denominator) * u128::from(*r);
                    prop_assert_eq!(left, u128::from(b.numerator) * u128::from(a.denominator) * u128::from(*p));
                }
            }
        }
    }
}
