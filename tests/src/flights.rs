//! Made-up flights in the columns of the committed extract, for sizes that it does not have.

use std::fmt::Write as _;

const AIRPORTS: [&str; 12] = ["ATL", "BOS", "DEN", "DFW", "EWR", "JFK", "LAS", "LAX", "LGA", "ORD", "PHL", "SFO"];

/// `rows` flights as CSV with a header: `date,delay,distance,origin,destination`. The same bytes for the same `rows`;
/// later flights of a day are late more often, so there is something to learn.
#[must_use]
pub fn csv(rows: u64) -> String {
    let mut text = String::with_capacity(usize::try_from(rows).unwrap_or(0).saturating_mul(42) + 64);
    text.push_str("date,delay,distance,origin,destination\n");
    // A linear congruential generator is random enough here, and needs no crate.
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for row in 0..rows {
        let (month, day) = (row / 28 % 12 + 1, row % 28 + 1);
        let (hour, minute) = (draw(24), draw(60));
        let delay = draw(60) as i64 - 40 + hour as i64;
        let origin = draw(12);
        let destination = (origin + 1 + draw(11)) % 12;
        let distance = 200 + (origin * 131 + destination * 197) % 2400;
        let (origin, destination) = (AIRPORTS[origin as usize], AIRPORTS[destination as usize]);
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "2001-{month:02}-{day:02} {hour:02}:{minute:02}:00,{delay},{distance},{origin},{destination}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_was_asked_for_and_always_the_same() {
        let text = csv(1_000);
        assert_eq!(text.lines().count(), 1_001);
        assert!(text.lines().all(|line| line.split(',').count() == 5));
        assert_eq!(text, csv(1_000));
        assert!(csv(2_000).starts_with(&text));
    }
}
