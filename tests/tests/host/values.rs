//! Conversions of values to tensors and back, and the texts of their errors.

use isograd::{DType, Device, Kind, Result, Tensor};

fn cpu() -> Device {
    Device::cpu().unwrap()
}

#[test]
fn a_wrong_number_of_values_is_one_error() {
    let error = Tensor::from_vec(vec![1.0f32; 5], (2, 3), &cpu()).unwrap_err();
    assert_eq!(error.to_string(), "from_vec: Shape: 5 values were given, shape [2, 3] has 6");
}

#[test]
fn elements_become_vectors_and_arrays() -> Result<()> {
    let x = Tensor::from_slice(&[1i64, 2, 3], 3, &cpu())?;
    assert_eq!(Vec::<i64>::try_from(&x)?, [1, 2, 3]);
    assert_eq!(<[i64; 3]>::try_from(&x)?, [1, 2, 3]);
    assert_eq!(<[i64; 2]>::try_from(&x).unwrap_err().kind(), Kind::Shape);
    assert_eq!(<[f32; 3]>::try_from(&x).unwrap_err().kind(), Kind::Dtype);
    Ok(())
}

#[test]
fn elements_are_compared_with_tolerances() -> Result<()> {
    let of = |v: [f32; 3]| Tensor::from_slice(&v, 3, &cpu());
    let x = of([1.0, -200.0, f32::INFINITY])?;
    assert!(x.allclose(&x, 0.0, 0.0)?);
    assert!(x.allclose(&of([1.0, -201.0, f32::INFINITY])?, 0.01, 0.0)?);
    assert!(x.allclose(&of([1.5, -200.0, f32::INFINITY])?, 0.0, 0.5)?);
    for (other, rtol, atol) in [
        ([1.0, -201.0, f32::INFINITY], 0.001, 0.5),
        ([1.0, -200.0, f32::NEG_INFINITY], 1.0, 1.0),
        ([1.0, -200.0, 3.0], 1.0, 1.0),
        ([f32::NAN, -200.0, f32::INFINITY], 1.0, 1.0),
    ] {
        assert!(!x.allclose(&of(other)?, rtol, atol)?, "{other:?}");
    }
    assert_eq!(x.allclose(&x.reshape((1, 3))?, 0.0, 0.0).unwrap_err().kind(), Kind::Shape);
    Ok(())
}

#[test]
fn debug_has_no_elements() -> Result<()> {
    assert_eq!(format!("{:?}", Tensor::ones((2, 3), DType::F32, &cpu())?), format!("f32 [2, 3] on {}", cpu()));
    Ok(())
}

#[test]
fn class_indices_that_are_floats_are_told_so() -> Result<()> {
    let logits = Tensor::zeros((2, 3), DType::F32, &cpu())?;
    let error = logits.cross_entropy(&Tensor::zeros(2, DType::F32, &cpu())?).unwrap_err();
    assert_eq!(error.kind(), Kind::Dtype);
    let expected =
        "the targets are f32 [2]: class indices are i64 or i32, and probabilities have the shape [2, 3] of the logits";
    assert_eq!(error.message(), expected);
    Ok(())
}
