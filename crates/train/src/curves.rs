//! Learning curves, as SVG and PNG.

use crate::{Epoch, RateCurve, RatePoint};
use isograd_core::{Error, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::error::Error as Failure;

const SIZE: (u32, u32) = (900, 400);
/// Red, blue, green and violet, each with a contrast of more than 4.5 to white.
const COLORS: [RGBColor; 4] =
    [RGBColor(211, 35, 35), RGBColor(37, 99, 235), RGBColor(21, 128, 61), RGBColor(147, 51, 234)];
/// Makes a picture dark where its reader's pages are: white becomes nearly black, and colours stay what they are.
const DARK: &str =
    "<style>@media (prefers-color-scheme: dark) { :root { filter: invert(0.91) hue-rotate(180deg) } }</style>\n";
/// The quotient of the highest and the lowest loss from which on the axis is logarithmic.
const LOGARITHMIC_FROM: f64 = 20.0;

const FAMILY: &str = "sans-serif";

type Drawn = std::result::Result<(), Box<dyn Failure>>;

/// A line of a panel.
struct Curve {
    name: String,
    /// `(epoch, value)`, of finite values.
    points: Vec<(f64, f64)>,
}

/// Training and validation loss on the left, and metrics on the right, over epochs. A vertical line marks the best epoch, of which the
/// index is given. The picture is light or dark as its reader. The axis of losses is logarithmic if the highest loss is at least 20 times the lowest.
/// Errors: `Value` if the curves cannot be drawn.
pub fn svg(title: &str, history: &[Epoch], best: Option<usize>) -> Result<String> {
    let mut text = String::new();
    draw(SVGBackend::with_string(&mut text, SIZE), title, history, best).map_err(failed)?;
    Ok(adaptive(text))
}

/// A picture that is light or dark as its reader.
fn adaptive(svg: String) -> String {
    let end = svg.find('>').map_or(0, |end| end + 1);
    [&svg[..end], DARK, &svg[end..]].concat()
}

/// [`svg`] as the bytes of a PNG, which is light.
pub fn png(title: &str, history: &[Epoch], best: Option<usize>) -> Result<Vec<u8>> {
    let mut pixels = vec![0; (3 * SIZE.0 * SIZE.1) as usize];
    draw(BitMapBackend::with_buffer(&mut pixels, SIZE), title, history, best).map_err(failed)?;
    encode(&pixels).map_err(|e| failed(Box::new(e)))
}

/// RGB pixels as a PNG.
fn encode(pixels: &[u8]) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, SIZE.0, SIZE.1);
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

fn draw<D: DrawingBackend>(backend: D, title: &str, history: &[Epoch], best: Option<usize>) -> Drawn
where
    D::ErrorType: 'static,
{
    register_font();
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = (losses(history), metrics(history));
    let area = root.titled(title, (FAMILY, 20))?;
    let areas = area.split_evenly((1, if right.is_empty() { 1 } else { 2 }));
    panel(&areas[0], "loss", &left, history.len(), best, is_wide(&left))?;
    if let Some(area) = areas.get(1) {
        panel(area, "metrics", &right, history.len(), best, false)?;
    }
    root.present()?;
    Ok(())
}

/// The losses of a search for a learning rate over the rates.
pub(crate) fn rates_svg(curve: &RateCurve) -> Result<String> {
    let mut text = String::new();
    draw_rates(SVGBackend::with_string(&mut text, SIZE), curve).map_err(failed)?;
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
    let curves = [
        Curve { name: "loss".into(), points: points(|p| p.loss) },
        Curve { name: "smoothed".into(), points: points(|p| p.smoothed) },
    ];
    // The end of the search may be far above the rest.
    let (low, high) = extent(&curves[1..]);
    let room = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-6);
    let ends = (found.points.first().map_or(1e-6, |p| p.rate), found.points.last().map_or(1.0, |p| p.rate));
    let (low, high) = (low - room, high + room);
    let mut chart = ChartBuilder::on(&root)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(55)
        .build_cartesian_2d((ends.0 / 1.1..ends.1 * 1.1).log_scale(), low..high)?;
    chart
        .configure_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .x_desc("learning rate")
        .y_desc("loss")
        .x_label_formatter(&|x| format!("{x:.0e}"))
        .draw()?;
    if let Some(rate) = found.suggestion {
        chart
            .draw_series(LineSeries::new([(rate, low), (rate, high)], BLACK.stroke_width(2)))?
            .label(format!("suggestion {rate:.1e}"))
            .legend(|(x, y)| swatch(x, y, BLACK));
    }
    for (curve, color) in curves.iter().zip([COLORS[1].mix(0.3), COLORS[1].mix(1.0)]) {
        let inside = curve.points.iter().map(|&(x, y)| (x, y.clamp(low, high)));
        let series = LineSeries::new(inside, color.stroke_width(2));
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 15, y)], color);
        chart.draw_series(series)?.label(&curve.name).legend(legend);
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    root.present()?;
    Ok(())
}

