//! How the method of a matrix product follows from a device's limits.

use isograd_core::DType;
use isograd_gpu::Limits;
use isograd_gpu::matmul::{self, Extents, Method};

fn h100() -> Limits {
    Limits {
        name: "H100".into(),
        driver: String::new(),
        memory: 80 << 30,
        max_allocation: 80 << 30,
        max_group: 1024,
        local_memory: 48 << 10,
        given_memory: 48 << 10,
        wave: 32,
        units: 132,
        has_f64: true,
        has_mma: false,
        turns_operands: true,
        has_wgmma: false,
        has_tile_maps: false,
        has_adds: false,
        is_coherent: false,
        has_shared_words: false,
        keeps_arrays: true,
    }
}

#[test]
fn choices_fit_small_devices() {
    for max_group in [64, 128, 256] {
        for local_memory in [32 << 10, 48 << 10] {
            let limits = Limits { max_group, local_memory, ..h100() };
            for (m, n) in [(4096, 4096), (300, 200), (4096, 10), (10, 300), (9, 9), (40, 40)] {
                for acc in [DType::F32, DType::F64] {
                    let plan = matmul::choose(Extents { batches: 1, m, n, k: 1000 }, acc, [true, false], &limits);
                    let Method::Tiles(tile) = plan.method else { panic!("{plan:?}") };
                    let fits = tile.fits(acc, &limits) || acc == DType::F64 && local_memory < 48 << 10;
                    assert!(fits, "{plan:?} for {limits:?}");
                }
            }
        }
    }
}
