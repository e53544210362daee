//! What is measured: the ops of the registry, a launch, and training steps.

use super::training;
use isograd::parity::bench::{self, Bench, call};
use isograd::parity::registry::OPS;

/// Whose time is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The device's for one call, with cold caches.
    Device,
    /// The host's for each of many calls, of which none is waited for.
    Launch,
    /// The host's for each of many calls, with the wait for the last.
    Steps,
}

/// A measurement in the tables that follow: one row a dtype and pass.
#[derive(Clone)]
pub struct Op {
    /// The family.
    pub group: &'static str,
    /// The op, with what distinguishes the measurement from others of it.
    pub name: String,
    pub clock: Clock,
    pub bench: Bench,
}

impl Op {
    fn new(group: &'static str, op: &str, bench: Bench) -> Op {
        let name = if bench.variant.is_empty() { op.into() } else { format!("{op}, {}", bench.variant) };
        Op { group, name, clock: Clock::Device, bench }
    }

    /// The copy and the product that the limits of a device are measured with.
    pub fn ceilings() -> [Op; 2] {
        [("copy_", bench::copy_ceiling()), ("matmul", bench::matrix_ceiling())]
            .map(|(op, bench)| Op::new("ceiling", op, bench))
    }
}

/// All rows.
pub fn all() -> Vec<Op> {
    let of_ops =
        OPS.iter().flat_map(|op| op.bench.iter().map(|bench| Op::new(op.category.name(), op.name, bench.clone())));
    [launch()].into_iter().chain(of_ops).chain(training::all()).collect()
}

fn launch() -> Op {
    let tiny = call(bench::two, |_, x| x[0].add_(&x[1]).map(|()| x[0].clone()));
    Op { clock: Clock::Launch, ..Op::new("launch", "launch overhead", Bench::new(&[1], tiny, |c| c.whole(3))) }
}
