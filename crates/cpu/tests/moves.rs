//! Memory, fill, copy, cast.

use crate::common::*;
use isograd_core::{Backend, DType, Element, Kernel, Kind, Layout, bf16, f16};
use isograd_cpu::Cpu;

const INF: f64 = f64::INFINITY;

#[test]
fn memory_is_counted_recycled_and_measured() {
    let cpu = Cpu::default();
    let first = cpu.allocate(10_000).unwrap();
    assert_eq!((cpu.memory().in_use, cpu.memory().peak, cpu.memory().pooled), (10_000, 10_000, 0));
    cpu.upload(&*first, &[3; 10_000]).unwrap();
    drop(first);
    let pooled = cpu.memory().pooled;
    assert!((10_000..10_100).contains(&pooled));
    assert_eq!(cpu.memory().in_use, 0);
    let _again = cpu.allocate(10_000).unwrap();
    assert_eq!(cpu.memory().pooled, 0);
    let _small = cpu.allocate(8).unwrap();
    assert_eq!(cpu.memory().peak, 10_008);
    drop(_again);
    cpu.reset_peak();
    assert_eq!(cpu.memory().peak, 8);
    let mut bytes = [0; 4];
    cpu.upload(&*_small, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    cpu.download(&*_small, 3, &mut bytes).unwrap();
    assert_eq!(bytes, [4, 5, 6, 7]);
    assert_eq!(cpu.download(&*_small, 5, &mut bytes).unwrap_err().kind(), Kind::Backend);
    assert_eq!(cpu.upload(&*_small, &[0; 9]).unwrap_err().kind(), Kind::Backend);
    cpu.synchronize().unwrap();
}

#[test]
fn the_pool_drops_sizes_that_nobody_asks_for() {
    let cpu = Cpu::default();
    drop(cpu.allocate(200 << 20).unwrap());
    drop(cpu.allocate(100 << 20).unwrap());
    assert_eq!(cpu.memory().pooled, 100 << 20);
    drop(cpu.allocate(300 << 20).unwrap());
    assert_eq!(cpu.memory().pooled, 100 << 20);
}

#[test]
fn out_of_memory_says_what_was_asked_and_held() {
    let cpu = Cpu::default();
    let _held = cpu.allocate(1000).unwrap();
    let error = cpu.allocate(isize::MAX as usize).err().unwrap();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    assert!(error.message().contains(&(isize::MAX as usize).to_string()), "{error}");
    assert!(error.message().contains("hold 1000"), "{error}");
    assert_eq!(cpu.memory().in_use, 1000);
}

#[test]
fn fill_writes_every_element_and_no_other() {
    for dtype in DType::ALL {
        for placing in PLACINGS {
            for dims in [&[][..], &[1], &[0], &[3, 0, 2], &[5], &[3, 4], &[2, 1, 3]] {
                let n = dims.iter().product();
                let y = T::placed(dtype, dims, &vec![0.0; n], placing);
                run(Kernel::Fill, &[], &[&y], &[1], &[1.0]);
                assert_same(&y.values(), &vec![1.0; n], (dtype, placing, dims));
                assert!(y.others().iter().all(|&v| v == if dtype == DType::Bool { 1.0 } else { 7.0 }));
            }
        }
    }
    let large = T::out(DType::F32, &[600_000]);
    run(Kernel::Fill, &[], &[&large], &[], &[0.25]);
    assert!(large.values().iter().all(|&v| v == 0.25));
}

#[test]
fn copy_keeps_values_for_all_placings() {
    let mut lcg = Lcg(1);
    for dtype in DType::ALL {
        for (from, to) in PLACINGS.iter().flat_map(|f| PLACINGS.iter().map(move |t| (*f, *t))) {
            for dims in [&[][..], &[1], &[0, 3], &[7], &[3, 4], &[2, 1, 3], &[2, 3, 9, 5], &[33, 40]] {
                let n = dims.iter().product();
                let mut values = lcg.small(n);
                if dtype == DType::Bool {
                    values.iter_mut().for_each(|v| *v = (*v != 0.0) as u8 as f64);
                }
                let x = T::placed(dtype, dims, &values, from);
                let y = T::placed(dtype, dims, &vec![0.0; n], to);
                run(Kernel::Copy, &[&x], &[&y], &[], &[]);
                assert_same(&y.values(), &values, (dtype, from, to, dims));
                assert!(y.others().iter().all(|&v| v == if dtype == DType::Bool { 1.0 } else { 7.0 }));
            }
        }
    }
}

#[test]
fn copy_of_large_views() {
    let values: Vec<f64> = (0..300 * 400).map(|i| i as f64).collect();
    let transposed: Vec<f64> = (0..300 * 400).map(|i| ((i % 300) * 400 + i / 300) as f64).collect();
    let x = T::new(DType::F32, &[300, 400], &values).with(|l| l.transpose(0, 1));
    let y = T::out(DType::F32, &[400, 300]);
    run(Kernel::Copy, &[&x], &[&y], &[], &[]);
    assert_same(&y.values(), &transposed, "transposed");
    // A batch of transposed matrices, and rows repeated by stride 0.
    let x = T::new(DType::I32, &[40, 60, 50], &values).with(|l| l.transpose(1, 2));
    let y = T::out(DType::I32, &[40, 50, 60]);
    run(Kernel::Copy, &[&x], &[&y], &[], &[]);
    assert_same(&y.values(), &x.values(), "batch");
    let x = T::new(DType::F16, &[1, 70], &vec![0.5; 70]).expand(&[1000, 70]);
    let y = T::out(DType::F16, &[1000, 70]);
    run(Kernel::Copy, &[&x], &[&y], &[], &[]);
    assert!(y.values().iter().all(|&v| v == 0.5));
}

#[test]
fn copy_is_bit_for_bit() {
    let x = T::new(DType::F32, &[2], &[0.0, 0.0]);
    let bits = [0x7FA0_1234u32, 0x8000_0000].map(u32::to_ne_bytes).concat();
    CPU.upload(&*x.memory, &bits).unwrap();
    let y = T::out(DType::F32, &[2]);
    run(Kernel::Copy, &[&x], &[&y], &[], &[]);
    assert_eq!(y.bytes(), bits);
}

#[test]
fn cast_between_all_dtypes() {
    let values = [0.0, 1.0, 3.0, 100.0];
    for from in DType::ALL {
        for to in DType::ALL {
            for placing in PLACINGS {
                let x = T::placed(from, &[2, 2], &values, placing);
                let y = T::out(to, &[2, 2]);
                run(Kernel::Cast, &[&x], &[&y], &[], &[]);
                let truth = [0.0, 1.0, 1.0, 1.0];
                let expected = if from == DType::Bool || to == DType::Bool { truth } else { values };
                assert_same(&y.values(), &expected, (from, to, placing));
            }
            let (x, y) = (T::out(from, &[0]), T::out(to, &[0]));
            run(Kernel::Cast, &[&x], &[&y], &[], &[]);
        }
    }
}

fn cast(from: DType, to: DType, values: &[f64]) -> Vec<f64> {
    let y = T::out(to, &[values.len()]);
    run(Kernel::Cast, &[&T::new(from, &[values.len()], values)], &[&y], &[], &[]);
    y.values()
}

#[test]
fn cast_of_special_values() {
    let odd = [f64::NAN, INF, -INF, -0.0, 1e30, -1e30, 2.9, -2.9];
    for from in [DType::F64, DType::F32] {
        assert_same(&cast(from, DType::Bool, &odd), &[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], from);
        let (lo, hi) = (i32::MIN as f64, i32::MAX as f64);
        assert_same(&cast(from, DType::I32, &odd), &[0.0, hi, lo, 0.0, hi, lo, 2.0, -2.0], from);
        let (lo, hi) = (i64::MIN as f64, i64::MAX as f64);
        assert_same(&cast(from, DType::I64, &odd), &[0.0, hi, lo, 0.0, hi, lo, 2.0, -2.0], from);
        assert_same(&cast(from, DType::U8, &odd), &[0.0, 255.0, 0.0, 0.0, 255.0, 0.0, 2.0, 0.0], from);
        let big = [f64::NAN, INF, -INF, 1e30, -1e30, 65504.0, 65519.0, 65520.0, 6e-8, 2e-8];
        let small = 2f64.powi(-24);
        let expected = [f64::NAN, INF, -INF, INF, -INF, 65504.0, 65504.0, INF, small, 0.0];
        assert_same(&cast(from, DType::F16, &big), &expected, from);
        assert_same(&cast(from, DType::BF16, &[f64::NAN, INF, -INF]), &[f64::NAN, INF, -INF], from);
    }
    assert_same(&cast(DType::F64, DType::BF16, &[3.4e38, 1e39, -1e300]), &[INF, INF, -INF], "bf16");
    assert_same(&cast(DType::I64, DType::I32, &[4294967297.0, -1.0]), &[1.0, -1.0], "wraps");
    assert_same(&cast(DType::I32, DType::U8, &[257.0, -1.0]), &[1.0, 255.0], "wraps");
}

#[test]
fn f64_rounds_to_16_bits_once() {
    // Just above, at and below the middle of two neighbours, closer than f32 can tell.
    let tiny = 2f64.powi(-50);
    let half = [2f64.powi(-11), 3.0 * 2f64.powi(-11)];
    let x = [1.0 + half[0] + tiny, 1.0 + half[0], 1.0 + half[0] - tiny, 1.0 + half[1] + tiny, 1.0 + half[1] - tiny];
    let step = 2f64.powi(-10);
    let expected = [1.0 + step, 1.0, 1.0, 1.0 + 2.0 * step, 1.0 + step];
    assert_same(&cast(DType::F64, DType::F16, &x), &expected, "f16");
    let negative = |v: &[f64]| v.iter().map(|v| -v).collect::<Vec<_>>();
    assert_same(&cast(DType::F64, DType::F16, &negative(&x)), &negative(&expected), "-f16");
    let half = 2f64.powi(-8);
    let x = [1.0 + half + tiny, 1.0 + half, 1.0 + half - tiny, 1.0 + 3.0 * half + tiny, 1.0 + 3.0 * half - tiny];
    let step = 2f64.powi(-7);
    let expected = [1.0 + step, 1.0, 1.0, 1.0 + 2.0 * step, 1.0 + step];
    assert_same(&cast(DType::F64, DType::BF16, &x), &expected, "bf16");
    assert_same(&cast(DType::F64, DType::BF16, &negative(&x)), &negative(&expected), "-bf16");
}

#[test]
fn f32_rounds_to_16_bits_as_the_types_do() {
    // Every exponent with mantissas around the rounding boundaries.
    let bits = (0..=255u32).flat_map(|e| {
        [0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7F_FFFF].map(|m| e << 23 | m)
    });
    let x: Vec<f32> = bits.flat_map(|b| [b, b | 1 << 31]).map(f32::from_bits).collect();
    let mut bytes = Vec::new();
    f32::extend_bytes(&x, &mut bytes);
    let source = T::out(DType::F32, &[x.len()]);
    CPU.upload(&*source.memory, &bytes).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let y = T::out(dtype, &[x.len()]);
        run(Kernel::Cast, &[&source], &[&y], &[], &[]);
        let round = |v: f32| match dtype {
            DType::F16 => f16::from_f32(v).to_f64(),
            _ => bf16::from_f32(v).to_f64(),
        };
        assert_same(&y.values(), &x.iter().map(|&v| round(v)).collect::<Vec<_>>(), dtype);
        // And back, with strides too.
        let wide = T::out(DType::F32, &[x.len()]);
        run(Kernel::Cast, &[&y], &[&wide], &[], &[]);
        assert_same(&wide.values(), &y.values(), dtype);
        let every_other: Layout = y.layout.narrow(0, 0, x.len() / 2, 2);
        let y = y.with(|_| every_other);
        let wide = T::out(DType::F64, &[x.len() / 2]);
        run(Kernel::Cast, &[&y], &[&wide], &[], &[]);
        assert_same(&wide.values(), &y.values(), dtype);
    }
}