fn losses(history: &[Epoch]) -> Vec<Curve> {
    let curves =
        [curve("training", history, |e| Some(e.train_loss)), curve("validation", history, |e| e.validation_loss)];
    curves.into_iter().filter(|curve| !curve.points.is_empty()).collect()
}

fn metrics(history: &[Epoch]) -> Vec<Curve> {
    let names = history.last().into_iter().flat_map(|epoch| epoch.metrics.keys());
    names.map(|name| curve(name, history, |epoch| epoch.metrics.get(name).copied())).collect()
}

fn curve(name: &str, history: &[Epoch], value: impl Fn(&Epoch) -> Option<f64>) -> Curve {
    let points = (1..).zip(history).filter_map(|(i, epoch)| Some((f64::from(i), value(epoch)?)));
    Curve { name: name.to_string(), points: points.filter(|(_, y)| y.is_finite()).collect() }
}

/// The lowest and the highest value.
fn extent(curves: &[Curve]) -> (f64, f64) {
    let values = || curves.iter().flat_map(|curve| curve.points.iter().map(|(_, y)| *y));
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

fn is_wide(curves: &[Curve]) -> bool {
    let (low, high) = extent(curves);
    low > 0.0 && high / low >= LOGARITHMIC_FROM
}

fn panel<D: DrawingBackend>(
    area: &DrawingArea<D, Shift>,
    name: &str,
    curves: &[Curve],
    epochs: usize,
    best: Option<usize>,
    is_logarithmic: bool,
) -> Drawn
where
    D::ErrorType: 'static,
{
    let (low, high) = extent(curves);
    if is_logarithmic {
        return plot(area, name, curves, epochs, best, (low / 1.1..high * 1.1).log_scale(), low / 1.1..high * 1.1);
    }
    let room = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-6);
    let low = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
    plot(area, name, curves, epochs, best, low..high + room, low..high + room)
}

fn plot<D: DrawingBackend, Y>(
    area: &DrawingArea<D, Shift>,
    name: &str,
    curves: &[Curve],
    epochs: usize,
    best: Option<usize>,
    axis: Y,
    range: std::ops::Range<f64>,
) -> Drawn
where
    D::ErrorType: 'static,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(name, (FAMILY, 15))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(55)
        .build_cartesian_2d(1.0..(epochs as f64).max(2.0), axis)?;
    let grid = BLACK.mix(0.15);
    chart
        .configure_mesh()
        .bold_line_style(grid)
        .light_line_style(TRANSPARENT)
        // No epoch twice.
        .x_labels(epochs.clamp(2, 10))
        .x_desc("epoch")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    if let Some(best) = best {
        let x = (best + 1) as f64;
        let ends = [(x, range.start), (x, range.end)];
        chart
            .draw_series(LineSeries::new(ends, BLACK.stroke_width(2)))?
            .label("best epoch")
            .legend(|(x, y)| swatch(x, y, BLACK));
    }
    for (curve, color) in curves.iter().zip(COLORS.into_iter().cycle()) {
        let series = LineSeries::new(curve.points.iter().copied(), color.stroke_width(2));
        chart.draw_series(series)?.label(&curve.name).legend(move |(x, y)| swatch(x, y, color));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

fn swatch(x: i32, y: i32, color: RGBColor) -> PathElement<(i32, i32)> {
    PathElement::new([(x, y), (x + 15, y)], color)
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
        let is_logarithmic = |values: &[f64]| is_wide(&losses(&history(values)));
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
        assert_eq!((info.width, info.height), SIZE);
        let count =
            |color: RGBColor| pixels.as_chunks().0.iter().filter(|p| **p == [color.0, color.1, color.2]).count();
        let counts = [COLORS[0], COLORS[1], BLACK].map(count);
        assert!(counts.into_iter().all(|n| n > 100), "{counts:?}");
    }

    #[test]
    fn colors_stand_out_from_light_and_dark() {
        // The contrast of two colours by WCAG 2.2, of relative luminances.
        let luminance = |color: [f64; 3]| {
            let linear = color.map(|v| if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) });
            0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        };
        let contrast = |a: f64, b: f64| (a.max(b) + 0.05) / (a.min(b) + 0.05);
        // The filter as matrices of the filter effects module: v becomes 0.91 - 0.82 v, then the hue is turned by 180 degrees.
        let dark = |color: [f64; 3]| {
            let [r, g, b] = color.map(|v| 0.91 - 0.82 * v);
            let grey = 0.213 * r + 0.715 * g + 0.072 * b;
            [r, g, b].map(|v| (2.0 * grey - v).clamp(0.0, 1.0))
        };
        let black = luminance(dark([1.0; 3]));
        assert!(black < 0.01);
        for color in COLORS {
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
}
