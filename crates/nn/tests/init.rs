//! Initial values: their distributions, and that a seed fixes every bit.

use crate::common::{cpu, values};
use isograd_core::{DType, Kind, Tensor};
use isograd_nn::{Embedding, Fan, Gain, Init, Linear};

fn init() -> Init {
    Init::new(&cpu()).seed(42)
}

/// Mean, deviation, smallest and largest.
fn moments(t: &Tensor) -> (f64, f64, f64, f64) {
    let v = values(t);
    let n = v.len() as f64;
    let mean = v.iter().sum::<f64>() / n;
    let deviation = (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    (mean, deviation, v.iter().cloned().fold(f64::INFINITY, f64::min), v.iter().cloned().fold(f64::MIN, f64::max))
}

/// Bounds of five standard errors, for 120,000 draws.
fn assert_moments(t: &Tensor, mean: f64, deviation: f64) {
    let (m, d, ..) = moments(t);
    let n = t.numel() as f64;
    assert!((m - mean).abs() < 5.0 * deviation / n.sqrt(), "mean {m}, expected {mean}");
    assert!((d / deviation - 1.0).abs() < 8.0 / n.sqrt(), "deviation {d}, expected {deviation}");
}

const SHAPE: (usize, usize) = (300, 400);

#[test]
fn deviations_are_those_of_the_papers() {
    let i = init();
    assert_moments(&i.normal(SHAPE, 1.0, 2.0).unwrap(), 1.0, 2.0);
    assert_moments(&i.uniform(SHAPE, -1.0, 3.0).unwrap(), 1.0, 4.0 / 12f64.sqrt());
    assert_moments(&i.kaiming_normal(SHAPE, Fan::In, Gain::Relu).unwrap(), 0.0, (2.0 / 400f64).sqrt());
    assert_moments(&i.kaiming_uniform(SHAPE, Fan::Out, Gain::Relu).unwrap(), 0.0, (2.0 / 300f64).sqrt());
    assert_moments(&i.xavier_normal(SHAPE, Gain::Linear).unwrap(), 0.0, (2.0 / 700f64).sqrt());
    assert_moments(&i.xavier_uniform(SHAPE, Gain::Tanh).unwrap(), 0.0, 5.0 / 3.0 * (2.0 / 700f64).sqrt());
    // A convolution's window counts with both fans.
    assert_moments(&i.kaiming_normal((40, 30, 10, 10), Fan::In, Gain::Linear).unwrap(), 0.0, (1.0 / 3000f64).sqrt());
    let (.., low, high) = moments(&i.kaiming_uniform(SHAPE, Fan::In, Gain::LeakyRelu(5f64.sqrt())).unwrap());
    let bound = 1.0 / 400f64.sqrt();
    assert!(low >= -bound && low < -0.99 * bound && high <= bound && high > 0.99 * bound, "{low} {high}");
}

#[test]
fn a_truncated_normal_stays_within_and_keeps_its_shape() {
    let t = init().truncated_normal(SHAPE, 1.0, 0.5, 0.0, 2.0).unwrap();
    let (mean, deviation, low, high) = moments(&t);
    assert!(low >= 0.0 && high <= 2.0 && low < 0.01 && high > 1.99, "{low} {high}");
    // A normal cut at two deviations has deviation 0.8796.
    assert!((mean - 1.0).abs() < 0.01 && (deviation / 0.5 - 0.8796).abs() < 0.01, "{mean} {deviation}");
    let far = init().truncated_normal(10, 0.0, 1.0, 50.0, 51.0).unwrap_err();
    assert_eq!((far.op(), far.kind()), ("truncated_normal", Kind::Attr));
    assert_eq!(init().truncated_normal(10, 0.0, 1.0, 1.0, 1.0).unwrap_err().kind(), Kind::Attr);
}

#[test]
fn orthogonal_rows_or_columns() {
    for (rows, columns) in [(5, 9), (9, 5), (6, 6), (1, 4), (4, 1)] {
        let w = init().dtype(DType::F64).orthogonal((rows, columns), Gain::Value(2.0)).unwrap().detach();
        let product = if rows <= columns { w.matmul(&w.t().unwrap()) } else { w.t().unwrap().matmul(&w) }.unwrap();
        let eye = Tensor::eye(rows.min(columns), DType::F64, &cpu()).unwrap().mul_scalar(4.0).unwrap();
        let distance = product.sub(&eye).unwrap().abs().unwrap().amax(..).unwrap().item::<f64>().unwrap();
        assert!(distance < 1e-13, "[{rows}, {columns}]: {distance}");
    }
    assert_eq!(init().orthogonal((3, 2, 2), Gain::Linear).unwrap().dims(), [3, 2, 2]);
    assert_eq!(init().orthogonal(3, Gain::Linear).unwrap_err().kind(), Kind::Shape);
    assert_eq!(init().orthogonal((0, 3), Gain::Linear).unwrap().numel(), 0);
}

#[test]
fn a_seed_fixes_every_bit_and_the_dtype_only_rounds() {
    let all = |i: &Init| -> Vec<Tensor> {
        vec![
            i.normal((3, 5), 0.0, 1.0).unwrap(),
            i.uniform(7, -1.0, 1.0).unwrap(),
            i.truncated_normal((4, 4), 0.0, 1.0, -1.0, 1.0).unwrap(),
            i.orthogonal((4, 3), Gain::Relu).unwrap(),
            Linear::new(3, 2, i).unwrap().weight,
            Embedding::new(3, 2, i).unwrap().weight,
        ]
    };
    let bytes = |t: &Vec<Tensor>| t.iter().map(|t| t.to_bytes().unwrap()).collect::<Vec<_>>();
    assert_eq!(bytes(&all(&init())), bytes(&all(&init())));
    assert_ne!(bytes(&all(&init())), bytes(&all(&init().seed(43))));
    let wide = all(&init().dtype(DType::F64));
    let narrow = all(&init().dtype(DType::F32));
    let rounded: Vec<Tensor> = wide.iter().map(|t| t.cast(DType::F32).unwrap()).collect();
    assert_eq!(bytes(&rounded), bytes(&narrow));
    assert!(narrow.iter().all(Tensor::is_leaf));
}

#[test]
fn linear_starts_as_in_pytorch() {
    let layer = Linear::new(400, 300, &init()).unwrap();
    let bias = layer.bias.unwrap();
    assert_eq!((layer.weight.dims(), bias.dims()), (&[300, 400][..], &[300][..]));
    for t in [&layer.weight, &bias] {
        let (.., low, high) = moments(t);
        assert!(low >= -0.05 && high <= 0.05 && high > 0.049, "{low} {high}");
    }
    assert!(Linear::without_bias(2, 2, &init()).unwrap().bias.is_none());
    assert_eq!(Linear::new(0, 2, &init()).unwrap().weight.numel(), 0);
}

#[test]
fn fans_need_two_dimensions() {
    let error = init().xavier_normal(3, Gain::Linear).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("xavier_normal", Kind::Shape));
    assert_eq!(init().kaiming_uniform((), Fan::In, Gain::Linear).unwrap_err().op(), "kaiming_uniform");
}
