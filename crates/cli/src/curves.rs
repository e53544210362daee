//! Learning curves as an SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

/// What one epoch came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The mean loss over the epoch's training batches.
    pub train_loss: f64,
    /// The share of test samples that are classified rightly, after the epoch.
    pub test_accuracy: f64,
}

const SIZE: (u32, u32) = (900, 400);

/// Loss on the left, accuracy on the right, over epochs.
pub fn svg(title: &str, history: &[Epoch]) -> Result<String> {
    let mut text = String::new();
    draw(&mut text, title, history).map_err(|e| anyhow!("cannot draw the learning curves: {e}"))?;
    Ok(text)
}

fn draw(text: &mut String, title: &str, history: &[Epoch]) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.titled(title, ("sans-serif", 20))?.split_horizontally(SIZE.0 / 2);
    let loss: Vec<f64> = history.iter().map(|e| e.train_loss).collect();
    let accuracy: Vec<f64> = history.iter().map(|e| e.test_accuracy).collect();
    let highest = loss.iter().copied().filter(|v| v.is_finite()).fold(1e-6, f64::max);
    let lowest = accuracy.iter().copied().fold(1.0, f64::min);
    panel(&left, "training loss", &loss, 0.0..highest * 1.05, &RED)?;
    panel(&right, "test accuracy", &accuracy, (lowest - 0.02).max(0.0)..1.0, &BLUE)?;
    root.present()?;
    Ok(())
}

fn panel<D: DrawingBackend>(
    area: &DrawingArea<D, plotters::coord::Shift>,
    name: &str,
    values: &[f64],
    range: std::ops::Range<f64>,
    color: &RGBColor,
) -> Result<(), Box<dyn std::error::Error>>
where
    D::ErrorType: 'static,
{
    let epochs = 1.0..(values.len() as f64).max(2.0);
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(45)
        .build_cartesian_2d(epochs, range)?;
    chart.configure_mesh().x_desc("epoch").x_label_formatter(&|x| format!("{x:.0}")).draw()?;
    let points = values.iter().enumerate().map(|(i, &v)| ((i + 1) as f64, v)).filter(|(_, v)| v.is_finite());
    chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
    Ok(())
}
