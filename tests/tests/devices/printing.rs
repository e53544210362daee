//! How tensors print on every device: exact integers, brackets, long tensors by their ends, and what cannot be read.

use isograd::{DType, Device, Element, Result, Shape, Tensor};
use isograd_tests::harness::{text, trial};
use libtest_mimic::Trial;

type Checked = std::result::Result<(), String>;

pub fn trials(device: &Device) -> Vec<Trial> {
    let check = |aspect: &str, run: fn(&Device) -> Checked| {
        let at = device.clone();
        trial(device, "printing", aspect, move || run(&at))
    };
    vec![
        check("integers_keep_all_digits", integers),
        check("small_and_large_floats_have_exponents", floats),
        check("brackets_and_blank_lines_show_the_dimensions", brackets),
        check("long_tensors_show_their_ends", long),
        check("a_captured_step_prints_that_it_is_not_readable", captured),
    ]
}

/// Errors unless the elements print like this, below the line with dtype, shape and device.
fn expect(t: &Tensor, elements: &str) -> Checked {
    let printed = t.to_string();
    let expected = format!("{} {} on {}\n{elements}", t.dtype(), t.shape(), t.device());
    if printed == expected { Ok(()) } else { Err(format!("printed\n{printed}\nexpected\n{expected}")) }
}

fn expect_values<T: Element>(device: &Device, values: &[T], shape: impl Into<Shape>, elements: &str) -> Checked {
    expect(&Tensor::from_slice(values, shape, device).map_err(text)?, elements)
}

fn integers(device: &Device) -> Checked {
    let wide = [(1i64 << 53) + 1, i64::MAX, i64::MIN, 0];
    expect_values(
        device,
        &wide,
        4,
        "[    9007199254740993,  9223372036854775807, -9223372036854775808,\n                    0]",
    )?;
    expect_values(device, &[i32::MIN, 7], 2, "[-2147483648,           7]")?;
    expect_values(device, &[0u8, 255], 2, "[  0, 255]")?;
    expect_values(device, &[true, false], 2, "[ true, false]")?;
    expect_values(device, &[i64::MAX], (), "9223372036854775807")
}

fn floats(device: &Device) -> Checked {
    expect_values(device, &[1e-8f32], (), "1.0000e-08")?;
    expect_values(device, &[1e30f32, 1.0], 2, "[1.0000e+30, 1.0000e+00]")?;
    expect_values(device, &[0.5f32, -0.25, 100.0], 3, "[  0.5000,  -0.2500, 100.0000]")?;
    expect_values(device, &[1f32, -2.0, 0.0], 3, "[ 1., -2.,  0.]")?;
    expect_values(device, &[f32::NAN, f32::INFINITY, -1.5], 3, "[    nan,     inf, -1.5000]")?;
    expect_values(device, &[f32::NAN, f32::NEG_INFINITY, 0.0], 3, "[ nan, -inf,   0.]")?;
    let half = Tensor::from_slice(&[65504f32, 0.1], 2, device).and_then(|t| t.cast(DType::F16)).map_err(text)?;
    expect(&half, "[6.5504e+04, 9.9976e-02]")
}

fn brackets(device: &Device) -> Checked {
    let values: Vec<i64> = (0..12).collect();
    expect_values(
        device,
        &values,
        (2, 2, 3),
        "[[[ 0,  1,  2],\n  [ 3,  4,  5]],\n\n [[ 6,  7,  8],\n  [ 9, 10, 11]]]",
    )?;
    let columns = Tensor::from_slice(&values[..6], (2, 3), device).and_then(|t| t.t()).map_err(text)?;
    expect(&columns, "[[0, 3],\n [1, 4],\n [2, 5]]")?;
    expect_values::<f32>(device, &[], (0, 3), "[]")?;
    expect_values::<f32>(device, &[], (3, 0), "[]")
}

fn long(device: &Device) -> Checked {
    let values: Vec<i64> = (0..1200).collect();
    let row = Tensor::from_slice(&values, 1200, device).map_err(text)?;
    expect(&row, "[   0,    1,    2,  ..., 1197, 1198, 1199]")?;
    let matrix = row.reshape((200, 6)).map_err(text)?;
    let line = |i: i64| format!("[{}]", (6 * i..6 * i + 6).map(|v| format!("{v:4}")).collect::<Vec<_>>().join(", "));
    let rows = [0, 1, 2, 197, 198, 199].map(line);
    expect(&matrix, &format!("[{},\n ...,\n {}]", rows[..3].join(",\n "), rows[3..].join(",\n ")))?;
    // A leaf of the tape, not contiguous.
    let wide = row.cast(DType::F32).and_then(|t| t.add_scalar(2.0)?.reshape((4, 300))?.t()?.require_grad());
    let printed = wide.map_err(text)?.to_string();
    let expected =
        "[[   2.,  302.,  602.,  902.],\n [   3.,  303.,  603.,  903.],\n [   4.,  304.,  604.,  904.],\n ...,";
    if printed.contains(expected) { Ok(()) } else { Err(printed) }
}

fn captured(device: &Device) -> Checked {
    let printed = std::cell::RefCell::new(Vec::new());
    // So long that only the ends would be read.
    let mut step = device.capture(|x: Tensor| {
        printed.borrow_mut().push(format!("{x} and {x:?}"));
        x.neg()
    });
    let x = Tensor::ones(2000, DType::F32, device).map_err(text)?;
    let run: Result<Vec<_>> = (0..3).map(|_| step.run(x.clone())?.to_vec::<f32>()).collect();
    if run.map_err(text)?.iter().flatten().any(|v| *v != -1.0) {
        return Err("printing has changed the step".into());
    }
    drop(step);
    let what = format!("f32 [2000] on {device}");
    let once = format!("{what} (not readable: a captured step waits for the device here");
    let short = format!(" and {what}");
    match printed.into_inner().iter().find(|printed| !printed.starts_with(&once) || !printed.ends_with(&short)) {
        Some(printed) => Err(printed.clone()),
        None => Ok(()),
    }
}
