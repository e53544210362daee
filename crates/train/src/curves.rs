//! Learning curves, as SVG and PNG: those of one run, and those of several in one picture.

use crate::{Epoch, RateCurve, RatePoint};
use isograd_core::{Error, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error as Failure;
use std::ops::Range;

/// Width and height of a panel.
const SIZE: (u32, u32) = (450, 370);
/// The height of the title.
const TITLE: u32 = 30;
/// Red, blue, green and violet, each with a contrast of more than 4.5 to white.
const COLORS: [RGBColor; 4] =
    [RGBColor(211, 35, 35), RGBColor(37, 99, 235), RGBColor(21, 128, 61), RGBColor(147, 51, 234)];
/// Makes a picture dark where its reader's pages are: white becomes nearly black, and colours stay what they are. Pictures within a page are left to
/// the page.
const DARK: &str =
    "<style>@media (prefers-color-scheme: dark) { svg:root { filter: invert(0.91) hue-rotate(180deg) } }</style>\n";
/// The quotient of the highest and the lowest loss from which on the axis is logarithmic.
const LOGARITHMIC_FROM: f64 = 20.0;
/// The pixels between two names of curves, and those that the longest name may have.
const NAME: (i32, u32) = (13, 150);

const FAMILY: &str = "sans-serif";

type Drawn = std::result::Result<(), Box<dyn Failure>>;

/// A line of a [`Panel`], of which the name stands beside its end.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name.
    pub name: String,
    /// `(epoch, value)`; values that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// The number of the colour, as [`curve_color`] takes it.
    pub color: usize,
}

/// Curves over the epochs, in one system of coordinates. The vertical axis is logarithmic if the highest value is at least 20 times the lowest, and
/// that is above 0.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The title.
    pub title: String,
    /// The curves.
    pub curves: Vec<Curve>,
    /// The epoch of a vertical line.
    pub best: Option<f64>,
}

