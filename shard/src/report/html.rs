//! Pieces of the page: tables, pictures with their words, names. What they are given is plain text, unless they say so.

use std::fmt::Write as _;

use super::{
    chart::SERIES,
    text::{self, count, escape},
};

/// Characters of a name, and of one that is given in full.
pub(super) const NAME: usize = 60;
pub(super) const FULL_NAME: usize = 240;
/// Characters above which text of a table may be wrapped.
const WRAPPED: usize = 32;

/// A table; all columns but the first `text_columns` are numbers and stand to the right. Cells are plain text.
pub(super) fn table(header: &[String], text_columns: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    // Only what is long may be wrapped: else short names would be, for the sake of columns of numbers.
    let class = |i: usize, cell: &str| match (i < text_columns, cell.chars().nth(WRAPPED).is_some()) {
        (true, false) => " class=\"t\"",
        (true, true) => " class=\"t w\"",
        (false, _) => "",
    };
    for (i, cell) in header.iter().enumerate() {
        let _ = write!(html, "<th{}>{}</th>", class(i, ""), escape(&text::visible(cell, NAME)));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let (class, shown) = (class(i, cell), escape(&text::visible(cell, NAME)));
            let _ = match cell.chars().nth(NAME) {
                Some(_) => {
                    write!(html, "<td{class} title=\"{}\">{shown}</td>", escape(&text::visible(cell, FULL_NAME)))
                }
                None => write!(html, "<td{class}>{shown}</td>"),
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

/// The names of columns.
pub(super) fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

/// A sentence on what a list leaves out; nothing where it leaves out nothing.
pub(super) fn and_more(all: usize, shown: usize) -> String {
    match all.saturating_sub(shown) {
        0 => String::new(),
        more => format!("<p class=\"soft\">and {} more.</p>\n", count(more as u64)),
    }
}

/// A name, as HTML.
pub(super) fn name(text: &str) -> String {
    escape(&text::visible(text, NAME))
}

/// A picture with what it says in words. `legend` are names with the places of their colours in
/// [`SERIES`]; `caption` is HTML.
pub(super) fn figure_of(svg: &str, label: &str, legend: &[(String, usize)], caption: &str) -> String {
    let mut keys = String::new();
    for (name, colour) in legend {
        let c = SERIES[colour % SERIES.len()];
        let _ = write!(
            keys,
            "<span class=\"key\" data-c=\"{colour}\" style=\"background:#{:02X}{:02X}{:02X}\"></span>{}",
            c.0,
            c.1,
            c.2,
            escape(&text::visible(name, NAME)),
        );
    }
    if !keys.is_empty() {
        keys.push_str("<br>\n");
    }
    format!(
        "<figure>\n<div role=\"img\" aria-label=\"{}\" class=\"wide\">\n{svg}</div>\n<figcaption>{keys}{caption}</figcaption>\n</figure>\n",
        escape(label)
    )
}

/// A picture where a bar stands for `k` nodes.
pub(super) fn shared_bars(svg: &str, label: &str, k: usize) -> String {
    let legend = [("up to the smallest".to_owned(), 0), ("from it to the largest".to_owned(), 1)];
    figure_of(svg, label, &legend, &format!("Each bar stands for {k} nodes, the last one for the rest."))
}
