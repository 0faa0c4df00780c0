//! Dates and times of day as text: ISO 8601's calendar form, with `T` or a space between, and nothing guessed.

/// Days from 1970-01-01 of a date of the proleptic Gregorian calendar (Howard Hinnant, "chrono-compatible low-level
/// date algorithms", `days_from_civil`).
fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = i64::from((month + 9) % 12);
    let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 0,
    }
}

fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0_u32, |n, b| b.is_ascii_digit().then(|| n * 10 + u32::from(b - b'0')))
}

/// Days since 1970-01-01 of `YYYY-MM-DD`.
pub(crate) fn parse_date(text: &[u8]) -> Option<i32> {
    if text.len() != 10 || text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    let (year, month, day) = (i64::from(digits(&text[..4])?), digits(&text[5..7])?, digits(&text[8..])?);
    if day == 0 || day > days_in_month(year, month) {
        return None;
    }
    i32::try_from(days_from_civil(year, month, day)).ok()
}

/// An instant or a wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Seconds since 1970-01-01T00:00:00, of UTC when `zoned`, of the wall clock when not.
    pub(crate) seconds: i64,
    /// Nanoseconds into the second.
    pub(crate) nanoseconds: u32,
    /// Whether the text had an offset from UTC.
    pub(crate) zoned: bool,
}

/// Reads `YYYY-MM-DD[(T| )HH:MM[:SS[.f…]][Z|±HH[[:]MM]]]`; a date alone is its midnight. Leap seconds, 24:00 and more
/// than nine decimals are refused.
pub(crate) fn parse_moment(text: &[u8]) -> Option<Moment> {
    let midnight = i64::from(parse_date(text.get(..10)?)?) * 86_400;
    let Some((separator, time)) = text.get(10..)?.split_first() else {
        return Some(Moment { seconds: midnight, nanoseconds: 0, zoned: false });
    };
    if !matches!(separator, b'T' | b't' | b' ') || time.get(2) != Some(&b':') {
        return None;
    }
    let (hour, minute) = (digits(time.get(..2)?)?, digits(time.get(3..5)?)?);
    let (mut second, mut nanoseconds) = (0, 0);
    let mut rest = time.get(5..)?;
    if rest.first() == Some(&b':') {
        second = digits(rest.get(1..3)?)?;
        rest = rest.get(3..)?;
        if rest.first() == Some(&b'.') {
            let decimals = rest[1..].iter().take_while(|b| b.is_ascii_digit()).count();
            if decimals == 0 || decimals > 9 {
                return None;
            }
            nanoseconds = digits(&rest[1..=decimals])? * 10_u32.pow(9 - decimals as u32);
            rest = &rest[1 + decimals..];
        }
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let offset = match rest {
        [] => None,
        [b'Z' | b'z'] => Some(0),
        [b' ', zone @ ..] if !zone.is_empty() => Some(parse_offset(zone)?),
        zone => Some(parse_offset(zone)?),
    };
    let wall = midnight + i64::from(hour * 3600 + minute * 60 + second);
    Some(Moment { seconds: wall - offset.unwrap_or(0), nanoseconds, zoned: offset.is_some() })
}

fn parse_offset(zone: &[u8]) -> Option<i64> {
    let (sign, zone) = match zone {
        [b'Z' | b'z'] => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match zone {
        [_, _] => (digits(zone)?, 0),
        [_, _, b':', _, _] => (digits(&zone[..2])?, digits(&zone[3..])?),
        [_, _, _, _] => (digits(&zone[..2])?, digits(&zone[2..])?),
        _ => return None,
    };
    (hours <= 18 && minutes <= 59).then(|| sign * i64::from(hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::compute::kernels::cast_utils::Parser;
    use proptest::prelude::*;

    #[test]
    fn dates_are_checked() {
        assert_eq!(parse_date(b"1970-01-01"), Some(0));
        assert_eq!(parse_date(b"2000-02-29"), Some(11_016));
        assert_eq!(parse_date(b"0001-01-01"), Some(-719_162));
        for bad in ["1900-02-29", "2001-13-01", "2001-00-10", "2001-01-00", "2001-1-01", "20010101", "", "2001-01-1x"] {
            assert_eq!(parse_date(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn offsets_are_applied_and_remembered() {
        let utc = parse_moment(b"2024-03-10T12:00:00Z").unwrap();
        for same in [
            "2024-03-10T14:00:00+02:00",
            "2024-03-10 04:30:00-0730",
            "2024-03-10T13:00+01",
            "2024-03-10 12:00:00 +00:00",
        ] {
            assert_eq!(parse_moment(same.as_bytes()), Some(utc), "{same}");
        }
        let naive = parse_moment(b"2024-03-10T12:00:00.5").unwrap();
        assert_eq!((naive.seconds, naive.nanoseconds, naive.zoned), (utc.seconds, 500_000_000, false));
        assert_eq!(parse_moment(b"2024-03-10").unwrap().seconds, utc.seconds - 43_200);
        for bad in [
            "2024-03-10T24:00",
            "2024-03-10T12",
            "2024-03-10T12:00:60",
            "2024-03-10T12:00:00.",
            "2024-03-10T12:00:00+1",
            "2024-03-10T12:00:00 ",
            "2024-03-10X12:00",
        ] {
            assert_eq!(parse_moment(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_arrow(days in -700_000_i32..2_900_000, seconds in 0_i64..86_400, nanoseconds in 0_u32..1_000_000_000) {
            let text = arrow::temporal_conversions::date32_to_datetime(days).unwrap().date().to_string();
            if text.len() == 10 {
                prop_assert_eq!(parse_date(text.as_bytes()), Some(days));
                prop_assert_eq!(arrow::datatypes::Date32Type::parse(&text), Some(days));
                let moment = format!("{text}T{:02}:{:02}:{:02}.{nanoseconds:09}", seconds / 3600, seconds / 60 % 60, seconds % 60);
                let parsed = parse_moment(moment.as_bytes()).unwrap();
                prop_assert_eq!((parsed.seconds, parsed.nanoseconds), (i64::from(days) * 86_400 + seconds, nanoseconds));
            }
        }

        #[test]
        fn never_panics(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (parse_date(&text), parse_moment(&text), parse_offset(&text));
        }
    }
}