/// A colour for each curve of a picture, as `#rrggbb`. All stand out from a white ground.
pub fn curve_color(i: usize) -> String {
    let RGBColor(r, g, b) = rgb(i);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Four colours that were chosen, and then hues that are the golden angle apart, each as dark as its contrast to white needs.
fn rgb(i: usize) -> RGBColor {
    if let Some(color) = COLORS.get(i) {
        return *color;
    }
    let hue = (0.08 + i as f64 * 0.618_034).fract();
    let of = |lightness: f64| {
        let (r, g, b) = HSLColor(hue, 0.75, lightness).rgb();
        RGBColor(r, g, b)
    };
    // Every other one is darker, so that neighbouring hues differ in this too.
    let wanted = if i.is_multiple_of(2) { 5.0 } else { 9.0 };
    let (mut dark, mut light) = (0.0, 1.0);
    for _ in 0..20 {
        let middle = (dark + light) / 2.0;
        let RGBColor(r, g, b) = of(middle);
        if contrast(luminance([r, g, b].map(|v| f64::from(v) / 255.0)), 1.0) > wanted {
            dark = middle;
        } else {
            light = middle;
        }
    }
    of(dark)
}

/// The relative luminance of a colour, by WCAG 2.2.
fn luminance(color: [f64; 3]) -> f64 {
    let linear = color.map(|v| if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

/// The contrast of two luminances, by WCAG 2.2.
fn contrast(a: f64, b: f64) -> f64 {
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

/// Training and validation loss on the left, and metrics on the right, over epochs. A vertical line marks the best epoch, of which the
/// index is given. The picture is light or dark as its reader. The axis of losses is logarithmic if the highest loss is at least 20 times the lowest.
/// Errors: `Value` if the curves cannot be drawn.
pub fn svg(title: &str, history: &[Epoch], best: Option<usize>) -> Result<String> {
    panels_svg(title, &of_run(history, best), 2)
}

/// [`svg`] as the bytes of a PNG, which is light.
pub fn png(title: &str, history: &[Epoch], best: Option<usize>) -> Result<Vec<u8>> {
    let panels = of_run(history, best);
    let size = size(title, &panels, 2);
    let mut pixels = vec![0; (3 * size.0 * size.1) as usize];
    draw(BitMapBackend::with_buffer(&mut pixels, size), title, &panels, 2).map_err(failed)?;
    encode(&pixels, size).map_err(|e| failed(Box::new(e)))
}

/// A picture of panels, so many in a row, under a title. It is light or dark as its reader. Errors: `Value` if it cannot be drawn.
pub fn panels_svg(title: &str, panels: &[Panel], columns: usize) -> Result<String> {
    let mut text = String::new();
    let size = size(title, panels, columns);
    draw(SVGBackend::with_string(&mut text, size), title, panels, columns).map_err(failed)?;
    Ok(adaptive(text))
}

/// The pixels of a picture.
fn size(title: &str, panels: &[Panel], columns: usize) -> (u32, u32) {
    let (top, columns) = (if title.is_empty() { 0 } else { TITLE }, columns.max(1));
    (SIZE.0 * columns as u32, top + SIZE.1 * panels.len().div_ceil(columns).max(1) as u32)
}

/// A picture that is light or dark as its reader.
fn adaptive(svg: String) -> String {
    let end = svg.find('>').map_or(0, |end| end + 1);
    [&svg[..end], DARK, &svg[end..]].concat()
}

/// RGB pixels as a PNG.
fn encode(pixels: &[u8], (width, height): (u32, u32)) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

fn failed(error: Box<dyn Failure>) -> Error {
    Error::value("curves", format!("cannot draw the learning curves: {error}"))
}

/// PNGs have no fonts of their own, and the system may have none.
fn register_font() {
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    // This font is a valid one, so it is not refused.
    REGISTERED.call_once(|| drop(plotters::style::register_font(FAMILY, FontStyle::Normal, dejavu::sans::regular())));
}

fn draw<D: DrawingBackend>(backend: D, title: &str, panels: &[Panel], columns: usize) -> Drawn
where
    D::ErrorType: 'static,
{
    register_font();
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let area = if title.is_empty() { root.clone() } else { root.titled(title, (FAMILY, 20))? };
    let columns = columns.max(1);
    let areas = area.split_evenly((panels.len().div_ceil(columns).max(1), columns));
    panels.iter().zip(&areas).try_for_each(|(panel, area)| plot(area, panel))?;
    root.present()?;
    Ok(())
}

/// The losses of a search for a learning rate over the rates.
pub(crate) fn rates_svg(curve: &RateCurve) -> Result<String> {
    let mut text = String::new();
    draw_rates(SVGBackend::with_string(&mut text, (2 * SIZE.0, TITLE + SIZE.1)), curve).map_err(failed)?;
    Ok(adaptive(text))
}

fn draw_rates<D: DrawingBackend>(backend: D, found: &RateCurve) -> Drawn
where
    D::ErrorType: 'static,
{
    register_font();
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let points = |value: fn(&RatePoint) -> f64| -> Vec<(f64, f64)> {
        found.points.iter().map(|p| (p.rate, value(p))).filter(|(_, y)| y.is_finite()).collect()
    };
    let curves = [("loss", points(|p| p.loss), 0.3), ("smoothed", points(|p| p.smoothed), 1.0)];
    // The end of the search may be far above the rest.
    let (low, high) = extent(curves[1].1.iter().map(|point| point.1));
    let y = Axis::linear(low, high);
    let ends = (found.points.first().map_or(1e-6, |p| p.rate), found.points.last().map_or(1.0, |p| p.rate));
    let x = Axis { low: ends.0 / 1.1, high: ends.1 * 1.1, scale: Scale::Logarithmic };
    let mut chart = chart(&root, "", "learning rate", x, y)?;
    if let Some(rate) = found.suggestion {
        let name = format!("suggestion {rate:.1e}");
        chart.draw_series(LineSeries::new([(rate, y.low), (rate, y.high)], BLACK.stroke_width(2)))?;
        let at = pixel(&chart, &root, (rate, y.high));
        root.draw(&Text::new(name, (at.0 + 4, at.1 + 2), font(&BLACK, HPos::Left, VPos::Top)))?;
    }
    let mut names = Vec::new();
    for (name, points, opacity) in &curves {
        let color = COLORS[1].mix(*opacity);
        let mut inside = points.iter().map(|&(x, v)| (x, v.clamp(y.low, y.high)));
        chart.draw_series(LineSeries::new(inside.clone(), color.stroke_width(2)))?;
        names.extend(inside.next_back().map(|end| Name { at: pixel(&chart, &root, end), text: (*name).into(), color }));
    }
    write_names(&root, names)?;
    root.present()?;
    Ok(())
}

/// The panels of one run.
fn of_run(history: &[Epoch], best: Option<usize>) -> Vec<Panel> {
    let best = best.map(|best| (best + 1) as f64);
    let losses =
        [curve("training", 0, history, |e| Some(e.train_loss)), curve("validation", 1, history, |e| e.validation_loss)];
    let losses = losses.into_iter().filter(|curve| !curve.points.is_empty()).collect();
    let names = history.last().into_iter().flat_map(|epoch| epoch.metrics.keys()).enumerate();
    let metrics = names.map(|(i, name)| curve(name, i, history, |epoch| epoch.metrics.get(name).copied())).collect();
    let panels =
        [("loss", losses), ("metrics", metrics)].map(|(title, curves)| Panel { title: title.into(), curves, best });
    panels.into_iter().filter(|panel: &Panel| panel.title == "loss" || !panel.curves.is_empty()).collect()
}

fn curve(name: &str, color: usize, history: &[Epoch], value: impl Fn(&Epoch) -> Option<f64>) -> Curve {
    let points = (1..).zip(history).filter_map(|(i, epoch)| Some((f64::from(i), value(epoch)?)));
    Curve { name: name.to_string(), points: points.filter(|(_, y)| y.is_finite()).collect(), color }
}

/// The lowest and the highest of finite values.
fn extent(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let values = values.filter(|v| v.is_finite());
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

/// The meaning of equal distances on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// Equal differences, with a tick at multiples of 1, 2 or 5 times a power of ten.
    Linear,
    /// Equal differences of whole numbers.
    Whole,
    /// Equal quotients, with a tick at 1, 2 and 5 times powers of ten, or at powers alone.
    Logarithmic,
}

/// An axis with round ticks.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Axis {
    /// Some room around values, without numbers below 0 where there are none.
    fn linear(low: f64, high: f64) -> Axis {
        let room = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-6);
        let bottom = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
        Axis { low: bottom, high: high + room, scale: Scale::Linear }
    }

    /// The axis of values.
    fn of(low: f64, high: f64) -> Axis {
        if low > 0.0 && high / low >= LOGARITHMIC_FROM {
            return Axis { low: low / 1.1, high: high * 1.1, scale: Scale::Logarithmic };
        }
        Axis::linear(low, high)
    }

    /// The distance of ticks, of which there are at most so many.
    fn step(&self, count: usize) -> f64 {
        let least = (self.high - self.low) / count.max(1) as f64;
        let power = 10f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|step| *step >= least).unwrap_or(least);
        if self.scale == Scale::Whole { step.max(1.0) } else { step }
    }

    /// Ticks in ascending order.
    fn ticks(&self, count: usize) -> Vec<f64> {
        if self.scale != Scale::Logarithmic {
            let step = self.step(count);
            let (from, to) = ((self.low / step).ceil(), (self.high / step).floor());
            return (0..=(to - from).clamp(0.0, 1e3) as usize).map(|i| (from + i as f64) * step).collect();
        }
        let (from, to) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let is_inside = |v: &f64| (self.low..=self.high).contains(v);
        let at = |factors: &[f64]| -> Vec<f64> {
            let all = (from..=to).flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
            all.filter(is_inside).collect()
        };
        let powers = at(&[1.0]);
        let all = [at(&[1.0, 2.0, 5.0]), at(&[1.0, 3.0]), powers.clone()];
        let fit = all.into_iter().find(|ticks| ticks.len() <= count);
        fit.unwrap_or_else(|| powers.iter().copied().step_by(powers.len().div_ceil(count.max(1))).collect())
    }

    /// A tick in as many digits as its neighbours need.
    fn label(&self, v: f64) -> String {
        let step = if self.scale == Scale::Logarithmic { v } else { self.step(TICKS) };
        if v != 0.0 && (v.abs() >= 1e5 || v.abs() < 1e-3) {
            let digits = (v.abs().log10().floor() - step.log10().floor()).clamp(0.0, 4.0) as usize;
            return format!("{v:.digits$e}");
        }
        let digits = (-(step.log10() + 1e-9).floor()).clamp(0.0, 9.0) as usize;
        format!("{v:.digits$}")
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, v: &f64, (from, to): (i32, i32)) -> i32 {
        let at = |v: f64| if self.scale == Scale::Logarithmic { v.ln() } else { v };
        let share = (at(*v) - at(self.low)) / (at(self.high) - at(self.low));
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        self.ticks(hint.bold_points())
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// The number of ticks of an axis, at most.
const TICKS: usize = 8;

/// The coordinates of a panel.
type Coordinates = Cartesian2d<Axis, Axis>;

/// Axes and grid of a panel.
fn chart<'a, D: DrawingBackend>(
    area: &'a DrawingArea<D, Shift>,
    title: &str,
    below: &str,
    x: Axis,
    y: Axis,
) -> std::result::Result<ChartContext<'a, D, Coordinates>, Box<dyn Failure>>
where
    D::ErrorType: 'static,
{
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FAMILY, 15))
        .margin(10)
        .margin_right(NAME.1)
        .x_label_area_size(30)
        .y_label_area_size(55)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .x_labels(TICKS)
        .y_labels(TICKS)
        .x_desc(below)
        .x_label_formatter(&|v| x.label(*v))
        .y_label_formatter(&|v| y.label(*v))
        .draw()?;
    Ok(chart)
}

