//! Tables that people read.

use comfy_table::{CellAlignment, Table, TableStyle, presets};
use indicatif::{HumanBytes, HumanCount};

const STYLE: TableStyle = presets::UTF8_FULL_CONDENSED;

/// A table; all columns but the first `text_columns` are numbers and stand to the right.
pub fn table(header: &[&str], text_columns: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header.to_vec());
    table.add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        if i >= text_columns {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

/// 1234567 as 1,234,567.
pub fn count(n: u64) -> String {
    HumanCount(n).to_string()
}

/// Bytes in binary units.
pub fn bytes(n: u64) -> String {
    HumanBytes(n).to_string()
}

/// A share as per cent.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}
