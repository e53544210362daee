//! Clipping by norm and by value.

use crate::common::{assert_close, cpu, parameter, set_grad, values};
use isograd_core::{DType, Kind, Tensor};
use isograd_nn::{clip_grad_norm, clip_grad_norm_finite, clip_grad_value, grad_norm};

fn with_gradients(gradients: &[&[f64]], dtype: DType) -> Vec<Tensor> {
    let one = |g: &&[f64]| {
        let p = parameter(&vec![0.0; g.len()], dtype);
        set_grad(&p, g);
        p
    };
    gradients.iter().map(one).collect()
}

fn gradients(parameters: &[Tensor]) -> Vec<f64> {
    parameters.iter().flat_map(|p| values(&p.grad().unwrap())).collect()
}

#[test]
fn golden_values_of_pytorch() {
    let p = with_gradients(&[&[3.0, 4.0], &[0.0]], DType::F64);
    assert_eq!(clip_grad_norm(&p, 1.0, 2.0).unwrap().item::<f64>().unwrap(), 5.0);
    // 1 / (5 + 1e-6)
    assert_close(&gradients(&p), &[3.0 / 5.000001, 4.0 / 5.000001, 0.0], 1e-14);
    let p = with_gradients(&[&[0.3, 0.4]], DType::F64);
    assert_close(&[clip_grad_norm(&p, 1.0, 2.0).unwrap().item::<f64>().unwrap()], &[0.5], 1e-15);
    assert_eq!(gradients(&p), [0.3, 0.4]);
}

#[test]
fn other_norms() {
    let p = with_gradients(&[&[3.0, -4.0], &[2.0], &[]], DType::F32);
    let norm = |kind: f64| grad_norm(&p, kind).unwrap().item::<f64>().unwrap();
    assert_eq!((norm(1.0), norm(f64::INFINITY)), (9.0, 4.0));
    assert!((norm(2.0) - 29f64.sqrt()).abs() < 1e-6);
    assert_close(&[norm(3.0), norm(0.5)], &[99f64.cbrt(), (3f64.sqrt() + 2.0 + 2f64.sqrt()).powi(2)], 1e-5);
    let large = with_gradients(&[&[3e25, -4e25], &[0.0]], DType::F32);
    let share = grad_norm(&large, 3.0).unwrap().item::<f64>().unwrap() / 1e25;
    assert!((share - 91f64.cbrt()).abs() < 1e-5, "{share}");
    let zeros = with_gradients(&[&[0.0, 0.0]], DType::F32);
    assert_eq!(grad_norm(&zeros, 3.0).unwrap().item::<f64>().unwrap(), 0.0);
    clip_grad_norm(&p, 1.0, f64::INFINITY).unwrap();
    assert_close(&gradients(&p), &[0.75, -1.0, 0.5], 1e-6);
    for kind in [0.0, -1.0, f64::NAN] {
        assert_eq!(clip_grad_norm(&p, 1.0, kind).unwrap_err().kind(), Kind::Attr);
    }
    for max in [-1.0, f64::NAN] {
        let error = clip_grad_norm(&p, max, 2.0).unwrap_err();
        assert_eq!((error.op(), error.kind()), ("clip_grad_norm", Kind::Attr));
    }
}

#[test]
fn nan_and_infinity() {
    let p = with_gradients(&[&[1.0, f64::NAN], &[2.0]], DType::F32);
    assert!(clip_grad_norm_finite(&p, 1.0, 2.0).unwrap_err().message().contains("NaN"));
    assert_eq!(gradients(&p)[2], 2.0);
    assert!(clip_grad_norm(&p, 1.0, 2.0).unwrap().item::<f64>().unwrap().is_nan());
    assert!(gradients(&p).iter().all(|g| g.is_nan()));
    let p = with_gradients(&[&[1.0, f64::INFINITY], &[2.0]], DType::F32);
    assert_eq!(clip_grad_norm(&p, 1.0, 2.0).unwrap().item::<f64>().unwrap(), f64::INFINITY);
    let got = gradients(&p);
    assert!(got[0] == 0.0 && got[1].is_nan() && got[2] == 0.0, "{got:?}");
}

#[test]
fn squares_of_16_bit_gradients_do_not_overflow() {
    for dtype in [DType::F16, DType::BF16] {
        let p = with_gradients(&[&[30000.0, 40000.0]], dtype);
        let norm = clip_grad_norm(&p, 5.0, 2.0).unwrap();
        assert_eq!(norm.dtype(), DType::F32);
        assert!((norm.item::<f64>().unwrap() / 50000.0 - 1.0).abs() < 0.01);
        assert_close(&gradients(&p), &[3.0, 4.0], 0.01);
    }
}

#[test]
fn without_gradients_the_norm_is_0() {
    let none: [Tensor; 0] = [];
    assert_eq!(clip_grad_norm(&none, 1.0, 2.0).unwrap().item::<f64>().unwrap(), 0.0);
    let p = [parameter(&[1.0], DType::F64)];
    assert_eq!(clip_grad_norm(&p, 1.0, 2.0).unwrap().item::<f64>().unwrap(), 0.0);
    assert!(p[0].grad().is_none());
}

#[test]
fn by_value() {
    let p = with_gradients(&[&[-3.0, 0.5, f64::NAN, f64::INFINITY]], DType::F32);
    clip_grad_value(&p, 1.0).unwrap();
    let got = gradients(&p);
    assert_eq!((got[0], got[1], got[3]), (-1.0, 0.5, 1.0));
    assert!(got[2].is_nan());
    assert_eq!(clip_grad_value(&p, -1.0).unwrap_err().kind(), Kind::Attr);
}

#[test]
fn a_gradient_is_clipped_that_two_parameters_had_in_common() {
    let (a, b) = (parameter(&[1.0], DType::F32), parameter(&[2.0], DType::F32));
    a.add(&b).unwrap().sum(..).unwrap().mul_scalar(10.0).unwrap().backward().unwrap();
    clip_grad_value(std::slice::from_ref(&a), 1.0).unwrap();
    assert_eq!((values(&a.grad().unwrap()), values(&b.grad().unwrap())), (vec![1.0], vec![10.0]));
    assert_eq!(a.grad().unwrap().device(), &cpu());
}

#[test]
fn a_parameter_listed_twice_is_an_error() {
    let p = parameter(&[1.0, 2.0], DType::F32);
    set_grad(&p, &[3.0, 4.0]);
    let list = [p.clone(), p.clone()];
    for error in [
        clip_grad_norm(&list, 1.0, 2.0).map(drop),
        clip_grad_norm_finite(&list, 1.0, 2.0).map(drop),
        grad_norm(&list, 2.0).map(drop),
        clip_grad_value(&list, 1.0),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), Kind::Value, "{error}");
        assert!(error.message().contains("twice"), "{error}");
        assert_eq!(values(&p.grad().unwrap()), [3.0, 4.0]);
    }
}