fn font(color: &impl Color, h: HPos, v: VPos) -> TextStyle<'static> {
    (FAMILY, 11).into_font().color(color).pos(Pos::new(h, v))
}

fn plot<D: DrawingBackend>(area: &DrawingArea<D, Shift>, panel: &Panel) -> Drawn
where
    D::ErrorType: 'static,
{
    let points = || panel.curves.iter().flat_map(|curve| &curve.points).filter(|(_, y)| y.is_finite());
    let (low, high) = extent(points().map(|point| point.1));
    let y = Axis::of(low, high);
    let last = points().map(|point| point.0).chain(panel.best).fold(2.0, f64::max);
    let x = Axis { low: 1.0, high: last, scale: Scale::Whole };
    let mut chart = chart(area, &panel.title, "epoch", x, y)?;
    if let Some(best) = panel.best {
        chart.draw_series(LineSeries::new([(best, y.low), (best, y.high)], BLACK.stroke_width(2)))?;
        let at = pixel(&chart, area, (best, y.high));
        let (side, to) = if 2.0 * best > last { (HPos::Right, -4) } else { (HPos::Left, 4) };
        area.draw(&Text::new("best epoch", (at.0 + to, at.1 + 2), font(&BLACK, side, VPos::Top)))?;
    }
    let mut names = Vec::new();
    for curve in &panel.curves {
        let color = rgb(curve.color);
        let finite = curve.points.iter().copied().filter(|(_, y)| y.is_finite());
        let Some(end) = finite.clone().next_back() else { continue };
        chart.draw_series(LineSeries::new(finite, color.stroke_width(2)))?;
        // A curve of one point has no line.
        chart.draw_series([Circle::new(end, 3, color.filled())])?;
        names.push(Name { at: pixel(&chart, area, end), text: curve.name.clone(), color: color.to_rgba() });
    }
    write_names(area, names)
}

