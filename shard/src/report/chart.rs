//! Pictures, as SVG to stand inside the page. Sizes are pixels. Colours that the page's style sheet turns over in the
//! dark (`INK`, `FAINT`) are used for nothing that lies on a colour of its own.

use plotters::{
    coord::Shift,
    prelude::{ChartBuilder, DrawingArea, IntoDrawingArea, PathElement, RGBColor, Rectangle, SVGBackend, Text},
    style::{
        Color, FontDesc, FontFamily, FontStyle, TRANSPARENT, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::text;
use crate::error::{Error, Result};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
/// Lines behind bars.
pub(super) const FAINT: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);
/// Colours of series: Okabe and Ito, "Color Universal Design", 2008.
pub(super) const SERIES: [RGBColor; 5] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x8A, 0x8A, 0x8A),
];
/// Colours after those of [`SERIES`], for pictures of many parts: Okabe and Ito's others, then Paul Tol's "muted", 2021.
const FURTHER: [RGBColor; 8] = [
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0xF0, 0xE4, 0x42),
    RGBColor(0x88, 0x22, 0x55),
    RGBColor(0x44, 0xAA, 0x99),
    RGBColor(0xCC, 0x66, 0x77),
    RGBColor(0x99, 0x99, 0x33),
    RGBColor(0xAA, 0x44, 0x99),
];
const MEAN: RGBColor = RGBColor(0xD5, 0x5E, 0x00);

const LABEL_CHARS: usize = 28;
const LABEL_WIDTH: i32 = 196;

/// The colour at a place of [`SERIES`] and, after its end, of [`FURTHER`]; then from the first on.
pub(super) fn colour(place: usize) -> RGBColor {
    let place = place % (SERIES.len() + FURTHER.len());
    SERIES.iter().chain(&FURTHER).nth(place).copied().unwrap_or(INK)
}

/// Draws on an area of `width` × `height`.
pub(super) fn draw(width: i32, height: i32, paint: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    let size = (width.max(1).unsigned_abs(), height.max(1).unsigned_abs());
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let drawn = paint(&area).and_then(|()| Ok(area.present()?));
    drop(area);
    drawn.map_err(|e| Error::internal(format!("a picture of the report: {e}")))?;
    Ok(svg)
}

pub(super) fn style(size: u32, colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    let font = FontDesc::new(FontFamily::SansSerif, f64::from(size), FontStyle::Normal);
    TextStyle { color: colour.to_backend_color(), pos: Pos::new(horizontal, VPos::Center), ..TextStyle::from(font) }
}

fn write(area: &Area<'_>, text: impl Into<String>, at: (i32, i32), size: u32, colour: RGBColor, to: HPos) -> Drawn {
    Ok(area.draw(&Text::new(text.into(), at, style(size, colour, to)))?)
}

fn fill(area: &Area<'_>, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Drawn {
    Ok(area.draw(&Rectangle::new([from, to], colour.filled()))?)
}

/// A row of a heat map.
#[derive(Debug)]
pub(super) struct HeatRow<'a> {
    pub name: &'a str,
    /// One a node, as far as they are shown.
    pub deviations: Vec<f64>,
    /// The largest over all nodes.
    pub worst: f64,
}

/// Blue for fewer, red for more, pale where a count is what it should be (ColorBrewer RdBu); `x` from −1 to 1.
fn diverging(x: f64) -> RGBColor {
    let end = if x < 0.0 { [0x21, 0x66, 0xAC] } else { [0xB2, 0x18, 0x2B] };
    let part = x.abs().min(1.0);
    let [r, g, b] = end.map(|e| (247.0 + (f64::from(e) - 247.0) * part).round() as u8);
    RGBColor(r, g, b)
}

