//! Pictures of what changes over the steps of an epoch or a run, which are cut into stretches: lines, and bands of shares.
//! Sizes are pixels.

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::{Cartesian2d, ChartBuilder, ChartContext, DrawingArea, PathElement, Polygon, SVGBackend},
    style::{Color, TRANSPARENT, text_anchor::HPos},
};

use super::chart::{FAINT, INK, colour, draw, style};
use crate::error::Result;

const WIDTH: i32 = 900;
const HEIGHT: i32 = 260;
const X_LABELS: usize = 9;
const Y_LABELS: usize = 6;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The values of a line.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// One for each stretch. A value that is not finite leaves a gap.
    pub values: &'a [f64],
    /// The place of its colour; see [`super::html::figure_of`].
    pub place: usize,
}

/// What lies between two values of each stretch.
#[derive(Debug, Clone, Copy)]
pub struct Between<'a> {
    /// Lower ends, one for each stretch.
    pub low: &'a [f64],
    /// Upper ends.
    pub high: &'a [f64],
    /// The place of its colour, which is drawn pale.
    pub place: usize,
}

/// Lines over stretches, level within each; `None` where there is nothing to show. `edges` are the first steps of the
/// stretches and the end of the last, ascending. `y_name` says what the values are. The axis of values begins at 0 where
/// `from_zero` and no value is below.
///
/// # Errors
/// [`crate::Error::Internal`] when the picture can't be drawn.
pub fn lines(
    edges: &[u64],
    lines: &[Line<'_>],
    between: Option<Between<'_>>,
    y_name: &str,
    from_zero: bool,
) -> Result<Option<String>> {
    let ends = between.iter().flat_map(|b| b.low.iter().chain(b.high));
    let shown = lines.iter().flat_map(|line| line.values).chain(ends).copied().filter(|v| v.is_finite());
    let (least, most) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (v.min(l), v.max(m)));
    let Some((low, high)) = y_range(least, most, from_zero) else { return Ok(None) };
    let Some(x) = x_range(edges) else { return Ok(None) };
    let spans = spans(edges);
    let svg = draw(WIDTH, HEIGHT, |area| {
        let mut chart = axes(area, x, (low, high), y_name, &|y| tick(y, high - low, low.abs().max(high.abs())))?;
        if let Some(b) = between {
            let values: Vec<Option<(f64, f64)>> = (b.low.iter().zip(b.high))
                .map(|(low, high)| (low.is_finite() && high.is_finite()).then_some((*low, *high)))
                .collect();
            for outline in outlines(&spans, &values) {
                chart.draw_series([Polygon::new(outline, colour(b.place).mix(0.22))])?;
            }
        }
        for line in lines {
            for path in paths(&spans, line.values) {
                chart.draw_series([PathElement::new(path, colour(line.place).stroke_width(2))])?;
            }
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

/// Shares over stretches as bands that lie on each other, the first at the bottom; `None` where there is nothing to show.
/// `edges` as for [`lines()`]; `parts` are the counts of each stretch, as many as `places`, the places of their colours.
///
/// # Errors
/// [`crate::Error::Internal`] when the picture can't be drawn.
pub fn bands(edges: &[u64], parts: &[Vec<u64>], places: &[usize], y_name: &str) -> Result<Option<String>> {
    let totals: Vec<u128> = parts.iter().map(|counts| counts.iter().map(|n| u128::from(*n)).sum()).collect();
    if totals.iter().all(|total| *total == 0) {
        return Ok(None);
    }
    let Some(x) = x_range(edges) else { return Ok(None) };
    let spans = spans(edges);
    let svg = draw(WIDTH, HEIGHT, |area| {
        let mut chart = axes(area, x, (0.0, 1.0), y_name, &|y| format!("{:.0} %", 100.0 * y))?;
        let mut below = vec![0_u128; parts.len()];
        for (part, place) in places.iter().enumerate() {
            let mut values = Vec::with_capacity(parts.len());
            for ((counts, total), below) in parts.iter().zip(&totals).zip(&mut below) {
                let from = *below;
                *below += u128::from(counts.get(part).copied().unwrap_or(0));
                let share = |sum: u128| sum as f64 / *total as f64;
                values.push((*total > 0 && *below > from).then(|| (share(from), share(*below))));
            }
            for outline in outlines(&spans, &values) {
                chart.draw_series([Polygon::new(outline, colour(*place).filled())])?;
            }
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

/// The first and the end of each stretch.
fn spans(edges: &[u64]) -> Vec<(f64, f64)> {
    edges.windows(2).filter_map(|pair| Some((*pair.first()? as f64, *pair.last()? as f64))).collect()
}

/// `None` where there is no step.
fn x_range(edges: &[u64]) -> Option<(f64, f64)> {
    let (first, end) = (*edges.first()?, *edges.last()?);
    // A float tells no steps apart beyond 2^53 times their number.
    (first < end && (end - first) as f64 > end as f64 * 1e-12).then_some((first as f64, end as f64))
}

/// The axis of values from `least` to `most`; `None` where there are none, or none that an axis could tell apart.
fn y_range(least: f64, most: f64, from_zero: bool) -> Option<(f64, f64)> {
    let size = least.abs().max(most.abs());
    if least > most || !(size == 0.0 || (1e-12..1e18).contains(&size)) {
        return None;
    }
    if from_zero && least >= 0.0 {
        return Some((0.0, if most > 0.0 { most * 1.08 } else { 1.0 }));
    }
    // Values that are all but equal are a level line, not one of rounding errors.
    let span = most - least;
    let room = match (span > size * 1e-6, size > 0.0) {
        (true, _) => span * 0.06,
        (false, true) => size * 0.1,
        (false, false) => 1.0,
    };
    Some((least - room, most + room))
}

fn axes<'a>(
    area: &Area<'a>,
    x: (f64, f64),
    y: (f64, f64),
    y_name: &str,
    y_tick: &dyn Fn(f64) -> String,
) -> std::result::Result<Chart<'a>, Box<dyn std::error::Error + Send + Sync>> {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(28)
        .x_label_area_size(42)
        .y_label_area_size(78)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style(style(15, INK, HPos::Center))
        .x_labels(X_LABELS)
        .y_labels(Y_LABELS)
        .x_label_formatter(&|x_at| if x_at.fract() == 0.0 { tick(*x_at, x.1 - x.0, x.1) } else { String::new() })
        .y_label_formatter(&|y_at| y_tick(*y_at))
        .x_desc("step")
        .y_desc(y_name)
        .axis_desc_style(style(15, INK, HPos::Center))
        .draw()?;
    Ok(chart)
}

/// A tick of an axis of `span`, whose values are at most of size `most`: in the same unit as the axis's other ticks, and
/// in as many digits as tell them apart.
fn tick(value: f64, span: f64, most: f64) -> String {
    let (unit, suffix) = match most {
        m if m >= 1e15 => return format!("{value:.2e}"),
        m if m >= 1e12 => (1e12, "T"),
        m if m >= 1e9 => (1e9, "G"),
        m if m >= 1e6 => (1e6, "M"),
        m if m >= 1e4 => (1e3, "k"),
        m if m > 0.0 && m < 1e-3 => return format!("{value:.1e}"),
        _ => (1.0, ""),
    };
    // Ticks are 1, 2 or 5 times a power of ten apart, and about a tenth to a fourth of the span.
    let digits = (1.0 - (span / unit / 4.0).log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{:.digits$}", value / unit);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    match text {
        "0" | "-0" => "0".into(),
        text => format!("{}{suffix}", text.replace('-', "−")),
    }
}

/// The corners of a line that is level within each span, cut where a value is not finite.
fn paths(spans: &[(f64, f64)], values: &[f64]) -> Vec<Vec<(f64, f64)>> {
    let mut paths: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut goes_on = false;
    for ((from, to), value) in spans.iter().zip(values) {
        if value.is_finite() {
            let corners = [(*from, *value), (*to, *value)];
            match paths.last_mut() {
                Some(path) if goes_on => path.extend(corners),
                _ => paths.push(corners.to_vec()),
            }
        }
        goes_on = value.is_finite();
    }
    paths
}

/// The outlines of what lies between two values of each span, cut where there are none.
fn outlines(spans: &[(f64, f64)], values: &[Option<(f64, f64)>]) -> Vec<Vec<(f64, f64)>> {
    let ends = |end: fn((f64, f64)) -> f64| values.iter().map(|v| v.map_or(f64::NAN, end)).collect::<Vec<f64>>();
    let (low, high) = (paths(spans, &ends(|v| v.0)), paths(spans, &ends(|v| v.1)));
    low.into_iter().zip(high).map(|(low, high)| high.into_iter().chain(low.into_iter().rev()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_cuts_a_line() {
        let spans = spans(&[0, 10, 20, 30]);
        assert_eq!(
            paths(&spans, &[1.0, f64::NAN, 3.0]),
            [[(0.0, 1.0), (10.0, 1.0)].to_vec(), [(20.0, 3.0), (30.0, 3.0)].to_vec()]
        );
        assert_eq!(paths(&spans, &[1.0, 2.0, f64::INFINITY]), [[(0.0, 1.0), (10.0, 1.0), (10.0, 2.0), (20.0, 2.0)]]);
        assert_eq!(
            outlines(&spans, &[None, Some((1.0, 2.0)), None]),
            [[(10.0, 2.0), (20.0, 2.0), (20.0, 1.0), (10.0, 1.0)]]
        );
    }

    #[test]
    fn ticks_of_an_axis_share_their_unit() {
        assert_eq!([0.0, 5e3, 1e4, 1.25e4].map(|x| tick(x, 2e4, 2e4)), ["0", "5k", "10k", "12.5k"]);
        assert_eq!([0.8512, 0.8514, -0.5].map(|x| tick(x, 1e-3, 0.86)), ["0.8512", "0.8514", "−0.5"]);
        assert_eq!([0.0, 100.0, 200.0].map(|x| tick(x, 200.0, 200.0)), ["0", "100", "200"]);
        assert_eq!([-1e-20, 0.2, 1.0].map(|x| tick(x, 1.0, 1.0)), ["0", "0.2", "1"]);
    }

    #[test]
    fn axes_hold_their_values() {
        assert_eq!(y_range(f64::INFINITY, f64::NEG_INFINITY, false), None);
        assert_eq!(y_range(0.0, 0.0, true), Some((0.0, 1.0)));
        assert_eq!(y_range(0.0, 1e300, true), None);
        for (least, most) in [(5.0, 5.0), (-3.0, 7.0), (0.0, 0.0), (1e17, 2e17), (1e-12, 1e-12)] {
            let (low, high) = y_range(least, most, false).unwrap();
            assert!(low < least && most < high);
        }
    }

    #[test]
    fn odd_numbers_draw_something_or_nothing() {
        let odd = [f64::NAN, f64::INFINITY, f64::MAX, -1.0];
        let of = |values: &[f64], edges: &[u64]| {
            let between = Between { low: values, high: values, place: 0 };
            lines(edges, &[Line { values, place: 1 }], Some(between), "<y>", false).unwrap()
        };
        let edges = [0, 1, 2, 3, 4];
        assert!(of(&odd, &edges).is_none() && of(&[], &edges).is_none() && of(&[1.0], &[]).is_none());
        assert!(
            of(&[1.0], &[7]).is_none()
                && of(&[1.0], &[7, 7]).is_none()
                && of(&[1.0], &[u64::MAX - 1, u64::MAX]).is_none()
        );
        let svg = of(&[1.0, f64::NAN, 1.0, 1.0, 9.0], &edges).unwrap();
        assert_eq!((svg.matches("<polygon").count(), svg.matches("#E69F00").count()), (2, 2));
        assert!(svg.contains("&lt;y&gt;") && !svg.contains("NaN"));
        for edge in [1_u64, 3, 1 << 40, u64::MAX] {
            assert!(of(&[2.5], &[0, edge]).is_some());
        }
    }

    #[test]
    fn bands_fill_the_height() {
        let parts = [vec![1, 3], vec![0, 0], vec![2, 2]];
        let svg = bands(&[0, 5, 10, 12], &parts, &[0, 4], "share").unwrap().unwrap();
        assert_eq!(svg.matches("<polygon").count(), 4);
        assert_eq!(svg.matches("#8A8A8A").count(), 2);
        assert!(bands(&[0, 5], &[vec![0, 0]], &[0, 1], "share").unwrap().is_none());
        assert!(bands(&[], &[], &[], "share").unwrap().is_none());
        assert!(bands(&[0, 5], &[vec![u64::MAX, u64::MAX]], &[0, 1, 2], "share").unwrap().is_some());
    }
}
