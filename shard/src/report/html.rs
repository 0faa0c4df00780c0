//! Pieces of the page: tables, pictures with their words, names. What they are given is plain text, unless they say so.

use std::fmt::Write as _;

use super::{
    chart::colour,
    text::{self, count, escape},
};

const STYLE: &str = include_str!("page.css");
/// Characters of a name.
const NAME: usize = 60;
/// Characters of a name that is given in full.
pub const FULL_NAME: usize = 240;
/// Rows of a list; of more, the number is told.
pub const LISTED: usize = 50;
/// Characters above which text of a table may be wrapped.
const WRAPPED: usize = 32;

/// A page of `body`, which is HTML. It needs no network, no script and no other file, and says so to the browser.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

/// Figures with what they are of, a plural where it ends in s.
pub fn tiles(figures: &[(String, &str)]) -> String {
    let mut html = String::from("<div class=\"tiles\">\n");
    for (value, what) in figures {
        let what = if value == "1" { what.strip_suffix('s').unwrap_or(what) } else { what };
        let _ = writeln!(html, "<div><b>{}</b><span>{}</span></div>", escape(value), escape(what));
    }
    html.push_str("</div>\n");
    html
}

/// What a page comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// What was promised holds.
    Holds,
    /// It does not.
    Broken,
    /// Nothing was promised.
    Facts,
}

/// A verdict in a sentence, then what is broken and what else there is to say. All are HTML.
pub fn verdict(verdict: Verdict, sentence: &str, broken: &[String], notes: &[String]) -> String {
    let class = match verdict {
        Verdict::Holds => "",
        Verdict::Broken => " bad",
        Verdict::Facts => " facts",
    };
    let mut html = format!("<div class=\"verdict{class}\"><b>{sentence}</b>\n");
    if broken.is_empty() && notes.is_empty() {
        html.push_str("</div>\n");
        return html;
    }
    html.push_str("<ul>\n");
    for text in broken.iter().take(LISTED) {
        let _ = writeln!(html, "<li class=\"bad-text\">{text}</li>");
    }
    for text in notes.iter().take(LISTED) {
        let _ = writeln!(html, "<li>{text}</li>");
    }
    html.push_str("</ul></div>\n");
    html
}

/// A table; all columns but the first `text_columns` are numbers and stand to the right. Cells are plain text.
pub fn table(header: &[String], text_columns: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
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
pub fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

/// A sentence on what a list leaves out; nothing where it leaves out nothing.
pub fn and_more(all: usize, shown: usize) -> String {
    match all.saturating_sub(shown) {
        0 => String::new(),
        more => format!("<p class=\"soft\">and {} more.</p>\n", count(more as u64)),
    }
}

/// A name, as HTML.
pub fn name(text: &str) -> String {
    escape(&text::visible(text, NAME))
}

/// A picture with what it says in words. `legend` are names with the places of their colours, of
/// which there are thirteen: the fifth, at 4, is grey and stands for what has no name. `label` and names are plain text;
/// `svg` and `caption` are HTML.
pub fn figure_of(svg: &str, label: &str, legend: &[(String, usize)], caption: &str) -> String {
    let mut keys = String::new();
    for (name, place) in legend {
        let c = colour(*place);
        let _ = write!(
            keys,
            "<span class=\"key\" data-c=\"{place}\" style=\"background:#{:02X}{:02X}{:02X}\"></span>{}",
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

/// A picture where a bar stands for `k` of `parts`, a plural.
pub fn shared_bars(svg: &str, label: &str, parts: &str, k: usize) -> String {
    let legend = [("up to the smallest".to_owned(), 0), ("from it to the largest".to_owned(), 1)];
    figure_of(svg, label, &legend, &format!("Each bar stands for {k} {parts}, the last one for the rest."))
}
