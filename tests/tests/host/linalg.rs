//! Decompositions of singular matrices, as their documents describe them.

use isograd::linalg::slogdet;
use isograd::{Device, Result, Tensor};

#[test]
fn slogdet_of_a_singular_f32_matrix() -> Result<()> {
    let of = |rows: &[f32], n: usize| -> Result<(f32, f32)> {
        let (sign, log) = slogdet(&Tensor::from_slice(rows, (n, n), &Device::cpu()?)?)?;
        Ok((sign.item()?, log.item()?))
    };
    // Its pivots are 4 and 0.
    assert_eq!(of(&[1.0, 2.0, 2.0, 4.0], 2)?, (0.0, f32::NEG_INFINITY));
    // Factors of thirds are rounded, and with them the last pivot.
    let (sign, log) = of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 3)?;
    assert!(sign.abs() == 1.0 && log.is_finite() && log < -30.0, "{sign} and {log}");
    Ok(())
}
