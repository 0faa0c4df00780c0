//! Text of the page: names that come from data made harmless, numbers as people read them.

/// `text` with the characters that mean something in HTML written as references.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// `name` in at most `most` characters, with what can't be seen or turns the direction of writing spelt out. Not yet
/// escaped.
pub fn visible(name: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut length = 0;
    for c in name.chars() {
        let unseen = c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
        let width = if unseen { c.escape_default().count() } else { 1 };
        // The last place is for the dots; whether they are needed shows only at the next character.
        if length + width > most {
            while length > most.saturating_sub(1) {
                shown.pop();
                length -= 1;
            }
            shown.push('…');
            return shown;
        }
        if unseen {
            shown.extend(c.escape_default())
        } else {
            shown.push(c)
        }
        length += width;
    }
    shown
}

/// The name of a stratum; there is one without a name where nothing is stratified.
pub(super) fn stratum(name: &str) -> &str {
    if name.is_empty() { "all rows" } else { name }
}

/// 1234567 as 1,234,567.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `count` and the noun, which takes an s unless there is one of it.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Bytes in binary units.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let (mut size, mut unit) = (n as f64 / 1024.0, UNITS[0]);
    for larger in &UNITS[1..] {
        if size < 1023.95 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    format!("{size:.1} {unit}")
}

/// A share as per cent.
pub fn percent(part: f64) -> String {
    let per_cent = 100.0 * part;
    if per_cent != 0.0 && per_cent.abs() < 0.01 { format!("{per_cent:.1e} %") } else { format!("{per_cent:.2} %") }
}

/// Rows that need not be whole.
pub(super) fn rows(x: f64) -> String {
    if x.abs() < 1e9 { format!("{x:.4}") } else { format!("{x:.4e}") }
}

/// `rows` over `parts`, exact where it is whole.
pub fn mean(rows: u64, parts: u64) -> String {
    let parts = parts.max(1);
    if rows.is_multiple_of(parts) {
        return count(rows / parts);
    }
    // Hundredths, rounded to the nearest: the whole part may have more digits than a float holds.
    let hundredths = (u128::from(rows) * 200 + u128::from(parts)) / (2 * u128::from(parts));
    let whole = u64::try_from(hundredths / 100).unwrap_or(u64::MAX);
    format!("{}.{:02}", count(whole), hundredths % 100)
}

/// A figure in about five digits.
pub(super) fn figure(x: f64) -> String {
    let size = x.abs();
    if size != 0.0 && !(1e-3..1e7).contains(&size) {
        format!("{x:.3e}")
    } else if size >= 1000.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.4}")
    }
}

/// A tick of an axis.
pub(super) fn tick(x: f64) -> String {
    let (scaled, suffix) = match x.abs() {
        s if s >= 1e15 => return format!("{x:.1e}"),
        s if s >= 1e12 => (x / 1e12, "T"),
        s if s >= 1e9 => (x / 1e9, "G"),
        s if s >= 1e6 => (x / 1e6, "M"),
        s if s >= 1e4 => (x / 1e3, "k"),
        s if s > 0.0 && s < 1e-2 => return format!("{x:.1e}"),
        _ => (x, ""),
    };
    let text = format!("{scaled:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{suffix}")
}

/// A deviation with its sign, in at most six characters or so.
pub(super) fn signed(x: f64) -> String {
    let text = match x.abs() {
        s if s < 9.995 => format!("{s:.2}"),
        s if s < 99.95 => format!("{s:.1}"),
        s if s < 9_999.5 => format!("{s:.0}"),
        s => format!("{s:.0e}"),
    };
    let zero = text.bytes().all(|b| b == b'0' || b == b'.');
    match (zero, x < 0.0) {
        (true, _) => "0".into(),
        (false, true) => format!("−{text}"),
        (false, false) => format!("+{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_and_seen() {
        assert_eq!(visible("abc", 3), "abc");
        assert_eq!(visible("abcd", 3), "ab…");
        assert_eq!(visible("a\nb\0\u{202e}x", 40), "a\\nb\\u{0}\\u{202e}x");
        assert_eq!(visible("\u{7}\u{7}\u{7}", 8), "\\u{7}…");
        assert_eq!(visible(&"∅".repeat(1000), 5), "∅∅∅∅…");
        assert_eq!(visible("x", 0), "…");
        assert_eq!(escape("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            ["0", "999", "1,000", "18,446,744,073,709,551,615"],
            [0, 999, 1000, u64::MAX].map(count).each_ref().map(String::as_str)
        );
        assert_eq!(
            [0, 1023, 1024, 1_048_576, u64::MAX].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "16.0 EiB"]
        );
        assert_eq!([0.5, -0.25, 0.0, -0.001, 12.34, 1e9].map(signed), ["+0.50", "−0.25", "0", "0", "+12.3", "+1e9"]);
        assert_eq!(
            [0.0, 250.0, 1250.5, 25_000.0, 3e6, f64::INFINITY].map(tick),
            ["0", "250", "1250.5", "25k", "3M", "inf"]
        );
        assert_eq!([mean(10, 4), mean(7_500, 1), mean(9_999, 5_000), mean(1, 0)], ["2.50", "7,500", "2.00", "1"]);
        assert_eq!(mean(u64::MAX, 2), "9,223,372,036,854,775,807.50");
        assert_eq!([0.5, 0.0, 7e-8].map(percent), ["50.00 %", "0.00 %", "7.0e-6 %"]);
    }
}