/// The place of a point in the area of a chart.
fn pixel<D: DrawingBackend>(
    chart: &ChartContext<'_, D, Coordinates>,
    area: &DrawingArea<D, Shift>,
    point: (f64, f64),
) -> (i32, i32) {
    let ((x, y), base) = (chart.as_coord_spec().translate(&point), area.get_base_pixel());
    (x - base.0, y - base.1)
}

/// The name of a curve, and where the curve ends.
struct Name {
    at: (i32, i32),
    text: String,
    color: RGBAColor,
}

/// Writes names beside the ends of their curves, moved apart so that all can be read. Names without room are left out, the last ones first.
fn write_names<D: DrawingBackend>(area: &DrawingArea<D, Shift>, mut names: Vec<Name>) -> Drawn
where
    D::ErrorType: 'static,
{
    let bottom = area.dim_in_pixel().1 as i32 - 30;
    names.truncate((bottom / NAME.0).max(1) as usize);
    names.sort_by_key(|name| name.at.1);
    // Down, each below the name before; then up again from the bottom.
    let mut rows: Vec<i32> = names.iter().map(|name| name.at.1).collect();
    for i in 1..rows.len() {
        rows[i] = rows[i].max(rows[i - 1] + NAME.0);
    }
    let mut below = bottom;
    for row in rows.iter_mut().rev() {
        *row = (*row).min(below);
        below = *row - NAME.0;
    }
    for (Name { at, text, color }, row) in names.iter().zip(rows) {
        let style = font(color, HPos::Left, VPos::Center);
        let mut shown = text.clone();
        while area.estimate_text_size(&shown, &style)?.0 > NAME.1 - 10 {
            let kept = shown.chars().count().saturating_sub(2);
            shown = shown.chars().take(kept).chain(['…']).collect();
        }
        area.draw(&Text::new(shown, (at.0 + 6, row), style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn history(losses: &[f64]) -> Vec<Epoch> {
        let epoch = |(i, &loss): (usize, &f64)| Epoch {
            epoch: i as u64 + 1,
            steps: 10 * (i as u64 + 1),
            train_loss: loss,
            validation_loss: Some(1.1 * loss),
            metrics: BTreeMap::from([("accuracy".to_string(), 1.0 - 0.1 * loss)]),
            learning_rate: 1e-3,
            seconds: 1.0,
        };
        losses.iter().enumerate().map(epoch).collect()
    }

    #[test]
    fn curves_have_both_losses_the_metrics_and_the_best_epoch() {
        let text = svg("digits", &history(&[2.0, 1.0, 1.5]), Some(1)).unwrap();
        for expected in ["digits", "training", "validation", "accuracy", "best epoch"] {
            assert!(text.contains(expected), "no {expected:?} in {text}");
        }
        assert!(!svg("digits", &history(&[2.0]), None).unwrap().contains("best epoch"));
        // Each epoch has its number once on the axis of each panel.
        let labels: Vec<&str> =
            text.lines().map(str::trim).filter(|line| ["1", "2", "3", "4"].contains(line)).collect();
        assert_eq!(labels, ["1", "2", "3", "1", "2", "3"], "{text}");
    }

    #[test]
    fn the_axis_is_logarithmic_where_losses_are_far_apart() {
        let is_logarithmic = |values: &[f64]| {
            let (low, high) = extent(values.iter().copied());
            Axis::of(low, high).scale == Scale::Logarithmic
        };
        assert!(is_logarithmic(&[2.0, 0.5, 0.01]));
        for values in [&[2.0, 0.5][..], &[2.0, 0.0], &[f64::NAN]] {
            assert!(!is_logarithmic(values), "{values:?}");
        }
    }

    #[test]
    fn a_png_has_the_size_and_lines_of_each_color() {
        let bytes = png("digits", &history(&[2.0, 1.0, 1.5]), Some(1)).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (2 * SIZE.0, TITLE + SIZE.1));
        let count =
            |color: RGBColor| pixels.as_chunks().0.iter().filter(|p| **p == [color.0, color.1, color.2]).count();
        let counts = [COLORS[0], COLORS[1], BLACK].map(count);
        assert!(counts.into_iter().all(|n| n > 100), "{counts:?}");
    }

    #[test]
    fn colors_stand_out_from_light_and_dark() {
        // The filter as matrices of the filter effects module: v becomes 0.91 - 0.82 v, then the hue is turned by 180 degrees.
        let dark = |color: [f64; 3]| {
            let [r, g, b] = color.map(|v| 0.91 - 0.82 * v);
            let grey = 0.213 * r + 0.715 * g + 0.072 * b;
            [r, g, b].map(|v| (2.0 * grey - v).clamp(0.0, 1.0))
        };
        let black = luminance(dark([1.0; 3]));
        assert!(black < 0.01);
        for color in (0..24).map(rgb) {
            let color = [color.0, color.1, color.2].map(|v| f64::from(v) / 255.0);
            let found = [contrast(luminance(color), 1.0), contrast(luminance(dark(color)), black)];
            assert!(found[0] > 4.5 && found[1] > 3.0, "{color:?}: {found:?}");
        }
        assert!(svg("digits", &history(&[2.0, 1.0]), None).unwrap().contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn histories_without_points_are_drawn_too() {
        for losses in [&[][..], &[f64::NAN], &[0.0, 0.0], &[f64::INFINITY, 1.0], &[-1.0, -2.0]] {
            assert!(svg("", &history(losses), None).unwrap().ends_with("</svg>\n"));
        }
    }

    #[test]
    fn colors_of_many_curves_differ() {
        let colors: Vec<RGBColor> = (0..24).map(rgb).collect();
        for (i, a) in colors.iter().enumerate() {
            for b in &colors[..i] {
                let distance =
                    i32::from(a.0.abs_diff(b.0)) + i32::from(a.1.abs_diff(b.1)) + i32::from(a.2.abs_diff(b.2));
                assert!(distance > 12, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn ticks_are_round() {
        let labels = |axis: Axis| -> Vec<String> { axis.ticks(TICKS).iter().map(|v| axis.label(*v)).collect() };
        assert_eq!(labels(Axis::of(0.31, 1.13)), ["0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(Axis::of(0.0301, 1.13)), ["0.05", "0.1", "0.2", "0.5", "1"]);
        assert_eq!(labels(Axis::of(0.05, 1.9)), ["0.05", "0.1", "0.2", "0.5", "1", "2"]);
        assert_eq!(labels(Axis::of(2e-9, 3e5)).len(), 7);
        assert_eq!(labels(Axis::of(1e6, 3e6)), ["1.0e6", "1.5e6", "2.0e6", "2.5e6", "3.0e6"]);
        assert_eq!(labels(Axis { low: 1.0, high: 2.0, scale: Scale::Whole }), ["1", "2"]);
        assert_eq!(labels(Axis { low: 1.0, high: 60.0, scale: Scale::Whole }), ["10", "20", "30", "40", "50", "60"]);
    }

    #[test]
    fn names_stand_beside_their_curves_and_apart() {
        let curves =
            (0..30).map(|i| Curve { name: format!("run <{i}>"), points: vec![(1.0, 1.0), (2.0, 0.5)], color: i });
        let panel = Panel { title: "loss".into(), curves: curves.collect(), best: None };
        let text = panels_svg("", &[panel], 1).unwrap();
        let at = |line: &str, name: &str| -> Option<f64> { line.split_once(name)?.1.split('"').nth(1)?.parse().ok() };
        let mut rows = Vec::new();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[1].starts_with("run &lt;")) {
            rows.push(at(pair[0], " y=").unwrap());
        }
        assert_eq!(rows.len(), 26, "{text}");
        rows.sort_by(f64::total_cmp);
        assert!(rows.windows(2).all(|pair| pair[1] - pair[0] >= 12.9), "{rows:?}");
        assert!(rows.iter().all(|row| (0.0..400.0).contains(row)), "{rows:?}");
    }
}