/// Strata by nodes: how far counts are from their means. Cells have numbers where they are wide enough.
pub(super) fn heat_map(rows: &[HeatRow<'_>]) -> Result<String> {
    const HEIGHT: i32 = 21;
    const TOP: i32 = 26;
    const RIGHT: i32 = 76;
    let nodes = rows.iter().map(|r| r.deviations.len()).max().unwrap_or(0).max(1) as i32;
    let cell = (680 / nodes).clamp(8, 64);
    let scale = rows.iter().map(|r| r.worst.abs()).filter(|w| w.is_finite()).fold(1.0, f64::max);
    let width = (LABEL_WIDTH + cell * nodes + RIGHT).max(LABEL_WIDTH + 280);
    let end = TOP + HEIGHT * rows.len() as i32;
    draw(width, end + 44, |area| {
        let every = (28 / cell).max(1);
        for node in (0..nodes).filter(|n| n % every == 0) {
            let at = (LABEL_WIDTH + node * cell + cell / 2, TOP - 12);
            write(area, node.to_string(), at, 14, INK, HPos::Center)?;
        }
        write(area, "node", (LABEL_WIDTH - 8, TOP - 12), 14, INK, HPos::Right)?;
        write(area, "worst", (LABEL_WIDTH + cell * nodes + 10, TOP - 12), 14, INK, HPos::Left)?;
        for (i, row) in rows.iter().enumerate() {
            let top = TOP + HEIGHT * i as i32;
            let middle = top + HEIGHT / 2;
            let name = text::visible(text::stratum(row.name), LABEL_CHARS);
            write(area, name, (LABEL_WIDTH - 8, middle), 15, INK, HPos::Right)?;
            for (node, deviation) in row.deviations.iter().enumerate() {
                let left = LABEL_WIDTH + cell * node as i32;
                let part = deviation / scale;
                fill(area, (left, top), (left + cell - 1, top + HEIGHT - 1), diverging(part))?;
                if cell >= 40 {
                    let ink = if part.abs() > 0.55 { RGBColor(0xFF, 0xFF, 0xFF) } else { RGBColor(0x11, 0x11, 0x11) };
                    write(area, text::signed(*deviation), (left + cell / 2, middle), 14, ink, HPos::Center)?;
                }
            }
            let at = (LABEL_WIDTH + cell * nodes + 10, middle);
            write(area, text::signed(row.worst), at, 14, INK, HPos::Left)?;
        }
        let steps = 21;
        for step in 0..steps {
            let left = LABEL_WIDTH + step * 10;
            fill(area, (left, end + 12), (left + 10, end + 22), diverging(f64::from(step - 10) / 10.0))?;
        }
        let ends = [(0, -scale), (105, 0.0), (210, scale)];
        for (x, value) in ends {
            write(area, text::signed(value), (LABEL_WIDTH + x, end + 33), 14, INK, HPos::Center)?;
        }
        write(area, "rows", (LABEL_WIDTH + 218, end + 17), 14, INK, HPos::Left)
    })
}

/// A group of horizontal bars.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub name: &'a str,
    /// One a series, 0 to 1.
    pub shares: Vec<f64>,
}

