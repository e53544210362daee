//! Rows of the pointwise table one by one.

use super::{Case, fill, integers};
use isograd_core::Tensor;
use isograd_core::pointwise::{Domain, Pointwise, evaluate};

const INSIDE: [f64; 2] = [0.05, 0.95];
const ANY: [f64; 2] = [-3.0, 3.0];

pub fn cases() -> Vec<Case> {
    let runs_on = |domain: Domain, row: &&Pointwise| [domain, Domain::Any].contains(&row.domain());
    let reals = Pointwise::ALL.iter().filter(|row| runs_on(Domain::Real, row)).map(|&row| real(row));
    reals.chain(Pointwise::ALL.iter().filter(|row| runs_on(Domain::Integer, row)).map(|&row| integer(row))).collect()
}

fn real(row: Pointwise) -> Case {
    let of = |range| (0..row.inputs()).map(|k| fill((4, 50), k, range)).collect::<Vec<_>>();
    let attributes: Vec<f64> = (1..=row.attributes()).map(|i| 0.25 * i as f64).collect();
    let case = Case::new(format!("row_{}", row.name()), of(INSIDE), move |x| evaluate(row, x, &attributes));
    if row.is_checked() {
        return case;
    }
    // Whole numbers, of which many are 0 or equal.
    let whole = of(ANY).iter().map(|x| x.round().expect("floats round")).collect();
    case.run(of(ANY)).run(whole)
}

/// Positive operands, and a first one of any sign.
fn integer(row: Pointwise) -> Case {
    let of = |first: i64| -> Vec<Tensor> {
        let one = |k| integers((4, 50), k, 9).add_scalar(if k == 0 { first } else { 1 }).expect("integers add");
        (0..row.inputs()).map(one).collect()
    };
    // Bounds that include all operands.
    let attributes: Vec<f64> = (1..=row.attributes()).map(|i| 10.0 * i as f64).collect();
    let name = format!("row_{}_i64", row.name());
    let case = Case::new(name, of(-1), move |x| evaluate(row, x, &attributes)).run(of(1));
    // A row that checks its operands may refuse those below -1.
    if row.is_checked() { case } else { case.run(of(-9)) }
}