/// Horizontal bars of shares in groups.
pub(super) fn grouped_bars(groups: &[Group<'_>], colours: &[RGBColor]) -> Result<String> {
    const BAR: i32 = 11;
    const LENGTH: f64 = 520.0;
    let series = groups.iter().map(|g| g.shares.len()).max().unwrap_or(0).max(1) as i32;
    let step = BAR * series + 10;
    let most = groups.iter().flat_map(|g| &g.shares).copied().filter(|s| s.is_finite()).fold(0.0, f64::max);
    let length = |share: f64| if most > 0.0 { (LENGTH * (share / most).clamp(0.0, 1.0)).round() as i32 } else { 0 };
    draw(LABEL_WIDTH + LENGTH as i32 + 90, step * groups.len() as i32 + 6, |area| {
        for (i, group) in groups.iter().enumerate() {
            let top = 4 + step * i as i32;
            let name = text::visible(text::stratum(group.name), LABEL_CHARS);
            write(area, name, (LABEL_WIDTH - 8, top + BAR * series / 2), 15, INK, HPos::Right)?;
            for ((share, colour), bar) in group.shares.iter().zip(colours.iter().cycle()).zip(0..) {
                let top = top + BAR * bar;
                let right = LABEL_WIDTH + length(*share).max(1);
                fill(area, (LABEL_WIDTH, top), (right, top + BAR - 1), *colour)?;
                let at = (right + 5, top + BAR / 2);
                write(area, text::percent(*share), at, 12, INK, HPos::Left)?;
            }
        }
        Ok(())
    })
}

/// Bars of a value of each node or rank.
#[derive(Debug)]
pub struct Columns {
    /// The picture.
    pub svg: String,
    /// Nodes or ranks that share a bar; 1 where each has its own.
    pub parts_a_bar: usize,
}

/// Vertical bars, stacked where there are several series; `None` where there is nothing to show. `part` says what a bar
/// stands for, `unit` what it measures; `mean` is a line across. Above 96 parts a bar stands for several: it is drawn to
/// the largest of their sums, and to the smallest in the first colour.
///
/// # Errors
/// [`Error::Internal`] when the picture can't be drawn.
pub fn columns(part: &str, series: &[&[f64]], unit: &str, mean: Option<f64>) -> Result<Option<Columns>> {
    const BARS: usize = 96;
    let parts = series.iter().map(|s| s.len()).max().unwrap_or(0);
    let value = |s: &[f64], at: usize| s.get(at).copied().filter(|v| v.is_finite() && *v > 0.0).unwrap_or(0.0);
    let totals: Vec<f64> = (0..parts).map(|at| series.iter().map(|s| value(s, at)).sum()).collect();
    let most = totals.iter().copied().fold(0.0, f64::max);
    // An axis with ticks outside of this would be all rounding.
    if !(1e-6..1e18).contains(&most) {
        return Ok(None);
    }
    let parts_a_bar = parts.div_ceil(BARS).max(1);
    let mut bars: Vec<(usize, f64, f64, RGBColor)> = Vec::new();
    if parts_a_bar == 1 {
        for at in 0..parts {
            let mut from = 0.0;
            for (s, colour) in series.iter().zip(SERIES.iter().cycle()) {
                let to = from + value(s, at);
                if to > from {
                    bars.push((at, from, to, *colour));
                }
                from = to;
            }
        }
    } else {
        for (bar, of) in totals.chunks(parts_a_bar).enumerate() {
            let (least, largest) = of.iter().fold((f64::INFINITY, 0.0), |(l, m), v| (v.min(l), v.max(m)));
            bars.push((bar, 0.0, least, SERIES[0]));
            bars.push((bar, least, largest, SERIES[1]));
        }
    }
    let count = parts.div_ceil(parts_a_bar);
    let width = (count as i32 * 56 + 120).clamp(520, 900);
    let svg = draw(width, 250, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(72)
            .build_cartesian_2d(-0.5..count as f64 - 0.5, 0.0..most * 1.08)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style(style(15, INK, HPos::Center))
            .x_labels(count.min(24))
            .y_labels(5)
            .x_label_formatter(&|x| {
                if x.fract() == 0.0 && *x >= 0.0 { format!("{}", *x as usize * parts_a_bar) } else { String::new() }
            })
            .y_label_formatter(&|y| text::tick(*y))
            .x_desc(part)
            .y_desc(unit)
            .axis_desc_style(style(15, INK, HPos::Center))
            .draw()?;
        chart.draw_series(bars.iter().map(|(bar, from, to, colour)| {
            let middle = *bar as f64;
            Rectangle::new([(middle - 0.4, *from), (middle + 0.4, *to)], colour.filled())
        }))?;
        if let Some(mean) = mean.filter(|m| (0.0..most * 1.08).contains(m)) {
            let line = [(-0.5, mean), (count as f64 - 0.5, mean)];
            chart.draw_series([PathElement::new(line, MEAN.stroke_width(2))])?;
        }
        Ok(())
    })?;
    Ok(Some(Columns { svg, parts_a_bar }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_draw_nothing() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0];
        assert!(columns("node", &[&odd], "rows", None).unwrap().is_none());
        assert!(columns("node", &[], "rows", None).unwrap().is_none());
        assert!(columns("node", &[&[f64::MAX, f64::MAX]], "rows", None).unwrap().is_none());
        let one = columns("node", &[&[3.0], &[2.0]], "rows", Some(f64::NAN)).unwrap().unwrap();
        assert_eq!((one.parts_a_bar, one.svg.matches("#0072B2").count()), (1, 1));
        for edge in [1e-6, 1.0, 1e-3, 9e17] {
            assert!(columns("node", &[&[edge, edge / 3.0]], "rows", Some(edge)).unwrap().is_some());
        }
        heat_map(&[]).unwrap();
        heat_map(&[HeatRow { name: "", deviations: odd.to_vec(), worst: f64::NAN }]).unwrap();
        grouped_bars(&[Group { name: "x", shares: odd.to_vec() }], &SERIES).unwrap();
        grouped_bars(&[], &[]).unwrap();
    }

    #[test]
    fn many_nodes_share_bars() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from(100 + i % 2)).collect();
        let columns = columns("node", &[&values], "rows", None).unwrap().unwrap();
        assert_eq!(columns.parts_a_bar, 11);
        assert!(columns.svg.len() < 60_000);
    }

    #[test]
    fn colours_are_told_apart_by_sign() {
        assert_eq!(diverging(0.0), RGBColor(247, 247, 247));
        assert_eq!(diverging(-2.0), RGBColor(0x21, 0x66, 0xAC));
        assert_eq!(diverging(1.0), RGBColor(0xB2, 0x18, 0x2B));
    }
}
